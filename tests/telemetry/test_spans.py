"""Golden span trees of runs, their attributes, and content that must not appear in them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from framework import ModelError, Runtime, ToolContext, events, tool
from framework.testing import ScriptedModel, calls
from tests.conftest import tree
from tests.support.plans import draft, step
from tests.support.projects import agent, write

CANARY = "canary-4711"


@tool(risk="low")
async def work(n: str) -> str:
    """Works."""
    if n == "fail":
        raise ValueError(CANARY)
    return f"did {n} {CANARY}"


def run(root: Path, model: ScriptedModel, message: str = CANARY, **keys: str) -> None:
    async def main() -> None:
        async with Runtime.open(root, tools=[work], models={"scripted": model}, watch=False) as runtime:
            await runtime.run(message, agent="one", conversation="c1", **keys)  # type: ignore[arg-type]  # plain options

    asyncio.run(main())


def test_the_tree_of_a_react_run(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
    run(root, ScriptedModel(calls(("work", {"n": "1"}), ("work", {"n": "2"})), "ok"))
    assert tree(spans.get_finished_spans()) == dedent("""\
        invoke_workflow one
          agent.route
          invoke_agent one
            agent.step 1
              chat scripted
              execute_tool work
              execute_tool work
            agent.step 2
              chat scripted""")


def test_the_tree_of_a_plan_run(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", executor="plan")})
    plan = draft(step("a"), {"id": "b", "description": "think", "depends_on": ["a"]})
    run(root, ScriptedModel(plan, "a thought", "the end"))
    assert tree(spans.get_finished_spans()) == dedent("""\
        invoke_workflow one
          agent.route
          invoke_agent one
            plan one
              chat scripted
            plan.step a
              execute_tool work
            plan.step b
              invoke_agent one
                agent.step 1
                  chat scripted
            plan.summary
              agent.step 1
                chat scripted""")


def test_the_tree_of_a_sub_agent(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    files = {"agents.d/one.yaml": agent("one", sub_agents="[two]"), "agents.d/two.yaml": agent("two")}
    model = ScriptedModel(calls(("agent.two", {"message": "go"})), calls(("work", {"n": "1"})), "inner", "outer")
    run(write(tmp_path, files), model)
    assert tree(spans.get_finished_spans()) == dedent("""\
        invoke_workflow one
          agent.route
          invoke_agent one
            agent.step 1
              chat scripted
              execute_tool agent.two
                invoke_agent two
                  agent.step 1
                    chat scripted
                    execute_tool work
                  agent.step 2
                    chat scripted
            agent.step 2
              chat scripted""")


def test_every_span_names_its_run_generation_and_conversation_and_tokens_are_counted_once(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
    run(root, ScriptedModel(calls(("work", {"n": "1"})), "ok", tokens=10), user="u1")
    finished = [span for span in spans.get_finished_spans() if not span.name.startswith("config.")]
    for span in finished:
        attributes = span.attributes or {}
        assert attributes["agentsd.config.generation"] == 1
        assert attributes["session.id"] == attributes["gen_ai.conversation.id"] == "c1"
        assert attributes["user.id"] == "u1"
        assert str(attributes["agentsd.run.id"]).startswith("run_")
        assert attributes["openinference.span.kind"] in ("LLM", "TOOL", "AGENT", "CHAIN")
    counted = [span for span in finished if "gen_ai.usage.input_tokens" in (span.attributes or {})]
    assert {span.name for span in counted} == {"chat scripted"}
    assert {span.kind for span in counted} == {SpanKind.CLIENT}
    agents = [span for span in finished if span.name == "invoke_agent one"]
    assert [(s.attributes or {})["agentsd.usage.input_tokens"] for s in agents] == [10]


def test_a_tools_spans_are_below_its_call_even_in_a_thread(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    @tool(risk="low")
    async def slow(context: ToolContext) -> str:
        """Work in two parts."""
        with context.span("fetch"):
            pass
        with context.span("count"):
            return "1"

    @tool(risk="low")
    def threaded(context: ToolContext) -> str:
        """Work in a thread."""
        with context.span("lookup"):
            return "2"

    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
    model = ScriptedModel(calls(("slow", {})), calls(("threaded", {}), prefix="d"), "ok")

    async def main() -> None:
        async with Runtime.open(root, tools=[slow, threaded], models={"scripted": model}, watch=False) as runtime:
            await runtime.run("go", agent="one")

    asyncio.run(main())
    lines = tree(spans.get_finished_spans()).splitlines()
    assert [line.strip() for line in lines if line.startswith(" " * 6)] == [
        "chat scripted",
        "execute_tool slow",
        "fetch",
        "count",
        "chat scripted",
        "execute_tool threaded",
        "lookup",
        "chat scripted",
    ]


def test_content_is_in_no_span(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
    run(root, ScriptedModel(calls(("work", {"n": "fail"}), ("work", {"n": CANARY})), f"answer {CANARY}"))
    run(root, ScriptedModel(ModelError(CANARY)))
    assert {span.name for span in spans.get_finished_spans()} >= {"chat scripted", "execute_tool work"}
    for span in spans.get_finished_spans():
        assert CANARY not in span.to_json()


def test_a_failed_tool_marks_its_own_span_only(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
    run(root, ScriptedModel(calls(("work", {"n": "fail"})), "ok"))
    failed = {span.name for span in spans.get_finished_spans() if span.status.status_code is StatusCode.ERROR}
    assert failed == {"execute_tool work"}


def test_a_limit_marks_the_agent_and_the_root(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", runtime_policy="{max_steps: 1}")})
    run(root, ScriptedModel(calls(("work", {"n": "1"}))))
    failed = {
        span.name: (span.attributes or {})["error.type"]
        for span in spans.get_finished_spans()
        if span.status.status_code is StatusCode.ERROR
    }
    assert failed == {"invoke_agent one": "max_steps", "invoke_workflow one": "max_steps"}


def test_a_cancelled_run_leaves_no_span_open(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})

    async def main() -> None:
        @tool(risk="low")
        async def forever() -> str:
            """Never ends."""
            await asyncio.Event().wait()
            return ""

        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(calls(("forever", {})))}, "watch": False}
        async with Runtime.open(root, tools=[forever], **options) as runtime, runtime.stream("go") as stream:
            async for event in stream:
                if isinstance(event, events.ToolStarted):
                    break

    asyncio.run(main())
    ended = {span.name: span.status.status_code for span in spans.get_finished_spans()}
    for name in ("execute_tool forever", "invoke_agent one", "invoke_workflow one"):
        assert ended[name] is StatusCode.ERROR
    assert "agent.step 1" in ended


def test_each_run_logs_one_info_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
    with caplog.at_level(logging.INFO, logger="agentsd.runs"):
        run(root, ScriptedModel(calls(("work", {"n": "1"})), "ok"))
    (record,) = [record for record in caplog.records if record.name == "agentsd.runs"]
    fields = record.agentsd  # type: ignore[attr-defined]  # set by `extra`
    assert {k: fields[k] for k in ("agent", "generation", "finish_reason", "steps", "tools", "tokens")} == {
        "agent": "one", "generation": 1, "finish_reason": "final", "steps": 2, "tools": {"work": 1}, "tokens": 20,
    }  # fmt: skip
    assert CANARY not in record.getMessage()
