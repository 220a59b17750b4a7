"""API keys of a server, and requests that send them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from starlette.requests import Request

KEY, OTHER = "0123456789abcdef0123", "fedcba9876543210fedc"


def key_entry(name: str, key: str, **rights: Any) -> dict[str, Any]:
    """Return an entry of `server.api_keys` for a key."""
    return {"name": name, "sha256": sha256(key.encode()).hexdigest(), **rights}


def request_with(
    headers: Mapping[str, str] | Iterable[tuple[str, str]], client: str | None = "127.0.0.1", query: str = ""
) -> Request:
    """Return a request without a body, as the server passes it to access checks."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": raw, "query_string": query.encode()}
    return Request({**scope, "client": (client, 50000) if client is not None else None})
