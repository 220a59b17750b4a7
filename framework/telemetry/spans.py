"""Spans of one run, recorded by the host's TracerProvider, in the run's stored trace, or in both.

With neither, every span is `NOOP_SPAN`; this is decided once per run. A span is opened around an await in the task
that does the work, never across a yield, so it cannot leak. Spans contain no prompts, arguments, results or exception
messages, except for attributes that `Content` produces.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Literal, Self, cast

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    INVALID_SPAN,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)

from framework.telemetry import names
from framework.types.trace import AttributeValue, SpanEvent, SpanLink, SpanRecord, parse_link

OpenInferenceKind = Literal["LLM", "TOOL", "AGENT", "CHAIN"]
OptionalAttributes = Mapping[str, AttributeValue | None]
"""Attributes; those that are None are not recorded."""
SpanIds = tuple[str, str, int]
"""Trace id and span id in hexadecimal, and the flags, as in W3C trace context."""


def _without_none(attributes: OptionalAttributes) -> Mapping[str, AttributeValue]:
    if None in attributes.values():
        return {key: value for key, value in attributes.items() if value is not None}
    return cast("Mapping[str, AttributeValue]", attributes)


class TraceSpan:
    """An open span. Entering it makes it the current one; leaving ends it.

    Exceptions are not recorded, except for cancellations: the code that knows what one means calls `fail`.
    """

    __slots__ = (
        *("_attached", "_attributes", "_entered", "_error", "_events", "_host", "_ids", "_kind", "_links", "_log"),
        *("_name", "_parent_id", "_started"),
    )

    def __init__(
        self,
        name: str,
        kind: Literal["internal", "client"],
        attributes: dict[str, AttributeValue],
        ids: SpanIds,
        parent: TraceSpan | None = None,
        host: Span = INVALID_SPAN,
        log: list[SpanRecord] | None = None,
        started_ns: int | None = None,
    ) -> None:
        """Initialize.

        Args:
            name: the span's name.
            kind: its kind, for the stored trace.
            attributes: its attributes, which may be changed.
            ids: its ids: those of `host`, if the host records spans.
            parent: the span above it.
            host: the same span of the host's provider, or OpenTelemetry's no-op span.
            log: gets the span's record when it ends, for the stored trace; None if it is not stored.
            started_ns: the start in Unix nanoseconds; None for now.
        """
        self._name, self._kind, self._attributes, self._ids, self._host = name, kind, attributes, ids, host
        self._parent_id = parent._ids[1] if parent and log is not None else None
        self._log, self._started = log, started_ns or time.time_ns()
        self._error: str | None = None
        self._events: tuple[SpanEvent, ...] = ()
        self._links: tuple[SpanLink, ...] = ()
        self._entered: Token[TraceSpan] | None = None
        self._attached: Token[Context] | None = None

    def __enter__(self) -> Self:
        if self is not NOOP_SPAN:
            self._entered = _current.set(self)
            if self._host is not INVALID_SPAN:
                self._attached = attach(trace.set_span_in_context(self._host))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deactivate(error)
        self.end()

    def _deactivate(self, error: BaseException | None) -> None:
        """Restore the previous current span. A cancellation is recorded here, because it means the same everywhere."""
        if self._attached:
            detach(self._attached)
        if self._entered:
            _current.reset(self._entered)
            self._attached = self._entered = None
        if isinstance(error, asyncio.CancelledError):
            self.fail("cancelled")

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make the span the current one while the context is open, without ending it."""
        self.__enter__()
        try:
            yield
        except BaseException as error:
            self._deactivate(error)
            raise
        self._deactivate(None)

    def is_recording(self) -> bool:
        """Return whether attributes are recorded, and so are worth computing."""
        return self._log is not None or self._host.is_recording()

    def set_attribute(self, name: str, value: AttributeValue | None) -> None:
        """Set an attribute; None is ignored."""
        self.set_attributes({name: value})

    def set_attributes(self, attributes: OptionalAttributes) -> None:
        """Set several attributes; those that are None are ignored."""
        present = _without_none(attributes)
        self._host.set_attributes(present)
        if self._log is not None:
            self._attributes.update(present)

    def add_event(self, name: str, attributes: OptionalAttributes | None = None) -> None:
        """Record an event at the current time."""
        present = _without_none(attributes or {})
        self._host.add_event(name, present)
        if self._log is not None:
            self._events += (SpanEvent(name, time.time_ns(), present),)

    def add_link(self, traceparent: str, kind: str) -> None:
        """Link the span to the one with this W3C `traceparent`; an empty or invalid one is ignored."""
        link = parse_link(traceparent, kind, names.LINK_TYPE)
        if link is None:
            return
        target = SpanContext(int(link.trace_id, 16), int(link.span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
        self._host.add_link(target, link.attributes)
        if self._log is not None:
            self._links += (link,)

    def fail(self, error_type: str) -> None:
        """Mark the span as failed with a low-cardinality type, not a message. Later calls are ignored."""
        if self._error or not self.is_recording():
            return
        self._error = error_type
        self.set_attributes({names.ERROR_TYPE: error_type})
        self._host.set_status(Status(StatusCode.ERROR, error_type))

    def end(self, at_ns: int | None = None) -> None:
        """End the span, now or at a Unix time in nanoseconds. Idempotent."""
        self._host.end(at_ns)
        self._host = INVALID_SPAN
        if self._log is not None:
            self._log.append(self._record(at_ns or time.time_ns()))
            self._log = None

    @property
    def trace_id(self) -> str | None:
        """The trace id in hexadecimal; None when nothing is recorded."""
        return self._ids[0] or None

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` of the span; empty when nothing is recorded."""
        trace_id, span_id, flags = self._ids
        return f"00-{trace_id}-{span_id}-{flags:02x}" if trace_id else ""

    def _record(self, end_ns: int) -> SpanRecord:
        return SpanRecord(
            name=self._name,
            trace_id=self._ids[0],
            span_id=self._ids[1],
            parent_id=self._parent_id,
            kind=self._kind,
            start_ns=self._started,
            end_ns=end_ns,
            attributes=self._attributes,
            error=self._error,
            events=self._events,
            links=self._links,
        )


NOOP_SPAN = TraceSpan("", "internal", {}, ("", "", 0))
"""A span that is recorded nowhere."""
_current: ContextVar[TraceSpan] = ContextVar("agentsd_span", default=NOOP_SPAN)


def current_span() -> TraceSpan:
    """Return the innermost open span of agentsd in this context, or `NOOP_SPAN`."""
    return _current.get()


class Spans:
    """The spans of one run. All have the attributes that identify the run and its generation."""

    def __init__(self, shared: OptionalAttributes, *, keep: bool = False, traced: bool = True) -> None:
        """Detect the host's provider.

        Args:
            shared: attributes of every span.
            keep: add ended spans to `finished_spans`, for a store.
            traced: whether to record spans at all.
        """
        self._shared = _without_none(shared)
        provider = trace.get_tracer_provider()
        self._tracer: Tracer | None = (
            None if isinstance(provider, ProxyTracerProvider) else provider.get_tracer(names.TRACER)
        )
        self._keep = keep
        self.finished_spans: list[SpanRecord] = []
        """Ended spans that have not been drained yet."""
        self.recording = traced and (keep or self._tracer is not None)
        """Whether spans are recorded."""

    def span(
        self,
        name: str,
        kind: OpenInferenceKind,
        attributes: OptionalAttributes | None = None,
        *,
        client: bool = False,
        root: bool = False,
        started_ns: int | None = None,
    ) -> TraceSpan:
        """Open a span; entering it makes it the current one.

        Args:
            name: the span's name, of low cardinality: backends group spans by it.
            kind: the OpenInference span kind.
            attributes: the attributes known at the start; samplers see only these.
            client: whether the span calls another service; always true for `LLM`.
            root: start a new trace, even inside another span.
            started_ns: the start in Unix nanoseconds, if it was earlier.
        """
        if not self.recording:
            return NOOP_SPAN
        merged: dict[str, AttributeValue] = {**self._shared, names.OPENINFERENCE_KIND: kind}
        if attributes:
            merged.update(_without_none(attributes))
        is_client = client or kind == "LLM"
        parent = NOOP_SPAN if root else current_span()
        host: Span = INVALID_SPAN
        if self._tracer:
            host = self._tracer.start_span(
                name,
                context=Context() if root else None,
                kind=SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
                attributes=merged,
                start_time=started_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
        ids = _ids_of(host.get_span_context()) if self._tracer else _new_ids(parent, root=root)
        log = self.finished_spans if self._keep else None
        above = None if parent is NOOP_SPAN else parent
        return TraceSpan(name, "client" if is_client else "internal", merged, ids, above, host, log, started_ns)

    def drain(self, least: int = 1) -> Sequence[SpanRecord]:
        """Return and remove the ended spans; return none while there are fewer than `least`."""
        if len(self.finished_spans) < least:
            return ()
        drained, self.finished_spans[:] = self.finished_spans[:], []
        return drained


def _ids_of(context: SpanContext) -> SpanIds:
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags & TraceFlags.SAMPLED


def _new_ids(parent: TraceSpan, *, root: bool) -> SpanIds:
    """Create ids for a span that is only stored. It continues the trace of the current span, if there is one."""
    span_id = f"{random.getrandbits(64):016x}"
    if parent.trace_id:
        return parent.trace_id, span_id, TraceFlags.SAMPLED
    active = trace.get_current_span().get_span_context()
    trace_id = active.trace_id if active.is_valid and not root else random.getrandbits(128)
    return f"{trace_id:032x}", span_id, TraceFlags.SAMPLED
