"""Lint warnings about valid agents."""

from __future__ import annotations

import asyncio
from cProfile import Profile
from dataclasses import replace
from pathlib import Path

import pytest

from framework import Runtime, Tool, tool
from framework.types.problem import Problem
from tests.support.generations import build_generation
from tests.support.projects import agent, write


def warnings(root: Path, files: dict[str, str], tools: list[Tool] | None = None) -> list[tuple[str, str]]:
    async def main() -> tuple[Problem, ...]:
        async with Runtime.open(write(root, files), tools=tools or [], watch=False) as runtime:
            assert "a" in runtime.catalog.current.agents
            return runtime.catalog.current.problems

    found = asyncio.run(main())
    assert {problem.severity for problem in found} <= {"warning"}
    return [(problem.place, problem.message) for problem in found]


def test_variables_that_no_template_variant_uses_are_reported_at_their_line(tmp_path: Path) -> None:
    text = """version: 1
name: a
description: d
model: offline
instructions: {template: a.j2, vars: {tone: kind, colour: red}}
inputs:
  who: {type: string}
  where: {type: string}
  when: {type: string}
"""
    files = {
        "agents.d/a.yaml": text,
        "prompts/a.j2": "{{ tone }}{% include 'b.j2' %}",
        "prompts/a.zh.j2": "{{ where }}",
        "prompts/b.j2": "{{ who }}",
    }
    assert warnings(tmp_path, files) == [
        ("agents.d/a.yaml:5:51", "no template uses the variable 'colour'"),
        ("agents.d/a.yaml:9:3", "no template uses the input 'when': the model never sees it"),
    ]


