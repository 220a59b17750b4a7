"""Ended runs of a store in memory: each is compressed JSON, a tenth of the live objects."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError

from framework.store.memory_lists import texts_of
from framework.store.memory_usage import MeasuredRun
from framework.store.span_rows import decode_spans
from framework.types.events import Event, wire_json
from framework.types.messages import Message
from framework.types.state import RunState
from framework.types.trace import SpanRecord

RECORD_BYTES = 2000
"""Estimated size of the record of a packed run without its body: its entry in lists and its figures."""
UNPACKED_BYTES = 1_000_000
"""What a run counts that cannot be packed. Its objects have no size that is cheap to measure."""
MAX_PACKED_BYTES = 500_000
"""A larger run stays plain JSON, because the event loop waits for the compression: 2 ms for this size."""
_SEARCHED_CHARS = 4000
_LEVEL = 1
"""zlib's fastest level: a fifth of the time of the default one, for output that is a tenth larger."""


@dataclass(frozen=True, slots=True)
class CompressedRun:
    """The state, events and spans of an ended run."""

    measured: MeasuredRun
    """Its entry in lists, and its figures, which are read without unpacking it."""
    texts: str
    """The beginning of what the user and the model wrote, for searches."""
    _body: bytes
    _is_zlib: bool
    _history: tuple[Message, ...] | None
    """Earlier messages of its conversation, which has the same objects; None without a conversation."""

    @property
    def size(self) -> int:
        """Estimated number of bytes in memory."""
        history = getsizeof(self._history) if self._history else 0
        return RECORD_BYTES + getsizeof(self.texts) + getsizeof(self._body) + history

    @property
    def state(self) -> RunState:
        """The last state, as a new object."""
        state = RunState.model_validate_json(self._lines()[0])
        if self._history is not None:
            state.history = list(self._history)
        return state

    def events(self, after: int) -> Iterator[dict[str, Any]]:
        """Yield the events with a number above `after`, in their wire format."""
        for line in self._lines()[2:]:
            event: dict[str, Any] = json.loads(line)  # unlike orjson, accepts integers of any size
            if event["seq"] > after:
                yield event

    @property
    def spans(self) -> list[SpanRecord]:
        """The spans, sorted by start."""
        return decode_spans([self._lines()[1].decode()])

    def _lines(self) -> list[bytes]:
        return (zlib.decompress(self._body) if self._is_zlib else self._body).split(b"\n")


def compress_run(
    state: RunState,
    events: Sequence[Event],
    spans: Sequence[SpanRecord],
    measured: MeasuredRun,
    *,
    is_turn: bool,
) -> CompressedRun | None:
    """Pack an ended run; return None if a part of it is no JSON.

    Args:
        state: its last state.
        events: its events, in order.
        spans: its spans.
        measured: its entry in lists, and its figures.
        is_turn: whether its history is that of a stored conversation.
    """
    try:
        own = state.model_dump_json(
            exclude={"history"} if is_turn else None
        )  # defaults included: they tell types apart
        lines = [own.encode(), orjson.dumps(list(spans)), *(wire_json(event).encode() for event in events)]
    except (PydanticSerializationError, TypeError, ValueError):
        return None
    body = b"\n".join(lines)
    is_zlib = len(body) <= MAX_PACKED_BYTES
    history = tuple(state.history) if is_turn else None
    texts = texts_of(state.messages)[:_SEARCHED_CHARS]
    return CompressedRun(measured, texts, zlib.compress(body, _LEVEL) if is_zlib else body, is_zlib, history)
