"""Rules of an agent that can never fire, with the tools there are: each is told, with why."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from framework.tools.source import source_of
from framework.tools.tool import Tool
from framework.tools.toolset import PlacedRule, Toolset
from framework.types.errors import did_you_mean
from framework.types.problem import Problem
from framework.types.spec import AgentSpec


def rule_warnings(spec: AgentSpec, toolset: Toolset, silent: Collection[str]) -> Iterator[Problem]:
    """One warning for each rule that changes nothing, at its line; none for tools of sources that are silent now."""
    seen: list[PlacedRule] = []
    for rule, names in toolset.reach():
        tools = [toolset.tools[name] for name in names]
        first = next((other for other in seen if _is_same(other, rule)), None)
        if first is not None:
            yield _warning(rule, f"says what line {first.place.rpartition(':')[2]} says already")
        elif not tools and source_of(rule.rule.tool) in silent:
            continue
        elif not tools:
            yield _warning(rule, "matches no tool there is")
        elif why := _why_never(spec, toolset, rule, tools):
            yield _warning(rule, f"never fires: {why}")
        seen.append(rule)


def _is_same(one: PlacedRule, other: PlacedRule) -> bool:
    return (one.kind, one.rule.tool, one.rule.when) == (other.kind, other.rule.tool, other.rule.when)


def _why_never(spec: AgentSpec, toolset: Toolset, rule: PlacedRule, tools: list[Tool]) -> str | None:
    if rule.kind != "deny" and (why := _why_denied(spec, toolset, tools)):
        return why
    if any(_has_arguments(tool, rule) for tool in tools):
        return None
    known = sorted({name for tool in tools for name in _properties(tool)})
    missing = next((name for name in rule.rule.when if name not in known), None)
    if missing is None:
        return "no tool that it matches has all the arguments it looks at"
    which = tools[0].name if len(tools) == 1 else "no tool that it matches"
    return f"{which} has {'no' if len(tools) == 1 else 'an'} argument {missing!r}{did_you_mean(missing, known)}"


def _why_denied(spec: AgentSpec, toolset: Toolset, tools: list[Tool]) -> str | None:
    """Why no call of any of these tools gets as far as an ask or allow rule."""
    if any(tool.name in toolset.offered or tool.name in toolset.blocked for tool in tools):
        return None
    for tool in tools:
        if toolset.always_denying(tool.name) is None:
            return f"{tool.name} has the risk {tool.risk}, and risk_level is {spec.runtime_policy.risk_level}"
    denying = toolset.always_denying(tools[0].name)
    assert denying is not None
    return f"what it matches is denied by {denying.rule.tool!r} in line {denying.place.rpartition(':')[2]}"


def _has_arguments(tool: Tool, rule: PlacedRule) -> bool:
    """Could a call of the tool meet the rule's conditions?"""
    is_open = tool.definition.parameters.get("additionalProperties") not in (None, False)
    return is_open or rule.rule.when.keys() <= _properties(tool)


def _properties(tool: Tool) -> set[str]:
    return set(tool.definition.parameters.get("properties", {}))


def _warning(rule: PlacedRule, text: str) -> Problem:
    path, _, line = rule.place.rpartition(":")
    message = f"the {rule.kind} rule {rule.rule.tool!r} {text}"
    return Problem(path=path, line=int(line), message=message, severity="warning")
