"""JSON encoding of a run's spans: each write stores one JSON list."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import orjson
from pydantic import TypeAdapter

from framework.types.trace import SpanRecord

log = logging.getLogger(__name__)

_SPANS = TypeAdapter(list[SpanRecord])


def encode_spans(spans: Sequence[SpanRecord]) -> str | None:
    """Return the spans as a JSON list; None if there are none, or they cannot be serialized (logged, not raised)."""
    if not spans:
        return None
    try:
        return orjson.dumps(spans).decode()
    except TypeError as error:
        log.warning("some spans of a run were not stored: %s", error)
        return None


def decode_spans(bodies: Iterable[str]) -> list[SpanRecord]:
    """Return the spans of several JSON lists, sorted by start."""
    spans = [span for body in bodies for span in _SPANS.validate_json(body)]
    return sorted(spans, key=lambda span: span.start_ns)
