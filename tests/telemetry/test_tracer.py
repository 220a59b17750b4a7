"""The faster tracer creates the spans that OpenTelemetry's creates, and asks everything that the SDK would ask."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Barrier, Thread
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from framework.telemetry import names
from framework.telemetry.setup import tracer_provider
from framework.telemetry.tracer import FastTracer, FastTracerProvider
from tests.support.cases import cases

PLAIN: Mapping[str, Any] = {"record_exception": False, "set_status_on_exception": False}
"""Options of agentsd's spans."""
OTHER = SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
KEYS = st.sampled_from(["a", "b", "c", "gen_ai.agent.name", "", 7])
VALUES = st.one_of(
    st.text(max_size=5),
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.tuples(st.text(max_size=2), st.integers()),
    st.lists(st.none() | st.text(max_size=5), max_size=2),
    st.sampled_from([None, b"x", ("a", None), ("a", ("b",)), ([],), {"x": 1}, {1: 2}, SpanKind.CLIENT]),
)
ATTRIBUTES = st.dictionaries(KEYS, VALUES, max_size=4)
LIMITS = st.sampled_from([{}, {}, {"max_span_attributes": 3}, {"max_attribute_length": 2}, {"max_span_attributes": 0}])


class CountedIds(IdGenerator):
    """Generates 1, 2, 3, …"""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def generate_span_id(self) -> int:
        return next(self._ids)

    def generate_trace_id(self) -> int:
        return next(self._ids)


@contextmanager
def current(span: trace.Span) -> Iterator[None]:
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        context.detach(token)


def finished(make: type[TracerProvider], use: Callable[[trace.Tracer], None], **options: Any) -> list[str]:
    """Return everything about the spans that `use` has ended."""
    exporter = InMemorySpanExporter()
    resource = Resource({"service.name": "s"})
    provider = make(resource=resource, shutdown_on_exit=False, id_generator=CountedIds(), **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    use(provider.get_tracer(names.TRACER))
    return [described(span) for span in exporter.get_finished_spans()]


def described(span: ReadableSpan) -> str:
    events = [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events]
    links = [(link.context, dict(link.attributes or {})) for link in span.links]
    status = span.status.status_code, span.status.description
    dropped = span.dropped_attributes, span.dropped_events, span.dropped_links
    where = span.context, span.parent, span.resource.attributes, span.instrumentation_scope
    times = span.start_time, span.end_time
    return repr((span.name, span.kind, where, times, dict(span.attributes or {}), events, links, status, dropped))


def is_fast(span: trace.Span) -> bool:
    return type(span).__name__ == "_FastSpan"


@cases(100)
@given(first=ATTRIBUTES, second=ATTRIBUTES, event=ATTRIBUTES, limits=LIMITS, times=st.integers(0, 2))
@example(first={"a": 1, "b": 2}, second={"a": 3, "c": (1, "x")}, event={}, limits={}, times=1)
@example(first={"a": 1, "b": 2}, second={"c": 3, "d": 4}, event={}, limits={"max_span_attributes": 3}, times=2)
@example(first={"a": "12345"}, second={"b": ("12345",)}, event={}, limits={"max_attribute_length": 2}, times=1)
def test_spans_equal_those_of_the_sdk(
    first: Mapping[str, Any], second: Mapping[str, Any], event: Mapping[str, Any], limits: dict[str, int], times: int
) -> None:
    def use(tracer: trace.Tracer) -> None:
        root = tracer.start_span("root", attributes=first, start_time=1, **PLAIN)
        with current(root):
            child = tracer.start_span("child", kind=SpanKind.CLIENT, attributes=first, start_time=2, **PLAIN)
            with current(child):
                leaf = tracer.start_span("leaf", attributes=second, start_time=3, **PLAIN)
            for _ in range(times):
                leaf.set_attributes(second)
                leaf.set_attribute("one", 1)
                child.set_attributes(second)
                child.add_event("asked", event, timestamp=4)
                child.add_link(OTHER, event)
                leaf.add_link(OTHER, event)
            child.set_status(Status(StatusCode.ERROR, "late"))
            leaf.update_name("renamed")
            with current(child):
                after = tracer.start_span("after", start_time=5, **PLAIN)
            for span in (after, leaf, child):
                span.end(6)
                span.set_attributes({"late": True})
                span.add_event("late")
                span.add_link(OTHER)
                span.end(7)
        root.end(8)

    options = {"span_limits": SpanLimits(max_events=1, **limits)}
    assert finished(FastTracerProvider, use, **options) == finished(TracerProvider, use, **options)


def test_children_of_a_sampled_span_are_created_without_the_sdk() -> None:
    tracer = FastTracerProvider(shutdown_on_exit=False).get_tracer(names.TRACER)
    root = tracer.start_span("root", **PLAIN)
    with current(root):
        child = tracer.start_span("child", **PLAIN)
        assert is_fast(child), "else spans are correct, but as slow as OpenTelemetry's"
        with current(child):
            assert is_fast(tracer.start_span("leaf", **PLAIN))
            assert not is_fast(tracer.start_span("links", links=[trace.Link(OTHER)], **PLAIN))
            assert not is_fast(tracer.start_span("exceptions"))
            assert not is_fast(tracer.start_span("root", context=Context(), **PLAIN))
    assert not is_fast(root)


def test_a_span_below_one_of_another_tracer_is_the_sdks() -> None:
    provider = FastTracerProvider(shutdown_on_exit=False)
    others = provider.get_tracer("other")
    assert not isinstance(others, FastTracer)
    with current(others.start_span("other", **PLAIN)):
        assert not is_fast(provider.get_tracer(names.TRACER).start_span("child", **PLAIN))
    remote = trace.NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
    with current(remote):
        assert not is_fast(provider.get_tracer(names.TRACER).start_span("child", **PLAIN))


class Asked(Sampler):
    """Records the spans that it is asked about."""

    def __init__(self, decision: Decision) -> None:
        self.asked: list[str] = []
        self._decision = decision

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any) -> SamplingResult:
        self.asked.append(name)
        return SamplingResult(self._decision)

    def get_description(self) -> str:
        return "Asked"


