"""Converts a stored trace to OTLP JSON, which backends and collectors can import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from framework.telemetry import names
from framework.types.trace import Attributes, AttributeValue, SpanRecord

_SPAN_KINDS = {"internal": 1, "client": 3}
_STATUS_ERROR = 2


def otlp_json(spans: Iterable[SpanRecord], service: str = "agentsd") -> dict[str, Any]:
    """Return the spans as one `ExportTraceServiceRequest`."""
    scope = {"scope": {"name": names.TRACER}, "spans": [_span(span) for span in spans]}
    resource = {"service.name": service, "openinference.project.name": service}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _span(span: SpanRecord) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": span.name,
        "kind": _SPAN_KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.at_ns), "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "links": [
            {"traceId": link.trace_id, "spanId": link.span_id, "attributes": _attributes(link.attributes)}
            for link in span.links
        ],
        "status": {"code": _STATUS_ERROR, "message": span.error} if span.error else {},
    }


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: AttributeValue) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_value(item) for item in value]}}
