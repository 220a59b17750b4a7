"""Host and port of a server, as telemetry names them."""

from __future__ import annotations

from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


def server_address(url: str | None) -> tuple[str | None, int | None]:
    """Return host and port of `url`, the scheme's port where it names none; (None, None) without a host."""
    parts = urlsplit(url or "")
    if not parts.hostname:
        return None, None
    return parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme.lower())
