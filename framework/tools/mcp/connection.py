"""A connection to an MCP server that is made again when it is lost: one task owns it, calls run in tasks of their own.

Learnt from the SDK's behaviour: a client is entered and left in one task; a failure of HTTP cancels the task inside it,
so nobody's call may run there; it is stopped by a scope, as native cancellation defeats its shields; connecting has no
deadline but the one set here.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import anyio
import httpx2
from mcp import Client, MCPError
from mcp import types as wire
from mcp.client import session
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import baggage
from opentelemetry.context import attach

from framework.tools.mcp.errors import (
    UNINFORMATIVE_MESSAGES,
    ConnectionLost,
    NotConnected,
    SessionExpired,
    describe_error,
    first_error,
    mask_secrets,
)
from framework.tools.mcp.telemetry import McpMetrics, trace_failure
from framework.tools.mcp.transports import http_transport, stdio_transport
from framework.types.backoff import backoff
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_STABLE_SECONDS = 30.0
"""Seconds a connection must last for the next one to be tried at once."""
_UNKNOWN_SESSION_STATUSES = {400, 404}
"""HTTP statuses of a server that no longer knows the session."""
_CLOSE_SECONDS = 5.0
"""Seconds for leaving a connection that is lost or no longer wanted."""
_CLIENT_INFO = wire.Implementation(name="agentsd", version="1")
_NOISY_LOGGERS = ("mcp.client", "mcp.shared")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionCallbacks:
    """Called in the event loop."""

    on_tools_changed: Callable[[], None]
    """The tools may not be what they were: there is a connection, or the server says so."""
    on_disconnect: Callable[[str], None]
    """No connection, with the reason: could not be made, or was lost."""


class McpConnection:
    """Connects, and connects again, until it is closed."""

    def __init__(self, name: str, server: McpServer, callbacks: ConnectionCallbacks, metrics: McpMetrics) -> None:
        self._name, self._server, self._callbacks, self._metrics = name, server, callbacks, metrics
        self._scope = anyio.CancelScope()
        self._owner: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[object]] = set()
        self._client: Client | None = None
        self._ready, self._gone, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._reason = "it was not connected yet"
        self._status: int | None = None

    def start(self) -> None:
        """Begin to connect."""
        _silence_sdk_loggers()
        # In an empty context: what whoever starts it is doing, its span above all, is over before the next reconnect.
        self._owner = asyncio.create_task(self._own(), context=contextvars.Context())

    async def close(self) -> None:
        """Disconnect; a child process is gone afterwards."""
        self._closing.set()
        if self._owner is None:
            return
        if self._ready.is_set():
            self._gone.set()
            await asyncio.wait({self._owner}, timeout=_CLOSE_SECONDS)
        self._scope.cancel()
        await asyncio.wait({self._owner, *self._calls})

    def drop(self, reason: str) -> None:
        """Give this connection up; the next one is made."""
        if not self._gone.is_set():
            self._reason = mask_secrets(reason, self._server)
            self._gone.set()
        self._ready.clear()

    def describe(self, error: BaseException) -> str:
        """What to say of an error."""
        return describe_error(error, self._server, self._status)

    async def request(self, send: Callable[[Client], Awaitable[T]], *, wait: float, timeout: float) -> T:
        """Ask the server for something.

        Args:
            send: does it, in a task of its own that is cancelled when nobody waits any longer.
            wait: seconds for a connection, if there is none.
            timeout: seconds for the answer.

        Raises:
            Unavailable: no connection; Lost, Refused: not any more.
            TimeoutError: no answer in time.
            MCPError: the server's answer is an error; or whatever else `send` raises.
        """
        try:
            async with asyncio.timeout(wait):
                await self._ready.wait()
        except TimeoutError:
            raise NotConnected(self._reason) from None
        client, gone = self._client, self._gone
        if client is None:  # lost again in the same moment
            raise NotConnected(self._reason)
        task = asyncio.create_task(_send_without_baggage(send, client))
        self._calls.add(task)
        task.add_done_callback(self._done)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout)
        finally:
            task.cancel()
        if not done:
            raise TimeoutError
        return self._outcome(task, gone)

    def _outcome(self, task: asyncio.Task[T], gone: asyncio.Event) -> T:
        failure = None if task.cancelled() else task.exception()
        if not task.cancelled() and failure is None:
            return task.result()
        error = failure and first_error(failure)
        refused = self._session_is_forgotten(error)
        if error is None or refused or _means_closed(error):
            if gone is self._gone:
                self.drop("the connection was lost" if error is None else self.describe(error))
            raise (SessionExpired if refused else ConnectionLost)(self._reason) from error
        raise error

    def _session_is_forgotten(self, error: BaseException | None) -> bool:
        """Whether a server over HTTP was started anew: it says so in one of several ways, and did not do anything."""
        if not isinstance(error, MCPError):
            return False
        vague = error.message in UNINFORMATIVE_MESSAGES or error.code == wire.CONNECTION_CLOSED
        return error.message == "Session terminated" or (vague and self._status in _UNKNOWN_SESSION_STATUSES)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # of a call nobody waits for: seen

    async def _own(self) -> None:
        failures = 0
        with self._scope:
            while not self._closing.is_set():
                began = anyio.current_time()
                await self._connect()
                if self._closing.is_set():
                    return
                self._callbacks.on_disconnect(self._reason)
                failures = 0 if anyio.current_time() - began > _STABLE_SECONDS else failures
                with anyio.move_on_after(_reconnect_delay(failures)):
                    await self._closing.wait()
                failures += 1

    async def _connect(self) -> None:
        """One connection, from its beginning to its end."""
        self._gone, self._status = asyncio.Event(), None
        try:
            with anyio.CancelScope() as attempt:  # the SDK may cancel it: that must end here
                attempt.deadline = anyio.current_time() + self._server.connect_timeout
                async with AsyncExitStack() as stack:
                    with self._metrics.request("initialize"), trace_failure("mcp.connect", self._name, self._server):
                        client = await stack.enter_async_context(
                            Client(
                                self._transport(),
                                cache=None,
                                message_handler=self._on_message,
                                client_info=_CLIENT_INFO,
                            )
                        )
                    attempt.deadline = float("inf")
                    with self._metrics.session():
                        await self._serve(client)
                    attempt.deadline = anyio.current_time() + _CLOSE_SECONDS
            if attempt.cancelled_caught and not self._gone.is_set():
                self.drop(f"it did not answer within {self._server.connect_timeout:g} s (its `connect_timeout`)")
        except Exception as failure:  # noqa: BLE001 - whatever ends a connection, the next one is tried
            error = first_error(failure)
            self.drop(self.describe(error))
            if isinstance(error, httpx2.TransportError):  # a call noticed that it is lost, but this is why
                self._reason = self.describe(error)
        finally:
            self._ready.clear()
            self._client = None

    async def _serve(self, client: Client) -> None:
        self._client, self._status = client, None  # what it refused while the protocol was found out is no matter
        self._ready.set()
        self._callbacks.on_tools_changed()
        listening = asyncio.create_task(self._listen(client))
        try:
            await self._gone.wait()
        finally:
            self._ready.clear()
            listening.cancel()

    async def _listen(self, client: Client) -> None:
        """Keep the stream open on which servers of the modern protocol tell of changes; `_on_message` gets them too."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        lost = 0
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._callbacks.on_tools_changed()  # what was missed while nobody listened
                    async for _ in changes:
                        pass
            except SubscriptionLost:
                pass  # or ended in order: either way it is opened again
            except (MCPError, RuntimeError, anyio.ClosedResourceError):
                return  # it does not tell; or the connection is lost, which others notice
            await asyncio.sleep(_reconnect_delay(lost))
            lost += 1

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, wire.ToolListChangedNotification):
            self._callbacks.on_tools_changed()

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        if self._server.command:
            return stdio_transport(self._server, self.drop)
        return http_transport(self._server, self._record_status)

    def _record_status(self, status: int) -> None:
        self._status = status


def _means_closed(error: BaseException) -> bool:
    """Whether an error is the connection's. The code alone says nothing: servers use it for errors of theirs."""
    if isinstance(error, MCPError):
        return error.code == wire.CONNECTION_CLOSED and error.message == "Connection closed"
    return isinstance(error, (httpx2.TransportError, anyio.ClosedResourceError))


def _reconnect_delay(failures: int) -> float:
    """Seconds to wait after so many failures; not the same for every connection, or all come back at once."""
    return backoff(failures, base=0.2, cap=30.0, spread=0.2)


async def _send_without_baggage(send: Callable[[Client], Awaitable[T]], client: Client) -> T:
    """The SDK sends the trace's context along; what else the host carries in it is none of the server's business."""
    attach(baggage.clear())
    return await send(client)


def _silence_sdk_loggers() -> None:
    """The SDK logs a traceback for each odd thing that a server sends; what matters becomes a fault here."""
    for name in _NOISY_LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
    logging.getLogger("client").addFilter(_not_of_sdk)  # one of its loggers has a name that a host may use too


def _not_of_sdk(record: logging.LogRecord) -> bool:
    return record.pathname != session.__file__
