"""Options of HTTP clients for servers of tests, and ports of these servers."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import SystemRandom
from typing import Any, Final

LOOPBACK: Final[dict[str, Any]] = {"trust_env": False, "verify": False}
"""For a server on this machine without TLS: no proxy, and no certificates, which take 20 ms to read for each client."""


def fixed_port() -> int:
    """Return a free port for a server that starts later, or again.

    It is below the range from which systems take ports for clients and for servers without a fixed one (from 32768),
    so that no other process takes it meanwhile.
    """
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
