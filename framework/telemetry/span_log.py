"""Keeps the spans of this process in memory: for looking at them without any backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry import trace

from framework.telemetry import names
from framework.types.trace import SpanRecord


class SpanLog:
    """What `log_spans` has recorded so far."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    def finished(self, trace_id: str | None = None) -> Sequence[SpanRecord]:
        """All finished spans, or those of one trace (hex id)."""
        spans = [_plain(span) for span in self._exporter.get_finished_spans()]
        return [span for span in spans if trace_id is None or span.trace_id == trace_id]


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


def _plain(span: Any) -> SpanRecord:
    return SpanRecord(
        name=span.name,
        trace_id=f"{span.context.trace_id:032x}",
        span_id=f"{span.context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else None,
        kind="internal",
        start_ns=span.start_time,
        end_ns=span.end_time,
        attributes=dict(span.attributes or {}),
        error=(span.attributes or {}).get(names.ERROR_TYPE),
    )
