"""The HTTP client passed to provider SDKs, with limits on the size of responses.

A client that an SDK creates itself is left half-initialized if that fails, and warns when it is garbage-collected.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from framework.types.certificates import trusted_certificates

if TYPE_CHECKING:
    import httpx2

    from framework.types.bounded_body import BoundedStream

    ResponseHook = Callable[[httpx2.Response], Awaitable[None]]

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
    from framework.llm.reconnection import ReconnectingClient

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
    stream: Any = response.stream  # always an asynchronous stream here
    response.stream = limit_size(stream, response.headers, response.request)


def limit_size(stream: httpx2.AsyncByteStream, headers: Mapping[str, str], request: httpx2.Request) -> BoundedStream:
    """Return the stream with an error in place of the bytes beyond the limits."""
    from framework.types.bounded_body import BoundedStream

    if headers.get("content-type", "").startswith("text/event-stream"):
        stream = BoundedStream(stream, MAX_EVENT_BYTES, _too_long("event", MAX_EVENT_BYTES), request, per_line=True)
    is_compressed = headers.get("content-encoding", ACCEPT_ENCODING) != ACCEPT_ENCODING
    most, name = (MAX_COMPRESSED_BYTES, "compressed answer") if is_compressed else (MAX_ANSWER_BYTES, "answer")
    return BoundedStream(stream, most, _too_long(name, most), request)


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
