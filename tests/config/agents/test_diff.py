"""The direction of a change of an agent's file: tightening, widening or neutral."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.agents.diff import diff_agent, diff_agents, diff_settings
from framework.config.overlay import SettingsSource
from framework.config.settings import Settings
from framework.config.yaml.parse import parse_agent
from framework.tools.conditions import condition_matches
from framework.types.spec import RISKS, AgentSpec
from tests.support.cases import cases, each


def spec(**keys: Any) -> AgentSpec:
    required = {"version": 1, "name": "a", "description": "d", "instructions": "i", "skill_policy": {"allow": ["x"]}}
    return AgentSpec.model_validate(required | keys)


@each(
    ("before", "after", "key", "effect"),
    [
        ({}, {"skill_policy": {"allow": ["x", "y"]}}, "skill_policy.allow", "widens"),
        ({}, {"skill_policy": {"allow": []}}, "skill_policy.allow", "tightens"),
        ({}, {"skill_policy": {"deny": ["x"], "allow": ["x"]}}, "skill_policy.deny", "tightens"),
        ({"skill_policy": {"deny": ["x"], "allow": ["x"]}}, {}, "skill_policy.deny", "widens"),
        ({"skill_policy": {"ask": ["x"], "allow": ["x"]}}, {}, "skill_policy.ask", "widens"),
        ({}, {"runtime_policy": {"max_steps": 11}}, "runtime_policy.max_steps", "widens"),
        ({}, {"runtime_policy": {"max_steps": 9}}, "runtime_policy.max_steps", "tightens"),
        ({}, {"runtime_policy": {"max_total_tokens": None}}, "runtime_policy.max_total_tokens", "widens"),
        ({}, {"runtime_policy": {"max_cost_usd": 1}}, "runtime_policy.max_cost_usd", "tightens"),
        ({}, {"runtime_policy": {"cost": "unknown_ok"}}, "runtime_policy.cost", "widens"),
        ({"runtime_policy": {"cost": "unknown_ok"}}, {}, "runtime_policy.cost", "tightens"),
        ({}, {"runtime_policy": {"timeout": "1h"}}, "runtime_policy.timeout", "widens"),
        ({}, {"runtime_policy": {"risk_level": "high"}}, "runtime_policy.risk_level", "widens"),
        ({}, {"runtime_policy": {"confirm": {"from": "low"}}}, "runtime_policy.confirm.from", "tightens"),
        ({}, {"runtime_policy": {"confirm": {"from": "never"}}}, "runtime_policy.confirm.from", "widens"),
        ({}, {"plan": {"approval": "never"}}, "plan.approval", "widens"),
        ({}, {"plan": {"approval": "always"}}, "plan.approval", "tightens"),
        ({}, {"plan": {"approval": {"from": "critical"}}}, "plan.approval", "widens"),
        ({}, {"plan": {"max_plan_steps": 13}}, "plan.max_plan_steps", "widens"),
        ({}, {"plan": {"max_replans": 1}}, "plan.max_replans", "tightens"),
        ({}, {"plan": {"step_timeout": None}}, "plan.step_timeout", "widens"),
        ({}, {"plan": {"step_retries": 0}}, "plan.step_retries", "tightens"),
        ({}, {"plan": {"on_failure": "skip"}}, "plan.on_failure", "neutral"),
        ({}, {"sub_agents": ["b"]}, "sub_agents", "widens"),
        ({}, {"handoffs": ["b"]}, "handoffs", "widens"),
        ({}, {"budgets": ["b"]}, "budgets", "tightens"),
        ({"budgets": ["b"]}, {}, "budgets", "widens"),
        ({}, {"instructions": "j"}, "instructions", "neutral"),
        ({}, {"model_settings": {"temperature": 1}}, "model_settings.temperature", "neutral"),
    ],
)
def test_each_change_has_a_direction(before: dict[str, Any], after: dict[str, Any], key: str, effect: str) -> None:
    (change,) = diff_agent(spec(**before), spec(**after))
    assert (change.key, change.effect) == (key, effect)


def test_a_tool_that_ask_newly_names_is_a_single_change_that_widens_and_tightens() -> None:
    """The rule asks about calls that were allowed, and allows those that its risk denied."""
    line = "clerk: tools.ask: {} (widens)"
    without, named = (_clerk(f"tools: {{allow: [x], ask: [{tool}]}}") for tool in ("", "write_file"))
    (there,), (back,) = diff_agent(without, named), diff_agent(named, without)
    assert (str(there), str(back)) == (line.format("none -> write_file"), line.format("write_file -> none"))
    assert (there.also_tightens, back.also_tightens) == (True, True)


def test_an_ask_rule_for_a_tool_that_allow_names_only_tightens() -> None:
    allow = "allow: [write_file]"
    (change,) = diff_agent(_clerk(f"tools: {{{allow}}}"), _clerk(f"tools: {{{allow}, ask: [write_file]}}"))
    assert (str(change), change.also_tightens) == ("clerk: tools.ask: none -> write_file (tightens)", False)


def _clerk(tools: str) -> AgentSpec:
    return parse_agent("agents.d/clerk.yaml", f"description: d\ninstructions: i\n{tools}\n".encode())[0]


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        ("> 500", "> 300", "tightens"),
        ("> 300", "> 500", "widens"),
        (">= 500", "> 500", "widens"),
        ("> 500", ">= 500", "tightens"),
        ("< 5", "< 9.5", "tightens"),
        ("<= 5", "<5", "widens"),
        ("> 5", "> 5.0", "neutral"),
    ],
)
@pytest.mark.parametrize("kind", ["deny", "ask"])
def test_a_changed_bound_in_a_rule_is_a_single_change(kind: str, before: str, after: str, effect: str) -> None:
    old, new = ({kind: [{"tool": "x", "when": {"n": bound}}], "allow": ["x"]} for bound in (before, after))
    (change,) = diff_agent(spec(skill_policy=old), spec(skill_policy=new))
    assert (change.key, change.effect) == (f"skill_policy.{kind}", effect)


@pytest.mark.parametrize(
    ("before", "after", "effects"),
    [
        ({"tool": "x", "when": {"n": "> 5"}}, {"tool": "x"}, ["tightens"]),
        ({"tool": "x"}, {"tool": "x", "when": {"n": "> 5"}}, ["widens"]),
        ({"tool": "x", "reason": "a"}, {"tool": "x", "reason": "b"}, ["neutral"]),
        ({"tool": "x", "when": {"n": "> 5"}}, {"tool": "x", "when": {"n": "< 5"}}, ["widens", "tightens"]),
        ({"tool": "x", "when": {"n": "> 5"}}, {"tool": "x", "when": {"m": "> 5"}}, ["widens", "tightens"]),
        ({"tool": "x", "when": {"n": "> 5"}}, {"tool": "y", "when": {"n": "> 5"}}, ["widens", "tightens"]),
        ({"tool": "x", "when": {"n": "a*"}}, {"tool": "x", "when": {"n": "> 5"}}, ["widens", "tightens"]),
    ],
)
def test_rules_are_paired_only_if_one_covers_the_other(
    before: dict[str, Any], after: dict[str, Any], effects: list[str]
) -> None:
    old, new = ({"deny": [rule], "allow": ["x"]} for rule in (before, after))
    assert [change.effect for change in diff_agent(spec(skill_policy=old), spec(skill_policy=new))] == effects


BOUNDS = st.builds("{} {}".format, st.sampled_from([">", ">=", "<", "<="]), st.integers(-3, 3))


@cases(200)
@given(before=BOUNDS, after=BOUNDS)
def test_a_bound_that_tightens_applies_to_every_value_of_the_one_before(before: str, after: str) -> None:
    old, new = ({"deny": [{"tool": "x", "when": {"n": bound}}], "allow": ["x"]} for bound in (before, after))
    effects = {change.effect for change in diff_agent(spec(skill_policy=old), spec(skill_policy=new))}
    values = [number / 2 for number in range(-10, 11)]
    was, now = ({value for value in values if condition_matches(bound, value)} for bound in (before, after))
    if effects == {"tightens"}:
        assert was < now
    if effects in ({"neutral"}, set[str]()):
        assert was == now
    if effects == {"widens"}:
        assert now < was


@pytest.mark.parametrize(
    ("before", "after", "key", "effect"),
    [
        ("{}", "{team: {max_cost_usd: 5, per: day}}", "team", "neutral"),
        ("{team: {max_cost_usd: 5, per: day}}", "{}", "team", "widens"),
        ("{team: {max_cost_usd: 5, per: day}}", "{team: {max_cost_usd: 4, per: day}}", "team.max_cost_usd", "tightens"),
        ("{team: {max_cost_usd: 5, per: day}}", "{team: {max_cost_usd: 6, per: day}}", "team.max_cost_usd", "widens"),
        ("{team: {max_cost_usd: 5, per: day}}", "{team: {max_cost_usd: 5, per: month}}", "team.per", "widens"),
        (
            "{team: {max_cost_usd: 5, per: day}}",
            "{team: {max_cost_usd: 5, max_total_tokens: 9, per: day}}",
            "team.max_total_tokens",
            "tightens",
        ),
        ("{max_cost_usd: {max_cost_usd: 5, per: day}}", "{}", "max_cost_usd", "widens"),
    ],
)
def test_each_change_of_a_budget_has_a_direction(before: str, after: str, key: str, effect: str) -> None:
    versions = [Settings.parse(SettingsSource(f"budgets: {text}".encode())) for text in (before, after)]
    (change,) = diff_settings(*versions)
    assert (change.key, change.effect) == (f"budgets.{key}", effect)


def test_removing_a_policy_tightens_and_removing_a_limit_restores_its_default() -> None:
    before = spec(runtime_policy={"max_steps": 3})
    (change,) = diff_agent(before, spec())
    assert (change.before, change.after, change.effect) == (3, 10, "widens")


def test_an_added_agent_widens_and_a_removed_one_tightens() -> None:
    added, removed = diff_agents({"a": spec()}, {"b": spec(name="b")})
    assert (added.agent, added.effect, removed.agent, removed.effect) == ("a", "tightens", "b", "widens")
    assert str(added) == "a: removed (tightens)"


def test_reordering_rules_and_names_changes_nothing() -> None:
    assert not list(diff_agent(spec(skill_policy={"allow": ["x", "y"]}), spec(skill_policy={"allow": ["y", "x"]})))


POLICIES = st.fixed_dictionaries(
    {
        "skill_policy": st.fixed_dictionaries(
            {
                "allow": st.lists(st.sampled_from("xyz"), unique=True),
                "deny": st.lists(st.sampled_from("xyz"), unique=True),
                "ask": st.lists(st.sampled_from("xyz"), unique=True),
            }
        ),
        "runtime_policy": st.fixed_dictionaries(
            {"max_steps": st.none() | st.integers(1, 4), "risk_level": st.sampled_from(RISKS)}
        ),
    }
)


@cases(200)
@given(one=POLICIES, other=POLICIES)
def test_reversing_a_change_reverses_its_direction(one: dict[str, Any], other: dict[str, Any]) -> None:
    turned = {"widens": "tightens", "tightens": "widens", "neutral": "neutral"}
    there = {(c.key, str(c.before), str(c.after), c.effect) for c in diff_agent(spec(**one), spec(**other))}
    back = {(c.key, str(c.after), str(c.before), turned[c.effect]) for c in diff_agent(spec(**other), spec(**one))}
    assert there == back
    assert (not there) == (spec(**one) == spec(**other) or _same_sets(one, other))


def _same_sets(one: dict[str, Any], other: dict[str, Any]) -> bool:
    sets = [{key: set(rules) for key, rules in policy["skill_policy"].items()} for policy in (one, other)]
    return sets[0] == sets[1] and one["runtime_policy"] == other["runtime_policy"]


def test_each_key_of_a_step_of_a_fixed_plan_is_a_change_of_its_own() -> None:
    def plan(*steps: dict[str, Any]) -> AgentSpec:
        return spec(executor="plan", plan={"steps": list(steps)})

    def changes(before: AgentSpec, after: AgentSpec) -> list[tuple[str, Any, Any]]:
        return [(change.key, change.before, change.after) for change in diff_agent(before, after)]

    a, b = {"id": "a", "tool": "x"}, {"id": "b", "tool": "y", "when": {"steps.a.output": "> 1"}}
    assert changes(plan(a, b), plan(a, {**b, "when": {"steps.a.output": "> 2"}})) == [
        ("plan.steps.b.when.steps.a.output", "> 1", "> 2")
    ]
    assert changes(plan(a, b), plan(b, a)) == [
        ("plan.steps.a.depends_on", [], ["b"]),
        ("plan.steps.b.depends_on", ["a"], []),
    ]
    ((key, before, after),) = changes(plan(a), plan(a, b))
    assert (key, before, after["when"]) == ("plan.steps.b", None, {"steps.a.output": "> 1"})


def test_a_change_of_a_text_is_one_line() -> None:
    (change,) = diff_agent(spec(instructions="one\ntwo"), spec(instructions="three"))
    assert str(change).endswith(": instructions: one two -> three (neutral)")
