"""What policy says of a tool call: one verdict, and the rule it comes from.

The order: a matching deny > risk above `risk_level` > not offered > a matching ask > `@tool(confirm=True)` > a risk
that must be confirmed > allow. Several agents may have a say (the run's own version and the current one, the parents
of a sub-agent): the strictest wins. An agent that has been deleted, or that its caller no longer lists, is denied every
further call.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isnan
from pathlib import PurePath
from typing import Any, Literal

from framework.config.compile import Agent
from framework.tools.tool import Tool
from framework.types.spec import RISKS, Rule

VerdictKind = Literal["allow", "ask", "deny"]
_STRICTNESS: Mapping[VerdictKind, int] = {"allow": 0, "ask": 1, "deny": 2}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Allow, ask a human, or deny; with the rule that decided and where it stands."""

    kind: VerdictKind
    rule: str
    place: str
    reason: str = ""

    def __str__(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        return f"{self.rule} ({self.place}){because}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Judges the calls of one run."""

    agent: Agent
    """The version the run is pinned to."""
    current: Callable[[str], Agent | None]
    """The live version of an agent, whose restrictions apply at once; None if no file defines the agent any more."""
    parents: tuple[Agent, ...] = ()
    """For a sub-agent: its callers, outermost first. Their deny and ask rules, risk ceilings and `confirm` bind it."""

    def judge(self, tool: Tool, arguments: Mapping[str, Any]) -> Verdict:
        """The strictest verdict of all who have a say."""
        return max(self._verdicts(tool, arguments), key=lambda verdict: _STRICTNESS[verdict.kind])

    def _verdicts(self, tool: Tool, arguments: Mapping[str, Any]) -> Iterator[Verdict]:
        yield from self._withdrawals()
        for agent, version in self._versions(self.agent, tool):
            yield judge(agent, version, arguments)
        for parent in self.parents:
            for agent, version in self._versions(parent, tool):
                if restricted := _denial(agent, version, arguments) or _question(agent, version, arguments):
                    yield restricted

    def _withdrawals(self) -> Iterator[Verdict]:
        """Deny every call once the agent or a caller was deleted, or a caller dropped its sub-agent."""
        caller: Agent | None = None
        for agent in (*self.parents, self.agent):
            if self.current(agent.name) is None:
                reason = f"{agent.path} no longer defines the agent {agent.name!r}"
                yield Verdict("deny", "agent removed", agent.path, reason)
            live = self.current(caller.name) if caller else None
            if caller and live and agent.name in caller.spec.sub_agents and agent.name not in live.spec.sub_agents:
                reason = f"{live.name!r} no longer lists {agent.name!r}"
                yield Verdict("deny", "not in sub_agents", live.place("sub_agents"), reason)
            caller = agent

    def _versions(self, agent: Agent, tool: Tool) -> Iterator[tuple[Agent, Tool]]:
        """An agent and a tool as the run began with them, and as they are now."""
        yield agent, tool
        current = self.current(agent.name)
        if current is None or current is agent:  # a missing one denies already
            return
        live = current.toolset.tools.get(tool.name, tool)
        yield current, live
        if live is not tool:
            yield current, tool


def judge(agent: Agent, tool: Tool, arguments: Mapping[str, Any]) -> Verdict:
    """What one agent's policy says of a call."""
    if denied := _denial(agent, tool, arguments):
        return denied
    rules = agent.toolset.rules_for(tool.name)
    if tool.name not in agent.toolset.offered:
        return _not_offered(agent, tool)
    if asked := _question(agent, tool, arguments):
        return asked
    if tool.source == "agent":
        return Verdict("allow", "sub_agents", agent.place("sub_agents"))
    if rules.allow is None:  # offered by an ask rule whose conditions do not hold
        return _not_offered(agent, tool)
    return Verdict("allow", f"allow {rules.allow.rule.tool}", rules.allow.place)


def _denial(agent: Agent, tool: Tool, arguments: Mapping[str, Any]) -> Verdict | None:
    if tool.name in agent.toolset.blocked:
        server = tool.name.split(".")[1]
        why = f"its server says something else of it than when it was accepted: agentsd tools accept {tool.name}"
        return Verdict("deny", "pin: block", agent.place("mcp_policy", server, "pin"), why)
    for rule in agent.toolset.rules_for(tool.name).deny:
        if matches(rule.rule, arguments):
            return Verdict("deny", f"deny {rule.rule.tool}", rule.place, rule.rule.reason)
    ceiling = agent.spec.runtime_policy.risk_level
    if RISKS.index(tool.risk) > RISKS.index(ceiling):
        place = agent.place("runtime_policy", "risk_level")
        return Verdict("deny", f"risk_level {ceiling}", place, f"its risk is {tool.risk}")
    return None


def _question(agent: Agent, tool: Tool, arguments: Mapping[str, Any]) -> Verdict | None:
    for rule in agent.toolset.rules_for(tool.name).ask:
        if matches(rule.rule, arguments):
            return Verdict("ask", f"ask {rule.rule.tool}", rule.place, rule.rule.reason)
    if tool.confirm:
        return Verdict("ask", "@tool(confirm=True)", _defined_at(tool), "the tool itself asks for confirmation")
    threshold = agent.spec.runtime_policy.confirm.from_
    if threshold != "never" and RISKS.index(tool.risk) >= RISKS.index(threshold):
        place = agent.place("runtime_policy", "confirm", "from")
        return Verdict("ask", f"confirm from {threshold}", place, f"its risk is {tool.risk}")
    return None


def _not_offered(agent: Agent, tool: Tool) -> Verdict:
    if scope := agent.toolset.scope:
        return Verdict("deny", f"not among the tools of {scope}", agent.place("skill_policy", "allow"))
    if tool.source == "agent":
        return Verdict("deny", "not in sub_agents", agent.place("sub_agents"))
    place = agent.place("skill_policy", "allow")
    if tool.name not in agent.toolset.tools:
        return Verdict("deny", "no such tool any more", place)
    return Verdict("deny", "not in skill_policy.allow", place)


def _defined_at(tool: Tool) -> str:
    """`file:line` of the tool's function: a plugin's below the project, any other by the bare name of its file."""
    code = getattr(tool.function, "__code__", None)
    if code is None:
        return tool.name
    path = PurePath(code.co_filename.partition("@")[0])  # a plugin's code is named FILE@LOAD
    return f"{path.name if path.is_absolute() else path.as_posix()}:{code.co_firstlineno}"


def matches(rule: Rule, arguments: Mapping[str, Any]) -> bool:
    """Do all of the rule's conditions hold? A condition on an argument that is not given does not."""
    return all(key in arguments and holds(condition, arguments[key]) for key, condition in rule.when.items())


def holds(condition: str | int | float | bool, value: Any) -> bool:
    """Does one condition hold for a value? One that cannot be compared counts as holding: rules only restrict."""
    if not isinstance(condition, str):
        return bool(value == condition) or _text(value) == _text(condition)
    sign = next((sign for sign in _COMPARISONS if condition.startswith(sign)), None)
    if sign is not None:
        try:
            number, bound = float(value), float(condition.removeprefix(sign))
        except (TypeError, ValueError, OverflowError):
            return True
        return isnan(number) or isnan(bound) or _COMPARISONS[sign](number, bound)
    if condition.startswith("!="):
        return not fnmatchcase(_text(value), condition.removeprefix("!=").strip())
    return fnmatchcase(_text(value), condition)


def _text(value: Any) -> str:
    """A value as an agent file would write it: `true`, `null`, `50`; so `50.0` is `50`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, default=str)
