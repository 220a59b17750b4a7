"""Hostile calls: arguments, names, denied tools, approvals. Refusals are reported and recorded."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Edit, Reject, RequestError, Respond, RunResult, Runtime, tool
from framework.testing import JsonStore, ScriptedModel, calls
from framework.types.events import ConfirmationRequested, ToolRequested
from framework.types.messages import ToolCall
from framework.types.plan import PlanDraft
from framework.types.state import Decision, RunState
from plugins.log_transform import log_transform
from tests.support import wire
from tests.support.hostile_runs import CONTINUED, nested, refused, victim
from tests.support.projects import agent, write

LONG = 1_000_000


class Counter:
    """Tools that record their arguments."""

    def __init__(self) -> None:
        self.recorded: list[Any] = []

        @tool(risk="low")
        async def pay(amount: int, note: str = "") -> str:
            """Pay."""
            self.recorded.append(amount)
            return f"paid {amount}{note}"

        @tool(risk="low")
        async def take(value: Any) -> Any:
            """Accept any value."""
            self.recorded.append(value)
            return "taken"

        self.tools = [pay, take]


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.mark.hostile(1)
@pytest.mark.parametrize("key", ["__proto__", "__class__", "constructor", "self", "context", "Amount", "amount\u200b"])
def test_llm06_an_undeclared_argument_stops_the_call(tmp_path: Path, counter: Counter, key: str) -> None:
    (message,) = refused(tmp_path, ("pay", {"amount": 1, key: {"admin": True}}), tools=counter.tools)
    assert "there is no such argument" in message
    assert counter.recorded == []


@pytest.mark.hostile(2)
@pytest.mark.parametrize(
    "value",
    [True, "twenty", "20 ", 20.0, None, [20], {"amount": 20}, float("nan"), float("inf"), 10**5000, "\ud800", {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_llm06_a_value_of_another_type_stops_the_call_and_not_the_run(
    tmp_path: Path, counter: Counter, value: Any
) -> None:
    (message,) = refused(tmp_path, ("pay", {"amount": value}), tools=counter.tools)
    assert message.startswith(("Error: pay was not called", "Error: pay failed: the arguments cannot be read"))
    assert len(message) < 1000
    assert counter.recorded == []


@pytest.mark.hostile(2)
@pytest.mark.parametrize("value", [float("nan"), 10**5000, "\ud800", {1, 2}, b"x"], ids=lambda v: type(v).__name__)
def test_llm10_arguments_that_are_not_json_are_refused_even_without_a_schema(
    tmp_path: Path, counter: Counter, value: Any
) -> None:
    (message,) = refused(tmp_path, ("take", {"value": [{"deep": value}]}), tools=counter.tools)
    assert "cannot be read" in message
    assert counter.recorded == []


@pytest.mark.hostile(3)
@pytest.mark.parametrize("depth", [101, 200, 254, 2000])
def test_llm10_too_deeply_nested_arguments_are_refused_before_the_store(
    tmp_path: Path, counter: Counter, depth: int
) -> None:
    (message,) = refused(tmp_path, ("take", {"value": nested(depth)}), tools=counter.tools)
    assert "nest" in message
    assert counter.recorded == []


@pytest.mark.hostile(3)
@pytest.mark.parametrize("value", ["x" * LONG, ["x"] * 10_000, nested(90)], ids=["long", "wide", "deep"])
def test_llm10_large_arguments_are_passed_and_stored_completely(tmp_path: Path, counter: Counter, value: Any) -> None:
    seen = victim(tmp_path, calls(("take", {"value": value})), CONTINUED, tools=counter.tools)
    assert seen.result.output == CONTINUED
    assert counter.recorded == [value]
    assert seen.state.calls["c1"].call.arguments == {"value": value}


@pytest.mark.hostile(3)
@pytest.mark.parametrize("depth", [99, 101, 190, 240, 300, 900])
def test_llm10_a_too_deeply_nested_result_breaks_neither_the_run_nor_its_record(tmp_path: Path, depth: int) -> None:
    @tool(risk="low")
    async def give() -> Any:
        """Return a value."""
        return nested(depth)

    seen = victim(tmp_path, calls(("give", {})), CONTINUED, tools=[give])
    assert seen.result.output == CONTINUED
    result = seen.state.calls["c1"].result
    assert result is not None
    output = json.loads(result.output) if depth > 100 else result.output
    assert output == nested(depth)


def text_calls(*arguments: str) -> wire.Answer:
    return wire.calls(*(("take", text) for text in arguments))


@pytest.mark.hostile(4)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"value": 1, "value": 2}', "duplicate key 'value'"),
        ('{"value": {"a": 1, "a": 2}}', "duplicate key 'a'"),
        ('{"value": ' + "1" * 5000 + "}", "4300 digits"),
        ('{"value": ' + "[" * 2000 + "]" * 2000 + "}", "nest"),
        ('{"value": NaN}', "NaN is not a JSON number"),
        ('{"value": 1e999}', "is too large"),
        ('{"value": "\\ud800"}', "surrogates not allowed"),
        ('{"value": 1}{"value": 2}', "Extra data"),
        ('[{"value": 1}]', "it is a list"),
    ],
    ids=lambda text: text[:24],
)
def test_llm05_ambiguous_arguments_are_refused(tmp_path: Path, counter: Counter, arguments: str, problem: str) -> None:
    async def main() -> RunResult:
        async with wire.wire_server([text_calls(arguments), wire.says(CONTINUED)]) as server:
            settings = f"models: {{local: {{model: openai/test, base_url: '{server.url}'}}}}\n"
            write(tmp_path, {"agents.d/victim.yaml": agent("victim", model="local"), "agentsd.yaml": settings})
            async with Runtime.open(tmp_path, tools=counter.tools, watch=False) as runtime:
                return await runtime.run("go")

    result = asyncio.run(main())
    assert (result.status, result.output) == ("completed", CONTINUED)
    assert [(one.status, problem in one.result) for one in result.tool_calls] == [("error", True)]
    assert counter.recorded == []


@pytest.mark.hostile(5)
@pytest.mark.parametrize(
    "name",
    [
        "p\u0430y", "pay\u200b", "\u202epay", "\uff50ay", "pay\0", "", "..", "*",
        "p?y", "pay()", "python__pay", "builtin.pay", "pay\ud800", "{{ pay }}",
    ],
)  # fmt: skip
def test_asi02_a_lookalike_name_does_not_match_a_tool(tmp_path: Path, counter: Counter, name: str) -> None:
    (message,) = refused(tmp_path, (name, {"amount": 1}), tools=counter.tools)
    assert "there is no tool" in message
    assert counter.recorded == []


@pytest.mark.hostile(5)
@pytest.mark.parametrize("name", ["Pay", "PAY", "pay ", " pay", "pay\n", "functions.pay", "pay<|channel|>commentary"])
def test_asi02_a_misspelt_name_has_the_rules_of_the_tool_that_it_becomes(
    tmp_path: Path, counter: Counter, name: str
) -> None:
    (message,) = refused(
        tmp_path, (name, {"amount": 1}), tools=counter.tools, skill_policy="{allow: ['*'], deny: [pay]}"
    )
    assert "there is no tool" in message, "a denied tool is not offered, so no name is corrected to its name"
    assert counter.recorded == []


@pytest.mark.hostile(5)
def test_llm02_a_made_up_tool_name_is_not_in_logs_or_statistics(
    tmp_path: Path, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        seen = victim(
            tmp_path, calls(("my secret\nINFO forged", {}), ("pay", {"amount": 1})), CONTINUED, tools=counter.tools
        )
    assert seen.result.tool_stats.keys() == {"pay"}
    assert "secret" not in caplog.text
    assert any("tools={'pay': 1}" in record.getMessage() for record in caplog.records)


@pytest.mark.hostile(5)
def test_asi04_a_plugins_tool_cannot_replace_another_on_the_wire(tmp_path: Path) -> None:
    source = 'from framework import tool\n@tool(risk="low")\ndef pay() -> str:\n    """{}."""\n    return "{}"\n'
    files = {"plugins/bank.py": source.format("Pay", "good"), "plugins/a/bank.py": source.format("Pay too", "evil")}
    seen = victim(write(tmp_path, files), calls(("bank.pay", {})), CONTINUED)
    assert [one.status for one in seen.result.tool_calls] == ["success"]

    async def problems() -> list[str]:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            return [problem.message for problem in runtime.catalog.current.errors]

    assert "duplicate tool name 'bank.pay'" in asyncio.run(problems())


# --- denied tools, on every path

DENYING = "{deny: [{tool: pay, reason: not today}], allow: ['*']}"


@pytest.mark.hostile(6)
@pytest.mark.parametrize("policy", [DENYING, "{allow: [take]}", "{deny: ['*'], allow: [pay]}", "{allow: []}"])
def test_llm06_a_denied_tool_is_not_called_when_the_model_requests_it(
    tmp_path: Path, counter: Counter, policy: str
) -> None:
    (message,) = refused(tmp_path, ("pay", {"amount": 1}), tools=counter.tools, skill_policy=policy)
    assert message.startswith("Denied: the policy forbids this call: ")
    assert "agents.d/victim.yaml:6" in message
    assert counter.recorded == []


@pytest.mark.hostile(6)
def test_asi03_a_denied_tool_is_not_called_by_a_sub_agent_that_may_call_it(tmp_path: Path, counter: Counter) -> None:
    write(tmp_path, {"agents.d/helper.yaml": agent("helper", skill_policy='{allow: ["*"]}')})
    turns = (
        calls(("agent.helper", {"message": "pay for me"})),
        calls(("pay", {"amount": 1})),
        "I could not.",
        CONTINUED,
    )
    seen = victim(tmp_path, *turns, tools=counter.tools, skill_policy=DENYING, sub_agents="[helper]")
    assert seen.result.output == CONTINUED
    assert [(one.tool, one.status) for one in seen.result.tool_calls] == [
        ("agent.helper", "success"),
        ("pay", "denied"),
    ]
    assert counter.recorded == []


@pytest.mark.hostile(6)
def test_llm06_a_denied_tool_is_not_called_by_a_plan_nor_by_a_step_of_it(tmp_path: Path, counter: Counter) -> None:
    def plan(**step: Any) -> PlanDraft:
        return PlanDraft.model_validate({"goal": "g", "steps": [{"id": "a", "description": "pay", **step}]})

    turns = (
        plan(tool="pay", parameters={"amount": 1}),
        plan(),
        calls(("pay", {"amount": 1})),
        "I could not.",
        CONTINUED,
    )
    seen = victim(tmp_path, *turns, tools=counter.tools, skill_policy=DENYING, executor="plan")
    assert seen.result.output == CONTINUED
    assert "step a: the policy forbids it: deny pay" in seen.requests[1].messages[-1].content
    assert [(one.tool, one.status) for one in seen.result.tool_calls] == [("pay", "denied")]
    assert counter.recorded == []


@pytest.mark.hostile(6)
def test_llm06_a_denied_tool_is_not_called_by_its_name_on_the_wire(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(risk="low")
    def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    denied = pay.named("bank.pay", "plugin")

    async def main() -> RunResult:
        requested = wire.calls(("bank__pay", {}), ("bank.pay", {}))
        async with wire.wire_server([requested, wire.says(CONTINUED)]) as server:
            settings = f"models: {{local: {{model: openai/test, base_url: '{server.url}'}}}}\n"
            text = agent("victim", model="local", skill_policy="{deny: [bank.pay], allow: ['*']}")
            write(tmp_path, {"agents.d/victim.yaml": text, "agentsd.yaml": settings})
            async with Runtime.open(tmp_path, tools=[denied], watch=False) as runtime:
                result = await runtime.run("go")
                direct = await runtime.call_tool("victim", "bank.pay", {})
                assert direct.status == "denied"
        return result

    result = asyncio.run(main())
    assert (result.status, result.output) == ("completed", CONTINUED)
    assert [(one.tool, one.status) for one in result.tool_calls] == [("bank.pay", "denied")] * 2
    assert ran == []


# --- approvals are for what was shown


ASKING = "{ask: ['*'], allow: ['*']}"


@pytest.mark.hostile(7)
@pytest.mark.parametrize("value", [{"to": "mallory"}, {"to": "alice", "extra": [1]}, {}])
def test_asi09_changed_arguments_need_a_new_approval(tmp_path: Path, counter: Counter, value: dict[str, Any]) -> None:
    """A call that is changed between the question and its execution is not executed."""

    class Tampered(JsonStore):
        tampering = False

        async def load_run(self, run_id: str) -> RunState:
            state = await super().load_run(run_id)
            if self.tampering:
                forged = ToolCall(id="c1", tool="take", arguments={"value": value})
                state.messages[-1] = state.messages[-1].model_copy(update={"tool_calls": (forged,)})
            return state

    async def main() -> None:
        store = Tampered()
        root = write(tmp_path, {"agents.d/victim.yaml": agent("victim", skill_policy=ASKING)})
        models = {"scripted": ScriptedModel(calls(("take", {"value": {"to": "alice"}})), CONTINUED)}
        async with Runtime.open(root, tools=counter.tools, models=models, store=store, watch=False) as runtime:
            first = await runtime.run("go")
            store.tampering = True
            for decisions in ({first.pending[0].id: Approve()}, {}):
                again = await runtime.resume(first.run_id, decisions)
                assert again.status == "paused"
                assert counter.recorded == []
                (question,) = again.pending
                assert question.arguments == {"value": value}
                assert question.hash != first.pending[0].hash
                assert question.reason == "its arguments have changed since approval was requested"
            result = await runtime.resume(first.run_id, {question.id: Approve()})
        assert result.output == CONTINUED
        assert counter.recorded == [value]

    asyncio.run(main())


@pytest.mark.hostile(7)
def test_asi09_an_approval_is_for_one_call_and_one_tool_only(tmp_path: Path, counter: Counter) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/victim.yaml": agent("victim", skill_policy=ASKING)})
        same = (ToolCall(id="x", tool="pay", arguments={"amount": 1}),)
        models = {"scripted": ScriptedModel(same, same, CONTINUED)}
        async with Runtime.open(root, tools=counter.tools, models=models, watch=False) as runtime:
            first = await runtime.run("go")
            second = await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
            assert second.status == "paused"
            assert counter.recorded == [1]
            with pytest.raises(RequestError, match="x has already been decided"):
                await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
            edited = Edit(arguments={"amount": "all of it"})
            result = await runtime.resume(first.run_id, {second.pending[0].id: edited})
        assert result.output == CONTINUED
        assert [one.status for one in result.tool_calls] == ["success", "error"]
        assert counter.recorded == [1]

    asyncio.run(main())


@pytest.mark.hostile(7)
@pytest.mark.parametrize(
    "decision",
    [
        Edit(arguments={"amount": 10**5000}),
        Edit(arguments={"amount": nested(300)}),
        Edit(arguments={"amount": nested(2000)}),
        Edit(arguments={"note": "\ud800"}),
        Respond(text="half a sign \ud800"),
        Reject(reason="half a sign \ud800"),
    ],
    ids=lambda decision: type(decision).__name__,
)
def test_llm10_no_decision_makes_a_run_unreadable(tmp_path: Path, counter: Counter, decision: Decision) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/victim.yaml": agent("victim", skill_policy=ASKING)})
        models, store = {"scripted": ScriptedModel(calls(("pay", {"amount": 1})), CONTINUED)}, JsonStore()
        async with Runtime.open(root, tools=counter.tools, models=models, store=store, watch=False) as runtime:
            (question,) = (first := await runtime.run("go")).pending
            if isinstance(decision, Edit):
                with pytest.raises(RequestError, match="edit of c1: the arguments"):
                    await runtime.resume(first.run_id, {question.id: decision})
                assert (await store.load_run(first.run_id)).pending == [question]
            sound = Reject() if isinstance(decision, Edit) else decision
            result = await runtime.resume(first.run_id, {question.id: sound})
            assert result.output == CONTINUED
            assert (await store.load_run(first.run_id)).status == "completed"
        assert counter.recorded == []

    asyncio.run(main())


# --- programs and secrets


SHELL = [
    "$(touch pwned)",
    "`touch pwned`",
    "x; touch pwned",
    "x\ntouch pwned",
    "-rf",
    "--pre=touch pwned",
    "| touch pwned",
]


@pytest.mark.hostile(9)
@pytest.mark.parametrize("text", SHELL)
def test_asi05_no_argument_of_a_tool_becomes_a_command_or_an_option(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"notes.txt": "nothing to see\n"})
    requested = calls(
        ("search_files", {"query": text}),
        ("search_files", {"query": "nothing", "root_dir": text}),
        ("log_transform", {"path": "notes.txt", "operation": "grep", "pattern": text}),
        ("json_transform", {"expression": text, "data": "{}"}),
        ("calculator", {"expression": text}),
        ("read_file", {"path": text}),
    )
    seen = victim(tmp_path, requested, CONTINUED, tools=[log_transform])
    assert seen.result.output == CONTINUED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agents.d", "notes.txt"]
    statuses = [one.status for one in seen.result.tool_calls]
    assert statuses[1] == statuses[4] == statuses[5] == "error"
    assert not any("nothing to see" in text for text in seen.tool_results)


SECRETS = ["sk-canary1234567890", "ghp_" + "a1" * 18, "AKIAABCDEFGHIJKLMNOP", "Bearer canary.canary.123"]


@pytest.mark.hostile(10)
@pytest.mark.parametrize("secret", SECRETS)
def test_llm02_a_secret_in_a_call_is_masked_in_events_and_complete_for_approval(
    tmp_path: Path, counter: Counter, secret: str
) -> None:
    given = {"value": {"url": f"https://me:hunter22@host/?token={secret}", "password": "hunter22", "n": [secret, 7]}}
    seen = victim(tmp_path, calls(("take", given)), CONTINUED, tools=counter.tools, skill_policy=ASKING)
    (shown,) = [event for event in seen.events if isinstance(event, ToolRequested)]
    (question,) = [event for event in seen.events if isinstance(event, ConfirmationRequested)]
    assert secret not in shown.model_dump_json()
    assert "hunter22" not in shown.model_dump_json()
    assert shown.arguments["value"]["n"] == [secret.replace(secret.removeprefix("Bearer "), "***"), 7]
    assert question.arguments == seen.result.pending[0].arguments == given
