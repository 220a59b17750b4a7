"""Host and port of a URL, for telemetry."""

from __future__ import annotations

from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


def server_address(url: str | None) -> tuple[str | None, int | None]:
    """Return host and port of `url`, or (None, None) without a host. The port defaults to that of the scheme."""
    parts = urlsplit(url or "")
    if not parts.hostname:
        return None, None
    return parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme.lower())
