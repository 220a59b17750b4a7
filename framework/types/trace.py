"""Finished spans as plain data, for storing, displaying and exporting traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Inbound = Literal["ignore", "link", "parent"]
"""How runs use the trace context of the HTTP request that starts them."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace of the caller of a run that starts later."""

    traceparent: str
    """W3C trace context: `00-TRACE-SPAN-FLAGS`."""
    mode: Inbound
    """How the run uses it."""


AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event at one point in time of a span."""

    name: str
    at_ns: int
    """Unix time in nanoseconds."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanLink:
    """A link to a related span, such as the one in which the run started before it paused."""

    trace_id: str
    span_id: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. Ids are hexadecimal and equal those of the embedding program's spans, if it records any."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    kind: Literal["internal", "client"]
    start_ns: int
    """Unix time in nanoseconds."""
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    """`error.type` of a failed span, otherwise None."""
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()


def parse_link(traceparent: str, kind: str, attribute: str) -> SpanLink | None:
    """Return a link to the span of a W3C `traceparent`, or None if it has another format.

    Args:
        traceparent: `00-TRACE-SPAN-FLAGS`.
        kind: value of the link's attribute.
        attribute: name of the link's attribute.
    """
    parts = traceparent.split("-")
    return SpanLink(parts[1], parts[2], {attribute: kind}) if len(parts) == 4 else None
