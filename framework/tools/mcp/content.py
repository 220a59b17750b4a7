"""Converts MCP results, resources and prompts to text and plain data of limited size."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from framework.types.errors import ToolError

if TYPE_CHECKING:
    from mcp import types

MAX_RESULT_CHARS = 200_000


def tool_output(result: types.CallToolResult) -> Any:
    """Return the structured content of a tool's result, or its text. Raise ToolError if the result is an error."""
    text = truncate(text_of(result.content))
    if result.is_error:
        raise ToolError(text or "the tool failed without an error message")
    if result.structured_content is None:
        return text
    encoded = json.dumps(result.structured_content, ensure_ascii=False)
    return result.structured_content if len(encoded) <= MAX_RESULT_CHARS else truncate(encoded)


def text_of(blocks: Iterable[types.ContentBlock]) -> str:
    """Return the text of content blocks. Other content is replaced by a placeholder."""
    return "\n".join(map(_block_text, blocks))


def resource_text(contents: Iterable[types.TextResourceContents | types.BlobResourceContents]) -> str:
    """Return the text of a resource."""
    return "\n".join(_contents_text(content) for content in contents)


def prompt_text(messages: Iterable[types.PromptMessage]) -> str:
    """Return the text of a prompt. Several messages are prefixed with their roles."""
    parts = [(message.role, _block_text(message.content)) for message in messages]
    return parts[0][1] if len(parts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in parts)


def truncate(text: str) -> str:
    """Cut the text to the maximum length and append the number of omitted characters."""
    omitted = len(text) - MAX_RESULT_CHARS
    return text if omitted <= 0 else f"{text[:MAX_RESULT_CHARS]}… ({omitted} more characters omitted)"


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
