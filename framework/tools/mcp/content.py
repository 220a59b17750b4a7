"""What an MCP server answers, as text and plain data: what a model can read, no more of it than it can use."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from framework.types.errors import ToolError

if TYPE_CHECKING:
    from mcp import types

MAX_RESULT_CHARS = 200_000


def tool_output(result: types.CallToolResult) -> Any:
    """A tool's result: its structured data, else its text. Raises ToolError if it says that it is an error."""
    text = truncate(text_of(result.content))
    if result.is_error:
        raise ToolError(text or "the tool failed and did not say why")
    if result.structured_content is None:
        return text
    told = json.dumps(result.structured_content, ensure_ascii=False)
    return result.structured_content if len(told) <= MAX_RESULT_CHARS else truncate(told)


def text_of(blocks: Iterable[types.ContentBlock]) -> str:
    """The text of content blocks; what is not text is only said to be there."""
    return "\n".join(map(_block_text, blocks))


def resource_text(contents: Iterable[types.TextResourceContents | types.BlobResourceContents]) -> str:
    """The text of a resource."""
    return "\n".join(_contents_text(content) for content in contents)


def prompt_text(messages: Iterable[types.PromptMessage]) -> str:
    """The text of a prompt; of several messages, each after its role."""
    parts = [(message.role, _block_text(message.content)) for message in messages]
    return parts[0][1] if len(parts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in parts)


def truncate(text: str) -> str:
    """At most so much, saying that there was more."""
    more = len(text) - MAX_RESULT_CHARS
    return text if more <= 0 else f"{text[:MAX_RESULT_CHARS]}… ({more} more characters are left out)"


def _block_text(block: types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return _blob(f"{block.type} {block.mime_type}", block.data)
        case "resource_link":
            return f"[resource {block.uri}: {block.title or block.name}]"
        case "resource":
            return f"[resource {block.resource.uri}]\n{_contents_text(block.resource)}"


def _contents_text(content: types.TextResourceContents | types.BlobResourceContents) -> str:
    blob: str | None = getattr(content, "blob", None)
    return getattr(content, "text", "") if blob is None else _blob(content.mime_type or "binary data", blob)


def _blob(kind: str, base64: str) -> str:
    return f"[{kind}, {len(base64) * 3 / 4 / 1024:.1f} kB, not shown]"
