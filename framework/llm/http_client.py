"""HTTP for SDKs: the client they are given, and what they do not notice of an answer.

A client that they made themselves would be left half made where that fails, and complain when it is thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

    from framework.types.bounded_body import BoundedStream

    Hook = Callable[[httpx2.Response], Awaitable[None]]

MAX_CONNECTIONS = 1000
"""At once, to one model: as many calls as a process may have under way."""
_MAX_IDLE_CONNECTIONS = 100
MAX_ANSWER_BYTES = 100_000_000
"""Of one answer on the wire; the longest that models write, streamed by the token, have a tenth of it."""
MAX_COMPRESSED_BYTES = 1_000_000
"""Of one that is compressed: a thousand times as many may come out of it."""
MAX_EVENT_BYTES = 10_000_000
"""Of one line of a stream."""
ACCEPT_ENCODING = "identity"
"""What is asked for: compression saves nothing here, and lets a stream wait for more to compress."""


def create_http_client(timeout: float, on_response: Hook | None = None, **options: Any) -> httpx2.AsyncClient:
    """A client that knows the environment's proxies and certificates, and follows no redirect unless it is told to.

    A redirect would take the key along, to whatever server is named there.

    Args:
        timeout: seconds without a byte.
        on_response: called with each answer, before its body comes in.
        options: more of `httpx2.AsyncClient`.
    """
    import httpx2

    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=_MAX_IDLE_CONNECTIONS)
    hooks = [_cap, on_response] if on_response else [_cap]
    headers = {"accept-encoding": ACCEPT_ENCODING}
    return httpx2.AsyncClient(
        timeout=timeout, limits=limits, headers=headers, event_hooks={"response": hooks}, **options
    )


async def _cap(response: httpx2.Response) -> None:
    stream: Any = response.stream  # of an asynchronous client
    response.stream = limit_size(stream, response.headers, response.request)


def limit_size(stream: httpx2.AsyncByteStream, headers: Mapping[str, str], request: httpx2.Request) -> BoundedStream:
    """The bytes of an answer, and an error in place of those that are too many."""
    from framework.types.bounded_body import BoundedLines, BoundedStream

    packed = headers.get("content-encoding", ACCEPT_ENCODING) != ACCEPT_ENCODING
    limit, what = (MAX_COMPRESSED_BYTES, "compressed answer") if packed else (MAX_ANSWER_BYTES, "answer")
    if headers.get("content-type", "").startswith("text/event-stream"):
        stream = BoundedLines(stream, MAX_EVENT_BYTES, _too_long("event", MAX_EVENT_BYTES), request)
    return BoundedStream(stream, limit, _too_long(what, limit), request)


def _too_long(what: str, limit: int) -> str:
    return f"the {what} is longer than {limit // 1_000_000} MB: no model writes that much"


async def read_unstreamed(response: httpx2.Response) -> dict[str, Any] | None:
    """The JSON object of a server that was asked for a stream and sends its answer, or an error, whole.

    None where it is a stream after all; that can still be read then. Raises httpx2.HTTPError or ValueError.
    """
    if "json" not in response.headers.get("content-type", ""):
        return None
    body = await response.aread()
    if not body.lstrip().startswith(b"{"):
        return None
    answer: dict[str, Any] = json.loads(body)
    return answer
