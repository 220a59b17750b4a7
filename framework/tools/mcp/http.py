"""An MCP server over HTTP: the SDK's transport over a client with limits of ours."""

from __future__ import annotations

from collections.abc import Callable

import httpx2

from framework.types.bounded_body import BoundedStream
from framework.types.source import McpServer

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_QUIET = 300.0
"""Seconds without a byte on a stream before it is taken for dead."""

Refused = Callable[[int], None]
"""Called with the status of an answer that says no."""


def http_client(server: McpServer, refused: Refused) -> httpx2.AsyncClient:
    """A client with the server's headers; no answer is compressed, none is larger than allowed."""
    told = f"it sent an answer of more than {MAX_BODY_BYTES // 2**20} MB"

    async def check(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            refused(response.status_code)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("it compresses its answers unasked", request=response.request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = BoundedStream(response.stream, MAX_BODY_BYTES, told, response.request)

    given = {name: value.get_secret_value() for name, value in server.headers.items()}
    quiet = max(MAX_QUIET, server.timeout + 30)
    timeout = httpx2.Timeout(server.connect_timeout, read=quiet)
    # A compressed body can unfold to any size before its length is seen.
    headers = {"accept-encoding": "identity"} | given
    return httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [check]})
