"""A connection to one MCP server, and the client that lists and calls its tools."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpx2
from mcp import Client, MCPError
from mcp import types as wire
from mcp.client import Transport, session
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import baggage
from opentelemetry.context import attach
from pydantic import TypeAdapter, ValidationError

from framework.tools.mcp.content import (
    CLOSE_SECONDS,
    UNINFORMATIVE_MESSAGES,
    CallResult,
    ConnectionLost,
    InputRequested,
    McpMetrics,
    NotConnected,
    OpenCalls,
    RequestFailed,
    ServerQuestions,
    SessionExpired,
    describe_error,
    first_error,
    mask_secrets,
    prompt_text,
    resource_text,
    retrieve,
    tool_output,
    trace_failure,
    truncate,
)
from framework.tools.mcp.login import Login, LoginAuth, ask_for_login, wait_for_login
from framework.tools.mcp.transports import http_transport, stdio_transport, tool_by_tool
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from framework.types.http import backoff
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT


_STABLE_SECONDS = 30.0
"""Duration of a connection, in seconds, after which the backoff starts again from its first delay."""
_UNKNOWN_SESSION_STATUSES = {400, 404}
"""HTTP statuses of a server that does not know the session (any longer)."""
_UNKNOWN_SESSION_MESSAGES = {"Session terminated", "Session not found"}
"""What the SDK says in this case, as a client and as a server."""
_CLIENT_INFO = wire.Implementation(name="agentsd", version="1")
_LOGIN_POLL_SECONDS = 1.0
"""Delay between two checks whether someone has logged in, in seconds."""
_NOISY_LOGGERS = ("mcp.client", "mcp.shared")

T = TypeVar("T")
Page = TypeVar("Page", wire.ListToolsResult, wire.ListResourcesResult)


@dataclass(frozen=True, slots=True)
class ConnectionCallbacks:
    """Callbacks of a connection, called in the event loop."""

    on_tools_changed: Callable[[], None]
    """Called when the tools may have changed: after connecting, or when the server reports it."""
    on_disconnect: Callable[[str], None]
    """Called with the reason when connecting failed or the connection was lost."""


class McpConnection:
    """A connection that reconnects until it is closed."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        callbacks: ConnectionCallbacks,
        metrics: McpMetrics,
        elicit: ElicitationFnT | None,
        login: Login | None,
    ) -> None:
        self._name, self._server, self._callbacks, self._metrics = name, server, callbacks, metrics
        self._elicit, self._login = elicit, login
        self._scope = anyio.CancelScope()
        self._owner: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[object]] = set()
        self._client: Client | None = None
        self._ready, self._gone, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._reason = "it has not connected yet"
        self._status: int | None = None
        self.invalid_tools: dict[str, str] = {}
        """Tools that were left out of the lists received, and why; the caller clears it before it lists the tools."""

    def start(self) -> None:
        """Start connecting in the background."""
        _silence_sdk_loggers()
        # In an empty context: the caller's context, such as its span, ends before later reconnects.
        self._owner = asyncio.create_task(self._own(), context=contextvars.Context())

    async def close(self) -> None:
        """Disconnect. A child process has ended afterwards."""
        self._closing.set()
        if self._owner is None:
            return
        if self._ready.is_set():
            self._gone.set()
            await asyncio.wait({self._owner}, timeout=CLOSE_SECONDS)
        self._scope.cancel()
        await asyncio.wait({self._owner, *self._calls})

    def drop(self, reason: str) -> None:
        """Drop the current connection and reconnect."""
        if not self._gone.is_set():
            self._reason = mask_secrets(reason, self._server)
            self._gone.set()
        self._ready.clear()

    @property
    def is_modern(self) -> bool:
        """Whether the server asks questions in its answers, not while a call is open. False without a connection."""
        return self._client is not None and self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def needs_login(self) -> bool:
        """Whether the server has refused the last request for lack of a login."""
        return self._login is not None and self._login.is_needed

    def describe(self, error: BaseException) -> str:
        """Describe an error without secrets."""
        if self._login is not None and self._login.is_needed:
            return f"it needs a login: run `{self._login.command}`"
        return describe_error(error, self._server, self._status)

    async def request(self, send: Callable[[Client], Awaitable[T]], *, wait: float, timeout: float) -> T:
        """Send a request and return the answer.

        Args:
            send: sends the request. Runs in a separate task that is cancelled with the caller.
            wait: time to wait for a connection, in seconds.
            timeout: time limit for the answer, in seconds.

        Raises:
            NotConnected: there is no connection; ConnectionLost or SessionExpired if it ended during the request.
            TimeoutError: no answer in time.
            MCPError: the server answered with an error. Other exceptions of `send` are raised as well.
        """
        try:
            async with asyncio.timeout(wait):
                await self._ready.wait()
        except TimeoutError:
            raise NotConnected(self._reason) from None
        client, gone = self._client, self._gone
        if client is None:  # lost again since
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
        """Return whether an HTTP server has restarted and rejected the session, so that the call was not executed."""
        if not isinstance(error, MCPError):
            return False
        vague = error.message in UNINFORMATIVE_MESSAGES or error.code == wire.CONNECTION_CLOSED
        return error.message in _UNKNOWN_SESSION_MESSAGES or (vague and self._status in _UNKNOWN_SESSION_STATUSES)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._calls.discard(task)
        retrieve(task)

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
                await self._rest(_reconnect_delay(failures))
                failures += 1

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt to connect. If the server needs a login, wait until there is one."""
        while not self._closing.is_set():
            with anyio.move_on_after(_LOGIN_POLL_SECONDS if self.needs_login else seconds):
                await self._closing.wait()
            if self._login is None or not self.needs_login or self._login.has_changed():
                return

    async def _connect(self) -> None:
        """Connect, serve requests until the connection ends, and record the reason."""
        self._gone, self._status = asyncio.Event(), None
        try:
            with anyio.CancelScope() as attempt:  # contains cancellation by the SDK
                attempt.deadline = anyio.current_time() + self._server.connect_timeout
                async with AsyncExitStack() as stack:
                    with self._metrics.request("initialize"), trace_failure("mcp.connect", self._name, self._server):
                        client = await stack.enter_async_context(
                            Client(
                                tool_by_tool(self._transport(), self.invalid_tools.__setitem__),
                                cache=None,
                                message_handler=self._on_message,
                                client_info=_CLIENT_INFO,
                                elicitation_callback=self._elicit,
                            )
                        )
                    attempt.deadline = float("inf")
                    with self._metrics.session():
                        await self._serve(client)
                    attempt.deadline = anyio.current_time() + CLOSE_SECONDS
            if attempt.cancelled_caught and not self._gone.is_set():
                self.drop(f"it did not respond within {self._server.connect_timeout:g} s (`connect_timeout`)")
        except Exception as failure:  # noqa: BLE001 - any failure leads to the next attempt
            error = first_error(failure)
            self.drop(self.describe(error))
            if isinstance(error, httpx2.TransportError):  # the cause, if a call has reported the loss first
                self._reason = self.describe(error)
        finally:
            self._ready.clear()
            self._client = None

    async def _serve(self, client: Client) -> None:
        self._client, self._status = client, None  # errors during protocol negotiation do not matter
        self._ready.set()
        self._callbacks.on_tools_changed()
        listening = asyncio.create_task(self._listen(client))
        try:
            await self._gone.wait()
        finally:
            self._ready.clear()
            listening.cancel()

    async def _listen(self, client: Client) -> None:
        """Keep the change stream of modern-protocol servers open. `_on_message` receives its notifications as well."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        lost = 0
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._callbacks.on_tools_changed()  # changes while the stream was closed
                    async for _ in changes:
                        pass
            except SubscriptionLost:
                pass  # closed or ended: open it again
            except (MCPError, RuntimeError, anyio.ClosedResourceError):
                return  # not supported, or the connection is lost, which is handled elsewhere
            await asyncio.sleep(_reconnect_delay(lost))
            lost += 1

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, wire.ToolListChangedNotification):
            self._callbacks.on_tools_changed()

    def _transport(self) -> Transport:
        if self._server.command:
            return stdio_transport(self._server, self.drop)
        return http_transport(self._server, self._record_status, LoginAuth(self._login) if self._login else None)

    def _record_status(self, status: int) -> None:
        self._status = status