def test_an_input_of_plain_text_instructions_is_reported(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": agent("a", model="offline", inputs="{who: {type: string}}")}
    ((_, message),) = warnings(tmp_path, files)
    assert message == "the model never sees the input 'who': the instructions are plain text"


def errors(root: Path, policy: str, tools: list[Tool]) -> list[str]:
    """Return the errors in an agent's policy. Such an agent is not loaded."""
    files = {"agents.d/a.yaml": agent("a", model="offline", skill_policy=policy)}

    async def main() -> list[str]:
        async with Runtime.open(write(root, files), tools=tools, watch=False) as runtime:
            current = runtime.catalog.current
            found = [problem.message for problem in current.problems if problem.severity == "error"]
            assert ("a" in current.agents) == (not found)
            return found

    return asyncio.run(main())


@pytest.mark.parametrize("kind", ["deny", "ask"])
@pytest.mark.parametrize("pattern", ["orders.delete", "orders.*", "agent.b", "mcp.shop.pay", "*.delete"])
def test_a_rule_that_matches_no_tool_is_an_error_unless_the_tool_is_optional(
    tmp_path: Path, kind: str, pattern: str
) -> None:
    policy = f"{{{kind}: [{{tool: '{pattern}'}}], allow: [echo]}}"
    (message,) = errors(tmp_path / "a", policy, [])
    assert message.startswith(f"the {kind} rule {pattern!r} matches no tool")
    assert errors(tmp_path / "b", policy.replace("}]", ", optional: true}]"), []) == []


@tool(risk="low")
def order(number: str, amount: int = 1) -> str:
    """Work on an order."""
    return f"{number} {amount}"


@tool(risk="low")
def anything(number: str) -> str:
    """Accept any arguments."""
    return number


OPEN = replace(
    anything.named("out.anything", "mcp"),
    definition=anything.definition.model_copy(
        update={"name": "out.anything", "parameters": {"type": "object", "additionalProperties": True}}
    ),
)
ORDERS = [
    order.named("orders.look", "plugin"),
    replace(order.named("orders.refund", "plugin"), risk="high"),
    replace(order.named("orders.delete", "plugin"), risk="critical"),
    anything.named("bank.pay", "plugin"),
    OPEN,
]


def rule_warnings(root: Path, policy: str, risk_level: str = "high") -> list[str]:
    text = agent("a", model="offline", skill_policy=policy, runtime_policy=f"{{risk_level: {risk_level}}}")
    files = {"agents.d/a.yaml": text + "sub_agents: [b]\n", "agents.d/b.yaml": agent("b", model="offline")}
    return [message for _, message in warnings(root, files, ORDERS)]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "{deny: [orders.look], allow: [orders.look, echo]}",
            "the allow rule 'orders.look' never applies: the tools it matches are denied by 'orders.look' in line 6",
        ),
        (
            '{deny: ["orders.*"], ask: [{tool: "orders.look", when: {amount: "> 5"}}], allow: [echo]}',
            "the ask rule 'orders.look' never applies: the tools it matches are denied by 'orders.*' in line 6",
        ),
        (
            "{deny: [orders.look, orders.refund, orders.delete], ask: ['orders.*'], allow: [echo]}",
            "the ask rule 'orders.*' never applies: the tools it matches are denied by 'orders.look' in line 6",
        ),
        (
            "{ask: [orders.delete], allow: [echo]}",
            "the ask rule 'orders.delete' never applies: orders.delete has risk critical, and max_risk is high",
        ),
        (
            "{deny: [orders.look, orders.refund], allow: ['orders.*', echo]}",
            "the allow rule 'orders.*' never applies: orders.delete has risk critical, and max_risk is high",
        ),
        (
            "{deny: [agent.b], allow: [agent.b, echo]}",
            "the allow rule 'agent.b' never applies: ",
        ),
        (
            "{deny: [echo, {tool: echo, reason: no}], allow: ['*']}",
            "the deny rule 'echo' duplicates line 6",
        ),
        ("{allow: [echo, 'orders.*', echo]}", "the allow rule 'echo' duplicates line 6"),
    ],
)
def test_a_rule_that_never_applies_is_reported_with_the_reason(tmp_path: Path, policy: str, message: str) -> None:
    (warning,) = rule_warnings(tmp_path, policy)
    assert warning.startswith(message)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            '{deny: [{tool: orders.look, when: {amout: "> 5"}}], allow: ["*"]}',
            "orders.look has no argument 'amout'; did you mean amount?",
        ),
        (
            '{ask: [{tool: "orders.*", when: {nmuber: "7*"}}], allow: ["*"]}',
            "no tool that 'orders.*' matches has an argument 'nmuber'",
        ),
        (
            '{deny: [{tool: "[be]*", when: {number: "1", text: "2"}}], allow: ["*"]}',
            "no tool that '[be]*' matches has all arguments of these conditions",
        ),
        (
            '{deny: [{tool: fetch, when: {filters: "> 5"}}], allow: ["*"]}',
            "the condition '> 5' on 'filters' cannot be evaluated: it is an object in fetch; name a field",
        ),
        (
            '{deny: [{tool: fetch, when: {items: x}}], allow: ["*"]}',
            "the condition 'x' on 'items' cannot be evaluated: it is an object in fetch; name a field",
        ),
    ],
)
def test_a_condition_that_no_call_can_meet_is_an_error(tmp_path: Path, policy: str, message: str) -> None:
    (found,) = errors(tmp_path, policy, [*ORDERS, fetch])
    assert found.startswith(message)


@pytest.mark.parametrize(
    "policy",
    [
        '{deny: ["orders.delete"], ask: ["orders.*"], allow: ["*"]}',
        '{deny: [{tool: orders.look, when: {amount: "> 5"}}], ask: [orders.look], allow: [orders.look]}',
        '{deny: [{tool: "*", when: {amount: "> 5"}}], allow: ["*"]}',
        '{ask: [{tool: "out.*", when: {whatever: "1"}}], allow: ["*"]}',
        '{ask: [orders.look, {tool: orders.look, when: {amount: "> 5"}}], allow: ["orders.*", orders.look]}',
        '{ask: ["orders.*"], allow: ["orders.*"]}',
        '{deny: [orders.delete], allow: ["*"]}',
        '{deny: ["*"], allow: []}',
        "{allow: [agent.b]}",
    ],
)
def test_a_rule_that_may_apply_is_not_reported(tmp_path: Path, policy: str) -> None:
    assert rule_warnings(tmp_path, policy) == []


