"""The HTTP client passed to provider SDKs, with limits on the size of responses, and base URLs of servers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from framework.types.http import trusted_certificates

if TYPE_CHECKING:
    import httpx2

    ResponseHook = Callable[[httpx2.Response], Awaitable[None]]

_EXPECTED = "expected the URL of a server, such as http://127.0.0.1:8080/v1"
_ENDPOINTS = ("/chat/completions", "/responses")
"""The paths that clients append; base URLs are often copied with them."""
_FORBIDDEN = frozenset("\\{}$<>\"'")
_LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
_REGION = re.compile(r"[a-z0-9-]+")


def is_local(base_url: str | None) -> bool:
    """Return whether a URL names this machine or one in a private network; names are not resolved."""
    host = (urlsplit(base_url or "").hostname or "").rstrip(".")
    try:
        return not ip_address(host).is_global
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(_LOCAL_DOMAINS))


def normalize_base_url(text: str) -> str:
    """Return the URL without surrounding white space, trailing slashes and an endpoint's path.

    Raises:
        ValueError: it is not the URL of a server. The message does not quote it: it may contain a password.
    """
    url = text.strip().rstrip("/")
    for endpoint in _ENDPOINTS:
        url = url.removesuffix(endpoint).rstrip("/")
    if problem := _problem(url):
        raise ValueError(f"{_EXPECTED}; {problem}")
    return url


def is_region(text: str) -> bool:
    """Return whether the text may be the name of a region, which becomes part of a host name."""
    return _REGION.fullmatch(text) is not None


def _problem(url: str) -> str:
    """Return why the URL is invalid, or an empty string."""
    if not url:
        return "it is empty"
    if not url.lower().startswith(("http://", "https://")):
        return "it does not start with http:// or https://"
    if any(char in _FORBIDDEN or char.isspace() or not char.isprintable() for char in url):
        return "it contains a character that is not allowed in a URL"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "its port, or the address in brackets, is invalid"
    if not host or port == 0:
        return f"it has no valid {'port' if host else 'host'}"
    return "it must end with its path, without ? or #" if parts.query or parts.fragment else ""


SDK_TIMEOUT = 600.0
"""Seconds without a byte; a safety net below the deadline that the engine sets."""
MAX_CONNECTIONS = 1000
"""Concurrent connections to one model, and so concurrent calls."""
_MAX_IDLE_CONNECTIONS = 100
MAX_ANSWER_BYTES = 100_000_000
"""Limit of an HTTP response; the longest replies, streamed token by token, are a tenth of it."""
MAX_COMPRESSED_BYTES = 1_000_000
"""Limit of a compressed response, which may expand a thousandfold."""
MAX_EVENT_BYTES = 10_000_000
"""Limit of one line of an event stream."""
ACCEPT_ENCODING = "identity"
"""Request no compression: it saves nothing here, and delays the events of a stream."""


def create_http_client(timeout: float, on_response: ResponseHook | None = None, **options: Any) -> httpx2.AsyncClient:
    """Return an HTTP client that honors the environment's proxies and certificates, and limits response sizes.

    A connection that the server closed before it answered is replaced. By default, no redirect is followed: the API
    key would be sent to the server that a redirect names.

    Args:
        timeout: seconds without a byte.
        on_response: called with each response, before its body is read.
        options: other options of `httpx2.AsyncClient`.
    """
    from framework.types.http_transport import ReconnectingClient

    return ReconnectingClient(**http_client_options(timeout, on_response), **options)


def http_client_options(timeout: float, on_response: ResponseHook | None = None) -> dict[str, Any]:
    """Return the options of `httpx2.AsyncClient` for a client of a model server; the arguments are as above."""
    import httpx2

    return {
        "timeout": timeout,
        "limits": httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=_MAX_IDLE_CONNECTIONS),
        "headers": {"accept-encoding": ACCEPT_ENCODING},
        "event_hooks": {"response": [_limit_response, on_response] if on_response else [_limit_response]},
        "verify": trusted_certificates(),
    }


async def _limit_response(response: httpx2.Response) -> None:
    """Raise an error in place of the bytes of a response that exceed the limits."""
    from framework.types.http_transport import BoundedStream

    stream: Any = response.stream  # always an asynchronous stream here
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        too_long = _too_long("event", MAX_EVENT_BYTES)
        stream = BoundedStream(stream, MAX_EVENT_BYTES, too_long, response.request, per_line=True)
    is_compressed = response.headers.get("content-encoding", ACCEPT_ENCODING) != ACCEPT_ENCODING
    most, name = (MAX_COMPRESSED_BYTES, "compressed answer") if is_compressed else (MAX_ANSWER_BYTES, "answer")
    response.stream = BoundedStream(stream, most, _too_long(name, most), response.request)


def _too_long(name: str, limit: int) -> str:
    return f"the {name} exceeds {limit // 1_000_000} MB, more than any model writes"


async def read_unstreamed(response: httpx2.Response) -> dict[str, Any] | None:
    """Return the JSON object that a server sent, a complete response or an error, although a stream was requested.

    Returns None if the response is a stream; it can still be read then. Raises httpx2.HTTPError or ValueError.
    """
    if "json" not in response.headers.get("content-type", ""):
        return None
    body = await response.aread()
    if not body.lstrip().startswith(b"{"):
        return None
    answer: dict[str, Any] = json.loads(body)
    return answer
