"""HTTP for SDKs: the client they are given, and what they do not notice of an answer.

A client that they made themselves would be left half made where that fails, and complain when it is thrown away.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

MAX_CONNECTIONS = 1000
"""At once, to one model: as many calls as a process may have under way."""
KEPT_CONNECTIONS = 100


def http_client(timeout: float, **options: Any) -> httpx2.AsyncClient:
    """A client that knows the environment's proxies and certificates, and follows no redirect unless it is told to.

    A redirect would take the key along, to whatever server is named there.

    Args:
        timeout: seconds without a byte.
        options: more of `httpx2.AsyncClient`.
    """
    import httpx2

    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=KEPT_CONNECTIONS)
    return httpx2.AsyncClient(timeout=timeout, limits=limits, **options)


async def unstreamed(response: httpx2.Response) -> dict[str, Any] | None:
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
