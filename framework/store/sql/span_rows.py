"""A run's finished spans as a store keeps them: JSON, one piece a write."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import orjson
from pydantic import TypeAdapter

from framework.types.trace import SpanRecord

log = logging.getLogger(__name__)

_SPANS = TypeAdapter(list[SpanRecord])


def encode_spans(spans: Sequence[SpanRecord]) -> str | None:
    """A piece; none where there is nothing to keep. A trace that cannot be written is no reason for a run to fail."""
    if not spans:
        return None
    try:
        return orjson.dumps(spans).decode()
    except TypeError as error:
        log.warning("some spans of a run could not be kept: %s", error)
        return None


def decode_spans(pieces: Iterable[str]) -> list[SpanRecord]:
    """All of them, by when they began."""
    found = [span for piece in pieces for span in _SPANS.validate_json(piece)]
    return sorted(found, key=lambda span: span.start_ns)
