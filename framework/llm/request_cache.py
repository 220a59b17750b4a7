"""Requests as bytes, of which each part is written once: tools once a generation, a message once a run.

A conversation grows at its end, so a request repeats the one before it. What was written stays written: for a long
history this is nearly all of the work of a call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import orjson

from framework.types.messages import Message, ToolDefinition

T = TypeVar("T")

_MAX_TOOLSETS = 64


def encode_json(value: Any) -> bytes:
    """JSON, also of what orjson refuses: whole numbers past 64 bits in somebody's schema, half characters."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


class EncodedMessages:
    """The messages of one run in a provider's form. It belongs to the run, and goes with it."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._chunks: list[bytes] = []

    def pieces(self, messages: Sequence[Message], write: Callable[[Message], dict[str, Any]]) -> Sequence[bytes]:
        """A JSON array of the messages; only what is not the very same as last time is written."""
        same = 0
        for known, message in zip(self._messages, messages, strict=False):
            if known is not message:
                break
            same += 1
        del self._messages[same:], self._chunks[same:]
        for message in messages[same:]:
            self._messages.append(message)
            self._chunks.append((b"," if self._chunks else b"") + encode_json(write(message)))
        return (b"[", *self._chunks, b"]")


class RequestCache:
    """What clients keep of one run from request to request."""

    def __init__(self) -> None:
        self._written: dict[str, EncodedMessages] = {}

    def messages_for(self, model: str) -> EncodedMessages:
        """The run's messages in the form in which one model gets them."""
        return self._written.setdefault(model, EncodedMessages())


class ToolsetCache(Generic[T]):
    """What is made of lists of tools, kept for the lists that were used last."""

    def __init__(self, make: Callable[[tuple[ToolDefinition, ...]], T]) -> None:
        self._make = make
        self._made: dict[int, tuple[tuple[ToolDefinition, ...], T]] = {}

    def of(self, tools: tuple[ToolDefinition, ...]) -> T:
        """What was made of this very list."""
        known = self._made.pop(id(tools), None)
        made = known[1] if known and known[0] is tools else self._make(tools)
        self._made[id(tools)] = tools, made  # the list is held, so that its id stays its own
        if len(self._made) > _MAX_TOOLSETS:
            del self._made[next(iter(self._made))]
        return made


def json_object(body: dict[str, Any], **ready: Sequence[bytes]) -> bytes:
    """A JSON object of some fields, and of others whose JSON is ready in pieces; each byte of them is copied once."""
    parts, comma = [encode_json(body)[:-1]], b"," if body else b""
    for name, pieces in ready.items():
        parts += (comma, b'"', name.encode(), b'":', *pieces)
        comma = b","
    parts.append(b"}")
    return b"".join(parts)
