"""The tools offered to an agent: deny takes precedence over allow, and compiled rules equal plain matching."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.tools.tool import Tool, tool
from framework.tools.toolset import PlacedRule, Toolset, filter_tools, index_tools
from framework.types.errors import ConfigError
from framework.types.spec import Risk, Rule, SkillPolicy
from tests.support.cases import cases


@tool
def sample(text: str = "") -> str:
    """Does nothing."""
    return text


def named(name: str, risk: Risk = "medium", source: str = "plugin") -> Tool:
    made = sample.named(name, "agent" if source == "agent" else "plugin")
    return Tool(made.definition, made.function, made.arguments, risk=risk, source=made.source)


TOOLS = [named(name) for name in ("orders.lookup", "orders.refund", "orders.delete_all", "read_file", "echo")]


def names(tools: list[Tool]) -> list[str]:
    return [tool.name for tool in tools]


def toolset(tools: list[Tool] = TOOLS, risk_level: Risk = "medium", **policy: object) -> Toolset:
    return Toolset(index_tools(tools), SkillPolicy.model_validate({"allow": [], **policy}), risk_level=risk_level)


def test_without_an_allow_list_all_tools_pass() -> None:
    assert filter_tools(TOOLS) == TOOLS
    assert filter_tools(TOOLS, None, ()) == TOOLS
    assert filter_tools(TOOLS, []) == TOOLS
    assert filter_tools(TOOLS, iter([])) == TOOLS


def test_without_an_allow_list_all_but_the_denied_pass() -> None:
    assert names(filter_tools(TOOLS, deny=["orders.*"])) == ["read_file", "echo"]
    assert names(filter_tools(TOOLS, [], ["echo"])) == names(TOOLS)[:-1]


def test_deny_takes_precedence_over_allow() -> None:
    assert names(filter_tools(TOOLS, ["orders.*", "echo"], ["*.delete_*", "echo"])) == [
        "orders.lookup",
        "orders.refund",
    ]
    assert filter_tools(TOOLS, ["echo"], ["echo"]) == []


def test_one_pattern_needs_no_list() -> None:
    assert names(filter_tools(TOOLS, "read_*")) == ["read_file"]
    assert names(filter_tools(TOOLS, None, "orders.*")) == ["read_file", "echo"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", names(TOOLS)),
        ("orders.*", ["orders.lookup", "orders.refund", "orders.delete_all"]),
        ("orders.?e*", ["orders.refund", "orders.delete_all"]),
        ("[er]*o*", ["echo"]),
        ("[!o]*", ["read_file", "echo"]),
        ("Echo", []),
        ("ech", []),
        ("orders", []),
        ("[", []),
    ],
)
def test_patterns_are_globs_over_the_whole_name(pattern: str, expected: list[str]) -> None:
    assert names(filter_tools(TOOLS, [pattern])) == expected


def test_the_order_of_tools_is_preserved() -> None:
    assert filter_tools(reversed(TOOLS), ["*"]) == TOOLS[::-1]


NAMES = st.text(alphabet="ab.[]*_", min_size=1, max_size=6)
GLOBS = st.text(alphabet="ab.*?[]!-_|()^\\", min_size=1, max_size=6)


@cases(400)
@given(
    tool_names=st.lists(NAMES, max_size=6, unique=True),
    allow=st.none() | st.lists(GLOBS, max_size=4),
    deny=st.lists(GLOBS, max_size=4),
)
@example(tool_names=["a", "b"], allow=["[a", "a|b"], deny=["[!a]", "(?!)"])
def test_the_compiled_filter_is_the_plain_filter(
    tool_names: list[str], allow: list[str] | None, deny: list[str]
) -> None:
    tools = [named(name) for name in tool_names]
    plain = [
        tool
        for tool in tools
        if (not allow or any(fnmatchcase(tool.name, glob) for glob in allow))
        and not any(fnmatchcase(tool.name, glob) for glob in deny)
    ]
    assert filter_tools(tools, allow, deny) == plain


def test_no_policy_offers_no_tool() -> None:
    assert not toolset().offered


def test_allowed_and_ask_tools_are_offered_unless_denied() -> None:
    made = toolset(allow=["orders.lookup", "orders.delete_all"], ask=["orders.refund"], deny=["*.delete_*"])
    assert list(made.offered) == ["orders.lookup", "orders.refund"]
    assert [definition.name for definition in made.definitions] == list(made.offered)


def test_a_tool_with_a_conditional_deny_rule_is_still_offered() -> None:
    made = toolset(allow=["echo"], deny=[{"tool": "echo", "when": {"text": "x"}}])
    assert list(made.offered) == ["echo"]
    assert [rule.rule.when for rule in made.rules_for("echo").deny] == [{"text": "x"}]


def test_tools_above_the_risk_level_are_not_offered() -> None:
    tools = [named("a", "low"), named("b", "medium"), named("c", "high"), named("d", "critical")]
    offered = {
        level: list(toolset(tools, level, allow=["*"]).offered) for level in ("low", "medium", "high", "critical")
    }
    assert offered == {"low": ["a"], "medium": ["a", "b"], "high": ["a", "b", "c"], "critical": ["a", "b", "c", "d"]}


def test_sub_agents_are_offered_unless_they_are_denied() -> None:
    tools = [named("agent.x", "low", "agent"), named("agent.y", "low", "agent"), *TOOLS]
    assert list(toolset(tools, deny=["agent.y"]).offered) == ["agent.x"]


def test_the_rules_of_a_tool_are_in_the_order_of_the_file() -> None:
    made = toolset(
        allow=["read_file", "orders.*", "*"],
        ask=["orders.*", {"tool": "*.refund", "reason": "money"}, "echo"],
        deny=[{"tool": "*.refund", "when": {"text": "x"}}],
    )
    rules = made.rules_for("orders.refund")
    assert [str(rule) for rule in (*rules.deny, *rules.ask)] == [
        "deny *.refund (tools.deny[0])",
        "ask orders.* (tools.ask[0])",
        "ask *.refund (tools.ask[1])",
    ]
    assert rules.allow == PlacedRule("allow", Rule(tool="orders.*"), "tools.allow[1]")


def test_a_tool_that_is_not_offered_has_its_rules_too() -> None:
    made = toolset(deny=["echo"])
    assert [str(rule) for rule in made.rules_for("echo").deny] == ["deny echo (tools.deny[0])"]
    assert made.rules_for("nowhere").allow is None


def test_rules_that_match_no_tool_are_found() -> None:
    made = toolset(allow=["echo", "mcp.*"], ask=["order.*"], deny=["orders.delete_*", "delete_*"])
    assert [str(rule) for rule, reached in made.matches() if not reached] == [
        "deny delete_* (tools.deny[1])",
        "ask order.* (tools.ask[0])",
        "allow mcp.* (tools.allow[1])",
    ]


RULES = st.lists(GLOBS, max_size=3)


@cases(200)
@given(
    tool_names=st.lists(NAMES, max_size=5, unique_by=lambda n: n.replace(".", "__")), deny=RULES, ask=RULES, allow=RULES
)
def test_offered_tools_and_rules_equal_those_of_plain_matching(
    tool_names: list[str], deny: list[str], ask: list[str], allow: list[str]
) -> None:
    made = toolset([named(name) for name in tool_names], deny=deny, ask=ask, allow=allow)
    for name in tool_names:
        matched = {
            kind: list(_matching(name, globs)) for kind, globs in (("deny", deny), ("ask", ask), ("allow", allow))
        }
        assert (name in made.offered) == (not matched["deny"] and bool(matched["ask"] or matched["allow"]))
        rules = made.rules_for(name)
        assert [rule.rule.tool for rule in rules.deny] == matched["deny"]
        assert [rule.rule.tool for rule in rules.ask] == matched["ask"]
        assert (rules.allow.rule.tool if rules.allow else None) == next(iter(matched["allow"]), None)
    unused = [glob for glob in (*deny, *ask, *allow) if not any(fnmatchcase(name, glob) for name in tool_names)]
    assert [rule.rule.tool for rule, reached in made.matches() if not reached] == unused


def _matching(name: str, globs: list[str]) -> Iterator[str]:
    return (glob for glob in globs if fnmatchcase(name, glob))


def test_tools_are_found_by_their_name() -> None:
    assert list(index_tools(TOOLS)) == names(TOOLS)


def test_duplicate_tool_names_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"duplicate tool name 'a\.b'"):
        index_tools([named("a.b"), named("a.b")])


@pytest.mark.hostile(5)
def test_names_that_are_equal_on_the_wire_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'a\.b__c' and 'a__b\.c' share the provider name 'a__b__c'"):
        index_tools([named("a__b.c"), named("a.b__c")])