@pytest.mark.parametrize(
    ("sampler", "fast", "recorded"),
    [
        (ALWAYS_ON, True, 2),
        (DEFAULT_ON, True, 2),
        (ParentBasedTraceIdRatio(1), True, 2),
        (ParentBasedTraceIdRatio(0), False, 0),
        (ParentBased(ALWAYS_ON, local_parent_sampled=ALWAYS_OFF), False, 1),
        (TraceIdRatioBased(1), False, 2),
        (ALWAYS_OFF, False, 0),
        (Asked(Decision.RECORD_ONLY), False, 2),
        (ParentBased(Asked(Decision.RECORD_ONLY)), False, 1),
    ],
)
def test_only_samplers_that_record_every_child_are_not_asked(sampler: Sampler, fast: bool, recorded: int) -> None:
    tracer = FastTracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer(names.TRACER)
    root = tracer.start_span("root", **PLAIN)
    with current(root):
        child = tracer.start_span("child", **PLAIN)
    assert is_fast(child) is fast
    assert [root.is_recording(), child.is_recording()].count(True) == recorded
    if isinstance(sampler, Asked):
        assert sampler.asked == ["root", "child"]
        assert not child.get_span_context().trace_flags.sampled


class Watching(SpanProcessor):
    """Sets an attribute of each span when it starts, and keeps what it gets."""

    def __init__(self) -> None:
        self.started: list[tuple[Span, Context | None]] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attribute("seen", True)
        self.started.append((span, parent_context))

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


def test_processors_get_every_span_at_its_start_and_end() -> None:
    watching = Watching()
    provider = FastTracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(watching)
    tracer = provider.get_tracer(names.TRACER)
    root = tracer.start_span("root", **PLAIN)
    child = tracer.start_span("child", context=(above := trace.set_span_in_context(root)), **PLAIN)
    assert watching.started == [(root, None), (child, above)]
    child.set_attribute("b", 2)
    child.end()
    (ended,) = watching.ended
    assert type(ended) is ReadableSpan
    assert dict(ended.attributes or {}) == {"seen": True, "b": 2}
    assert ended.parent == root.get_span_context()
    assert ended.end_time is not None


def test_the_sdks_own_metrics_count_every_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    reader = InMemoryMetricReader()
    provider = FastTracerProvider(meter_provider=MeterProvider([reader]), shutdown_on_exit=False)
    tracer = provider.get_tracer(names.TRACER)
    root = tracer.start_span("root", **PLAIN)
    tracer.start_span("child", context=trace.set_span_in_context(root), **PLAIN).end()
    root.end()
    data = reader.get_metrics_data()
    assert data
    points = [
        point
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name.endswith("started")
        for point in metric.data.data_points
    ]
    assert sum(point.value for point in points) == 2  # type: ignore[union-attr, misc]  # of a sum, not a histogram


def test_the_variables_of_limits_and_samplers_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    exporter = InMemorySpanExporter()
    provider = tracer_provider(exporter)
    tracer = provider.get_tracer(names.TRACER)
    root = tracer.start_span("root", **PLAIN)
    above = trace.set_span_in_context(root)
    child = tracer.start_span("child", above, attributes={"a": 1, "b": "1234", "c": 2}, **PLAIN)
    assert is_fast(child)
    child.end()
    provider.force_flush()
    (span,) = exporter.get_finished_spans()
    assert (dict(span.attributes or {}), span.dropped_attributes) == ({"b": "123", "c": 2}, 1)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert not tracer_provider(SpanExporter()).get_tracer(names.TRACER).start_span("root", **PLAIN).is_recording()


def test_a_span_that_is_used_by_threads_loses_nothing() -> None:
    """Events and links of a span are created with the first one, by whichever thread adds it."""
    tracer = FastTracerProvider(shutdown_on_exit=False, span_limits=SpanLimits(max_events=1000)).get_tracer(
        names.TRACER
    )
    root = tracer.start_span("root", **PLAIN)
    child = tracer.start_span("child", trace.set_span_in_context(root), **PLAIN)
    barrier = Barrier(4)

    def add() -> None:
        barrier.wait()
        for _ in range(100):
            child.add_event("e")

    threads = [Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(child, Span)
    assert len(child.events) == 400
