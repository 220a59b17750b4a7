"""The socket that a server listens on: where, for whom, and what to say when that cannot be."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address

from framework.config.settings import ServerSettings
from framework.server.access import is_loopback
from framework.types.errors import AgentsdError, ConfigError


class CannotListen(AgentsdError):
    """Nothing can listen at that address now."""

    code = "cannot_listen"


@contextmanager
def bind_socket(settings: ServerSettings) -> Iterator[socket.socket]:
    """Take the address of the settings; whoever is handed the socket accepts connections.

    Raises:
        ConfigError: others could reach it, and no key is set; or there is no such address.
        CannotListen: it is in use, or may not be used.
    """
    family, address = _resolve_address(settings)
    if not is_loopback(address[0]) and not settings.api_keys:
        raise ConfigError(
            f"others could reach {address[0]}, and whoever does may roll back what is served: set server.api_keys "
            f"(or AGENTSD_SERVER__API_KEYS), or listen on 127.0.0.1"
        )
    with closing(socket.socket(family, socket.SOCK_STREAM)) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen()
        except OSError as error:
            raise CannotListen(_bind_error(error, settings)) from None
        yield bound


def server_url(host: str, port: int) -> str:
    """Where a server that listens at this address is asked from this machine."""
    try:
        address = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"


def _resolve_address(settings: ServerSettings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"server.host: there is no address {settings.host!r} on this machine") from None
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _bind_error(error: OSError, settings: ServerSettings) -> str:
    where = f"{settings.host}, port {settings.port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where} is in use: choose another with --port or server.port, or stop what listens there"
        case errno.EACCES:
            return f"{where} may not be used by this user: ports below 1024 are for root"
        case errno.EADDRNOTAVAIL:
            return f"{where} is not an address of this machine"
        case _:
            return f"{where} cannot be listened on: {error.strerror}"
