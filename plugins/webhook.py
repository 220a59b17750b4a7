"""Messages to webhooks of other systems. `tools.http` in agentsd.yaml must allow their hosts, and POST."""

from __future__ import annotations

import json
from typing import Any, Literal

from agentsd import HttpClient, ToolContext, ToolError, tool

MAX_ANSWER = 500


@tool(risk="high", confirm=True, urls="url")
async def send_webhook(
    url: str,
    context: ToolContext,
    text: str | None = None,
    data: dict[str, Any] | None = None,
    style: Literal["json", "feishu"] = "json",
) -> dict[str, Any]:
    """Send a webhook (发送通知): JSON data, or a text message in the format of a chat.

    Args:
        url: The webhook's URL.
        text: The message; required by the style feishu.
        data: JSON data to send instead of a message.
        style: json sends the data, or the message as text; feishu sends a text message to a Feishu or Lark group.
        context: The run.
    """
    headers = {"content-type": "application/json; charset=utf-8", "idempotency-key": context.idempotency_key}
    body = json.dumps(_message(text, data, style), ensure_ascii=False).encode("utf-8", "replace")
    reply = await HttpClient(context.http).request("POST", url, headers=headers, body=body, follow=False)
    answer = reply.text[:MAX_ANSWER]
    if reply.status >= 300 or (style == "feishu" and not _is_accepted_by_feishu(reply.body)):
        raise ToolError(f"the webhook rejected the message: status {reply.status}: {answer}")
    return {"status": reply.status, "answer": answer}


def _message(text: str | None, data: dict[str, Any] | None, style: str) -> dict[str, Any]:
    if style == "feishu":
        if not text or data is not None:
            raise ToolError("the style feishu accepts text only, no data")
        return {"msg_type": "text", "content": {"text": text}}
    if (text is None) == (data is None):
        raise ToolError("give either text or data")
    return {"text": text} if data is None else data


def _is_accepted_by_feishu(body: bytes) -> bool:
    """Return whether Feishu accepted the message: its status is always 200, and the body contains a code."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("code", answer.get("StatusCode")) == 0
