"""The tool `http_request`: one request to a server that the operator allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from framework.tools.http import HttpClient, HttpReply, validate_headers
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError
from framework.types.http import Method

MAX_BODY_CHARS = 20_000
_SHOWN_HEADERS = ("content-type", "location", "retry-after", "etag", "last-modified", "link")


def _preview(
    url: str,
    method: Method,
    headers: Mapping[str, str] | None,
    body: str | None,
    data: Any,
    context: ToolContext,
) -> str:
    """Raise ToolError if `http_request` would send nothing."""
    validate_headers(_content(method, body, data, headers or {})[1])
    HttpClient(context.http).check(method, url)
    return ""


@tool(risk="high", urls="url", preview=_preview)
async def http_request(
    url: str,
    method: Method = "GET",
    headers: dict[str, str] | None = None,
    body: str | None = None,
    data: Any = None,
    *,
    context: ToolContext,
) -> dict[str, Any]:
    """Send one HTTP request to an allowed server; return the status, a few headers and the body as text.

    A redirect is not followed: its address is in the header location.

    Args:
        url: An http(s) URL in its plain spelling, such as https://api.example.com/orders?id=3.
        method: The HTTP method.
        headers: Request headers.
        body: Text to send.
        data: Values to send as JSON, instead of body.
        context: The run.
    """
    content, request_headers = _content(method, body, data, dict(headers or {}))
    # The model decides about a redirect: the policy evaluates the next call like this one.
    reply = await HttpClient(context.http).request(method, url, headers=request_headers, body=content, follow=False)
    text = _text(reply)
    return {
        "status": reply.status,
        "headers": {name: reply.headers[name][:500] for name in _SHOWN_HEADERS if name in reply.headers},
        "body": text[:MAX_BODY_CHARS],
        "truncated": reply.truncated or len(text) > MAX_BODY_CHARS,
    }


def _content(
    method: Method, body: str | None, data: Any, headers: Mapping[str, str]
) -> tuple[bytes | None, dict[str, str]]:
    """Return the encoded body, and the headers with its content type."""
    if body is None and data is None:
        return None, dict(headers)
    if body is not None and data is not None:
        raise ToolError("give either body or data, not both")
    if method in {"GET", "HEAD"}:
        raise ToolError(f"{method} has no body: put the parameters into the URL, or use POST")
    content_type = "text/plain; charset=utf-8" if data is None else "application/json"
    text = json.dumps(data, ensure_ascii=False) if body is None else body
    has_type = "content-type" in {name.lower() for name in headers}
    return text.encode("utf-8", "replace"), {**headers, **({} if has_type else {"content-type": content_type})}


def _text(reply: HttpReply) -> str:
    if b"\0" in reply.body[:8192]:
        return f"(binary, {len(reply.body)} bytes{' or more' if reply.truncated else ''})"
    return reply.text
