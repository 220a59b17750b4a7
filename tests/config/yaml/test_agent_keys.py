"""Agent files have one place for each wish; older spellings mean the same, and a file cannot have both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from framework.config.agents.compile import Agent
from framework.config.agents.link import read_permissions, tighten_agent
from framework.config.yaml.agent_keys import LIMITS, TOP_LEVEL, WRITTEN, path_in_file
from framework.config.yaml.parse import ParseError, parse_agent
from framework.engine.context.policy import agent_verdict
from framework.types.spec import AgentSpec, RuntimePolicy
from tests.support.agent_wishes import HEAD, VALUES, WISHES, Wish
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.policy_rules import ORDER, TOOLS, compiled, shaped
from tests.support.projects import write


def spec(text: str, path: str = "agents.d/clerk.yaml") -> AgentSpec:
    return parse_agent(path, text.encode())[0]


def problems(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(ParseError) as caught:
        parse_agent("agents.d/clerk.yaml", (HEAD + text).encode())
    return [(problem.line, problem.message) for problem in caught.value.problems]


@given(WISHES, TOOLS, ORDER)
@cases(60)
def test_a_file_means_the_same_in_both_spellings(wish: Wish, tools: list[Any], order: str) -> None:
    new, old = wish.text(wish.new()), wish.text(wish.old())
    assert spec(new) == spec(old)
    agents = [compiled(text, tools) for text in (new, old)]
    assert {*agents[0].toolset.offered} == {*agents[1].toolset.offered}
    for tool in tools:
        kinds = [agent_verdict(agent, tool, {"order": order}).kind for agent in agents]
        assert kinds[0] == kinds[1], tool


@given(WISHES, WISHES, TOOLS, ORDER)
@cases(60)
def test_an_invalid_file_restricts_in_both_spellings(before: Wish, after: Wish, tools: list[Any], order: str) -> None:
    last_good = compiled(before.text(before.new()), tools)
    live: list[Agent] = []
    for keys in (after.new(), after.old()):
        saved = read_permissions(last_good.path, (after.text(keys) + "max_stepz: 1\n").encode(), last_good.spec)
        assert saved is not None
        live.append(tighten_agent(last_good, saved))
    assert live[0].spec == live[1].spec
    intended = compiled(after.text(after.new()), tools)
    for tool in tools:
        now, good, meant = (agent_verdict(agent, tool, {"order": order}) for agent in (live[0], last_good, intended))
        for verdict in (good, meant):
            assert verdict.kind == "allow" or now.kind != "allow", tool
            is_firm = verdict.rule.startswith("deny ") or (
                verdict.rule.startswith("risk_level ")
                and all(name != tool.name for name, _ in (*before.ask, *after.ask))
            )
            assert now.kind == "deny" or not is_firm, tool


@pytest.mark.parametrize("broken", ["max_stepz: 1\n", "conversation: {window: many}\n", "plan: {approve: alwys}\n"])
@pytest.mark.parametrize(
    ("keys", "kind", "line"),
    [
        ("tools: {allow: ['*'], deny: [orders.look]}\n", "deny", 4),
        ("tools:\n  allow: ['*']\n  deny:\n    - bank.pay\n    - orders.look\n", "deny", 8),
        ("tools: {allow: ['*'], ask: [orders.look]}\n", "ask", 4),
        ("tools: {deny: [orders.look]}\n", "deny", 4),
        ("tools: {deny: [orders.look, {tol: x}], alow: [x]}\n", "deny", 4),
        ("tools: [bank.pay]\n", "deny", 4),
        ("tools: ['*']\nskill_policy: {allow: ['*'], deny: [orders.look]}\n", "deny", 5),
        ("skill_policy: {allow: ['*'], deny: [orders.look]}\ntools: {allow: ['*'], deny: [bank.pay]}\n", "deny", 4),
        ("skill_policy: 5\ntools: {allow: ['*'], deny: [orders.look]}\n", "deny", 5),
        ("approve_from: low\n", "ask", 4),
        ("limits: {confirm: {from: low}}\n", "ask", 4),
        ("approve_from: {from: low}\n", "ask", 4),
    ],
)
def test_a_rule_of_an_invalid_file_takes_effect(broken: str, keys: str, kind: str, line: int) -> None:
    last_good = compiled(HEAD + "tools: ['*']\n")
    saved = read_permissions(last_good.path, (HEAD + keys + broken).encode(), last_good.spec)
    assert saved is not None
    verdict = agent_verdict(tighten_agent(last_good, saved), last_good.toolset.tools["orders.look"], {"order": "1"})
    assert (verdict.kind, verdict.place) == (kind, f"agents.d/clerk.yaml:{line}")


@pytest.mark.parametrize(
    ("tools", "kinds"),
    [
        ("['*']", ("deny", "deny")),
        ("[bank.pay]", ("allow", "allow")),
        ("{allow: [bank.pay]}", ("allow", "allow")),
        ("{ask: [bank.pay]}", ("ask", "ask")),
        ("{allow: ['*'], ask: [{tool: bank.pay, when: {order: '> 50'}}]}", ("deny", "ask")),
        ("{allow: ['bank.*'], ask: ['bank.*']}", ("deny", "deny")),
        ("{allow: [bank.pay], deny: [bank.pay]}", ("deny", "deny")),
        ("{allow: ['*', bank.pay]}", ("allow", "allow")),
    ],
)
def test_a_tool_named_without_a_wildcard_may_exceed_max_risk(tools: str, kinds: tuple[str, str]) -> None:
    pay = shaped("bank.pay", "critical")
    agent = compiled(f"{HEAD}tools: {tools}\nmax_risk: low\napprove_from: never\n", [pay])
    assert tuple(agent_verdict(agent, pay, {"order": order}).kind for order in ("1", "51")) == kinds
    assert ("bank.pay" in agent.toolset.offered) is (kinds[1] != "deny")


def test_older_spellings_keep_their_risk_ceiling() -> None:
    pay = shaped("bank.pay", "high")
    old = compiled(HEAD + "skill_policy: {allow: [bank.pay], ask: [bank.pay]}\n", [pay])
    assert agent_verdict(old, pay, {"order": "1"}).rule == "max_risk medium"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("tools: ['*']\nskill_policy: {allow: []}\n", "`tools` (line 4) and `skill_policy.allow` (line 5)"),
        (
            "tools: {allow: [], deny: [x]}\nskill_policy:\n  deny: [y]\n",
            "`tools.deny` (line 4) and `skill_policy.deny` (line 6)",
        ),
        (
            "runtime_policy: {max_steps: 3}\nlimits: {steps: 4}\n",
            "`runtime_policy.max_steps` (line 4) and `limits.steps` (line 5)",
        ),
        (
            "max_risk: low\nruntime_policy: {risk_level: low}\n",
            "`max_risk` (line 4) and `runtime_policy.risk_level` (line 5)",
        ),
        (
            "approve_from: low\nruntime_policy: {confirm: {from: low}}\n",
            "`approve_from` (line 4) and `runtime_policy.confirm.from` (line 5)",
        ),
        ("agents: []\nsub_agents: []\n", "`agents` (line 4) and `sub_agents` (line 5)"),
        ("mode: plan\nexecutor: plan\n", "`mode` (line 4) and `executor` (line 5)"),
        ("budgets: []\nlimits: {budgets: []}\n", "`budgets` (line 4) and `limits.budgets` (line 5)"),
        ("plan:\n  approve: low\n  approval: always\n", "`plan.approve` (line 5) and `plan.approval` (line 6)"),
        ("guidance: {file: a, template: b}\n", "`guidance.file` (line 4) and `guidance.template` (line 4)"),
    ],
)
def test_two_keys_for_one_thing_are_an_error_that_names_both_lines(keys: str, message: str) -> None:
    assert [text for _, text in problems(keys)] == [f"{message} set the same thing"]


def test_sections_of_both_spellings_are_merged_where_they_do_not_overlap() -> None:
    read = spec(HEAD + "runtime_policy: {max_steps: 3, confirm: {from: low}}\nlimits: {tokens: 5}\nmax_risk: low\n")
    policy = read.runtime_policy
    assert (policy.max_steps, policy.max_total_tokens, policy.risk_level, policy.confirm.from_) == (3, 5, "low", "low")


def test_every_limit_has_one_key() -> None:
    assert VALUES.keys() == LIMITS.keys()
    read = spec(HEAD + f"limits: {json.dumps(VALUES)}\n")
    places = {WRITTEN["runtime_policy", name][0] for name in RuntimePolicy.model_fields}
    assert places == {"limits", "max_risk", "approve_from", "strict_arguments"}
    assert read.runtime_policy.model_fields_set == {str(path[-1]) for path in LIMITS.values()} - {"budgets"}
    assert read.budgets == ("team",)
    assert not TOP_LEVEL.keys() & AgentSpec.model_fields.keys()


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("string!", {"type": "string", "required": True}),
        ("integer", {"type": "integer"}),
        ("English", {"default": "English"}),
        ("'2024'", {"default": "2024"}),
        ("3", {"type": "integer", "default": 3}),
        ("0.5", {"type": "number", "default": 0.5}),
        ("true", {"type": "boolean", "default": True}),
        ("{type: number, description: x}", {"type": "number", "description": "x"}),
    ],
)
def test_an_input_is_a_type_or_a_default(value: str, meant: dict[str, Any]) -> None:
    read = spec(HEAD + f"inputs: {{x: {value}}}\n").inputs["x"]
    assert read == type(read).model_validate(meant)


@pytest.mark.parametrize("value", ["strng", "text", "str!", "strin!", "int", "whatever!", "Integer"])
def test_a_type_with_a_typo_is_not_a_default(value: str) -> None:
    ((line, message),) = problems(f"inputs: {{x: {value}}}\n")
    assert (line, message) == (4, "must be 'string', 'integer', 'number', 'boolean', 'array' or 'object'")


def test_the_name_is_that_of_the_file_unless_it_has_one() -> None:
    assert spec(HEAD).name == "clerk"
    assert spec(HEAD + "name: other\n").name == "other"
    with pytest.raises(ParseError, match="the key 'name' is missing") as caught:
        parse_agent("agents.d/My Agent.yaml", HEAD.encode())
    assert "a-z, 0-9" in str(caught.value.problems[0].hint)


def test_positions_and_paths_are_those_of_the_file() -> None:
    new = "tools:\n  ask: [x]\nlimits:\n  steps: 3\nplan: {approve: high}\ninstructions: {file: a.j2}\n"
    _, document = parse_agent("a.yaml", ("description: d\n" + new).encode())
    for path, written, line in (
        (("skill_policy", "ask", 0), ("tools", "ask", 0), 3),
        (("skill_policy", "allow"), ("tools", "allow"), 2),
        (("runtime_policy", "max_steps"), ("limits", "steps"), 5),
        (("plan", "approval", "from"), ("plan", "approve"), 6),
        (("instructions", "template"), ("instructions", "file"), 7),
    ):
        assert (path_in_file(document, path), document.place(path)) == (written, f"a.yaml:{line}")
    assert path_in_file(document, ("runtime_policy", "max_total_tokens")) == ("limits", "tokens")
    _, older = parse_agent("a.yaml", (HEAD + "runtime_policy: {max_steps: 3}\nplan: {approval: never}\n").encode())
    for path in (("runtime_policy", "max_total_tokens"), ("plan", "approval")):
        assert path_in_file(older, path) == path


def test_an_unknown_tool_of_a_deny_rule_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/clerk.yaml": HEAD + "tools:\n  allow: ['*']\n  deny: [calculatr]\n"})
    done = agentsd("check", cwd=tmp_path)
    assert done.returncode == 78
    assert (
        "agents.d/clerk.yaml:6:10: the deny rule 'calculatr' matches no tool; did you mean calculator?" in done.stderr
    )
