"""Stored traces are equal with and without a TracerProvider, across pauses, crashes and processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from framework import Approve, ModelError, RunResult, Runtime, ToolContext, events, tool
from framework.cli.show import waterfall
from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.telemetry.spans import otlp_json
from framework.testing import ScriptedModel, calls
from framework.types.report import SpanRecord
from tests.support.projects import agent, write

URL = "sqlite:///state.db"


@tool(risk="low")
async def work(n: str) -> str:
    """Works."""
    if n == "fail":
        raise ValueError(n)
    return f"did {n}"


@tool(risk="high")
async def erase(n: str, context: ToolContext) -> str:
    """Erases."""
    with context.span("look"):
        return f"erased {n}"


@pytest.fixture
def no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)


def project(tmp_path: Path) -> Path:
    return write(tmp_path, {"agents.d/one.yaml": agent("one", runtime_policy="{risk_level: high}")})


async def with_store(root: Path, store: Store, model: ScriptedModel) -> tuple[RunResult, Sequence[SpanRecord]]:
    """Run once; return the result and its stored trace."""
    async with Runtime.open(root, tools=[work, erase], models={"scripted": model}, store=store, watch=False) as runtime:
        result = await runtime.run("go", conversation="c1")
        return result, await store.spans(result.run_id)


def drawn(spans: Sequence[SpanRecord]) -> str:
    """Draw the tree, with `!` after failed spans."""
    span_ids = {span.span_id for span in spans}
    lines: list[str] = []

    def below(parent: str | None, depth: int) -> None:
        for span in spans:
            if (span.parent_id if span.parent_id in span_ids else None) == parent:
                lines.append("  " * depth + span.name + (" !" if span.error else ""))
                below(span.span_id, depth + 1)

    below(None, 0)
    return "\n".join(lines)


REACT = dedent("""\
    invoke_workflow one
      agent.route
      invoke_agent one
        agent.step 1
          chat scripted
          execute_tool work
          execute_tool work !
        agent.step 2
          chat scripted""")


def react() -> ScriptedModel:
    return ScriptedModel(calls(("work", {"n": "1"}), ("work", {"n": "fail"})), "ok", tokens=10)


def test_without_a_provider_a_database_has_the_whole_trace(tmp_path: Path, no_provider: None) -> None:
    async def main() -> None:
        store = await Store.open(URL, tmp_path)
        result, spans = await with_store(project(tmp_path), store, react())
        assert drawn(spans) == REACT
        assert {span.trace_id for span in spans} == {result.trace_id}
        assert {span.attributes["agentsd.run.id"] for span in spans} == {result.run_id}
        assert {span.attributes["session.id"] for span in spans} == {"c1"}
        chats = [span for span in spans if span.name == "chat scripted"]
        assert [(span.kind, span.attributes["gen_ai.usage.output_tokens"]) for span in chats] == [("client", 5)] * 2
        assert all(span.start_ns <= span.end_ns for span in spans)
        await store.close()
        again = await Store.open(URL, tmp_path)
        assert list(await again.spans(result.run_id)) == list(spans)
        await again.close()

    asyncio.run(main())


def test_exported_and_stored_traces_have_equal_ids(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async def main() -> None:
        _, stored = await with_store(project(tmp_path), MemoryStore(keep_spans=True), react())
        sent = {f"{s.context.span_id:016x}": s for s in spans.get_finished_spans() if not s.name.startswith("config.")}
        assert drawn(stored) == REACT
        assert sent.keys() == {span.span_id for span in stored}
        for span in stored:
            other = sent[span.span_id]
            assert span.parent_id == (other.parent and f"{other.parent.span_id:016x}")
            assert span.attributes.keys() == (other.attributes or {}).keys()
            assert (span.error is None) == other.status.is_unset

    asyncio.run(main())


def test_a_store_that_keeps_no_traces_costs_and_records_nothing(tmp_path: Path, no_provider: None) -> None:
    async def main() -> None:
        result, spans = await with_store(project(tmp_path), MemoryStore(), react())
        assert (result.trace_id, list(spans)) == (None, [])

    asyncio.run(main())


def test_a_store_keeps_no_traces_from_the_next_run_on_if_the_settings_say_so(tmp_path: Path, no_provider: None) -> None:
    async def main() -> None:
        store = await Store.open(URL, tmp_path)
        models = {"scripted": ScriptedModel("one", "two", "three")}
        async with Runtime.open(project(tmp_path), models=models, store=store, watch=False) as runtime:
            traced = [await runtime.run("go")]
            for wanted in ("false", "true"):
                write(tmp_path, {"agentsd.yaml": f"telemetry: {{store_traces: {wanted}}}\n"})
                await runtime.reload()
                traced.append(await runtime.run("go"))
            stored = [bool(await store.spans(result.run_id)) for result in traced]
            assert stored == [result.trace_id is not None for result in traced] == [True, False, True]
            assert [len(await store.events(result.run_id)) for result in traced] == [3, 3, 3]
        await store.close()

    asyncio.run(main())


def test_a_trace_that_is_not_stored_is_exported(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async def main() -> None:
        root = write(project(tmp_path), {"agentsd.yaml": "telemetry: {store_traces: false}\n"})
        _, stored = await with_store(root, MemoryStore(keep_spans=True), react())
        assert not stored
        assert [span.name for span in spans.get_finished_spans()].count("execute_tool work") == 2

    asyncio.run(main())


def test_a_stored_trace_continues_the_callers_trace_without_exporting(tmp_path: Path, no_provider: None) -> None:
    """Without a provider, no trace ids are sent to tool servers either."""
    seen = []

    @tool(risk="low")
    async def look() -> str:
        """Look around."""
        seen.append(trace.get_current_span().get_span_context())
        return "ok"

    caller = SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1))

    async def main() -> None:
        store = MemoryStore(keep_spans=True)
        models = {"scripted": ScriptedModel(calls(("look", {})), "ok")}
        async with Runtime.open(project(tmp_path), tools=[look], models=models, store=store, watch=False) as runtime:
            token = context.attach(trace.set_span_in_context(NonRecordingSpan(caller)))
            result = await runtime.run("go")
            context.detach(token)
            assert result.trace_id == f"{0xABC:032x}"
            assert drawn(await store.spans(result.run_id)).startswith("invoke_workflow one\n")

    asyncio.run(main())
    assert seen == [caller]


def test_a_resumed_run_has_two_parts_that_are_linked(tmp_path: Path, no_provider: None) -> None:
    root = project(tmp_path)
    model = ScriptedModel(calls(("erase", {"n": "1"})), "done")

    async def first() -> str:
        store = await Store.open(URL, tmp_path)
        result, spans = await with_store(root, store, model)
        assert result.status == "paused"
        assert drawn(spans).splitlines()[-1].strip() == "execute_tool erase"
        waiting = next(span for span in spans if span.name == "execute_tool erase")
        assert (waiting.error, waiting.attributes["agentsd.tool.outcome"]) == (None, "waiting")
        assert [event.name for event in waiting.events] == ["agentsd.confirm.requested"]
        await store.close()
        return result.run_id

    async def second(run_id: str) -> None:
        store = await Store.open(URL, tmp_path)
        async with Runtime.open(
            root, tools=[work, erase], models={"scripted": model}, store=store, watch=False
        ) as runtime:
            pending = await runtime.pending(run_id)
            await runtime.resume(run_id, {question.id: Approve() for question in pending})
            spans = await store.spans(run_id)
        await store.close()
        before, after = [span for span in spans if span.name == "invoke_workflow one"]
        assert before.trace_id != after.trace_id
        assert [(link.span_id, link.attributes["agentsd.link.type"]) for link in after.links] == [
            (before.span_id, "resume")
        ]
        assert after.attributes["agentsd.run.resumed_from"] == before.trace_id
        assert before.attributes["agentsd.run.outcome"] == "waiting_confirmation"
        done = next(s for s in spans if s.name == "execute_tool erase" and s.trace_id == after.trace_id)
        assert [(e.name, e.attributes) for e in done.events] == [
            ("agentsd.confirm.resolved", {"agentsd.confirm.decision": "approve"})
        ]
        text = "\n".join(waterfall(spans))
        assert text.count("invoke_workflow one") == 2
        assert "waiting" in text
        assert " later\n" in text

    asyncio.run(second(asyncio.run(first())))


def test_the_trace_of_a_cancelled_run_is_stored(tmp_path: Path, no_provider: None) -> None:
    started = asyncio.Event()

    @tool(risk="low")
    async def forever() -> str:
        """Never ends."""
        started.set()
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        store = MemoryStore(keep_spans=True)
        models = {"scripted": ScriptedModel(calls(("forever", {})))}
        async with Runtime.open(project(tmp_path), tools=[forever], models=models, store=store, watch=False) as runtime:
            async with runtime.stream("go") as stream:
                async for event in stream:
                    if isinstance(event, events.ToolStarted):
                        break
            spans = await store.spans(stream.run_id)
        errors = {span.name: span.error for span in spans}
        assert errors["execute_tool forever"] == errors["invoke_workflow one"] == "cancelled"

    asyncio.run(main())


def test_spans_of_a_long_run_are_stored_before_its_end(tmp_path: Path, no_provider: None) -> None:
    """Spans stored before a crash remain available."""
    turns = [calls(("work", {"n": str(n)}), prefix=f"c{n}") for n in range(12)]
    stored_counts = []

    @tool(risk="low", name="work")
    async def counting(n: str) -> str:
        """Works."""
        stored_counts.append(len(await store.spans(running[0])))
        return n

    store: Store
    running: list[str] = []

    async def main() -> None:
        nonlocal store
        store = await Store.open(URL, tmp_path)
        limits = {"max_steps": 20}
        models = {"scripted": ScriptedModel(*turns, "done")}
        async with (
            Runtime.open(project(tmp_path), tools=[counting], models=models, store=store, watch=False) as runtime,
            runtime.stream("go", limits=limits) as stream,
        ):
            running.append(stream.run_id)
            result = await stream.result()
        assert len(stored_counts) == 12
        assert stored_counts[0] == 0
        assert stored_counts[-1] >= 32
        assert result.status == "completed"
        await store.close()

    asyncio.run(main())


def test_a_trace_as_otlp_json(tmp_path: Path, no_provider: None) -> None:
    async def main() -> None:
        _, spans = await with_store(project(tmp_path), MemoryStore(keep_spans=True), react())
        (resource,) = otlp_json(spans)["resourceSpans"]
        exported = resource["scopeSpans"][0]["spans"]
        assert [span["name"] for span in exported] == [span.name for span in spans]
        root = exported[0]
        assert "parentSpanId" not in root
        assert root["startTimeUnixNano"] == str(spans[0].start_ns)
        (failed,) = [span for span in exported if span["status"]]
        assert failed["status"] == {"code": 2, "message": "ValueError"}
        values = {one["key"]: one["value"] for one in failed["attributes"]}
        assert values["gen_ai.tool.name"] == {"stringValue": "work"}
        assert values["agentsd.config.generation"] == {"intValue": "1"}
        chat = next(span for span in exported if span["name"] == "chat scripted")
        reasons = {one["key"]: one["value"] for one in chat["attributes"]}["gen_ai.response.finish_reasons"]
        assert reasons == {"arrayValue": {"values": [{"stringValue": "tool_calls"}]}}

    asyncio.run(main())


def test_the_waterfall_shows_the_attempts_of_a_call(tmp_path: Path, no_provider: None) -> None:
    model = ScriptedModel(ModelError("busy", retryable=True), "ok")

    async def main() -> str:
        root = write(tmp_path, {"agents.d/one.yaml": agent("one"), "agentsd.yaml": "model_calls: {backoff: 0.001}\n"})
        _, spans = await with_store(root, MemoryStore(keep_spans=True), model)
        return "\n".join(waterfall(spans))

    lines = [line.split() for line in asyncio.run(main()).splitlines()]
    calls_ = [line for line in lines if line[0].startswith("chat")]
    assert [line[:2] for line in calls_] == [["chat", "scripted"], ["chat.attempt", "1"], ["chat.attempt", "2"]]
    assert [" ".join(line[-2:]) for line in calls_[:2]] == ["2 attempts", "✗ model_error"]
