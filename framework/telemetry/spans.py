"""Spans around the work of a run. The host's TracerProvider is used; without one nothing is recorded, at no cost.

Spans are opened around an await, in the task that does the work: never across a yield, so they cannot leak.
Content (prompts, arguments, results, exception messages) is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import INVALID_SPAN, ProxyTracerProvider, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from framework.telemetry import names

Kind = Literal["LLM", "TOOL", "AGENT", "CHAIN"]


class Spans:
    """The spans of one run: they share the attributes that say which run and generation they belong to."""

    def __init__(self, shared: Mapping[str, AttributeValue]) -> None:
        self._shared = dict(shared)
        # One check a run: without a provider no span object is ever made.
        recording = not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
        self._tracer: Tracer | None = trace.get_tracer(names.TRACER) if recording else None

    @contextmanager
    def span(
        self, name: str, kind: Kind, attributes: Mapping[str, AttributeValue | None] | None = None
    ) -> Iterator[Span]:
        """Open a span as the current one. Exceptions pass through; whoever knows what they mean calls `fail`."""
        if self._tracer is None:
            yield INVALID_SPAN
            return
        with self._tracer.start_as_current_span(
            name,
            kind=SpanKind.CLIENT if kind == "LLM" else SpanKind.INTERNAL,
            attributes=self._attributes(kind, attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    @contextmanager
    def root(
        self, name: str, kind: Kind, attributes: Mapping[str, AttributeValue | None] | None = None
    ) -> Iterator[Span]:
        """As `span`, but the beginning of a trace of its own, whatever is going on around it."""
        token = attach(Context())
        try:
            with self.span(name, kind, attributes) as span:
                yield span
        finally:
            detach(token)

    def start(self, name: str, kind: Kind, attributes: Mapping[str, AttributeValue | None] | None = None) -> Span:
        """Open a span without making it current; enter it with `inside`, and call `span.end()`."""
        if self._tracer is None:
            return INVALID_SPAN
        return self._tracer.start_span(name, attributes=self._attributes(kind, attributes))

    @contextmanager
    def inside(self, span: Span) -> Iterator[None]:
        """Make an open span the current one, without ending it."""
        if self._tracer is None:
            yield
            return
        with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def _attributes(
        self, kind: Kind, attributes: Mapping[str, AttributeValue | None] | None
    ) -> dict[str, AttributeValue]:
        own = {key: value for key, value in (attributes or {}).items() if value is not None}
        return {**self._shared, names.OPENINFERENCE_KIND: kind, **own}


def fail(span: Span, error_type: str) -> None:
    """Mark a span as failed: a low-cardinality type, never a message."""
    span.set_attribute(names.ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, error_type))


def trace_id(span: Span) -> str | None:
    """The trace's id in hex; none when nothing is recorded."""
    context = span.get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None
