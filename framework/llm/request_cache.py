"""Requests as JSON bytes, each part encoded once: a tool list once per generation, a message or file once per run.

A conversation grows at its end, so each request repeats the one before it. Encoding the repeated part again would be
most of the work of a call with a long history.

The number of tokens is estimated without calling a provider: text in alphabets averages about four characters per
token; Chinese, Japanese and Korean text about four characters per three tokens. Measured against real tokenizers, the
estimate is within a third for prose and code.
"""

from __future__ import annotations

import asyncio
import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from math import ceil
from operator import is_
from typing import Any, Generic, TypeVar

import orjson

from framework.llm.message_shape import ConversationShape
from framework.types.media import MediaPart
from framework.types.messages import Message, ToolDefinition

T = TypeVar("T")

Base64 = Callable[[MediaPart], str | None]
"""Returns a file's contents in base64; None if they are missing."""
_BLOCK = 3 << 18
"""Bytes that are encoded at once, in under a millisecond: encoding keeps other threads from running."""
_INLINE_BYTES = 1 << 20
"""A smaller file is encoded faster than a thread is started."""
MAX_TOOLSETS = 64
"""Tool lists in a `ToolsetCache`; the least recently used one is dropped."""


def encode_json(value: Any) -> bytes:
    """Return the value as JSON, including values orjson rejects: integers above 64 bits and lone surrogates."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


class EncodedMessages:
    """The messages of one run as JSON in one provider's format."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._chunks: list[bytes] = []

    def chunks(self, messages: Sequence[Message], encode: Callable[[int], bytes]) -> Sequence[bytes]:
        """Return the messages as the chunks of a JSON array; encode only those after the part that is unchanged.

        Messages are compared by identity. `encode` returns the JSON of the message at a position, and may add messages
        after it, separated by commas.
        """
        unchanged = len(self._messages)
        if len(messages) < unchanged or not all(map(is_, self._messages, messages)):
            unchanged = sum(1 for _ in takewhile(bool, map(is_, self._messages, messages)))
        del self._messages[unchanged:], self._chunks[unchanged:]
        for position in range(unchanged, len(messages)):
            self._messages.append(messages[position])
            self._chunks.append((b"," if self._chunks else b"") + encode(position))
        return (b"[", *self._chunks, b"]")


class EncodedFiles:
    """The files of one run in base64."""

    def __init__(self) -> None:
        self._by_digest: dict[str, str] = {}

    async def add(self, files: Mapping[str, bytes]) -> None:
        """Encode the files that are new, by digest; large ones in a thread."""
        for digest, data in files.items():
            if digest not in self._by_digest:
                large = len(data) >= _INLINE_BYTES
                self._by_digest[digest] = await asyncio.to_thread(_in_base64, data) if large else _in_base64(data)

    def base64(self, part: MediaPart) -> str | None:
        """Return a file's contents, or None if it is missing."""
        return self._by_digest.get(part.digest)


def missing_file(part: MediaPart) -> None:
    """Return no contents, for conversations whose files are not available."""


def _in_base64(data: bytes) -> str:
    view = memoryview(data)
    blocks = (b2a_base64(view[at : at + _BLOCK], newline=False) for at in range(0, len(view), _BLOCK))
    return b"".join(blocks).decode("ascii")


class RequestCache:
    """The encoded messages of one run, by model, and its encoded files."""

    def __init__(self) -> None:
        self._by_model: dict[str, EncodedMessages] = {}
        self._shapes: dict[str, ConversationShape] = {}
        self.files = EncodedFiles()

    def messages_for(self, model: str) -> EncodedMessages:
        """Return the run's messages in the format of `model`."""
        return self._by_model.setdefault(model, EncodedMessages())

    def shape_for(self, model: str) -> ConversationShape:
        """Return the form of the run's conversation for `model`."""
        return self._shapes.setdefault(model, ConversationShape())


class ToolsetCache(Generic[T]):
    """Values derived from tool lists, for the `MAX_TOOLSETS` lists used last. Lists are compared by identity."""

    def __init__(self, derive: Callable[[tuple[ToolDefinition, ...]], T]) -> None:
        self._derive = derive
        self._values: dict[int, tuple[tuple[ToolDefinition, ...], T]] = {}

    def get(self, tools: tuple[ToolDefinition, ...]) -> T:
        """Return the value derived from this list."""
        cached = self._values.pop(id(tools), None)
        value = cached[1] if cached and cached[0] is tools else self._derive(tools)
        self._values[id(tools)] = tools, value  # holding the list keeps its id from being reused
        if len(self._values) > MAX_TOOLSETS:
            del self._values[next(iter(self._values))]
        return value


def merged_fields(body: dict[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with the fields of an alias's `extra_body`. Objects that both contain are merged."""
    merged = dict(body)
    for name, value in added.items():
        own = merged.get(name)
        merged[name] = merged_fields(own, value) if isinstance(own, dict) and isinstance(value, Mapping) else value
    return merged


def json_object(body: dict[str, Any], **encoded: Sequence[bytes]) -> bytes:
    """Return a JSON object with the fields of `body` and with fields that are already encoded, in chunks."""
    parts, comma = [encode_json(body)[:-1]], b"," if body else b""
    for name, chunks in encoded.items():
        parts += (comma, b'"', name.encode(), b'":', *chunks)
        comma = b","
    parts.append(b"}")
    return b"".join(parts)


_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_CHARS_PER_TOKEN = 4.0
_TOKENS_PER_WIDE_CHAR = 0.75
_MESSAGE_OVERHEAD = 4
"""Tokens per message in addition to its text."""
_TOKENS_PER_FILE = 1600
"""Tokens of a file whose own estimate is unknown: those of a large image."""


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens."""
    if text.isascii():
        return ceil(len(text) / _CHARS_PER_TOKEN)
    wide = len(_WIDE.findall(text))
    return ceil((len(text) - wide) / _CHARS_PER_TOKEN + wide * _TOKENS_PER_WIDE_CHAR)


def message_tokens(message: Message) -> int:
    """Return the estimated number of tokens of a message, with its tool calls and files.

    For the formulas of files see `framework.types.media_format`.
    """
    calls = [[call.tool, call.arguments] for call in message.tool_calls]
    text = message.content + (encode_json(calls).decode() if calls else "")
    files = sum(part.tokens or _TOKENS_PER_FILE for part in message.media) if message.parts else 0
    return _MESSAGE_OVERHEAD + estimate_tokens(text) + files


def tool_tokens(tools: Iterable[ToolDefinition]) -> int:
    """Return the estimated number of tokens of the definitions of tools."""
    return estimate_tokens("".join(tool.canonical_json for tool in tools))
