"""One request to a server that the operator allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from framework.tools.http.client import HttpClient, HttpReply
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError
from framework.types.http import Method

MAX_BODY_CHARS = 20_000
_SHOWN_HEADERS = ("content-type", "location", "retry-after", "etag", "last-modified", "link")


@tool(risk="high", urls="url")
async def http_request(
    url: str,
    method: Method = "GET",
    headers: dict[str, str] | None = None,
    body: str | None = None,
    data: Any = None,
    *,
    context: ToolContext,
) -> dict[str, Any]:
    """Make one HTTP request to an allowed server; returns its status, a few headers and its body as text.

    A redirect is not followed: its address is in the header location.

    Args:
        url: An http(s) address in its plain spelling, such as https://api.example.com/orders?id=3.
        method: What to do there.
        headers: Sent along.
        body: Text to send.
        data: Values to send as JSON, instead of body.
        context: The run.
    """
    content, sent = _content(method, body, data, dict(headers or {}))
    # a redirect is left to the model: the next call is judged by the agent's rules, as this one was
    reply = await HttpClient(context.http).request(method, url, headers=sent, body=content, follow=False)
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
    """What is sent, and the headers with its type."""
    if body is None and data is None:
        return None, dict(headers)
    if body is not None and data is not None:
        raise ToolError("give either body or data, not both")
    if method in {"GET", "HEAD"}:
        raise ToolError(f"{method} sends no body: put what is asked for into the URL, or use POST")
    kind = "text/plain; charset=utf-8" if data is None else "application/json"
    text = json.dumps(data, ensure_ascii=False) if body is None else body
    given = {name.lower() for name in headers}
    return text.encode("utf-8", "replace"), {**headers, **({} if "content-type" in given else {"content-type": kind})}


def _text(reply: HttpReply) -> str:
    if b"\0" in reply.body[:8192]:
        return f"(binary, {len(reply.body)} bytes{' or more' if reply.truncated else ''})"
    return reply.text
