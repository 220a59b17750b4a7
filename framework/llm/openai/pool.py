"""Pooled connections to model servers; one that the server closed before it answered is replaced.

Some servers announce that they keep a connection open and close it after each response. aiohttp takes connections from
its pool without looking for that close, and a close may also cross the next request on its way; see
docs/design/033-streaming.md.
"""

from __future__ import annotations

import select
import ssl
from weakref import WeakSet

import aiohttp
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from framework.llm.http_client import MAX_CONNECTIONS

_KEEP_ALIVE = 5.0
"""Seconds, as in the SDK's own transport."""
_LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
"""Errors of a connection that is lost before the response's header has arrived."""


def create_session(trust: ssl.SSLContext | None, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    """Return a session that keeps connections, and no cookies.

    Args:
        trust: the certificates to trust; None for those of the system, if a redirect leads to a server with TLS.
        timeout: limits of the connection and of the silence between bytes.
    """
    pool = ReconnectingPool(trust)
    return aiohttp.ClientSession(
        connector=pool,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        auto_decompress=False,
        middlewares=(pool.send,),
    )


class ReconnectingPool(aiohttp.TCPConnector):
    """A pool that expects the server to close any idle connection at any time."""

    def __init__(self, trust: ssl.SSLContext | None) -> None:
        super().__init__(limit=MAX_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE, ssl=trust or True)
        self._used: WeakSet[ResponseHandler] = WeakSet()
        """Connections that have carried a request."""
        self._at_risk: set[aiohttp.ClientRequest] = set()
        """Requests in progress that were sent on a used connection."""

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """Return a connection from the pool, or a new one; always a new one for a request that is sent again."""
        is_repeated = req in self._at_risk
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or protocol not in self._used:
                break
            if not is_repeated and not _has_input(connection):
                self._at_risk.add(req)
                return connection
            connection.close()
        if protocol is not None:
            self._used.add(protocol)
        self._at_risk.discard(req)
        return connection

    async def send(self, request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request, as a middleware: once more, on a new connection, if a used one is lost before the answer."""
        try:
            return await handler(request)
        except _LOST as error:
            if request not in self._at_risk or _has_begun(error):
                raise
            await request.close()  # waits for the task that was writing the body, so that it can be read again
            return await handler(request)
        finally:
            self._at_risk.discard(request)


def _has_input(connection: Connection) -> bool:
    """Return whether there is something to read on an idle connection: it was closed, or is about to be.

    The event loop may not have looked since, and from Python 3.12 on aiohttp writes before it looks again.
    """
    transport = connection.transport
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or not hasattr(select, "poll"):  # Windows has no `poll`
        return False
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _has_begun(error: Exception) -> bool:
    """Return whether a part of the response's header had arrived when the connection was lost."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
