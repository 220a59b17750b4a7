"""Requests with files: validated against the types of each SDK, and the files read back from them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from anthropic.types import MessageParam
from google.genai import types as gemini
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputParam
from pydantic import TypeAdapter

from framework.types.file import File
from framework.types.media import TextPart
from framework.types.messages import Message
from tests.support.media import SAMPLES

_CHAT = TypeAdapter(list[ChatCompletionMessageParam])
_CLAUDE = TypeAdapter(list[MessageParam])
_RESPONSES = TypeAdapter(ResponseInputParam)
Sent = tuple[str, bytes]
"""Media type and contents of a file."""


def sample(media_type: str) -> File:
    """Return a small file."""
    return File.from_bytes(SAMPLES[media_type])


def with_files(*parts: str | File, role: Literal["user", "tool"] = "user", **fields: Any) -> Message:
    """Return a message of texts and files."""
    return Message.of_parts(
        role, [TextPart(text=part) if isinstance(part, str) else part.part for part in parts], **fields
    )


def contents(*messages: Message) -> dict[str, bytes]:
    """Return the contents of the samples in messages, by digest."""
    known = {sample(media_type).part.digest: data for media_type, data in SAMPLES.items()}
    return {file.digest: known[file.digest] for message in messages for file in message.media if file.digest in known}


def files_in(form: str, body: Mapping[str, Any]) -> list[Sent]:
    """Return the files in a request or an export, in order; fails if the SDK's types do not allow its messages."""
    if form == "gemini":
        parts = (gemini.Content.model_validate(content, extra="forbid").parts for content in body["contents"])
        return [sent for of_turn in parts for part in of_turn or () for sent in _in_gemini(part)]
    if form == "responses":
        # The types require an id and a status of the assistant's messages; the API does not.
        known = {"id": "msg_1", "status": "completed"}
        given = [known | item if item.get("type") == "message" else item for item in body["input"]]
        items: Any = _RESPONSES.validate_python(given)
        return [sent for item in items for sent in _in_item(item.get("content") or item.get("output"))]
    turns: Any = (_CHAT if form == "openai" else _CLAUDE).validate_python(body["messages"])
    return [sent for turn in turns for sent in (_in_chat if form == "openai" else _in_claude)(turn["content"])]


def _in_gemini(part: gemini.Part) -> Iterator[Sent]:
    for blob in (part.inline_data, *(p.inline_data for p in _response_parts(part))):
        if blob is not None:
            assert blob.mime_type
            yield blob.mime_type, blob.data or b""


def _response_parts(part: gemini.Part) -> list[gemini.FunctionResponsePart]:
    return (part.function_response.parts or []) if part.function_response else []


def _in_chat(content: Any) -> Iterator[Sent]:
    for part in content if not isinstance(content, str | None) else ():
        match part["type"]:
            case "image_url":
                yield _data_url(part["image_url"]["url"])
            case "file":
                yield _data_url(part["file"]["file_data"])
            case "input_audio":
                sound = part["input_audio"]
                yield {"wav": "audio/wav", "mp3": "audio/mpeg"}[sound["format"]], _decoded(sound["data"])


def _in_item(content: Any) -> Iterator[Sent]:
    for part in content if not isinstance(content, str | None) else ():
        match part["type"]:
            case "input_image":
                yield _data_url(part["image_url"])
            case "input_file":
                yield _data_url(part["file_data"])


def _in_claude(content: Any) -> Iterator[Sent]:
    for block in content if not isinstance(content, str) else ():
        match block["type"]:
            case "image" | "document":
                yield block["source"]["media_type"], _decoded(block["source"]["data"])
            case "tool_result":
                yield from _in_claude(block["content"])


def _data_url(url: str) -> Sent:
    head, _, data = url.partition(";base64,")
    return head.removeprefix("data:"), _decoded(data)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
