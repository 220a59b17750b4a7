"""Incoming trace context: runs below a caller's span and behind the server's routes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Runtime
from framework.config.settings import Settings
from framework.server import router
from framework.store.memory import MemoryStore
from framework.telemetry.spans import apply_inbound, linked_caller
from framework.testing import ScriptedModel
from framework.types.report import Inbound
from tests.support.cases import cases
from tests.support.otlp_sink import sink
from tests.support.projects import agent, write
from tests.support.served import served

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


def roots(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == "invoke_workflow one"]


def requested(root: Path, mode: Inbound, *headers: list[tuple[str, str]], store: MemoryStore | None = None) -> str:
    """Start a run by a request with each of the headers to the server; return the last run's id."""
    write(root, {"agents.d/one.yaml": agent("one"), "agentsd.yaml": f"telemetry: {{inbound: {mode}}}\n"})

    async def main() -> str:
        options: dict[str, Any] = {"store": store} if store else {}
        models = {"scripted": ScriptedModel(*["ok"] * len(headers))}
        async with Runtime.open(root, models=models, watch=False, **options) as runtime:
            app = FastAPI(telemetry={"tracing": False})  # the test's app does not read the header itself
            app.router.routes.extend(router(runtime, guarded=False).routes)  # cheaper than `include_router`
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
                for sent in headers:
                    reply = await client.post("/agent/chat", json={"message": "go", "agent": "one"}, headers=sent)
                return str(reply.json()["run_id"])

    return asyncio.run(main())


def test_a_run_joins_the_current_trace(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one")})

    async def main() -> None:
        async with Runtime.open(tmp_path, models={"scripted": ScriptedModel("ok")}, watch=False) as runtime:
            with trace.get_tracer("host").start_as_current_span("POST /orders"):
                await runtime.run("go", agent="one")

    asyncio.run(main())
    (run,) = roots(spans)
    (above,) = [span for span in spans.get_finished_spans() if span.name == "POST /orders"]
    assert run.parent
    assert run.parent.span_id == above.context.span_id


def test_by_default_a_run_is_linked_to_its_caller(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    assert Settings().telemetry.inbound == "link"
    requested(tmp_path, "link", [("traceparent", UNSAMPLED)])
    (run,) = roots(spans)
    assert run.parent is None
    assert f"{run.context.trace_id:032x}" != TRACE
    (link,) = run.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert dict(link.attributes or {}) == {"agentsd.link.type": "caller"}


def test_a_run_joins_the_callers_trace_if_configured(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    requested(tmp_path, "parent", [("traceparent", SAMPLED)])
    (run,) = roots(spans)
    assert f"{run.context.trace_id:032x}" == TRACE
    assert run.parent
    assert f"{run.parent.span_id:016x}" == SPAN


def test_only_a_parent_decides_sampling(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    requested(tmp_path, "parent", [("traceparent", UNSAMPLED)])
    assert not roots(spans)
    requested(tmp_path, "link", [("traceparent", UNSAMPLED)])
    requested(tmp_path, "ignore", [("traceparent", UNSAMPLED)])
    assert len(roots(spans)) == 2


def test_traces_are_stored_regardless_of_the_sampled_flag(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    store = MemoryStore(keep_spans=True)
    run_id = requested(tmp_path, "parent", [("traceparent", UNSAMPLED)], store=store)
    assert not roots(spans)
    stored = asyncio.run(store.spans(run_id))
    assert [span.trace_id for span in stored if span.name == "invoke_workflow one"] == [TRACE]


INVALID: list[list[tuple[str, str]]] = [
    [],
    [("traceparent", "")],
    [("traceparent", "nonsense")],
    [("traceparent", SAMPLED), ("traceparent", SAMPLED)],
    [("traceparent", f"ff-{TRACE}-{SPAN}-01")],
    [("traceparent", f"00-{'0' * 32}-{SPAN}-01")],
    [("traceparent", f"00-{TRACE}-{'0' * 16}-01")],
    [("traceparent", f"00-{TRACE}-{SPAN}-01-more")],
    [("tracestate", "a=b"), ("baggage", "user=me")],
]


@pytest.mark.parametrize("mode", ["link", "parent"])
def test_an_invalid_header_is_ignored(mode: Inbound, tmp_path: Path, spans: InMemorySpanExporter) -> None:
    requested(tmp_path, mode, *INVALID)
    found = roots(spans)
    assert [(run.parent, list(run.links)) for run in found] == [(None, [])] * len(INVALID)


@pytest.mark.parametrize("mode", ["link", "parent"])
def test_a_run_that_waits_keeps_the_trace_of_its_own_caller(
    mode: Inbound, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one")})
    callers = [f"00-{number:032x}-{SPAN}-01" for number in (1, 2, 3)]

    async def main() -> None:
        models = {"scripted": ScriptedModel(*["ok"] * len(callers))}
        async with Runtime.open(tmp_path, models=models, watch=False) as runtime:
            submitted = []
            for caller in callers:  # the first run may have begun; the others wait for it, in order
                with apply_inbound([caller], mode):
                    submitted.append(await runtime.submit("go", conversation="c", queue=True))
            for run in submitted:
                assert (await runtime.result(run.run_id)).status == "completed"

    asyncio.run(main())
    traces = [run.context if mode == "parent" else run.links[0].context for run in roots(spans)]
    assert [trace_context.trace_id for trace_context in traces] == [1, 2, 3]


@cases(50)
@given(header=st.text(max_size=80), mode=st.sampled_from(["ignore", "link", "parent"]))
def test_no_header_breaks_a_request(header: str, mode: Inbound) -> None:
    with apply_inbound([header], mode):
        assert len(linked_caller()) <= 80
    assert linked_caller() == ""
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_span_of_the_host_takes_precedence_over_the_header(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("host").start_as_current_span("POST /orders") as above, apply_inbound([SAMPLED], "parent"):
        assert trace.get_current_span() is above


def test_the_server_creates_no_spans_for_requests(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    with sink() as collector:
        with served(tmp_path, environment={"AGENTSD_TELEMETRY__OTLP_ENDPOINT": collector.url}) as server:
            for path in ("/health", "/ready", "/agent/agents"):
                assert server.request("GET", path, headers={"traceparent": SAMPLED}).status_code == 200
            assert server.stop() == 0
        assert [span.name for span in collector.spans] == []