@pytest.mark.parametrize("risk_level", ["medium", "high", "critical"])
def test_a_risk_is_too_high_only_above_the_level(tmp_path: Path, risk_level: str) -> None:
    found = rule_warnings(tmp_path, "{ask: [orders.refund], allow: [echo]}", risk_level)
    assert len(found) == (1 if risk_level == "medium" else 0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("{deny: [echo], allow: []}", True),
        ("{deny: [echo], allow: ['*']}", False),
        ("{deny: [echo], ask: [calculator], allow: []}", False),
        ("{allow: []}", False),
    ],
)
def test_an_empty_allow_list_next_to_deny_rules_is_a_warning(tmp_path: Path, policy: str, *, expected: bool) -> None:
    found = warnings(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", skill_policy=policy)})
    empty = [place for place, message in found if message.startswith("`allow` is empty, so no tool is offered")]
    assert empty == (["agents.d/a.yaml:6:30"] if expected else [])


def test_an_empty_allow_of_an_agent_that_only_delegates_is_no_warning(tmp_path: Path) -> None:
    policy = "{deny: [echo], allow: []}"
    boss = agent("a", model="offline", skill_policy=policy, sub_agents="[b]")
    files = {"agents.d/a.yaml": boss, "agents.d/b.yaml": agent("b", model="offline")}
    assert not [message for _, message in warnings(tmp_path, files) if "is empty" in message]


@pytest.mark.parametrize(
    "rule", ["{{tool: read_file, when: {{path: 'a{0}'}}}}", "{{tool: x{0}, optional: true}}", "echo", "'e*'"]
)
@pytest.mark.parametrize("kind", ["deny", "ask", "allow"])
def test_twice_as_many_rules_take_about_twice_as_long(kind: str, rule: str) -> None:
    def steps(count: int) -> int:
        """Return the number of Python function calls for a file with `count` rules: independent of the clock."""
        rules = ", ".join(rule.format(number) if kind != "allow" else f"x{number}" for number in range(count))
        others = "" if kind == "allow" else ", allow: ['*']"
        text = agent("a", model="offline", skill_policy=f"{{{kind}: [{rules}]{others}}}")
        profile = Profile()
        profile.runcall(build_generation, {"agents.d/a.yaml": text.encode()})
        return sum(entry.callcount for entry in profile.getstats())

    small, large = steps(500), steps(1000)
    assert large < 2.6 * small


@tool(risk="low", paths="path")
def fetch(path: str, folder: str, filters: dict[str, int], items: list[dict[str, str]]) -> str:
    """Fetch something."""
    return f"{path} {folder} {filters} {items}"


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ('{path: "a/*"}', ""),
        ('{filters.amount: "> 5"}', ""),
        ('{items.name: "x"}', ""),
        (
            '{folder: "a/*"}',
            "compares 'folder' of fetch as plain text, so another spelling of the same place bypasses it",
        ),
    ],
)
def test_a_condition_that_is_ineffective_is_reported(tmp_path: Path, when: str, expected: str) -> None:
    policy = f"{{deny: [{{tool: fetch, when: {when}}}], allow: [fetch]}}"
    found = warnings(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", skill_policy=policy)}, [fetch])
    assert len(found) == bool(expected)
    assert all(expected in message for _, message in found)


@pytest.mark.parametrize(("more", "expected"), [({}, 1), ({"executor": "plan"}, 0), ({"executor": "auto"}, 0)])
def test_an_approval_of_plans_without_plans_is_reported(tmp_path: Path, more: dict[str, str], expected: int) -> None:
    found = warnings(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", plan="{approve: always}", **more)})
    assert sum("`plan.approve` has no effect" in message for _, message in found) == expected


def test_an_absolute_path_of_a_rule_is_reported(tmp_path: Path) -> None:
    policy = "{deny: [{tool: read_file, when: {path: /private/*}}], allow: [read_file]}"
    ((_, message),) = warnings(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", skill_policy=policy)})
    assert "an absolute path; write it relative to tools.base_path" in message


def test_more_tools_than_providers_accept_are_reported_at_the_allow_list(tmp_path: Path) -> None:
    async def one() -> str:
        """Do something."""
        return ""

    tools = [
        replace(tool(risk="low")(one), definition=tool(risk="low", name=f"t.n{n}")(one).definition) for n in range(130)
    ]
    files = {"agents.d/a.yaml": agent("a", model="offline", skill_policy='{allow: ["t.*"]}')}
    found = warnings(tmp_path / "a", files, tools)
    assert found == [
        ("agents.d/a.yaml:6:16", "the model is offered 130 tools, and several providers accept at most 128")
    ]
    files = {"agents.d/a.yaml": agent("a", model="offline", skill_policy='{allow: ["t.n1*"]}')}
    assert warnings(tmp_path / "b", files, tools) == []
