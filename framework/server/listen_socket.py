"""Binds the socket of the server, and explains why an address is not available."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from ipaddress import ip_address

from framework.config.settings import ServerSettings
from framework.types.errors import AgentsdError, ConfigError


class CannotListen(AgentsdError):
    """The address is in use, or not permitted. Choose another one: `agentsd serve --port`."""

    code = "cannot_listen"


@lru_cache(maxsize=256)  # asked before each event of a stream
def is_loopback(host: str) -> bool:
    """Return whether an address or a name always refers to this machine."""
    try:
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@contextmanager
def bind_socket(settings: ServerSettings) -> Iterator[socket.socket]:
    """Bind a socket to the address in the settings, and close it at the end. The caller accepts connections.

    Raises:
        ConfigError: the address is reachable from other machines and no key is set, or it does not resolve.
        CannotListen: the address is in use, or not permitted.
    """
    family, address = _resolve_address(settings)
    if not is_loopback(address[0]) and not settings.api_keys:
        raise ConfigError(
            f"{address[0]} is reachable from other machines: set server.api_keys (AGENTSD_SERVER__API_KEYS), or listen "
            f"on 127.0.0.1"
        )
    # asyncio disables the delay of small packets, 40 ms per response, only if the protocol is named.
    with closing(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen()
        except OSError as error:
            raise CannotListen(_bind_error(error, settings)) from None
        yield bound


def server_url(host: str, port: int) -> str:
    """Return the URL at which programs on this machine reach a server with this address."""
    try:
        address = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"


def _resolve_address(settings: ServerSettings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"server.host: {settings.host!r} is not an address of this machine") from None
    family, _, _, _, address = min(addresses, key=lambda one: one[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _bind_error(error: OSError, settings: ServerSettings) -> str:
    where = f"{settings.host}, port {settings.port}"
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"{where} is in use: choose another port with --port or server.port, or stop the program that uses it"
            )
        case errno.EACCES:
            return f"{where}: permission denied; ports below 1024 require root"
        case errno.EADDRNOTAVAIL:
            return f"{where} is not an address of this machine"
        case _:
            return f"cannot listen on {where}: {error.strerror}"