def _means_closed(error: BaseException) -> bool:
    """Return whether an error means a closed connection. Servers use the same code for other errors."""
    if isinstance(error, MCPError):
        return error.code == wire.CONNECTION_CLOSED and error.message == "Connection closed"
    return isinstance(error, (httpx2.TransportError, anyio.ClosedResourceError))


def _reconnect_delay(failures: int) -> float:
    """Return the delay in seconds after a number of failures, with jitter so that reconnects are spread out."""
    return backoff(failures, base=0.2, cap=30.0, spread=0.2)


async def _send_without_baggage(send: Callable[[Client], Awaitable[T]], client: Client) -> T:
    """Send a request with the trace context but without the embedding program's baggage."""
    attach(baggage.clear())
    return await send(client)


def _silence_sdk_loggers() -> None:
    """Silence the SDK's loggers, which log a traceback for each invalid message. Relevant errors become faults."""
    for name in _NOISY_LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
    logging.getLogger("client").addFilter(_not_of_sdk)  # the embedding program may use this logger name too


def _not_of_sdk(record: logging.LogRecord) -> bool:
    return record.pathname != session.__file__


_MAX_PAGES = 100
_CONNECT_WAIT_SECONDS = 3.0
"""Time that a call waits for a connection to be re-established, in seconds."""
_GLOBAL_SCHEMES = ("file:", "http:", "https:", "ftp:", "data:")
"""Schemes of URIs with a meaning outside the server. Such a resource is read only if the server lists it."""

