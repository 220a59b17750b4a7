"""Resolves host names and opens connections, to allowed addresses only.

Every connection of a tool passes here, so that neither a redirect nor a name server can lead elsewhere.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, NoReturn

from framework.tools.http.addresses import is_allowed_address
from framework.types.errors import ToolError
from framework.types.http import HttpLimits

if TYPE_CHECKING:
    import httpcore2

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a host and port; raises OSError if it has no address."""


class HttpRefused(ToolError):
    """A request that is not allowed. The message says what to change, such as a line of agentsd.yaml."""

    code = "http_refused"


class HttpFailed(ToolError):
    """A request without a usable response. The message says what came instead."""

    code = "http_failed"


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the system's resolver; raises OSError."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def split_host_port(entry: str) -> tuple[str, int | None]:
    """Split an entry of `tools.http.domains` into host and port, and remove the brackets of an IPv6 address."""
    host, _, port = entry.rpartition(":")
    if not host or not port.isdecimal():
        host, port = entry, ""
    return (_normalized_address(host[1:-1]) if host.startswith("[") else host), int(port) if port else None


def _normalized_address(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return address


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class CheckedNetwork:
    """Opens connections for httpcore2, to allowed addresses only."""

    def __init__(self, limits: HttpLimits, resolver: Resolver) -> None:
        self._networks = limits.private_networks
        self._listed_addresses = frozenset(host for host, _ in map(split_host_port, limits.domains) if is_address(host))
        self._resolver = resolver

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to an allowed address of the host; raises HttpRefused or HttpFailed."""
        import httpcore2

        failure = ""
        for address in await self._addresses(host, port):
            try:
                return await httpcore2.AnyIOBackend().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = str(error)
        raise HttpFailed(f"cannot connect to {host}:{port}: {failure}")

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = [host] if is_address(host) else await self._resolver(host, port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise HttpFailed(f"there is no host named {host}")
        networks = (*self._networks, host) if host in self._listed_addresses else self._networks
        if not all(is_allowed_address(address, networks) for address in addresses):
            raise HttpRefused(
                f"{host} resolves to an address that is not public: the operator can allow private networks with "
                "tools.http.private_networks in agentsd.yaml, but no metadata service"
            )
        return addresses

    async def connect_unix_socket(self, *_: object, **__: object) -> NoReturn:
        """Raise HttpRefused: unix sockets are not allowed."""
        raise HttpRefused("unix sockets are not allowed")

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)
