"""Calls as models send them: under wire names, and sometimes duplicated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import RunResult, Runtime, ToolResult, tool
from framework.engine.tool_call.call import normalize_message
from framework.testing import ScriptedModel
from framework.tools.tool import Tool
from framework.tools.toolset import Toolset
from framework.types.events import Event, ToolFinished
from framework.types.messages import Message, ToolCall, unique_calls
from framework.types.spec import SkillPolicy
from framework.types.state import CallRecord, RunState
from tests.support.cases import cases
from tests.support.projects import agent, write


@tool(risk="low", name="dates.now")
async def now(zone: str = "UTC") -> str:
    """Tell the time."""
    return zone


async def played(root: Path, model: ScriptedModel, *tools: Tool) -> tuple[RunResult, list[Event]]:
    async with Runtime.open(root, tools=tools, models={"scripted": model}, watch=False) as runtime:
        async with runtime.stream("go", agent="one") as stream:
            found = [event async for event in stream]
        return await stream.result(), found


def test_a_denied_tool_is_denied_under_its_wire_name_too(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{deny: ["dates.*"], allow: ["*"]}')})
    model = ScriptedModel((ToolCall(id="c", tool="dates__now"),), "done")

    result, found = asyncio.run(played(tmp_path, model, now))

    (call,) = result.tool_calls
    (finished,) = [event for event in found if isinstance(event, ToolFinished)]
    (span,) = [span for span in spans.get_finished_spans() if span.name.startswith("execute_tool")]
    assert (call.tool, call.status) == ("dates.now", "denied")
    assert (finished.tool, finished.status) == ("dates.now", "denied")
    assert "deny dates.* (agents.d/one.yaml:6)" in str(result.trace[0].error)
    assert (span.name, dict(span.attributes or {})["error.type"]) == ("execute_tool dates.now", "policy_denied")
    assert result.tool_stats["dates.now"].count == 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [("functions", "functions"), ("functions.functions", "functions"), ("Functions", "functions"),
     ("functions.dates.now", "dates.now"), ("functions.nothing", "functions.nothing")],
)  # fmt: skip
def test_a_tool_named_functions_is_no_namespace(tmp_path: Path, written: str, meant: str) -> None:
    @tool(risk="low")
    async def functions() -> str:
        """List functions."""
        return "f"

    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{allow: ["*"]}')})
    model = ScriptedModel((ToolCall(id="c", tool=written),), "done")

    result, _ = asyncio.run(played(tmp_path, model, now, functions))

    exists = meant != "functions.nothing"
    assert [(call.tool, call.status == "success") for call in result.tool_calls] == [(meant, exists)]


def test_10_000_tools_are_offered_and_called(tmp_path: Path) -> None:
    many = [now.named(f"tools.number_{number}", "python") for number in range(10_000)]
    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{allow: ["*"]}')})
    model = ScriptedModel((ToolCall(id="c", tool="Tools__Number_9999"),), "done")

    result, _ = asyncio.run(played(tmp_path, model, *many))

    assert [(call.tool, call.status) for call in result.tool_calls] == [("tools.number_9999", "success")]
    assert len(model.requests[0].tools) >= 10_000


@pytest.mark.parametrize("name", ["dates.now", "dates__now"])
def test_a_direct_call_is_denied_under_either_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{deny: ["dates.*"], allow: ["*"]}')})

    async def call() -> ToolResult:
        models = {"scripted": ScriptedModel()}
        async with Runtime.open(tmp_path, tools=[now], models=models, watch=False) as runtime:
            return await runtime.call_tool("one", name, {})

    result = asyncio.run(call())

    assert (result.status, result.metadata.get("rule")) == ("denied", "deny dates.*")


def test_the_same_call_twice_in_one_answer_is_one_call(tmp_path: Path) -> None:
    made: list[int] = []

    @tool(risk="low")
    async def pay(amount: int) -> str:
        """Pay."""
        made.append(amount)
        return "paid"

    def call(call_id: str, amount: int) -> ToolCall:
        return ToolCall(id=call_id, tool="pay", arguments={"amount": amount})

    write(tmp_path, {"agents.d/one.yaml": agent("one")})
    answer = (call("a", 1), call("a", 1), call("a", 2), call("b", 1), call("", 3), call("", 3))
    result, _ = asyncio.run(played(tmp_path, ScriptedModel(answer, "done"), pay))

    assert sorted(made) == [1, 1, 2, 3, 3], "only the very same call counts once: same id, tool and arguments"
    asked = next(message for message in result.messages if message.tool_calls)
    assert len({one.id for one in asked.tool_calls}) == len(asked.tool_calls) == 5
    assert sum(message.role == "tool" for message in result.messages) == 5


CALL = st.builds(
    ToolCall,
    id=st.sampled_from(["", "a", "b"]),
    tool=st.sampled_from(["x", "y"]),
    arguments=st.sampled_from([{}, {"n": 1}, {"n": True}, {"n": 1.0}]),
)


@cases(100)
@given(st.lists(CALL, max_size=6))
def test_only_duplicate_calls_are_removed(calls: list[ToolCall]) -> None:
    kept = unique_calls(calls)

    assert unique_calls(kept) == kept
    assert len(kept) >= len({call.model_dump_json() for call in calls})
    assert [call for call in kept if not call.id] == [call for call in calls if not call.id]
    assert {call.model_dump_json() for call in kept} == {call.model_dump_json() for call in calls}


def test_a_call_without_an_id_gets_one_that_the_run_has_not_used() -> None:
    first = CallRecord(call=ToolCall(id="call_0_0", tool="dates.now"))
    state = RunState(agent="one", calls={"call_0_0": first})
    reply = Message(role="assistant", content="", tool_calls=(ToolCall(id="", tool="dates.now"),))
    (call,) = normalize_message(reply, state, Toolset({}, SkillPolicy(allow=()), risk_level="high")).tool_calls
    assert call.id not in ("", "call_0_0")


@pytest.mark.parametrize(
    "written",
    [
        *("dates.now<|channel|>commentary", "functions.dates__now", "functions.dates.now:0", "default_api:dates__now"),
        *("assistant<|channel|>analysis to=functions.dates.now", "Dates.Now", " dates__now ", "dates.now\n"),
        *("default_api.dates.now", "mcp_dates__now", "<|start|>dates__now<|message|>"),
    ],
)
def test_a_misspelt_name_is_repaired_before_the_policy_and_recorded(tmp_path: Path, written: str) -> None:
    policy = '{deny: [{tool: dates.now, when: {zone: "Mars"}}], allow: ["*"]}'
    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy=policy)})
    first = ToolCall(id="a", tool=written, arguments={"zone": "Oslo"})
    second = ToolCall(id="b", tool=written, arguments={"zone": "Mars"})

    result, _ = asyncio.run(played(tmp_path, ScriptedModel((first, second), "done"), now))

    assert [(call.tool, call.status) for call in result.tool_calls] == [
        ("dates.now", "success"),
        ("dates.now", "denied"),
    ]
    assert [warning.code for warning in result.warnings] == ["arguments_repaired"] * 2
    assert result.warnings[0].message.startswith("the call of dates.now was repaired: name: ")
    assert all("name: " in entry.repairs[0] for entry in result.trace if entry.repairs)
    asked = next(message for message in result.messages if message.tool_calls)
    assert {call.tool for call in asked.tool_calls} == {"dates.now"}, "the model does not see its mistake again"


@pytest.mark.parametrize("written", ["dates.later", "shell.dates.now", "now", "dates.now.x", "", "<||>", "x" * 5000])
def test_a_name_that_means_no_offered_tool_stays_unknown(tmp_path: Path, written: str) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one")})
    result, _ = asyncio.run(played(tmp_path, ScriptedModel((ToolCall(id="a", tool=written),), "done"), now))
    assert "there is no tool" in str(result.tool_calls[0].result)


def test_a_name_that_may_mean_a_denied_or_one_of_two_tools_stays_unknown(tmp_path: Path) -> None:
    @tool(risk="low", name="Echo")
    async def upper() -> str:
        """Echo."""
        return ""

    @tool(risk="low", name="echo")
    async def lower() -> str:
        """Echo."""
        return ""

    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{deny: ["dates.*"], allow: ["*"]}')})
    asked = (ToolCall(id="a", tool="functions.dates.now"), ToolCall(id="b", tool="functions.ECHO"))
    result, _ = asyncio.run(played(tmp_path, ScriptedModel(asked, "done"), now, upper, lower))
    assert all("there is no tool" in str(call.result) for call in result.tool_calls)