_POLL_SECONDS = 0.25
"""Delay before polling a server for the result of an unfinished call, in seconds."""

_CALL_RESULT: TypeAdapter[CallResult] = TypeAdapter(CallResult)


class McpClient:
    """The tools, resources and prompts of one MCP server. Failures raise ToolError."""

    def __init__(
        self, name: str, server: McpServer, callbacks: ConnectionCallbacks, login: Login | None = None
    ) -> None:
        """Create a client; `start` connects."""
        self._login = login
        self._name, self._server = name, server
        in_file = name.removeprefix("mcp.")
        self._metrics = McpMetrics(in_file, server)
        self._open_calls = OpenCalls(lambda reason: self._connection.drop(reason))
        elicit = self._open_calls.elicit if server.elicitation == "ask" else None
        self._connection = McpConnection(in_file, server, callbacks, self._metrics, elicit, login)
        self.start = self._connection.start

    async def close(self) -> None:
        """Disconnect. A call that waits for a person is ended first."""
        await self._open_calls.end_held()
        await self._connection.close()

    async def abandon(self, continuation: Mapping[str, Any]) -> None:
        """End a call that waits for a person and will not be continued."""
        await self._open_calls.end_held(continuation.get("open", ""))

    async def tools(self, enough: int) -> tuple[list[wire.Tool], dict[str, str]]:
        """List the tools of the server; stop after the page with which there are more than `enough`.

        If listing them fails, the connection is dropped.

        Returns:
            The valid tools, and the reason for each invalid one by its name.
        """
        self._connection.invalid_tools.clear()
        try:
            with trace_failure("mcp.list_tools", self._name.removeprefix("mcp."), self._server):
                patience = self._server.connect_timeout
                listed = await self._request(
                    lambda client: _list_tools(client, enough), about={"method": "tools/list"}, timeout=patience
                )
                return listed, dict(self._connection.invalid_tools)
        except RequestFailed as error:
            self._connection.drop(f"listing its tools failed: {error.message}")
            raise

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        context: ToolContext,
        progress: ProgressFnT | None,
        *,
        repeatable: bool,
    ) -> Any:
        """Call a tool. A repeatable call is retried if the connection is lost during it.

        If the server asks a person, the run pauses, and the next attempt continues with the answers.
        """
        _check_text(arguments)
        if self._login is not None:
            await wait_for_login(self._login, context)
        questions = self._open_calls.questions(self._name, context, (tool, arguments))
        questions.progress = progress
        await questions.wait()
        about = {"method": "tools/call", "tool": tool}
        while True:
            try:
                async with self._turn(questions):
                    result = await self._request(
                        lambda client: self._call(client, questions),
                        about=about,
                        repeatable=repeatable,
                    )
            except ToolError:
                if self._login is None or not self._login.is_needed:
                    raise
                await ask_for_login(self._login, context)
                raise
            try:
                if not await questions.settle(result):
                    continue
            except ToolError:  # the server must not ask this, or nobody can answer
                await self._open_calls.end_held(questions.token)
                raise
            assert isinstance(result, wire.CallToolResult)
            return await tool_output(result)

    @asynccontextmanager
    async def _turn(self, questions: ServerQuestions) -> AsyncIterator[None]:
        """Wait for the turn of a call during which an older server may ask."""
        if self._server.elicitation == "decline" or self._connection.is_modern:
            yield
            return
        async with self._open_calls.turn(questions):
            yield

    async def _call(self, client: Client, questions: ServerQuestions) -> CallResult | None:
        """Call a tool; return None if a person must answer first."""
        asks = self._server.elicitation == "ask"
        stays_open = asks and not self._connection.is_modern
        tool, arguments = questions.request
        state, responses = questions.state, questions.responses
        if not stays_open:
            questions.begin()
        while True:
            params = wire.CallToolRequestParams(
                name=tool, arguments=arguments, request_state=state, input_responses=responses
            )
            request = wire.CallToolRequest(params=params)
            progress = questions.report if questions.progress else None
            send = partial(client.session.send_request, request, _CALL_RESULT, progress_callback=progress)
            try:
                result = await (self._open_calls.send(send, questions) if stays_open else send())
            except MCPError as error:
                if asks and questions.require(error):
                    return None
                if not asks or not questions.restart(error):
                    raise
                state = responses = None
                continue
            if not isinstance(result, wire.InputRequiredResult):
                return result
            if result.input_requests:
                if not asks:
                    raise InputRequested
                return result
            state, responses = result.request_state, None  # not finished: poll again
            await asyncio.sleep(_POLL_SECONDS)

    async def resource(self, uri: str) -> str:
        """Read a resource and return its text."""
        _check_text({"uri": uri})
        if uri.strip().lower().startswith(_GLOBAL_SCHEMES) and uri not in await self._request(
            _list_resources, about={"method": "resources/list"}, repeatable=True
        ):
            raise ToolError(f"{self._name} does not list the resource {uri!r}; URIs with this scheme must be listed")
        about = {"method": "resources/read"}
        result = await self._request(lambda client: client.session.read_resource(uri), about=about, repeatable=True)
        return truncate(resource_text(result.contents))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Get a prompt and return its text."""
        _check_text(arguments)
        about = {"method": "prompts/get", "prompt": name}
        result = await self._request(
            lambda client: client.session.get_prompt(name, dict(arguments)), about=about, repeatable=True
        )
        return truncate(prompt_text(result.messages))

    async def _request(
        self,
        send: Callable[[Client], Awaitable[T]],
        *,
        about: Mapping[str, str],
        timeout: float | None = None,
        repeatable: bool = False,
    ) -> T:
        patience = timeout or self._server.timeout
        for again in (True, False):
            try:
                with self._metrics.request(**about) as measured:
                    answer = await self._connection.request(send, wait=_CONNECT_WAIT_SECONDS, timeout=patience)
                    if isinstance(answer, wire.CallToolResult) and answer.is_error:
                        measured["error.type"] = "tool_error"
                return answer
            except NotConnected as error:
                refused = isinstance(error, SessionExpired)
                if again and (refused or (repeatable and isinstance(error, ConnectionLost))):
                    continue
                raise ToolError(self._unavailable(error)) from None
            except TimeoutError:
                raise RequestFailed(f"{self._name} did not respond within {patience:g} s") from None
            except MCPError as error:
                raise RequestFailed(f"{self._name}: {self._connection.describe(error)}") from None
            except ValidationError:
                raise RequestFailed(f"{self._name} sent a response that is not valid MCP") from None
            except (InputRequested, RuntimeError):  # the SDK raises the latter
                raise ToolError(
                    f"{self._name} requests input from the client, which is not supported; to have its questions "
                    "answered by a person, set `elicitation: ask` at the server"
                ) from None
        raise AssertionError("the second attempt either returns or raises")

    def _unavailable(self, error: NotConnected) -> str:
        if isinstance(error, ConnectionLost):
            return f"the connection to {self._name} was lost during the call: {error}; it may have taken effect"
        return f"{self._name} is not connected: {error}; try again later, or continue without it"


async def _list_tools(client: Client, enough: int) -> list[wire.Tool]:
    tools: list[wire.Tool] = []
    async for page in _pages(client.list_tools, client.server_capabilities.tools):
        tools += page.tools
        if len(tools) > enough:
            break
    return tools


async def _list_resources(client: Client) -> set[str]:
    pages = _pages(client.list_resources, client.server_capabilities.resources)
    return {resource.uri async for page in pages for resource in page.resources}


async def _pages(read: Callable[..., Awaitable[Page]], offered: object) -> AsyncIterator[Page]:
    """Yield the pages of a list. A cursor that is empty, or that came before, would lead to the first ones again."""
    cursors: list[str | None] = [None]
    while offered and len(cursors) <= _MAX_PAGES:
        page = await read(cursor=cursors[-1])
        yield page
        if not page.next_cursor or page.next_cursor in cursors:
            return
        cursors.append(page.next_cursor)


def _check_text(arguments: Mapping[str, Any]) -> None:
    """Raise ToolError for unpaired surrogates, which would break the connection for all calls."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ToolError("the arguments contain characters that are not valid Unicode: remove them") from None
