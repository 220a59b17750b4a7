"""Golden span trees of plans: plan, plan.approval, plan.step, plan.summary."""

from __future__ import annotations

import asyncio
from pathlib import Path
from textwrap import dedent
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Approve, Runtime
from framework.testing import JsonStore, ScriptedModel, Turn
from framework.types.state import Decision
from tests.conftest import tree
from tests.support.plans import Workshop, draft, step
from tests.support.projects import agent, write

CANARY = "canary-4711"


def run(root: Path, shop: Workshop, *turns: Turn, answers: tuple[Decision, ...] = (), **keys: str) -> None:
    write(root, {"agents.d/one.yaml": agent("one", **({"executor": "plan"} | keys))})

    async def main() -> None:
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(*turns)}, "watch": False}
        async with Runtime.open(root, tools=shop.tools(), store=JsonStore(), **options) as runtime:
            result = await runtime.run(CANARY)
            for answer in answers:
                result = await runtime.resume(result.run_id, {result.pending[0].id: answer})
            assert result.status == "completed", result.error

    asyncio.run(main())


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    found = [span for span in spans.get_finished_spans() if span.name == name or span.name.startswith(f"{name} ")]
    return sorted(found, key=lambda span: span.start_time or 0)


def runs(spans: InMemorySpanExporter) -> str:
    """Return the span trees of runs, without those of loading the files."""
    return tree(tuple(span for span in spans.get_finished_spans() if not span.name.startswith("config.")))


def values(spans: InMemorySpanExporter, name: str, key: str) -> list[Any]:
    return [(span.attributes or {}).get(key) for span in named(spans, name)]


def test_the_tree_of_an_approved_plan(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    plan = draft(step("a"), {"id": "b", "description": "think", "depends_on": ["a"]})
    turns = plan, "a thought", "the end"
    run(tmp_path, Workshop(), *turns, answers=(Approve(),), plan="{approval: always}")
    assert runs(spans) == dedent("""\
        invoke_workflow one
          agent.route
          invoke_agent one
            plan one
              chat scripted
            plan.approval
        invoke_workflow one
          invoke_agent one
            plan.approval
            plan.step a
              execute_tool work
            plan.step b
              invoke_agent one
                agent.step 1
                  chat scripted
            plan.summary
              agent.step 1
                chat scripted""")
    assert values(spans, "plan.approval", "agentsd.plan.decision") == ["waiting", "approve"]
    assert all((span.end_time or 0) - (span.start_time or 0) < 50_000_000 for span in named(spans, "plan.approval"))


def test_the_tree_of_a_replanned_run(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    bad = draft(step("a", tool="nothing"))
    turns = bad, draft(step("a"), step("b", "a")), draft(step("c", "a")), "the end"
    run(tmp_path, Workshop("b"), *turns)
    assert runs(spans) == dedent("""\
        invoke_workflow one
          agent.route
          invoke_agent one
            plan one
              chat scripted
              chat scripted
            plan.step a
              execute_tool work
            plan.step b
              execute_tool work
            plan one
              chat scripted
            plan.step c
              execute_tool work
            plan.summary
              agent.step 1
                chat scripted""")
    assert values(spans, "plan one", "agentsd.plan.revision") == [1, 2]
    assert values(spans, "plan one", "agentsd.plan.outcome") == ["ok", "ok"]
    assert values(spans, "plan one", "gen_ai.operation.name") == ["plan", "plan"]
    assert values(spans, "plan.step", "agentsd.plan.step.id") == ["a", "b", "c"]
    assert values(spans, "plan.step", "agentsd.plan.step.outcome") == ["done", "failed", "done"]
    assert values(spans, "plan.step", "error.type") == [None, "step_failed", None]


def test_a_plan_leaves_no_content_in_spans(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    plan = draft(step("a", description=CANARY, parameters={"n": CANARY}, expected=CANARY), goal=CANARY)
    again = draft(step("b", description=CANARY), goal=CANARY)
    run(tmp_path, Workshop(CANARY), plan, again, CANARY)
    assert len(named(spans, "plan.step")) == 2
    for span in spans.get_finished_spans():
        assert CANARY not in span.to_json()
