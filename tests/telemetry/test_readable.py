"""Traces are readable: no noise at start, distinct names, inputs, outputs and pending decisions."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from framework import Approve, ConfigError, Runtime, tool
from framework.testing import ScriptedModel, Turn, calls
from tests.support.plans import draft
from tests.support.projects import agent, write

ASKING = "{allow: ['*'], ask: [write_file]}"


@tool(risk="medium")
async def write_file(path: str) -> str:
    """Write a file.

    The second paragraph is only for the model.
    """
    return f"wrote {path}"


@tool(risk="low")
async def question(text: str) -> str:
    """Look something up."""
    return f"found {text}"


def run(root: Path, *turns: Turn, content: str | None = None, answer: bool = False, **keys: str) -> None:
    """Run one agent once, and resume it if `answer` is set."""
    write(root, {"agents.d/one.yaml": agent("one", **keys)})
    if content:
        write(root, {"agentsd.yaml": f"telemetry: {{content: {content}}}\n"})

    async def main() -> None:
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(*turns, tokens=10)}, "watch": False}
        async with Runtime.open(root, tools=[write_file, question], **options) as runtime:
            result = await runtime.run("please", agent="one")
            if answer:
                await runtime.resume(result.run_id, {question.id: Approve() for question in result.pending})

    asyncio.run(main())


def attributes(spans: InMemorySpanExporter, name: str) -> dict[str, Any]:
    """Attributes of the first span of that name."""
    return dict(first(spans, name).attributes or {})


def first(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in spans.get_finished_spans() if span.name == name)


def test_a_successful_start_leaves_no_trace(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    run(tmp_path, "ok")
    roots = [span.name for span in spans.get_finished_spans() if span.parent is None]
    assert roots == ["invoke_workflow one"]


@pytest.mark.parametrize(("mode", "outcome"), [("tolerant", "partial"), ("strict", "rejected")])
def test_a_start_with_a_problem_leaves_a_trace(
    mode: str, outcome: str, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    files = {"agents.d/one.yaml": agent("one"), "agents.d/two.yaml": "name: [\n"}
    write(tmp_path, {**files, "agentsd.yaml": f"reload: {{mode: {mode}}}\n"})

    async def main() -> None:
        with suppress(ConfigError):  # strict mode serves nothing
            async with Runtime.open(tmp_path, models={"scripted": ScriptedModel("ok")}, watch=False):
                pass

    asyncio.run(main())
    reload = first(spans, "config.reload")
    about = dict(reload.attributes or {})
    assert (about["agentsd.config.trigger"], about["agentsd.config.outcome"]) == ("startup", outcome)
    assert [dict(event.attributes or {})["agentsd.config.path"] for event in reload.events] == ["agents.d/two.yaml"]
    assert first(spans, "config.build").context.trace_id == reload.context.trace_id


def test_a_failed_start_of_an_mcp_server_leaves_a_trace(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    servers = f'version: 1\nmcp_servers:\n  gone: {{command: ["{sys.executable}", "-c", "raise SystemExit(3)"]}}\n'
    write(tmp_path, {"agents.d/one.yaml": agent("one"), "plugins/servers.yaml": servers})

    async def main() -> None:
        async with Runtime.open(tmp_path, models={"scripted": ScriptedModel("ok")}, watch=False):
            pass

    asyncio.run(main())
    connect = first(spans, "mcp.connect")
    about = dict(connect.attributes or {})
    assert connect.status.status_code is StatusCode.ERROR
    assert (about["agentsd.tool.server"], about["network.transport"]) == ("gone", "pipe")
    assert about["error.type"]
    assert not [span for span in spans.get_finished_spans() if span.name.startswith("MCP send")]


def test_the_root_is_named_after_its_agent(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    run(tmp_path, "ok")
    root = attributes(spans, "invoke_workflow one")
    assert (root["gen_ai.workflow.name"], root["gen_ai.agent.name"]) == ("one", "one")
    work = attributes(spans, "invoke_agent one")
    assert work["gen_ai.agent.version"] == work["agentsd.agent.digest"]


def test_a_turn_has_its_input_and_output(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    run(tmp_path, calls(("question", {"text": "x"})), "the answer", content="full")
    turn, last = attributes(spans, "agent.step 1"), attributes(spans, "agent.step 2")
    assert (turn["input.value"], turn["output.value"]) == ("please", 'question({"text": "x"})')
    assert (last["input.value"], last["output.value"]) == ("found x", "the answer")
    assert last["agentsd.step.index"] == 2


def test_the_parts_of_a_plan_have_their_input_and_output(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    step = {"id": "s1", "description": "look it up", "tool": "question", "parameters": {"text": "x"}}
    run(tmp_path, draft(step, goal="know"), "the end", content="full", executor="plan")
    plan = attributes(spans, "plan one")
    assert plan["input.value"] == "please"
    assert json.loads(plan["output.value"])["steps"][0]["description"] == "look it up"
    one = attributes(spans, "plan.step s1")
    assert one["agentsd.plan.step.description"] == "look it up"
    assert json.loads(one["input.value"])["parameters"] == {"text": "x"}
    assert one["output.value"] == "found x"
    assert attributes(spans, "plan.summary")["output.value"] == "the end"


def test_the_description_of_a_step_is_content(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    step = {"id": "s1", "description": "look it up", "tool": "question", "parameters": {"text": "x"}}
    run(tmp_path, draft(step, goal="know"), "the end", executor="plan")
    assert not {"agentsd.plan.step.description", "input.value", "output.value"} & {*attributes(spans, "plan.step s1")}


@pytest.mark.parametrize("content", ["none", "full"])
def test_a_pending_approval_is_shown(content: str, tmp_path: Path, spans: InMemorySpanExporter) -> None:
    asking = calls(("write_file", {"path": "a"}))
    run(tmp_path, asking, "done", content=content, answer=True, skill_policy=ASKING)
    waiting = ("execute_tool write_file", "agent.step 1", "invoke_agent one", "invoke_workflow one")
    for name in waiting:
        about = attributes(spans, name)
        assert about["output.value"] == "waits for approval: write_file", name
        assert about["agentsd.waiting_for"] == ("write_file",)
        assert first(spans, name).status.status_code is StatusCode.UNSET
    resumed = [s for s in spans.get_finished_spans() if s.name == "invoke_workflow one"][1]
    assert "agentsd.waiting_for" not in (resumed.attributes or {})


def test_a_pending_plan_is_shown(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    step = {"id": "s1", "description": "look it up", "tool": "write_file", "parameters": {"path": "a"}}
    run(tmp_path, draft(step, goal="know"), "the end", executor="plan", plan="{approval: always}")
    assert attributes(spans, "plan.approval")["output.value"] == "waits for approval: plan"
    assert attributes(spans, "invoke_workflow one")["output.value"] == "waits for approval: plan"


def test_a_question_of_the_model_waits_for_an_answer_not_for_approval(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    run(tmp_path, calls(("ask_user", {"question": "Where to?"})), skill_policy="{allow: [ask_user]}")
    assert attributes(spans, "execute_tool ask_user")["output.value"] == "waits for an answer: ask_user"


def test_a_pending_step_is_shown(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    step = {"id": "s1", "description": "write", "tool": "write_file", "parameters": {"path": "a"}}
    run(tmp_path, draft(step, goal="know"), "the end", executor="plan", skill_policy=ASKING)
    assert attributes(spans, "plan.step s1")["output.value"] == "waits for approval: write_file"


def test_a_tool_is_described_by_its_first_line(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    run(tmp_path, calls(("write_file", {"path": "a"})), "done")
    about = attributes(spans, "execute_tool write_file")
    assert (about["gen_ai.tool.type"], about["gen_ai.tool.description"]) == ("function", "Write a file.")
