"""The policy: decides whether a tool call is allowed, needs approval or is denied, and by which rule.

Rules apply in this order: a matching deny rule > risk above `risk_level` > not offered > a matching ask rule > named by
ask rules only > `@tool(confirm=True)` > a risk that must be confirmed > allow. A call is evaluated by several agents
(the version that the run is pinned to, the live version, the callers of a sub-agent), and the strictest verdict wins.
An agent that has been deleted, or that its caller no longer lists, is denied every further call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from framework.config.agents.compile import Agent
from framework.tools.base_folder import BaseFolder
from framework.tools.conditions import WORKING_FOLDER, rule_matches
from framework.tools.locations import paths_below_base
from framework.tools.tool import Tool
from framework.types.spec import RISKS

VerdictKind = Literal["allow", "ask", "deny"]
_STRICTNESS: Mapping[VerdictKind, int] = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Allow, ask a person, or deny; with the rule that decided and its place in a file."""

    kind: VerdictKind
    rule: str
    place: str
    reason: str = ""

    def __str__(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        return f"{self.rule} ({self.place}){because}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Evaluates the tool calls of one run."""

    agent: Agent
    """The version the run is pinned to."""
    current: Callable[[str], Agent | None]
    """The live version of an agent, whose restrictions apply immediately; None if the agent was deleted."""
    parents: tuple[Agent, ...] = ()
    """Callers of a sub-agent, outermost first. Their deny and ask rules, risk ceilings and `confirm` apply to it."""
    base: BaseFolder = WORKING_FOLDER
    """The folder that paths in arguments are relative to."""

    def evaluate(self, tool: Tool, *views: Mapping[str, Any]) -> Verdict:
        """Return the strictest verdict of all agents that apply.

        Args:
            tool: the tool to be called.
            *views: the call's arguments: as the model wrote them, and as converted by the tool's types. Each is
                evaluated.
        """
        verdicts = (verdict for arguments in views for verdict in self._verdicts(tool, arguments))
        return max(verdicts, key=lambda verdict: _STRICTNESS[verdict.kind])

    def denied_files(self) -> tuple[str, ...]:
        """Return the patterns of files denied to all tools of this run: from pinned and live files, of callers too."""
        agents = [one for agent in (*self.parents, self.agent) for one in (agent, self.current(agent.name)) if one]
        return tuple(dict.fromkeys(pattern for one in agents for pattern in one.spec.skill_policy.files.deny))

    def _verdicts(self, tool: Tool, arguments: Mapping[str, Any]) -> Iterator[Verdict]:
        yield from self._withdrawals()
        for agent, version in self._versions(self.agent, tool):
            yield agent_verdict(agent, version, arguments, self.base)
        for parent in self.parents:
            for agent, version in self._versions(parent, tool):
                if restricted := self._restriction(agent, version, arguments):
                    yield restricted

    def _restriction(self, caller: Agent, tool: Tool, arguments: Mapping[str, Any]) -> Verdict | None:
        """Return the verdict with which a caller denies its sub-agent's call or requires approval, if any."""
        return (
            _denial(caller, tool, arguments, self.base)
            or _asked_by_rule(caller, tool, arguments, self.base)
            or _asked_by_risk(caller, tool)
        )

    def _withdrawals(self) -> Iterator[Verdict]:
        """Yield a denial if the agent or a caller was deleted, or a caller no longer lists its sub-agent."""
        caller: Agent | None = None
        for agent in (*self.parents, self.agent):
            if self.current(agent.name) is None:
                reason = f"{agent.path} no longer defines the agent {agent.name!r}"
                yield Verdict("deny", "agent removed", agent.path, reason)
            live = self.current(caller.name) if caller else None
            if caller and live and agent.name in caller.spec.sub_agents and agent.name not in live.spec.sub_agents:
                reason = f"{live.name!r} no longer lists {agent.name!r}"
                yield Verdict("deny", "not in agents", live.place("sub_agents"), reason)
            caller = agent

    def _versions(self, agent: Agent, tool: Tool) -> Iterator[tuple[Agent, Tool]]:
        """Yield an agent and a tool as the run is pinned to them, and then their live versions."""
        yield agent, tool
        current = self.current(agent.name)
        if current is None or current is agent:  # a deleted agent is denied by _withdrawals
            return
        live = current.toolset.tools.get(tool.name, tool)
        yield current, live
        if live is not tool:
            yield current, tool


def agent_verdict(agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: BaseFolder = WORKING_FOLDER) -> Verdict:
    """Return the verdict of one agent's policy on a call."""
    if denied := _denial(agent, tool, arguments, base):
        return denied
    if tool.name not in agent.toolset.offered and tool.name not in agent.toolset.on_demand:
        return _not_offered(agent, tool)
    if asked := _asked_by_rule(agent, tool, arguments, base):
        return asked
    allowing = agent.toolset.rules_for(tool.name).allow
    if tool.source == "agent":
        allowed = Verdict("allow", "agents", agent.place("sub_agents"))
    elif allowing is None and tool.source == "run":
        allowed = Verdict("allow", "reads what was cut", agent.place("skill_policy", "allow"))
    elif allowing is None:  # offered by an ask rule whose conditions are not met
        why = "an ask rule permits only calls that meet its conditions"
        return Verdict("deny", "not in tools.allow", agent.place("skill_policy", "allow"), why)
    else:
        allowed = Verdict("allow", f"allow {allowing.rule.tool}", allowing.place)
    return _asked_by_risk(agent, tool) or allowed


def _denial(agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: BaseFolder) -> Verdict | None:
    if tool.name in agent.toolset.blocked:
        server = tool.name.split(".")[1]
        why = f"it changed, or appeared, after its server was accepted: agentsd tools accept {tool.name}"
        return Verdict("deny", "pin: block", agent.place("mcp_policy", server, "pin"), why)
    for rule in agent.toolset.rules_for(tool.name).deny:
        if rule_matches(rule.rule, arguments, tool, base):
            return Verdict("deny", f"deny {rule.rule.tool}", rule.place, rule.rule.reason)
    ceiling = agent.spec.runtime_policy.risk_level
    if RISKS.index(tool.risk) > RISKS.index(ceiling) and not _is_lifted(agent, tool, arguments, base):
        place = agent.place("runtime_policy", "risk_level")
        return Verdict("deny", f"max_risk {ceiling}", place, f"its risk is {tool.risk}")
    return _file_denial(agent, tool, arguments, base)


def _is_lifted(agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: BaseFolder) -> bool:
    """Return whether the agent's file names a tool without a wildcard, so that its risk does not deny this call."""
    policy = agent.spec.skill_policy
    if tool.name in policy.any_risk:
        return True
    return tool.name in policy.any_risk_if_asked and _asked_by_rule(agent, tool, arguments, base) is not None


def _file_denial(agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: BaseFolder) -> Verdict | None:
    """Deny a call whose arguments contain a path or `file:` URL that matches `files.deny`."""
    denied = agent.spec.skill_policy.files.deny
    if not denied or not (tool.paths or tool.urls):
        return None
    files = replace(base, denied=denied)
    for parts in paths_below_base(tool, arguments, base):
        if pattern := files.denying_pattern(parts):
            place = agent.place("skill_policy", "files", "deny", denied.index(pattern))
            return Verdict("deny", f"files.deny {pattern}", place)
    return None


def _asked_by_rule(agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: BaseFolder) -> Verdict | None:
    for rule in agent.toolset.rules_for(tool.name).ask:
        if rule_matches(rule.rule, arguments, tool, base):
            return Verdict("ask", f"ask {rule.rule.tool}", rule.place, rule.rule.reason)
    return None


def _asked_by_risk(agent: Agent, tool: Tool) -> Verdict | None:
    if tool.confirm:
        return Verdict("ask", "@tool(confirm=True)", defined_at(tool), "the tool itself requires confirmation")
    threshold = agent.spec.runtime_policy.confirm.from_
    if threshold != "never" and RISKS.index(tool.risk) >= RISKS.index(threshold):
        place = agent.place("runtime_policy", "confirm", "from")
        return Verdict("ask", f"approve_from {threshold}", place, f"its risk is {tool.risk}")
    return None


def _not_offered(agent: Agent, tool: Tool) -> Verdict:
    if scope := agent.toolset.scope:
        return Verdict("deny", f"not among the tools of {scope}", agent.place("skill_policy", "allow"))
    if tool.source == "agent":
        return Verdict("deny", "not in agents", agent.place("sub_agents"))
    place = agent.place("skill_policy", "allow")
    if tool.name not in agent.toolset.tools:
        return Verdict("deny", "the tool no longer exists", place)
    return Verdict("deny", "not in tools.allow", place)


def defined_at(tool: Tool) -> str:
    """Return `file:line` of the tool's function: relative to the project for plugins, else only the file's name."""
    code = getattr(tool.function, "__code__", None)
    if code is None:
        return tool.name
    path = PurePath(code.co_filename.partition("@")[0])  # a plugin's code is named FILE@LOAD
    return f"{path.name if path.is_absolute() else path.as_posix()}:{code.co_firstlineno}"
