"""Agent files have one place for each wish; older spellings mean the same, and a file cannot have both."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from framework.config.agents.compile import Agent
from framework.config.agents.diff import diff_agent
from framework.config.agents.link import read_permissions, tighten_agent
from framework.config.yaml.agent_keys import LIMITS, TOP_LEVEL, WRITTEN, path_in_file, written_agent
from framework.config.yaml.parse import ParseError, parse_agent
from framework.engine.context.policy import agent_verdict
from framework.types.spec import AgentSpec, RuntimePolicy
from tests.support.agent_wishes import HEAD, VALUES, WISHES, Wish
from tests.support.cases import cases, each
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
@cases(40)
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


@given(WISHES, st.booleans())
@cases(60)
def test_a_shown_agent_is_a_file_that_defines_it(wish: Wish, is_older: bool) -> None:
    defined = spec(wish.text(wish.old() if is_older else wish.new()))
    shown = written_agent(defined)
    assert spec(yaml.safe_dump(shown)) == defined
    older = {str(path[0]) for path in WRITTEN if len(path) == 1}
    assert not shown.keys() & older


def test_a_tool_below_the_risk_ceiling_is_shown_in_the_older_spelling() -> None:
    defined = spec(HEAD + "skill_policy: {allow: [bank.pay], deny: [x]}\ntools: {ask: [orders.look]}\n")
    shown = written_agent(defined)
    assert (shown["skill_policy"], shown["tools"]["ask"][0]["tool"]) == ({"allow": ["bank.pay"]}, "orders.look")
    assert spec(yaml.safe_dump(shown)) == defined


@given(WISHES, WISHES, st.booleans())
@cases(60)
def test_a_change_names_a_key_of_the_file(before: Wish, after: Wish, is_older: bool) -> None:
    specs = [spec(wish.text(wish.old() if is_older else wish.new())) for wish in (before, after)]
    for change in diff_agent(*specs):
        at: Any = written_agent(specs[1]) | ({"tools": {"allow": [], "ask": []}} if "any_risk" in change.key else {})
        for part in change.file_key.split("."):
            assert part in at, change
            at = at[part]
        assert str(change).startswith(f"clerk: {change.file_key}: ")


@each("path", sorted(WRITTEN, key=str), ids=str)
def test_each_key_with_two_spellings_has_one_in_changes(path: tuple[str, ...]) -> None:
    required = {"version": 1, "name": "clerk", "description": "d", "instructions": "i"}
    before, after = (AgentSpec.model_validate(required | data) for data in _values(path))
    for change in diff_agent(before, after):
        assert change.key.startswith(path[0]), "the wire keeps the field"
        assert change.file_key.split(".")[0] == WRITTEN[path][0], str(change)


def _values(path: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of two agents that differ in a field."""
    first, second = _EXAMPLES.get(path) or (None, VALUES[str(WRITTEN[path][-1])])
    empty = {} if first is None else _nested(path, first)
    return empty, _nested(path, second)


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    section = {"allow": ["a"]} if path[0] == "skill_policy" and len(path) > 1 else {}
    for part in reversed(path[1:]):
        value = {part: value}
    return {path[0]: section | value if section else value}


_EXAMPLES: Mapping[tuple[str, ...], tuple[Any, Any]] = {
    ("skill_policy",): ({"allow": ["a"]}, {"allow": ["a"], "deny": ["b"]}),
    ("skill_policy", "any_risk"): ([], ["a"]),
    ("skill_policy", "any_risk_if_asked"): ([], ["a"]),
    ("runtime_policy",): ({"max_steps": 1}, {"max_steps": 2}),
    ("runtime_policy", "risk_level"): ("low", "high"),
    ("runtime_policy", "confirm"): ({"expires": "1m"}, {"expires": "2m"}),
    ("runtime_policy", "confirm", "from"): ("low", "never"),
    ("runtime_policy", "strict_arguments"): (False, True),
    ("runtime_policy", "cost"): ("known", "unknown_ok"),
    ("budgets",): ([], ["team"]),
    ("sub_agents",): ([], ["helper"]),
    ("executor",): ("react", "plan"),
    ("mcp_policy",): ({}, {"time": {"pin": "warn"}}),
    ("plan", "approval"): ("always", {"from": "high"}),
    ("plan", "approval", "from"): ("low", "high"),
    ("instructions", "template"): ("a.j2", "b.j2"),
    ("guidance", "template"): ("a.j2", "b.j2"),
}


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("tools: []", "tools: {ask: [write_file]}", "tools.ask: none -> write_file (widens)"),
        (
            "tools: []",
            "tools: {allow: [], deny: [{tool: pay, when: {amount: '> 5'}}]}",
            "tools.deny: none -> {tool: pay, when: {amount: '> 5'}} (tightens)",
        ),
        ("plan: {approve: high}", "plan: {approve: never}", "plan.approve: high -> never (widens)"),
        ("strict_arguments: true", "", "strict_arguments: true -> false (widens)"),
    ],
)
def test_a_change_shows_values_as_files_have_them(before: str, after: str, text: str) -> None:
    first, *_ = diff_agent(spec(HEAD + before + "\n"), spec(HEAD + after + "\n"))
    assert str(first) == f"clerk: {text}"


def test_no_message_names_an_older_key() -> None:
    older = re.compile(r"\b(?:skill_policy|runtime_policy|mcp_policy|sub_agents|risk_level)\b")
    for path in Path("framework").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source if older.search(source) else "")
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                says = " " in node.value and "`--fix`" not in node.value and path.name != "check.py"
                assert not (says and older.search(node.value)), f"{path}:{node.lineno}: {node.value}"


@each("broken", ["max_stepz: 1\n", "conversation: {window: many}\n", "plan: {approve: alwys}\n"])
@each(
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


@given(st.lists(st.text("abc äß-", min_size=1, max_size=5), max_size=4))
@cases(40)
def test_routing_may_be_a_list_of_words(words: list[str]) -> None:
    short, whole = (spec(HEAD + f"routing: {json.dumps(given)}\n") for given in (words, {"keywords": words}))
    assert short == whole


def test_a_word_of_routing_keeps_its_place() -> None:
    assert problems("routing:\n  - refund\n  - 5\n")[0][0] == 6
    _, document = parse_agent("a.yaml", (HEAD + "routing:\n  - refund\n").encode())
    for path, place in (((), 4), (("keywords",), 4), (("keywords", 0), 5)):
        assert document.place(("routing", *path)) == f"a.yaml:{place}"


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
