"""Recognizes addresses of this machine. Used by commands as well, which run without FastAPI."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address


@lru_cache(maxsize=256)  # asked before each event of a stream
def is_loopback(host: str) -> bool:
    """Return whether an address or a name always refers to this machine."""
    try:
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host.lower() == "localhost"
