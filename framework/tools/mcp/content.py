"""Converts MCP results, resources and prompts to text, plain data and files of limited size."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from framework.types.errors import RequestError, ToolError
from framework.types.file import File

if TYPE_CHECKING:
    from mcp import types

MAX_RESULT_CHARS = 200_000
MAX_RESULT_FILES = 20
"""Files that the model gets from one result; the remaining ones are mentioned in its text."""
_THREAD_CHARS = 1_000_000
"""Size from which on a result is converted in a thread."""


async def tool_output(result: types.CallToolResult) -> Any:
    """Return the output of a tool: its structured content, or its text; with files, a list that also contains them.

    Images, PDFs and audio become a `File` if their content is of a supported type, whatever the server declares.

    Raises:
        ToolError: the result is an error.
    """
    if result.is_error:
        raise ToolError(truncate(text_of(result.content)) or "the tool failed without an error message")
    data = [_data(block) for block in result.content]
    if not any(data):
        return _plain_output(result, text_of(result.content))
    if sum(map(len, data)) < _THREAD_CHARS:
        return _output_with_files(result)
    return await asyncio.to_thread(_output_with_files, result)


def _plain_output(result: types.CallToolResult, text: str) -> Any:
    if result.structured_content is None:
        return truncate(text)
    encoded = json.dumps(result.structured_content, ensure_ascii=False)
    return result.structured_content if len(encoded) <= MAX_RESULT_CHARS else truncate(encoded)


def _output_with_files(result: types.CallToolResult) -> Any:
    """Return the output with files in place of blocks that contain one."""
    items: list[str | File] = []
    for block in result.content:
        data = _data(block)
        if not data:
            items.append(_block_text(block))
            continue
        count = sum(isinstance(item, File) for item in items)
        found = _read_file(block.type, data) if count < MAX_RESULT_FILES else f"at most {MAX_RESULT_FILES} files"
        if block.type == "resource":
            items.append(f"[resource {block.resource.uri}]")
        items.append(_blob(_kind(block), data, found) if isinstance(found, str) else found)
    files = [item for item in items if isinstance(item, File)]
    text = "\n".join(item for item in items if isinstance(item, str))
    if not files:
        return _plain_output(result, text)
    if result.structured_content is not None or len(text) > MAX_RESULT_CHARS:
        return [_plain_output(result, text), *files]
    return items


def _read_file(block_type: str, data: str) -> File | str:
    """Return the file in a block, or why the model cannot get it."""
    try:
        content = b64decode(data, validate=True)
        file = File.from_bytes(content)
    except ValueError:
        return "its data is not valid base64"
    except RequestError as error:
        return error.message
    if block_type in ("image", "audio") and file.part.kind != block_type:
        return f"its content is {file.media_type}"
    return file


def _data(block: types.ContentBlock) -> str:
    """Return the base64 data in a block; empty if it contains none."""
    if block.type == "resource":
        return getattr(block.resource, "blob", "")
    return block.data if block.type in ("image", "audio") else ""


def _kind(block: types.ContentBlock) -> str:
    if block.type == "resource":
        return block.resource.mime_type or "binary data"
    return f"{block.type} {block.mime_type}" if block.type in ("image", "audio") else block.type


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
            return _blob(_kind(block), block.data)
        case "resource_link":
            return f"[resource {block.uri}: {block.title or block.name}]"
        case "resource":
            return f"[resource {block.resource.uri}]\n{_contents_text(block.resource)}"


def _contents_text(content: types.TextResourceContents | types.BlobResourceContents) -> str:
    blob: str | None = getattr(content, "blob", None)
    return getattr(content, "text", "") if blob is None else _blob(content.mime_type or "binary data", blob)


def _blob(kind: str, base64: str, reason: str = "") -> str:
    return f"[{kind}, {len(base64) * 3 / 4 / 1024:.1f} kB, not shown{': ' if reason else ''}{reason}]"
