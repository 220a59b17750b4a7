"""The encoder of exported spans returns the bytes of OpenTelemetry's, and the exporter uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from framework import Runtime, tool
from framework.telemetry.span_exporter import FastSpanExporter, KnownAttributes, encode_ordinary, encode_request
from framework.testing import ScriptedModel, calls
from tests.support.cases import cases
from tests.support.otlp_sink import sink
from tests.support.projects import agent, write

TEXTS = st.text(max_size=9) | st.sampled_from(["", "é", "𝄞", "\0", "x" * 200, "x" * 20_000])
NUMBERS = st.sampled_from([0, 1, -1, 127, 128, 2**31, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1.0, 127.0])
PLAIN = st.one_of(TEXTS, st.booleans(), NUMBERS, FLOATS)
UNUSUAL = st.one_of(
    st.none(),
    st.binary(max_size=3),
    st.sampled_from(["\ud800", 2**63, -(2**64), SpanKind.CLIENT]),
    st.lists(st.none() | st.lists(PLAIN, max_size=2), max_size=2),
    st.dictionaries(st.text(min_size=1, max_size=3), PLAIN, max_size=2),
)
VALUES = st.one_of(PLAIN, PLAIN, PLAIN, PLAIN, st.lists(PLAIN, max_size=3), UNUSUAL)
NAMES = st.sampled_from(["a", "b", "gen_ai.agent.name", "é", "n" * 130])
ATTRIBUTES = st.dictionaries(NAMES, VALUES, max_size=4)
IDS = st.sampled_from([1, 2, 2**63])
STATES = st.sampled_from([*[TraceState()] * 5, TraceState([("vendor", "x")])])
REMOTE = st.sampled_from([False, False, False, True])
CONTEXTS = st.builds(SpanContext, IDS, IDS, REMOTE, st.just(TraceFlags(TraceFlags.SAMPLED)), STATES)
STATUSES = st.sampled_from([*[Status()] * 5, Status(StatusCode.OK), Status(StatusCode.ERROR, "late")])
RESOURCES = st.sampled_from(["a", "b"]).map(lambda name: Resource({"service.name": name, "process.pid": 7}))
"""Equal resources that are different objects are one resource of a request."""
SCOPES = st.sampled_from(["agentsd", "other"]).map(lambda name: InstrumentationScope(name, "1")) | st.none()
TIMES = st.sampled_from([0, 1, 1_700_000_000_000_000_000, 2**64 - 1])
EVENT = st.tuples(st.sampled_from(["asked", "é"]), ATTRIBUTES)
LINK = st.builds(Link, CONTEXTS, ATTRIBUTES)
SOMETIMES = st.sampled_from([0, 0, 0, 1])


class FixedIds(IdGenerator):
    """Generates the same ids, because strategies may not use `random`."""

    def generate_span_id(self) -> int:
        return 1

    def generate_trace_id(self) -> int:
        return 1


@st.composite
def ended_spans(draw: st.DrawFn) -> ReadableSpan:
    """Return a span that the SDK has made, with the contexts, resource, scope and times of another one."""
    finished = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, id_generator=FixedIds())
    provider.add_span_processor(SimpleSpanProcessor(finished))
    span = provider.get_tracer("t").start_span("s", attributes=draw(ATTRIBUTES))
    for name, attributes in [draw(EVENT) for _ in range(draw(SOMETIMES))]:
        span.add_event(name, attributes, timestamp=1)
    for link in [draw(LINK) for _ in range(draw(SOMETIMES))]:
        span.add_link(link.context, link.attributes)
    span.end()
    (made,) = finished.get_finished_spans()
    return ReadableSpan(
        name=draw(TEXTS),
        context=draw(CONTEXTS),
        parent=draw(st.none() | CONTEXTS),
        resource=draw(RESOURCES),
        attributes=made._attributes,  # the SDK's own container; the property wraps it
        events=made._events,
        links=made._links,
        kind=draw(st.sampled_from(SpanKind)),
        status=draw(STATUSES),
        start_time=draw(TIMES),
        end_time=draw(TIMES),
        instrumentation_scope=draw(SCOPES),
    )


def ordinary(*attributes: dict[str, Any]) -> list[ReadableSpan]:
    """Return one span with each of the attributes."""
    return [
        ReadableSpan("s", SpanContext(1, 2, False), resource=Resource({}), attributes=each, start_time=1, end_time=2)
        for each in attributes
    ]


@cases(150)
@given(spans=st.lists(ended_spans(), max_size=5))
@example(spans=ordinary({"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": 0}, {"a": False}, {"a": 0.0}, {"a": -0.0}))
@example(spans=ordinary({"a": (1, True)}, {"a": (True, 1)}, {"a": ()}, {"a": ("x", 1.0)}))
def test_the_bytes_are_those_of_opentelemetrys_encoder(spans: Sequence[ReadableSpan]) -> None:
    assert encode_request(spans).SerializeToString() == trace_encoder.encode_spans(spans).SerializeToString()


def test_a_dropped_attribute_is_counted() -> None:
    finished = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(finished))
    provider.get_tracer("t").start_span("s", attributes={str(number): number for number in range(200)}).end()
    (span,) = finished.get_finished_spans()
    (sent,) = encode_request([span]).resource_spans[0].scope_spans[0].spans
    assert (len(sent.attributes), sent.dropped_attributes_count) == (128, 72)


def test_the_spans_of_a_run_are_ordinary(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    @tool(risk="low")
    async def work(n: str) -> str:
        """Works."""
        return n

    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})

    async def main() -> None:
        model = ScriptedModel(calls(("work", {"n": "1"})), "ok")
        async with Runtime.open(root, tools=[work], models={"scripted": model}, watch=False) as runtime:
            await runtime.run("go", agent="one")

    asyncio.run(main())
    finished = spans.get_finished_spans()
    assert len(finished) == 8
    assert not [span.name for span in finished if encode_ordinary(span, KnownAttributes()) is None]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_exporter_sends_what_it_encodes(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    spans = ordinary({"a": "x"}, {"a": None})
    with sink() as collector:
        exporter = FastSpanExporter(endpoint=f"{collector.url}/v1/traces")
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        exporter.shutdown()  # type: ignore[no-untyped-call]  # untyped in the package
        assert exporter.export(spans) is SpanExportResult.FAILURE
    expected = trace_encoder.encode_spans(spans).resource_spans[0].scope_spans[0].spans
    assert collector.spans == list(expected)


def test_the_installed_exporter_calls_the_encoder_by_its_name() -> None:
    export = trace_exporter.OTLPSpanExporter.export
    assert "encode_spans" in export.__code__.co_names, "else exports are correct, but as slow as OpenTelemetry's"
    assert FastSpanExporter.export.__globals__["encode_spans"] is encode_request
    assert export.__globals__["encode_spans"] is trace_encoder.encode_spans, "other exporters keep theirs"
