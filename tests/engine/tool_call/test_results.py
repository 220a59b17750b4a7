"""Events and results of calls that did not succeed, and the description of a tool in a confirmation."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Edit, Reject, RunResult, Runtime, ToolError, tool
from framework.engine.tool_call.results import to_json
from framework.evals.suite import export_case
from framework.replay import replay
from framework.testing import JsonStore, ScriptedModel, calls
from framework.tools.tool import Tool
from framework.types.events import wire
from framework.types.messages import ToolResult
from framework.types.state import Decision
from tests.support.commands import agentsd
from tests.support.projects import agent, write

ASKING = "{ask: [pay], deny: [shut], allow: ['*']}"


def tools() -> list[Tool]:
    @tool(risk="low")
    def pay(amount: float) -> str:
        """Pay an amount from the till.

        It cannot be taken back.

        Args:
            amount: How much.
        """
        return f"paid {amount:g}"

    @tool(risk="low")
    def shut() -> str:
        """Shut the till."""
        return "shut"

    @tool(risk="low")
    def jam() -> str:
        """Jam."""
        raise ToolError("the drawer sticks")

    return [pay, shut, jam]


def seen(
    root: Path, call: tuple[str, dict[str, Any]], decision: Decision | None = None, store: JsonStore | None = None
) -> tuple[RunResult, list[dict[str, Any]]]:
    """Run one call, decide its confirmation, and return the result and the events."""
    write(root, {"agents.d/one.yaml": agent("one", skill_policy=ASKING)})

    async def main() -> tuple[RunResult, list[dict[str, Any]]]:
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(calls(call), "done")}, "watch": False}
        async with Runtime.open(root, tools=tools(), store=store, **options) as runtime:
            async with runtime.stream("go") as stream:
                emitted = [wire(event) async for event in stream]
            result = await stream.result()
            if decision is not None:
                decisions = {asked.id: decision for asked in result.pending}
                async with runtime.resume_stream(result.run_id, decisions) as stream:
                    emitted += [wire(event) async for event in stream]
                result = await stream.result()
            return result, emitted

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "decision", "status", "error"),
    [
        (("jam", {}), None, "error", "the drawer sticks"),
        (("pay", {"amount": "much"}), None, "error", "amount: it has the wrong type"),
        (("shut", {}), None, "denied", "the policy forbids this call: deny shut (agents.d/one.yaml:6)"),
        (("pay", {"amount": 5}), Reject(), "cancelled", "The user rejected this call"),
        (("pay", {"amount": 5}), Reject(reason="dear"), "cancelled", "The user rejected this call: dear"),
        (("pay", {"amount": 5}), Edit(arguments={"amount": "x"}), "error", "invalid edit by a human: amount: it has"),
        (("pay", {"amount": 5}), Approve(), "success", None),
    ],
)
def test_the_result_of_a_failed_call_has_its_error(
    tmp_path: Path, call: tuple[str, dict[str, Any]], decision: Decision | None, status: str, error: str | None
) -> None:
    result, emitted = seen(tmp_path, call, decision)
    (finished,) = (event for event in emitted if event["event"] == "tool_result")
    assert finished["status"] == status
    assert result.status == "completed"
    assert [made.status for made in result.tool_calls] == [status]
    if error is None:
        assert "error" not in finished
    else:
        assert finished["error"].startswith(error)
    if status == "cancelled":
        assert finished["result"] == f"Cancelled: {error}"
        assert result.messages[-2].status == "cancelled"


def test_a_confirmation_describes_the_tool(tmp_path: Path) -> None:
    result, emitted = seen(tmp_path, ("pay", {"amount": 5}))
    (asked,) = (event for event in emitted if event["event"] == "confirm_required")
    assert asked["description"] == "Pay an amount from the till."
    assert result.pending[0].description == asked["description"]


def test_old_records_with_a_rejected_call_as_denied_are_still_read(tmp_path: Path) -> None:
    store = JsonStore()
    result, emitted = seen(tmp_path, ("pay", {"amount": 5}), Reject(reason="dear"), store)

    async def differences() -> tuple[Any, ...]:
        record = await store.load_run(result.run_id)
        (key,) = record.calls
        old = ToolResult(status="denied", error="a human rejected the call: dear", metadata={"decision": "reject"})
        record.calls[key] = record.calls[key].model_copy(update={"result": old})
        async with Runtime.open(tmp_path, tools=tools(), models={"scripted": ScriptedModel()}, watch=False) as runtime:
            return await replay(tmp_path, await store.stored_run(record), runtime.catalog.current)

    assert asyncio.run(differences()) == ()
    record = asyncio.run(store.load_run(result.run_id))
    before = [event | {"status": "denied"} if event["event"] == "tool_result" else event for event in emitted]
    for events in (emitted, before):
        assert export_case(record, events)["expect"]["denied"] == ["pay"], "refused by a rule or a human"


def test_the_command_line_prints_events_as_lines_of_json(tmp_path: Path) -> None:
    files = {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{ask: [calculator], allow: [echo]}")}
    root = write(tmp_path, files)
    done = agentsd("run", "--events", "echo hello", cwd=root)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [event["event"] for event in events][:2] == ["route", "tool_call"]
    assert {event["event"] for event in events} >= {"tool_result", "content"}
    assert (events[-1]["event"], events[-1]["status"]) == ("done", "completed")
    waits = agentsd("run", "--events", "calculate 2 + 3", cwd=root)
    last = [json.loads(line) for line in waits.stdout.splitlines()][-2:]
    assert waits.returncode == 3
    assert [event["event"] for event in last] == ["confirm_required", "done"]
    assert agentsd("run", "--events", "--json", "hi", cwd=root).returncode == 2


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    color: Color = Color.RED


@pytest.mark.parametrize(
    ("returned", "readable"),
    [
        (Color.RED, "red"),
        ({"c": [Color.RED]}, {"c": ["red"]}),
        (Point(1), {"x": 1, "color": "red"}),
        ([Point(1)], [{"x": 1, "color": "red"}]),
        (ValueError("no such order"), "ValueError: no such order"),
        (KeyError(), "KeyError"),
        ({3, 1}, [1, 3]),
        ({(1, 2): Point(1), Color.RED: 1, None: 2, "a": {(3,): 4}}, None),
    ],
)
def test_python_values_are_readable_results(returned: Any, readable: Any) -> None:
    if readable is None:
        readable = {"(1, 2)": {"x": 1, "color": "red"}, "red": 1, "null": 2, "a": {"(3,)": 4}}
    assert to_json(returned) == readable
