"""A finished span as plain data: what a store keeps of a trace, a picture shows of it and an export sends of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Inbound = Literal["ignore", "link", "parent"]
"""What runs make of the trace context of the HTTP request that starts them."""

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span."""

    name: str
    at_ns: int
    """Unix time in nanoseconds."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Another span that this one belongs with, such as that of the run's first part."""

    trace_id: str
    span_id: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. Ids are in hex; a host program's spans, where there are any, have the same ids."""

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
    """The `error.type`; none for a span that did not fail."""
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()


def parse_link(traceparent: str, kind: str, attribute: str) -> SpanLink | None:
    """A link to where a W3C `traceparent` points; none if it points nowhere.

    Args:
        traceparent: `00-TRACE-SPAN-FLAGS`.
        kind: what the link says.
        attribute: the name under which it says so.
    """
    parts = traceparent.split("-")
    return SpanLink(parts[1], parts[2], {attribute: kind}) if len(parts) == 4 else None
