"""Metrics of runs, collected by a real MeterProvider."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Approve, ModelError, RunSuspended, Runtime, tool
from framework.telemetry.metrics import RunMetrics
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Usage
from tests.support.plans import draft, step
from tests.support.projects import agent, write
from tests.support.telemetry import erase, metric_points, work

AGENTS = {
    "agents.d/one.yaml": agent("one", runtime_policy="{risk_level: high, max_steps: 2}"),
    "agents.d/two.yaml": agent("two", skill_policy="{deny: [work], allow: [erase]}"),
    "agentsd.yaml": "model_calls: {max_retries: 0}\n",
}


@tool(risk="low")
async def count(n: int) -> str:
    """Counts."""
    return str(n)


def play(root: Path, model: ScriptedModel, name: str = "one", *, approve: bool = False) -> None:
    async def main() -> None:
        async with Runtime.open(
            write(root, AGENTS), tools=[work, erase, count], models={"scripted": model}, watch=False
        ) as runtime:
            result = await runtime.run("go", agent=name)
            if approve:
                await runtime.resume(result.run_id, {question.id: Approve() for question in result.pending})

    asyncio.run(main())


def test_runs_calls_tokens_and_cost_are_counted(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    play(tmp_path, ScriptedModel(calls(("work", {"n": "1"}), ("work", {"n": "fail"})), "ok", tokens=10))
    points = metric_points(reader)
    assert points["agentsd.runs"] == [({"agent": "one", "finish_reason": "final"}, 1)]
    assert points["agentsd.runs.active"] == [({}, 0)]
    model = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "scripted", "gen_ai.request.model": "scripted"}
    assert points["gen_ai.client.operation.duration"] == [(model, 2)]
    assert points["gen_ai.client.token.usage"] == [
        ({**model, "gen_ai.token.type": "input"}, 2),
        ({**model, "gen_ai.token.type": "output"}, 2),
    ]
    tool_ = {"gen_ai.tool.name": "work", "agentsd.tool.source": "python"}
    assert points["gen_ai.execute_tool.duration"] == [(tool_, 1), ({**tool_, "error.type": "ValueError"}, 1)]
    assert points["gen_ai.invoke_agent.duration"] == [({"gen_ai.agent.name": "one"}, 1)]
    turn = {"gen_ai.agent.name": "one", "agentsd.step.kind": "turn"}
    assert points["agentsd.step.duration"] == [(turn, 2)]
    assert points["gen_ai.invoke_workflow.duration"] == [({"gen_ai.workflow.name": "one"}, 1)]
    assert [name for name in points if "run.id" in repr(points[name])] == []


def test_failures_limits_denials_and_pauses_are_distinguished(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    play(tmp_path, ScriptedModel(ModelError("down")))
    play(tmp_path, ScriptedModel(*[calls(("work", {"n": str(n)}), prefix=f"c{n}") for n in range(3)]))
    play(tmp_path, ScriptedModel(calls(("work", {"n": "1"})), "ok"), "two")
    play(tmp_path, ScriptedModel(calls(("erase", {"n": "1"})), "ok"), approve=True)
    points = metric_points(reader)
    reasons = sorted((attributes["finish_reason"], counted) for attributes, counted in points["agentsd.runs"])
    assert reasons == [("confirmation", 1), ("final", 1), ("final", 1), ("max_steps", 1), ("model_error", 1)]
    assert points["agentsd.runs.active"] == [({}, 0)]
    assert points["agentsd.tool.denied"] == [({"gen_ai.tool.name": "work", "reason": "policy_denied"}, 1)]
    assert points["agentsd.confirm.duration"] == [({"decision": "approve"}, 1)]
    erased = [
        count
        for attributes, count in points["gen_ai.execute_tool.duration"]
        if attributes["gen_ai.tool.name"] == "erase"
    ]
    assert erased == [1], "a question is not a call"
    errors = [a.get("error.type") for a, _ in points["gen_ai.client.operation.duration"]]
    assert errors == ["model_error", None]


def test_each_decision_is_counted_once(
    tmp_path: Path, reader: InMemoryMetricReader, spans: InMemorySpanExporter
) -> None:
    """A plan whose approval covers its two steps, and a sub-agent that is approved and then needs approval itself."""
    files = {
        "agents.d/one.yaml": agent(
            "one", executor="plan", plan="{approval: always}", skill_policy="{ask: [work], allow: []}"
        ),
        "agents.d/two.yaml": agent("two", sub_agents="[three]", skill_policy="{ask: [agent.three], allow: []}"),
        "agents.d/three.yaml": agent("three", skill_policy="{ask: [work], allow: []}"),
    }
    turns_of_two = calls(("agent.three", {"message": "go"})), calls(("work", {"n": "1"}))
    turns: list[Turn] = [draft(step("a"), step("b")), "planned", *turns_of_two, "three", "two"]

    async def main() -> list[int]:
        pending_counts = []
        options: dict[str, Any] = {"tools": [work], "models": {"scripted": ScriptedModel(*turns)}, "watch": False}
        async with Runtime.open(write(tmp_path, files), **options) as runtime:
            for name in ("one", "two"):
                result = await runtime.run("go", agent=name)
                while result.status == "paused":
                    pending_counts.append(len(result.pending))
                    result = await runtime.resume(result.run_id, {one.id: Approve() for one in result.pending})
                assert result.status == "completed", result.error
        return pending_counts

    assert asyncio.run(main()) == [1, 1, 1]
    assert metric_points(reader)["agentsd.confirm.duration"] == [({"decision": "approve"}, 3)]
    resolved = [span.name for span in spans.get_finished_spans() for event in span.events if "resolved" in event.name]
    assert resolved == ["plan.approval", "execute_tool agent.three", "execute_tool work"]


def test_cost_is_counted_by_model(reader: InMemoryMetricReader) -> None:
    meters = RunMetrics().if_enabled()
    assert meters
    meters.record_model_call("openai", "x", 0.1, 0.05, None)
    meters.record_model_attempt("openai", "x", Usage(prompt_tokens=1, completion_tokens=1, cost_usd=0.25), None)
    points = metric_points(reader)
    assert points["agentsd.cost"] == [({"model": "openai/x"}, 0.25)]
    assert len(points["gen_ai.client.operation.time_to_first_chunk"]) == 1


def test_repaired_arguments_are_counted(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    play(tmp_path, ScriptedModel(calls(("count", {"n": "5"})), "ok"))
    points = metric_points(reader)
    assert points["agentsd.llm.repairs"] == [({"agent": "one"}, 1)]


def test_a_suspended_and_resumed_run_is_counted_by_its_outcome(
    tmp_path: Path, reader: InMemoryMetricReader, file_url: str
) -> None:
    async def main() -> None:
        began = asyncio.Event()

        @tool(risk="low", idempotent=True)
        async def hang(n: int) -> str:
            """Hang, the first time."""
            if not began.is_set():
                began.set()
                await asyncio.Event().wait()
            return str(n)

        root = write(tmp_path, AGENTS)
        options: dict[str, Any] = {"tools": [hang, work, erase], "store": file_url, "watch": False, "grace": 0}
        first = {"scripted": ScriptedModel(calls(("erase", {"n": "1"})), calls(("hang", {"n": "5"}), prefix="h"))}
        async with Runtime.open(root, models=first, **options) as runtime:
            paused = await runtime.run("go", agent="one")
            yes = {question.id: Approve() for question in paused.pending}
            left = asyncio.create_task(runtime.resume(paused.run_id, yes))
            await began.wait()
        with pytest.raises(RunSuspended):
            await left
        async with Runtime.open(root, models={"scripted": ScriptedModel("ok")}, **options) as runtime:
            assert (await runtime.resume(paused.run_id, {})).finish_reason in ("final", "max_steps")

    asyncio.run(main())
    points = metric_points(reader)
    reasons = sorted((attributes["finish_reason"], counted) for attributes, counted in points["agentsd.runs"])
    assert [reason for reason in reasons if reason[0] in ("confirmation", "run_suspended")] == [
        ("confirmation", 1),
        ("run_suspended", 1),
    ]
    assert len(reasons) == 3
    assert points["agentsd.runs.active"] == [({}, 0)]
    assert points["agentsd.llm.repairs"] == [({"agent": "one"}, 1)]


def test_without_a_meter_provider_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "get_meter_provider", metrics.NoOpMeterProvider)
    assert RunMetrics().if_enabled() is None
