"""Opens the spans of one run, recorded by the host's TracerProvider, in the run's stored trace, or in both.

With neither, every span is `NOOP_SPAN`; this is decided once per run. A span is opened around an await in the task
that does the work, never across a yield, so it cannot leak. Spans contain no prompts, arguments, results or exception
messages, except for attributes that `Content` produces.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import ProxyTracerProvider, SpanKind, TraceFlags, Tracer

from framework.telemetry import names
from framework.telemetry.span import (
    NOOP_SPAN,
    OptionalAttributes,
    RecordedSpan,
    SpanIds,
    TraceSpan,
    innermost_span,
    without_none,
)
from framework.types.trace import AttributeValue, SpanRecord

OpenInferenceKind = Literal["LLM", "TOOL", "AGENT", "CHAIN"]


class Spans:
    """The spans of one run. All have the attributes that identify the run and its generation."""

    def __init__(self, shared: OptionalAttributes, *, keep: bool = False, traced: bool = True) -> None:
        """Detect the host's provider.

        Args:
            shared: attributes of every span.
            keep: add ended spans to `finished_spans`, for a store.
            traced: whether to record spans at all.
        """
        self._shared = without_none(shared)
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
            merged.update(without_none(attributes))
        is_client = client or kind == "LLM"
        parent = None if root else innermost_span()
        host = None
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
        ids = None if host else _new_ids(parent, root=root)
        log = self.finished_spans if self._keep else None
        return RecordedSpan(name, "client" if is_client else "internal", merged, ids, parent, host, log, started_ns)

    def drain(self, least: int = 1) -> Sequence[SpanRecord]:
        """Return and remove the ended spans; return none while there are fewer than `least`."""
        if len(self.finished_spans) < least:
            return ()
        drained, self.finished_spans[:] = self.finished_spans[:], []
        return drained


def _new_ids(parent: RecordedSpan | None, *, root: bool) -> SpanIds:
    """Create ids for a span that is only stored. It continues the trace of the current span, if there is one."""
    span_id = f"{random.getrandbits(64):016x}"
    if parent is not None:
        return parent.ids[0], span_id, TraceFlags.SAMPLED
    active = trace.get_current_span().get_span_context()
    trace_id = active.trace_id if active.is_valid and not root else random.getrandbits(128)
    return f"{trace_id:032x}", span_id, TraceFlags.SAMPLED
