"""Spans around the work of a run: for the host program's TracerProvider, for the run's own stored trace, for both.

Without either nothing is recorded: every span is `NO_SPAN`, and that is decided once a run. Spans are opened around an
await, in the task that does the work: never across a yield, so they cannot leak. They hold no content (prompts,
arguments, results, exception messages) unless whoever opens them puts in what `Content` lets through.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import ProxyTracerProvider, SpanContext, SpanKind, TraceFlags, Tracer

from framework.telemetry import names
from framework.telemetry.span import NOOP_SPAN, OptionalAttributes, RecordedSpan, TraceSpan, innermost_span
from framework.types.trace import SpanRecord

OpenInferenceKind = Literal["LLM", "TOOL", "AGENT", "CHAIN"]


class Spans:
    """The spans of one run: they share the attributes that say which run and generation they belong to."""

    def __init__(self, shared: OptionalAttributes, *, keep: bool = False, traced: bool = True) -> None:
        """Look once whether there is a host's provider.

        Args:
            shared: attributes of every span.
            keep: put finished spans into `finished`, for a store.
            traced: record spans at all.
        """
        self._shared = {key: value for key, value in shared.items() if value is not None}
        provider = trace.get_tracer_provider()
        self._tracer: Tracer | None = (
            None if isinstance(provider, ProxyTracerProvider) else provider.get_tracer(names.TRACER)
        )
        self._keep = keep
        self.finished_spans: list[SpanRecord] = []
        """Finished spans that nobody has taken yet."""
        self.recording = traced and (keep or self._tracer is not None)
        """Whether anything is made of spans at all."""

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
        """Open a span; enter it to make it the current one.

        Args:
            name: constant or nearly so: backends group by it.
            kind: how OpenInference backends show it.
            attributes: known from the beginning: samplers see these only.
            client: it calls another service; so does every `LLM`.
            root: the beginning of a trace of its own, whatever is going on around it.
            started_ns: when it began, if that was earlier; Unix time in nanoseconds.
        """
        if not self.recording:
            return NOOP_SPAN
        given = attributes or {}
        own = {key: value for key, value in given.items() if value is not None}
        merged = {**self._shared, names.OPENINFERENCE_KIND: kind, **own}
        parent = None if root else innermost_span()
        host = None
        if self._tracer:
            host = self._tracer.start_span(
                name,
                context=Context() if root else None,
                kind=SpanKind.CLIENT if client or kind == "LLM" else SpanKind.INTERNAL,
                attributes=merged,
                start_time=started_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
        context = host.get_span_context() if host else _child_context(parent, root=root)
        span = RecordedSpan(name, host, context, parent, self.finished_spans if self._keep else None)
        if self._keep:
            span.start_record(merged, "client" if client or kind == "LLM" else "internal", started_ns)
        return span

    def drain(self, least: int = 1) -> Sequence[SpanRecord]:
        """The finished spans that nobody has taken yet; none while there are fewer than `least`."""
        if len(self.finished_spans) < least:
            return ()
        taken, self.finished_spans[:] = self.finished_spans[:], []
        return taken


def fail(span: TraceSpan, error_type: str) -> None:
    """Mark a span as failed: a low-cardinality type, never a message."""
    span.fail(error_type)


def _child_context(parent: RecordedSpan | None, *, root: bool) -> SpanContext:
    """Ids for a span that only a store gets to see. A trace that the caller has begun goes on."""
    around = parent.context if parent else trace.get_current_span().get_span_context()
    trace_id = around.trace_id if around.is_valid and not root else random.getrandbits(128)
    return SpanContext(trace_id, random.getrandbits(64), False, TraceFlags(TraceFlags.SAMPLED))
