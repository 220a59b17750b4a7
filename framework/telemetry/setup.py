"""Sets tracing up where no host program has done so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace

from framework.telemetry import names


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """What a picture of a trace needs of a span."""

    name: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    error: str | None


class SpanLog:
    """Keeps the spans of this process in memory: for looking at them without any backend."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    def finished(self, trace_id: str | None = None) -> Sequence[FinishedSpan]:
        """All finished spans, or those of one trace (hex id)."""
        spans = self._exporter.get_finished_spans()
        return [_plain(span) for span in spans if trace_id is None or f"{span.context.trace_id:032x}" == trace_id]


def log_spans() -> SpanLog:
    """Record every span from now on. It sets the process's TracerProvider, so only a program may call it."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return SpanLog(exporter)


def _plain(span: Any) -> FinishedSpan:
    return FinishedSpan(
        name=span.name,
        span_id=f"{span.context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else None,
        start_ns=span.start_time,
        end_ns=span.end_time,
        error=(span.attributes or {}).get(names.ERROR_TYPE),
    )
