"""Limits on connections: how many there are, how many one address has, and how long each may wait for its client."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from framework.config.settings import ServerSettings

log = logging.getLogger(__name__)

BACKLOG = 32
"""Connections accepted in one turn of the event loop, before the limits below can close any of them."""
_RESERVED_FILES = 128 + 4 * BACKLOG
"""Open files left for everything but connections: the store, sources, and connections that are just being closed."""
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG_INTERVAL_SECONDS = 60.0
"""Pause between two log lines about the same shortage."""
_BUSY_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b'content-length: 73\r\n\r\n{"error": {"code": "too_many_connections", "message": "try again later"}}'
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one server accepts."""

    total: int
    per_address: int
    request_seconds: float
    """Within which a request must arrive, headers and body; and how long a client may leave a full buffer unread."""

    @classmethod
    def of(cls, settings: ServerSettings) -> ConnectionLimits:
        """The limits of the settings, lowered to what the process may open."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = settings.max_connections if files == resource.RLIM_INFINITY else max(files - _RESERVED_FILES, 16)
        total = min(settings.max_connections, room)
        if total < settings.max_connections:
            log.warning(
                "server.max_connections is %d, but only %d fit: the limit of open files is %d (ulimit -n)",
                settings.max_connections,
                total,
                files,
            )
        return cls(total, min(settings.max_connections_per_address, total), settings.request_timeout)


class Connections:
    """The open connections of a server, the one that has waited longest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: dict[LimitedProtocol, str] = {}
        self._of_address: Counter[str] = Counter()

    def admit(self, connection: LimitedProtocol, address: str) -> bool:
        """Count a new connection. Where a limit is reached, it replaces the oldest one without a request in progress.

        Returns:
            Whether there is room. If not, the connection is not counted.
        """
        own = self._of_address[address] >= self.limits.per_address
        if (own or len(self._open) >= self.limits.total) and not self._replace_one(address if own else None):
            return False
        self._open[connection] = address
        self._of_address[address] += 1
        return True

    def remove(self, connection: LimitedProtocol) -> None:
        """Count a connection no longer."""
        if (address := self._open.pop(connection, None)) is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def mark_used(self, connection: LimitedProtocol) -> None:
        """The connection has served a request: it is the last to be replaced."""
        if (address := self._open.pop(connection, None)) is not None:
            self._open[connection] = address

    def _replace_one(self, address: str | None) -> bool:
        for connection, its in self._open.items():
            if connection.is_idle and address in (None, its):
                connection.abort()
                return True
        return False


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines: it has none for clients that neither finish a request nor read answers."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """No request is being answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn declares it as always set
        return cycle is None or cycle.response_complete

    def abort(self) -> None:
        """Close the connection at once."""
        self._connections.remove(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if not self._connections.admit(self, client_key(self.client[0]) if self.client else ""):
            transport.write(_BUSY_RESPONSE)
            transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._end_unread()
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """The client leaves more unread than is buffered for it: its request stays unanswered, and keeps its place."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._connections.limits.request_seconds, self.abort)

    def resume_writing(self) -> None:
        self._end_unread()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._unwatch()
        self._connections.mark_used(self)
        super().on_response_complete()  # may begin the next request, which has arrived already
        self._watch()

    def _watch(self) -> None:
        """Set the deadline while a request is due, from the first byte that is missing to the last."""
        if self.transport.is_closing() or not (self.is_idle or self.cycle.more_body):
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._connections.limits.request_seconds, self.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def client_key(address: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 network of an IPv6 address, which one client may own."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    if not isinstance(known, IPv6Address):
        return address
    return str(known.ipv4_mapped or IPv6Network((int(known), 64), strict=False))


def protocol_class(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """The class that uvicorn instantiates for each connection of one server."""
    connections = Connections(limits)

    class Protocol(LimitedProtocol):
        """Bound to the connections of this server."""

        def __init__(self, **options: Any) -> None:
            super().__init__(connections, **options)

    return Protocol


def file_limit_handler(loop: asyncio.AbstractEventLoop) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """An exception handler for the loop. Reports a lack of open files once a minute: asyncio does at each attempt."""
    reported = -_LOG_INTERVAL_SECONDS

    def handle(running: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal reported
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _OUT_OF_FILES and "socket" in context):
            running.default_exception_handler(context)
        elif loop.time() - reported >= _LOG_INTERVAL_SECONDS:
            reported = loop.time()
            log.error("no connection can be accepted: %s; raise the limit of open files (ulimit -n)", error.strerror)

    return handle
