"""One verdict per call, with its rule; a denied tool is neither offered nor executed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework import RequestError, RunResult, Runtime, Tool, ToolContext, tool
from framework.config.agents.compile import Agent
from framework.engine.context.policy import Policy, agent_verdict
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.conditions import condition_matches, rule_matches
from framework.types.events import ToolFinished
from framework.types.spec import RISKS, Risk, Rule
from tests.support.cases import cases, each
from tests.support.policy_rules import NAMES, ORDER, ORDERS, RULES, TOOLS, Rules, clerk, compiled, shaped
from tests.support.projects import agent, write


def verdict(of: Agent, name: str, **arguments: Any) -> tuple[str, str, str]:
    """Kind, rule and place."""
    candidate = of.toolset.tools[name]
    verdict = agent_verdict(of, candidate, candidate.with_defaults(arguments))
    return verdict.kind, verdict.rule, verdict.place


LINES = """\
version: 1
name: clerk
description: Works on orders.
model: offline
instructions: Help.
skill_policy:
  deny:
    - {tool: "bank.*", reason: use the till}
  ask:
    - tool: orders.refund
      when: {order: "7*"}
  allow:
    - orders.*
    - bank.pay
runtime_policy:
  risk_level: medium
  confirm: {from: medium}
"""


def test_each_verdict_names_its_rule_and_line() -> None:
    of = compiled(LINES)

    assert verdict(of, "bank.pay") == ("deny", "deny bank.*", "agents.d/clerk.yaml:8")
    assert verdict(of, "orders.delete") == ("deny", "max_risk medium", "agents.d/clerk.yaml:16")
    assert verdict(of, "orders.refund", order="77") == ("ask", "ask orders.refund", "agents.d/clerk.yaml:10")
    assert verdict(of, "orders.refund", order="1") == ("ask", "approve_from medium", "agents.d/clerk.yaml:17")
    assert verdict(of, "orders.look") == ("allow", "allow orders.*", "agents.d/clerk.yaml:13")


def test_a_tool_that_no_rule_allows_is_denied_by_the_allow_list() -> None:
    of = compiled(LINES, [*ORDERS, shaped("mail.send")])

    assert verdict(of, "mail.send") == ("deny", "not in tools.allow", "agents.d/clerk.yaml:12")


def test_without_a_skill_policy_nothing_is_allowed() -> None:
    text = LINES[: LINES.index("skill_policy")]

    assert {name: verdict(compiled(text), name)[0] for name in ("orders.look", "bank.pay")} == {
        "orders.look": "deny",
        "bank.pay": "deny",
    }


def test_the_reason_of_a_rule_is_part_of_its_verdict() -> None:
    of = compiled(LINES)

    verdict = agent_verdict(of, of.toolset.tools["bank.pay"], {})
    assert str(verdict) == "deny bank.* (agents.d/clerk.yaml:8): use the till"


def test_a_tool_that_requires_confirmation_needs_approval_even_if_allowed() -> None:
    @tool(risk="low", confirm=True)
    def launch() -> str:
        """Launch."""
        return "gone"

    kind, rule, place = verdict(clerk("{allow: ['*']}", tools=[launch]), "launch")

    assert (kind, rule) == ("ask", "@tool(confirm=True)")
    line = launch.function.__code__.co_firstlineno
    assert place == f"{Path(__file__).name}:{line}"
    assert "confirm=True" in Path(__file__).read_text("utf-8").splitlines()[line - 1]


def test_a_plugins_own_confirmation_names_the_line_of_the_plugin(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "agents.d/clerk.yaml": agent("clerk"),
            "plugins/till.py": '''
                from framework import tool


                @tool(confirm=True)
                def pay(amount: int) -> str:
                    """Pay."""
                    return "paid"
                ''',
        },
    )
    result = asyncio.run(run_script(root, [], calls(("till.pay", {"amount": 1})), "done"))

    assert [confirmation.rule for confirmation in result.pending] == ["@tool(confirm=True) (plugins/till.py:4)"]


@pytest.mark.parametrize(
    ("policy", "runtime_policy", "risk", "confirm", "expected"),
    [
        ("{deny: [t], ask: [t], allow: [t]}", "{risk_level: low}", "high", True, "deny t"),
        ("{ask: [t], allow: [t]}", "{risk_level: low}", "high", True, "max_risk low"),
        ("{ask: [t], allow: [t]}", "{risk_level: high, confirm: {from: low}}", "high", True, "ask t"),
        ("{allow: [t]}", "{risk_level: high, confirm: {from: low}}", "high", True, "@tool(confirm=True)"),
        ("{allow: [t]}", "{risk_level: high, confirm: {from: low}}", "high", False, "approve_from low"),
        ("{allow: [t]}", "{risk_level: high, confirm: {from: never}}", "high", False, "allow t"),
        ("{allow: [u]}", "{risk_level: high, confirm: {from: never}}", "high", True, "not in tools.allow"),
    ],
)
def test_each_kind_of_rule_yields_only_to_those_before_it(
    policy: str, runtime_policy: str, risk: Risk, confirm: bool, expected: str
) -> None:
    tools = [shaped("t", risk, confirm=confirm), shaped("u")]

    assert verdict(clerk(policy, runtime_policy, tools), "t")[1] == expected


@pytest.mark.parametrize("threshold", ["never", "high", "medium", "low"])
@pytest.mark.parametrize("confirm", [False, True])
def test_a_tool_named_only_by_an_ask_rule_is_denied_if_its_condition_does_not_match(
    threshold: str, *, confirm: bool
) -> None:
    policy = '{ask: [{tool: orders.refund, when: {order: "7*"}}], allow: []}'
    of = clerk(policy, f"{{confirm: {{from: {threshold}}}}}", [shaped("orders.refund", confirm=confirm)])

    assert set(of.toolset.offered) == {"orders.refund"}
    assert verdict(of, "orders.refund", order="77")[0] == "ask"
    assert verdict(of, "orders.refund", order="1")[:2] == ("deny", "not in tools.allow")


# --- conditions


@each(
    ("condition", "value", "expected"),
    [
        ("> 50", 50, False),
        ("> 50", 50.01, True),
        (">= 50", 50, True),
        ("< 0", -1, True),
        ("<= 0", 0, True),
        (">50", "80", True),
        ("> 50", "8.5e3", True),
        ("> 50", "eighty", True),
        ("> 50", None, True),
        ("> 50", [1], False),
        ("> 50", [1, [99]], True),
        ("> 50", {"amount": 1}, True),
        ("> 50", float("nan"), True),
        ("> 50", 10**400, True),
        ("> many", 1, True),
        ("> nan", 1, True),
        (50, 50, True),
        (50, 50.0, True),
        (50, "50", True),
        (50, "51", False),
        ("50", 50, True),
        ("50", 50.0, True),
        (True, True, True),
        (True, False, False),
        (True, "true", True),
        ("true", True, True),
        ("false", True, False),
        ("*.pem", "keys/server.pem", True),
        ("*.pem", "keys/server.PEM", False),
        ("*secret*", ["a", "secret.txt"], True),
        ("prod", "prod", True),
        ("prod", "production", False),
        ("!= prod", "prod", False),
        ("!= prod", "staging", True),
        ("!= 50", 50.0, False),
        ("!= test_*", "test_1", False),
        ("null", None, True),
    ],
)
def test_a_condition_matches_the_values_it_names_and_incomparable_ones(
    condition: str | float, value: object, expected: bool
) -> None:
    assert condition_matches(condition, value) is expected


FILLED = partial(st.lists, min_size=1)
"""A condition matches a list if it matches an item, so it never matches an empty list."""


@cases(50)
@given(value=st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), FILLED))
@example(value=float("inf"))
def test_every_json_value_is_above_a_bound_below_it_or_not_comparable(value: object) -> None:
    assert condition_matches(">= 5", value) or condition_matches("< 5", value)


@cases(100)
@given(value=st.floats() | st.integers() | st.booleans() | st.text(), condition=st.text() | st.integers())
def test_any_condition_can_be_evaluated_for_any_value(value: object, condition: str | int) -> None:
    assert condition_matches(condition, value) in (True, False)


def test_all_conditions_of_a_rule_must_match_and_a_missing_argument_does_not() -> None:
    rule = Rule(tool="t", when={"amount": "> 50", "currency": "EUR"})

    assert rule_matches(rule, {"amount": 80, "currency": "EUR"})
    assert not rule_matches(rule, {"amount": 80, "currency": "USD"})
    assert not rule_matches(rule, {"amount": 80})
    assert not rule_matches(rule, {})


def test_the_default_of_an_omitted_argument_is_evaluated_too(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int = 900) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    policy = '{deny: [{tool: pay, when: {amount: "> 500"}}], allow: [pay]}'
    root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk", skill_policy=policy)})
    result = asyncio.run(run_script(root, [pay], calls(("pay", {})), calls(("pay", {"amount": 5})), "done"))

    assert [call.status for call in result.tool_calls] == ["denied", "success"]
    assert paid == [5]


def test_an_aliased_tool_is_evaluated_under_the_name_of_the_call() -> None:
    tools = [shaped("orders.refund"), shaped("legacy.refund")]
    of = clerk('{deny: ["legacy.*"], allow: ["*"]}', tools=tools)

    assert verdict(of, "orders.refund")[0] == "allow"
    assert verdict(of, "legacy.refund")[:2] == ("deny", "deny legacy.*")


# --- several policies


def having(*agents: Agent) -> Mapping[str, Agent]:
    return {one.name: one for one in agents}


@pytest.mark.parametrize(
    ("pinned", "current", "expected"),
    [
        ("{allow: ['*']}", "{deny: [orders.refund], allow: ['*']}", "deny orders.refund"),
        ("{allow: ['*']}", "{ask: [orders.refund], allow: ['*']}", "ask orders.refund"),
        ("{allow: ['*']}", "{allow: [bank.pay]}", "not in tools.allow"),
        ("{deny: [orders.refund], allow: ['*']}", "{allow: ['*']}", "deny orders.refund"),
        ("{ask: [orders.refund], allow: ['*']}", "{allow: ['*']}", "ask orders.refund"),
        ("{ask: [orders.refund], allow: ['*']}", "{deny: [orders.refund], allow: ['*']}", "deny orders.refund"),
        ("{allow: ['*']}", "{allow: [orders.*]}", "allow *"),
    ],
)
def test_the_stricter_of_the_pinned_and_the_live_version_wins(pinned: str, current: str, expected: str) -> None:
    policy = Policy(clerk(pinned), having(clerk(current)).get)

    assert policy.evaluate(ORDERS[1], {}).rule == expected


def test_an_agent_whose_file_was_deleted_is_denied_every_call() -> None:
    policy = Policy(clerk("{allow: ['*']}"), having().get)

    verdict = policy.evaluate(ORDERS[1], {})
    assert (verdict.kind, verdict.place) == ("deny", "agents.d/clerk.yaml")
    assert verdict.reason == "agents.d/clerk.yaml no longer defines the agent 'clerk'"


def test_a_sub_agent_is_denied_every_call_once_its_caller_is_deleted_or_no_longer_lists_it() -> None:
    own = compiled(agent("helper", model="offline"), name="helper")
    boss = compiled(agent("boss", model="offline", sub_agents="[helper]"), name="boss")
    alone = compiled(agent("boss", model="offline"), name="boss")

    assert Policy(own, having(own, boss).get, (boss,)).evaluate(ORDERS[1], {}).kind == "allow"
    deleted = Policy(own, having(own).get, (boss,)).evaluate(ORDERS[1], {})
    dropped = Policy(own, having(own, alone).get, (boss,)).evaluate(ORDERS[1], {})
    assert (deleted.kind, deleted.reason) == ("deny", "agents.d/boss.yaml no longer defines the agent 'boss'")
    assert (dropped.kind, dropped.reason) == ("deny", "'boss' no longer lists 'helper'")


@pytest.mark.parametrize(
    ("began", "live", "expected"),
    [
        (shaped("t", "low"), shaped("t", "high"), "max_risk medium"),
        (shaped("t", "high"), shaped("t", "low"), "max_risk medium"),
        (shaped("t"), shaped("t", confirm=True), "@tool(confirm=True)"),
        (shaped("t", confirm=True), shaped("t"), "@tool(confirm=True)"),
        (shaped("t"), shaped("other"), "the tool no longer exists"),
    ],
)
def test_a_reloaded_tool_is_evaluated_in_both_versions(began: Tool, live: Tool, expected: str) -> None:
    before, now = clerk("{allow: ['*']}", tools=[began]), clerk("{allow: ['*']}", tools=[live])

    assert Policy(before, having(now).get).evaluate(began, {}).rule == expected


def test_a_lowered_ceiling_applies_to_the_pinned_tool_even_if_its_risk_was_lowered_too() -> None:
    began, live = shaped("t", "high"), shaped("t", "low")
    before = clerk("{allow: ['*']}", "{risk_level: high, confirm: {from: never}}", tools=[began])
    now = clerk("{allow: ['*']}", "{risk_level: medium}", tools=[live])

    assert Policy(before, having(before).get).evaluate(began, {}).kind == "allow"
    assert Policy(before, having(now).get).evaluate(began, {}).rule == "max_risk medium"


def test_a_removed_sub_agent_is_no_longer_called() -> None:
    before, now = clerk("{allow: []}", sub_agents="[helper]"), clerk("{allow: []}")
    helper = before.toolset.tools["agent.helper"]

    assert Policy(before, having(before).get).evaluate(helper, {}).rule == "agents"
    assert Policy(before, having(now).get).evaluate(helper, {}).rule == "not in agents"


def parent_of(policy: str, runtime_policy: str = "{}") -> Agent:
    text = agent("boss", model="offline", skill_policy=policy, runtime_policy=runtime_policy)
    return compiled(text, name="boss")


@pytest.mark.parametrize(
    ("parent", "name", "expected"),
    [
        (parent_of("{deny: [bank.*], allow: []}"), "bank.pay", "deny bank.*"),
        (parent_of("{allow: []}", "{risk_level: low}"), "orders.refund", "max_risk low"),
        (parent_of("{ask: [bank.pay], allow: []}"), "bank.pay", "ask bank.pay"),
        (parent_of("{allow: []}", "{confirm: {from: low}}"), "bank.pay", "approve_from low"),
        (parent_of("{allow: []}"), "bank.pay", "allow *"),
    ],
)
def test_a_sub_agent_is_bound_by_its_parents_restrictions_but_not_by_what_they_allow(
    parent: Agent, name: str, expected: str
) -> None:
    own = clerk("{allow: ['*']}")
    policy = Policy(own, having(own, parent).get, (parent,))

    assert policy.evaluate(own.toolset.tools[name], {}).rule == expected


def test_a_tightened_parent_restricts_the_sub_agents_of_runs_in_progress() -> None:
    own, before = clerk("{allow: ['*']}"), parent_of("{allow: []}")
    now = parent_of("{deny: [bank.*], allow: []}")

    assert Policy(own, having(own, before).get, (before,)).evaluate(ORDERS[3], {}).kind == "allow"
    verdict = Policy(own, having(own, now).get, (before,)).evaluate(ORDERS[3], {})
    assert (verdict.rule, verdict.place) == ("deny bank.*", "agents.d/boss.yaml:6")


# --- any rules at all


@cases(20)
@given(rules=RULES, tools=TOOLS, order=ORDER)
def test_the_verdict_is_that_of_the_strictest_matching_rule(rules: Rules, tools: list[Tool], order: str) -> None:
    of = rules.agent(tools)

    for candidate in tools:
        assert agent_verdict(of, candidate, {"order": order}).kind == rules.expected(candidate, order)


@cases(40)
@given(rules=RULES, tools=TOOLS, order=ORDER)
def test_a_tool_that_is_always_denied_is_never_offered(rules: Rules, tools: list[Tool], order: str) -> None:
    of = rules.agent(tools)
    ceiling = RISKS.index(rules.ceiling)

    for candidate in tools:
        if any(fnmatchcase(candidate.name, p) and when == "{}" for p, when in rules.deny):
            assert candidate.name not in of.toolset.offered
        if RISKS.index(candidate.risk) > ceiling:
            assert candidate.name not in of.toolset.offered
        if candidate.name not in of.toolset.offered:
            assert agent_verdict(of, candidate, {"order": order}).kind == "deny"
    assert {definition.name for definition in of.toolset.definitions} == set(of.toolset.offered)


STRICTNESS = ("allow", "ask", "deny")


@cases(25)
@given(began=RULES, live=RULES, parents=st.lists(RULES, max_size=2), tools=TOOLS, order=ORDER)
def test_additional_agents_can_only_make_a_verdict_stricter(
    began: Rules, live: Rules, parents: list[Rules], tools: list[Tool], order: str
) -> None:
    own, now = began.agent(tools), live.agent(tools)
    above = tuple(rules.agent(tools) for rules in parents)
    policy = Policy(own, having(now).get, above)

    for candidate in tools:
        verdict = policy.evaluate(candidate, {"order": order})
        restricted = [replace(rules, allow=("*",)).expected(candidate, order) for rules in parents]
        if parents:  # all are versions of one agent here, so the live one restricts as a parent too
            restricted.append(replace(live, allow=("*",)).expected(candidate, order))
        own_verdicts = [began.expected(candidate, order), live.expected(candidate, order)]
        assert verdict.kind == max([*own_verdicts, *restricted], key=STRICTNESS.index)


# --- in real runs


async def run_script(
    root: Path, tools: list[Tool], *turns: Turn, model: ScriptedModel | None = None, agent: str = "clerk"
) -> RunResult:
    models = {"scripted": model or ScriptedModel(*turns)}
    async with Runtime.open(root, tools=tools, models=models, watch=False) as runtime:
        return await runtime.run("go", agent=agent)


@dataclass
class Till:
    """Tools that record which of them were called."""

    called: list[str] = field(default_factory=list)

    def tools(self, candidate: list[Tool]) -> list[Tool]:
        return [replace(one, function=self._counting(one.name)) for one in candidate]

    def _counting(self, name: str) -> Any:
        def call(order: str = "1") -> str:
            self.called.append(name)
            return f"{name} did {order}"

        return call


@contextmanager
def project_of(of: Agent) -> Iterator[Path]:
    """Write a project with this agent, whose model follows a script."""
    text = of.document.source.decode().replace("model: offline", "model: scripted")
    with TemporaryDirectory() as folder:
        yield write(Path(folder), {of.path: text})


@pytest.mark.hostile(6)
@cases(15)
@given(rules=RULES, tools=TOOLS, order=ORDER)
def test_exactly_the_calls_that_the_policy_allows_are_executed(rules: Rules, tools: list[Tool], order: str) -> None:
    of, till = rules.agent(tools), Till()
    model = ScriptedModel(calls(*((name, {"order": order}) for name in NAMES)), "done")
    expected = {one.name: rules.expected(one, order) for one in tools}

    with project_of(of) as root:
        result = asyncio.run(run_script(root, till.tools(tools), model=model))

    offered = {definition.name for definition in model.requests[0].tools}
    assert offered & set(NAMES) == set(of.toolset.offered)
    assert sorted(till.called) == [name for name in NAMES if expected[name] == "allow"]
    assert sorted(confirmation.tool for confirmation in result.pending) == [
        name for name in NAMES if expected[name] == "ask"
    ]
    denied = sorted(call.tool for call in result.tool_calls if call.status == "denied")
    assert denied == [name for name in NAMES if expected[name] == "deny"]
    assert result.status == ("paused" if "ask" in expected.values() else "completed")


def test_a_denied_call_is_reported_to_the_model_with_rule_and_place(tmp_path: Path) -> None:
    till = Till()
    root = write(tmp_path, {"agents.d/clerk.yaml": LINES.replace("offline", "scripted")})
    model = ScriptedModel(
        calls(("bank.pay", {}), ("orders.delete", {}), ("orders.look", {"order": "3"})), "looked at it only"
    )
    result = asyncio.run(run_script(root, till.tools(ORDERS), model=model))

    assert till.called == ["orders.look"]
    assert result.status == "completed"
    assert result.output == "looked at it only"
    assert [call.status for call in result.tool_calls] == ["denied", "denied", "success"]
    tool_messages = [message.content for message in model.requests[1].messages if message.role == "tool"]
    assert tool_messages == [
        "Denied: the policy forbids this call: deny bank.* (agents.d/clerk.yaml:8): use the till",
        "Denied: the policy forbids this call: max_risk medium (agents.d/clerk.yaml:16): its risk is high",
        "orders.look did 3",
    ]
    assert {definition.name for definition in model.requests[0].tools} == {"orders.look", "orders.refund"}


def test_a_denied_call_is_an_event_with_that_status(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, str]]:
        root = write(tmp_path, {"agents.d/clerk.yaml": LINES.replace("offline", "scripted")})
        models = {"scripted": ScriptedModel(calls(("bank.pay", {})), "done")}
        opened = Runtime.open(root, tools=ORDERS, models=models, watch=False)
        async with opened as runtime, runtime.stream("go") as stream:
            return [(one.tool, one.status) async for one in stream if isinstance(one, ToolFinished)]

    assert asyncio.run(main()) == [("bank.pay", "denied")]


@pytest.mark.hostile(6)
def test_a_call_without_a_model_is_evaluated_alike(tmp_path: Path) -> None:
    till = Till()

    async def main() -> None:
        root = write(tmp_path, {"agents.d/clerk.yaml": LINES})
        async with Runtime.open(root, tools=till.tools(ORDERS), watch=False) as runtime:
            denied = await runtime.call_tool("clerk", "bank.pay", {})
            assert (denied.status, denied.metadata["place"]) == ("denied", "agents.d/clerk.yaml:8")
            with pytest.raises(RequestError, match=r"^orders\.refund needs approval"):
                await runtime.call_tool("clerk", "orders.refund", {"order": "77"})
            assert (await runtime.call_tool("clerk", "orders.look", {"order": "2"})).output == "orders.look did 2"

    asyncio.run(main())
    assert till.called == ["orders.look"]


@pytest.mark.hostile(6)
def test_an_invalid_argument_does_not_bypass_a_deny_rule(tmp_path: Path) -> None:
    policy = "{deny: [{tool: orders.refund, when: {order: '7*'}}], allow: [orders.refund]}"
    root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk", skill_policy=policy)})
    turn = calls(("orders.refund", {"order": "77", "force": True}), ("orders.refund", {"order": 77}))
    result = asyncio.run(run_script(root, ORDERS, turn, "done"))

    assert [call.status for call in result.tool_calls] == ["denied", "denied"]


def test_a_tightened_policy_applies_to_a_run_in_progress_and_a_widened_one_does_not(tmp_path: Path) -> None:
    file = "agents.d/clerk.yaml"
    root = write(tmp_path, {file: agent("clerk", skill_policy="{deny: [orders.look], allow: ['*']}")})
    till = Till()

    @tool(risk="low")
    async def reload(context: ToolContext) -> str:
        """Swap the rules."""
        write(root, {file: agent("clerk", skill_policy="{deny: [bank.pay], allow: ['*']}")})
        return str((await context.deps[0].reload()).number)

    async def main() -> RunResult:
        deps: list[Runtime] = []
        everything = calls(("bank.pay", {}), ("orders.look", {}))
        model = ScriptedModel(everything, calls(("reload", {})), everything, "done")
        tools = [*till.tools(ORDERS), reload]
        async with Runtime.open(root, tools=tools, models={"scripted": model}, deps=deps, watch=False) as runtime:
            deps.append(runtime)
            return await runtime.run("go", agent="clerk")

    result = asyncio.run(main())

    assert [(call.tool, call.status) for call in result.tool_calls] == [
        ("bank.pay", "success"),
        ("orders.look", "denied"),
        ("reload", "success"),
        ("bank.pay", "denied"),
        ("orders.look", "denied"),
    ]
    assert till.called == ["bank.pay"]


@pytest.mark.hostile(6)
def test_a_sub_agent_cannot_do_what_its_parent_is_denied(tmp_path: Path) -> None:
    till = Till()
    boss = agent("boss", skill_policy="{deny: [bank.*], allow: []}", sub_agents="[clerk]")
    root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk"), "agents.d/boss.yaml": boss})
    turns: list[Turn] = [
        calls(("agent.clerk", {"message": "pay"})),
        calls(("bank.pay", {}), ("orders.look", {})),
        "paid?",
        "no",
    ]
    result = asyncio.run(run_script(root, till.tools(ORDERS), *turns, agent="boss"))

    assert {call.tool: call.status for call in result.tool_calls} == {
        "agent.clerk": "success",
        "bank.pay": "denied",
        "orders.look": "success",
    }
    denied = next(call.result for call in result.tool_calls if call.tool == "bank.pay")
    assert denied == "the policy forbids this call: deny bank.* (agents.d/boss.yaml:6)"
    assert till.called == ["orders.look"]
