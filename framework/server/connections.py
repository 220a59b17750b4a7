"""Limits the number of connections, in total and per address, and how long each may wait for its client."""

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
"""Connections accepted in one turn of the event loop, before the limits below apply."""
_RESERVED_FILES = 128 + 4 * BACKLOG
"""Open files reserved for the store, tool servers, and connections that are being closed."""
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG_INTERVAL_SECONDS = 60.0
"""Minimum interval between log lines about a lack of open files."""
_BUSY_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b'content-length: 112\r\n\r\n{"error": {"code": "too_many_connections", "type": "server_error", '
    b'"message": "try again later", "param": null}}'
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server."""

    total: int
    per_address: int
    request_seconds: float
    """Time limit for a request to arrive, headers and body, and for a client to read a full send buffer."""

    @classmethod
    def of(cls, settings: ServerSettings) -> ConnectionLimits:
        """Return the limits in the settings, lowered to the limit of open files."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        available = settings.max_connections if files == resource.RLIM_INFINITY else max(files - _RESERVED_FILES, 16)
        total = min(settings.max_connections, available)
        if total < settings.max_connections:
            log.warning(
                "server.max_connections is lowered from %d to %d: the limit of open files is %d (ulimit -n)",
                settings.max_connections,
                total,
                files,
            )
        return cls(total, min(settings.max_connections_per_address, total), settings.request_timeout)


class Connections:
    """The open connections of a server, ordered by their last request, the oldest first."""

    def __init__(self, limits: ConnectionLimits, count_rejected: Callable[[str], object]) -> None:
        """Create the set of connections. `count_rejected` is called with the reason for each rejected one."""
        self.limits, self.count_rejected = limits, count_rejected
        self._open: dict[LimitedProtocol, str] = {}
        self._counts: Counter[str] = Counter()

    def admit(self, connection: LimitedProtocol, address: str) -> bool:
        """Add a new connection. At a limit, it replaces the oldest idle one; at an address limit, one of that address.

        Returns:
            Whether the connection was added; False if every connection has a request in progress.
        """
        is_address_full = self._counts[address] >= self.limits.per_address
        if (is_address_full or len(self._open) >= self.limits.total) and not self._replace_one(
            address if is_address_full else None
        ):
            return False
        self._open[connection] = address
        self._counts[address] += 1
        return True

    def remove(self, connection: LimitedProtocol) -> None:
        """Remove a closed connection."""
        if (address := self._open.pop(connection, None)) is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def mark_used(self, connection: LimitedProtocol) -> None:
        """Move a connection that has served a request to the end of the replacement order."""
        if (address := self._open.pop(connection, None)) is not None:
            self._open[connection] = address

    def _replace_one(self, address: str | None) -> bool:
        for connection, client in self._open.items():
            if connection.is_idle and address in (None, client):
                connection.abort()
                return True
        return False


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with timeouts for clients that do not finish a request or do not read the response."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn declares it as always set
        return cycle is None or cycle.response_complete

    def abort(self) -> None:
        """Close the connection immediately."""
        self._connections.remove(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if not self._connections.admit(self, client_key(self.client[0]) if self.client else ""):
            transport.write(_BUSY_RESPONSE)
            transport.close()
            self._connections.count_rejected("too_many_connections")
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
        """Start a timeout: the client does not read, so the send buffer is full."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._connections.limits.request_seconds, self._time_out, "slow_reader")

    def resume_writing(self) -> None:
        self._end_unread()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._unwatch()
        self._connections.mark_used(self)
        super().on_response_complete()  # may start the next request, if it has arrived already
        self._watch()

    def _watch(self) -> None:
        """Set the request timeout while a request is incomplete, and clear it otherwise."""
        if self.transport.is_closing() or not (self.is_idle or self.cycle.more_body):
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(
                self._connections.limits.request_seconds, self._time_out, "request_timeout"
            )

    def _time_out(self, reason: str) -> None:
        self._connections.count_rejected(reason)
        self.abort()

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def client_key(address: str) -> str:
    """Return the IPv4 address, or the /64 network of an IPv6 address, which is usually one client."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or IPv6Network((int(ip), 64), strict=False))


def protocol_class(limits: ConnectionLimits, count_rejected: Callable[[str], object]) -> type[asyncio.Protocol]:
    """Return the class that uvicorn instantiates for each connection of one server.

    Args:
        limits: the limits of the server.
        count_rejected: called with the reason for each connection that is rejected or times out.
    """
    connections = Connections(limits, count_rejected)

    class Protocol(LimitedProtocol):
        """`LimitedProtocol` with the connections of this server."""

        def __init__(self, **options: Any) -> None:
            super().__init__(connections, **options)

    return Protocol


def file_limit_handler(loop: asyncio.AbstractEventLoop) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler for `loop` that logs a lack of open files once a minute, not at each attempt."""
    reported = -_LOG_INTERVAL_SECONDS

    def handle(running: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal reported
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _OUT_OF_FILES and "socket" in context):
            running.default_exception_handler(context)
        elif loop.time() - reported >= _LOG_INTERVAL_SECONDS:
            reported = loop.time()
            log.error("cannot accept connections: %s; raise the limit of open files (ulimit -n)", error.strerror)

    return handle
