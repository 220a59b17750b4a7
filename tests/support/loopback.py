"""Options of HTTP clients for servers of tests."""

from __future__ import annotations

from typing import Any, Final

LOOPBACK: Final[dict[str, Any]] = {"trust_env": False, "verify": False}
"""For a server on this machine without TLS: no proxy, and no certificates, which take 20 ms to read for each client."""
