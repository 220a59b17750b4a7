"""One span: recorded by the host's provider, in the run's stored trace, in both, or a no-op."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Literal, Self, cast

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanContext, Status, StatusCode, TraceFlags

from framework.telemetry import names
from framework.types.trace import AttributeValue, SpanEvent, SpanLink, SpanRecord, parse_link

OptionalAttributes = Mapping[str, AttributeValue | None]
"""Attributes; those that are None are not recorded."""
SpanIds = tuple[str, str, int]
"""Trace id and span id in hexadecimal, and the flags, as in W3C trace context."""


def without_none(attributes: OptionalAttributes) -> Mapping[str, AttributeValue]:
    """Return the attributes that are not None."""
    if None in attributes.values():
        return {key: value for key, value in attributes.items() if value is not None}
    return cast("Mapping[str, AttributeValue]", attributes)


class NullContext:
    """A context manager that does nothing, used when nothing is recorded. Exceptions propagate."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


class TraceSpan(NullContext):
    """An open span. This class records nothing; `RecordedSpan` does.

    Entering the span makes it the current one; leaving ends it. Exceptions are not recorded: the code that knows what
    one means calls `fail`.
    """

    __slots__ = ()

    def activate(self) -> AbstractContextManager[object]:
        """Return a context in which the span is the current one; leaving it does not end the span."""
        return self

    def is_recording(self) -> bool:
        """Return whether attributes are recorded, and so are worth computing."""
        return False

    def set_attribute(self, name: str, value: AttributeValue | None) -> None:
        """Set an attribute; None is ignored."""

    def set_attributes(self, attributes: OptionalAttributes) -> None:
        """Set several attributes; those that are None are ignored."""

    def add_event(self, name: str, attributes: OptionalAttributes | None = None) -> None:
        """Record an event at the current time."""

    def add_link(self, traceparent: str, kind: str) -> None:
        """Link the span to the one with this W3C `traceparent`; an empty or invalid one is ignored."""

    def fail(self, error_type: str) -> None:
        """Mark the span as failed with a low-cardinality type, not a message. Later calls are ignored."""

    def end(self, at_ns: int | None = None) -> None:
        """End the span, now or at a Unix time in nanoseconds. Idempotent."""

    @property
    def trace_id(self) -> str | None:
        """The trace id in hexadecimal; None when nothing is recorded."""
        return None

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` of the span; empty when nothing is recorded."""
        return ""


NOOP_SPAN = TraceSpan()


class RecordedSpan(TraceSpan):
    """A span that is recorded by the host's provider, in a run's stored trace, or in both."""

    __slots__ = (
        "_attached",
        "_attributes",
        "_context",
        "_entered",
        "_error",
        "_events",
        "_host",
        "_ids",
        "_kind",
        "_links",
        "_log",
        "_name",
        "_parent_id",
        "_started",
    )

    def __init__(
        self,
        name: str,
        kind: Literal["internal", "client"],
        attributes: dict[str, AttributeValue],
        ids: SpanIds | None,
        parent: RecordedSpan | None,
        host: Span | None,
        log: list[SpanRecord] | None,
        started_ns: int | None,
    ) -> None:
        """Initialize.

        Args:
            name: the span's name.
            kind: its kind, for the stored trace.
            attributes: its attributes, which may be changed.
            ids: its ids; None for those of `host`.
            parent: the span above it.
            host: the same span of the host's provider, if it records any.
            log: gets the span's record when it ends, for the stored trace; None if it is not stored.
            started_ns: the start in Unix nanoseconds; None for now.
        """
        self._name, self._kind, self._attributes, self._host, self._log = name, kind, attributes, host, log
        self._ids, self._context = ids, host.get_span_context() if host else None
        self._parent_id = None if parent is None or log is None else parent.ids[1]
        self._started = started_ns or time.time_ns()
        self._error: str | None = None
        self._events: tuple[SpanEvent, ...] = ()
        self._links: tuple[SpanLink, ...] = ()
        self._entered: Token[RecordedSpan | None] | None = None
        self._attached: Token[Context] | None = None

    def __enter__(self) -> Self:
        self._entered = _current.set(self)
        if self._host:
            self._attached = attach(trace.set_span_in_context(self._host))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.deactivate(error)
        self.end()

    def deactivate(self, error: BaseException | None) -> None:
        """Restore the previous current span. A cancellation is recorded here, because it means the same everywhere."""
        if self._attached:
            detach(self._attached)
        if self._entered:
            _current.reset(self._entered)
        self._attached = self._entered = None
        if isinstance(error, asyncio.CancelledError):
            self.fail("cancelled")

    def activate(self) -> AbstractContextManager[object]:
        return _Activation(self)

    def is_recording(self) -> bool:
        return self._log is not None or (self._host is not None and self._host.is_recording())

    def set_attribute(self, name: str, value: AttributeValue | None) -> None:
        self.set_attributes({name: value})

    def set_attributes(self, attributes: OptionalAttributes) -> None:
        present = without_none(attributes)
        if self._host:
            self._host.set_attributes(present)
        if self._log is not None:
            self._attributes.update(present)

    def add_event(self, name: str, attributes: OptionalAttributes | None = None) -> None:
        present = without_none(attributes or {})
        if self._host:
            self._host.add_event(name, present)
        if self._log is not None:
            self._events += (SpanEvent(name, time.time_ns(), present),)

    def add_link(self, traceparent: str, kind: str) -> None:
        link = parse_link(traceparent, kind, names.LINK_TYPE)
        if link is None:
            return
        if self._host:
            target = SpanContext(int(link.trace_id, 16), int(link.span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
            self._host.add_link(target, link.attributes)
        if self._log is not None:
            self._links += (link,)

    def fail(self, error_type: str) -> None:
        if self._error:
            return
        self._error = error_type
        self.set_attributes({names.ERROR_TYPE: error_type})
        if self._host:
            self._host.set_status(Status(StatusCode.ERROR, error_type))

    def end(self, at_ns: int | None = None) -> None:
        if self._host:
            self._host.end(at_ns)
            self._host = None
        if self._log is not None:
            self._log.append(self._record(at_ns or time.time_ns()))
            self._log = None

    @property
    def ids(self) -> SpanIds:
        """The ids of the span. Those of the host's span become texts when they are first used."""
        if self._ids is None:
            context = self._context
            assert context
            flags = int(context.trace_flags) & 1
            self._ids = f"{context.trace_id:032x}", f"{context.span_id:016x}", flags
        return self._ids

    @property
    def trace_id(self) -> str | None:
        return self.ids[0]

    @property
    def traceparent(self) -> str:
        trace_id, span_id, flags = self.ids
        return f"00-{trace_id}-{span_id}-{flags:02x}"

    def _record(self, end_ns: int) -> SpanRecord:
        return SpanRecord(
            name=self._name,
            trace_id=self.ids[0],
            span_id=self.ids[1],
            parent_id=self._parent_id,
            kind=self._kind,
            start_ns=self._started,
            end_ns=end_ns,
            attributes=self._attributes,
            error=self._error,
            events=self._events,
            links=self._links,
        )


class _Activation:
    """Makes a span the current one without ending it."""

    __slots__ = ("_span",)

    def __init__(self, span: RecordedSpan) -> None:
        self._span = span

    def __enter__(self) -> None:
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._span.deactivate(error)


_current: ContextVar[RecordedSpan | None] = ContextVar("agentsd_span", default=None)


def innermost_span() -> RecordedSpan | None:
    """Return the innermost open span of agentsd in this context, or None."""
    return _current.get()


def current_span() -> TraceSpan:
    """Return the innermost open span, or `NOOP_SPAN`."""
    return _current.get() or NOOP_SPAN
