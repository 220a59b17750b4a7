"""The policy of a run's tool calls, and the budgets of a run.

Rules apply in this order: a skill that is denied or not allowed > a matching deny rule > risk above `risk_level` > not
offered > a matching ask rule > named by ask rules only > `@tool(confirm=True)` > a risk that must be confirmed > allow.
A call is evaluated by several agents (the version that the run is pinned to, the live version, the callers of a
sub-agent, those that handed the conversation over since the user's message), and the strictest verdict wins. An agent
that has been deleted, or that its caller no longer lists, is denied every further call.

A budget is what a run has used of its limits. A sub-run spends its own budget and those of its callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from framework.config.agents.compile import Agent
from framework.config.agents.models import Budgets, DefinedBudget
from framework.config.agents.skills import denying_skill_rule
from framework.config.overlay import SETTINGS_FILE
from framework.llm.client import ModelInfo
from framework.tools.builtin.notes import MEMORY_WRITERS
from framework.tools.conditions import WORKING_FOLDER, paths_below_base, rule_matches
from framework.tools.files import BaseFolder
from framework.tools.skills import SKILL_RUN
from framework.tools.tool import Tool
from framework.tools.toolset import TOOL_SEARCH, PlacedRule
from framework.types.budget import BudgetLimit, BudgetUse, CounterKey, ReachedBudget, counter_scope, period_end
from framework.types.errors import ConfigError, LimitExceeded
from framework.types.messages import ModelUse, Usage
from framework.types.report import WarningCode
from framework.types.spec import RISKS, Limits, ModelSettings
from framework.types.state import RunState
from framework.types.text import did_you_mean, shorten

if TYPE_CHECKING:
    from framework.store.store import Store

VerdictKind = Literal["allow", "ask", "deny"]
_MAX_NAME_CHARS = 80
_CLIENT_RULE = "tools of clients need a rule that starts with client."
_STRICTNESS: Mapping[VerdictKind, int] = {"allow": 0, "ask": 1, "deny": 2}
_ALLOWED_BY = {
    **dict.fromkeys(("agent", "a2a"), ("agents", "sub_agents")),
    "handoff": ("handoffs", "handoffs"),
    "code": ("mode: code", "executor"),
    "skills": ("skills", "skills"),
    "memory": ("memory", "memory"),
}
"""What allows a tool that needs no `allow` rule, and the key of the file that says it, by the source of the tool."""


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
    earlier: tuple[Agent, ...] = ()
    """Agents that have worked on the user's message before they handed the conversation over, in order. The agent may
    do only what each of them may do, too."""
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

    def may_allow(self, tool: Tool) -> bool:
        """Return whether some call of an agent's tool can be allowed: no agent that applies denies it altogether."""
        if any(True for _ in self._withdrawals()):
            return False
        shared = self.earlier if is_shared(tool) else ()
        own = (agent.toolset for one in (*shared, self.agent) for agent, _ in self._versions(one, tool))
        return all(tool.name in toolset.offered for toolset in own) and not any(
            _denial(agent, version, {}, self.base)
            for parent in (*self.parents, *shared)
            for agent, version in self._versions(parent, tool)
        )

    def counted_rules(self, tool: Tool, views: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Agent, PlacedRule]]:
        """Yield the rules with `at_most` that a call counts for, of all agents that apply. See `GrantBook.count`."""
        shared = self.earlier if is_shared(tool) else ()
        for one in (*self.parents, *shared, self.agent):
            for agent, version in self._versions(one, tool):
                rules = agent.toolset.rules_for(tool.name)
                for rule in (*rules.deny, *rules.ask):
                    if rule.rule.at_most and any(rule_matches(rule.rule, view, version, self.base) for view in views):
                        yield agent, rule

    def denied_files(self) -> tuple[str, ...]:
        """Return the patterns of files denied to all tools of this run: from pinned and live files, of callers too."""
        involved = (*self.parents, *self.earlier, self.agent)
        agents = [one for agent in involved for one in (agent, self.current(agent.name)) if one]
        return tuple(dict.fromkeys(pattern for one in agents for pattern in one.spec.skill_policy.files.deny))

    def _verdicts(self, tool: Tool, arguments: Mapping[str, Any]) -> Iterator[Verdict]:
        if unknown := self._unknown_skill(tool, arguments):
            yield unknown
            return
        yield from self._withdrawals()
        for agent, version in self._versions(self.agent, tool):
            yield agent_verdict(agent, version, arguments, self.base)
        for one in self.earlier if is_shared(tool) else ():
            for agent, version in self._versions(one, one.toolset.tools.get(tool.name, tool)):
                yield agent_verdict(agent, version, arguments, self.base)
        for parent in self.parents:
            for agent, version in self._versions(parent, tool):
                if restricted := self._restriction(agent, version, arguments):
                    yield restricted

    def _unknown_skill(self, tool: Tool, arguments: Mapping[str, Any]) -> Verdict | None:
        """Deny a skill that the run was not told of, in the same words whether there is such a skill or not."""
        known, name = self.agent.skills.skills, arguments.get("name")
        if tool.source != "skills" or not isinstance(name, str) or name in known:
            return None
        why = f"there is no skill {shorten(name, _MAX_NAME_CHARS)!r}{did_you_mean(name, list(known))}"
        return Verdict("deny", "not in skills", self.agent.place("skills"), why)

    def _restriction(self, caller: Agent, tool: Tool, arguments: Mapping[str, Any]) -> Verdict | None:
        """Return the verdict with which a caller denies its sub-agent's call or requires approval, if any."""
        return (
            _denial(caller, tool, arguments, self.base)
            or _asked_by_rule(caller, tool, arguments, self.base)
            or _asked_by_risk(caller, tool)
        )

    def _withdrawals(self) -> Iterator[Verdict]:
        """Yield a denial if an agent involved was deleted, or a caller or predecessor no longer lists its successor."""
        caller: Agent | None = None
        for agent in (*self.parents, *self.earlier, self.agent):
            if self.current(agent.name) is None:
                reason = f"{agent.path} no longer defines the agent {agent.name!r}"
                yield Verdict("deny", "agent removed", agent.path, reason)
            live = self.current(caller.name) if caller else None
            if caller and live and agent.name in caller.spec.sub_agents and agent.name not in live.spec.sub_agents:
                reason = f"{live.name!r} no longer lists {agent.name!r}"
                yield Verdict("deny", "not in agents", live.place("sub_agents"), reason)
            if caller and live and any(caller is one for one in self.earlier) and agent.name not in live.spec.handoffs:
                reason = f"{live.name!r} no longer lists {agent.name!r}"
                yield Verdict("deny", "not in handoffs", live.place("handoffs"), reason)
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


def is_shared(tool: Tool) -> bool:
    """Return whether agents that hand a conversation over must have a tool, too, for the next one to use it.

    The others do nothing outside of the run.
    """
    return tool.source not in ("run", "handoff")


def limited_to_shared_tools(agent: Agent, earlier: Sequence[Agent]) -> Agent:
    """Return an agent that is offered no tool which an agent before it in the same message is not offered."""
    own = agent.toolset
    kept = {
        name
        for name, tool in own.offered.items()
        if not is_shared(tool) or all(name in one.toolset.offered for one in earlier)
    }
    scope = f"{earlier[-1].name}, which handed the conversation over: they can be used after the user's next message"
    return replace(agent, toolset=own.narrowed(kept, scope).deferring(own.deferred))


def apply_settings(
    state: RunState,
    requested: tuple[ModelSettings, dict[str, Any] | None, Limits],
    earlier: Sequence[Agent],
    agent: Agent,
) -> None:
    """Set what a run has of the first agent's file to that of `agent`, except for what the caller has set.

    Limits can only become lower.

    Args:
        state: the run.
        requested: model settings, schema of the answer and limits with which the run started.
        earlier: the agents before, in order.
        agent: the agent that continues.
    """
    settings, schema, state.limits = requested
    first = earlier[0].spec
    own = {name: getattr(settings, name) for name in ModelSettings.model_fields}
    changed = {name: value for name, value in own.items() if value != getattr(first.model_settings, name)}
    state.model_settings = agent.spec.model_settings.model_copy(update=changed)
    state.output_schema = agent.spec.output_schema if schema == first.output_schema else schema
    for one in (*earlier[1:], agent):
        state.limits = _lowest_limits(state.limits, one.spec.runtime_policy)
        state.inputs = {**state.inputs, **one.inputs_from(state.inputs)}


def agent_verdict(agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: BaseFolder = WORKING_FOLDER) -> Verdict:
    """Return the verdict of one agent's policy on a call."""
    if denied := _denial(agent, tool, arguments, base):
        return denied
    if tool.source == "skills" and (name := arguments.get("name")) and name not in agent.skills.skills:
        return Verdict("deny", "not in skills.allow", agent.place("skills"))
    if tool.source == "client" and not agent.toolset.scope:
        if not tool.allowed_by and not agent.toolset.client_rule(tool.name):
            return Verdict("deny", "not in tools.allow", agent.place("skill_policy", "allow"), _CLIENT_RULE)
    elif tool.name not in agent.toolset.offered and not agent.toolset.is_deferred(tool.name):
        return _not_offered(agent, tool)
    if asked := _asked_by_rule(agent, tool, arguments, base):
        return asked
    if tool.name == SKILL_RUN and tool.source == "skills" and agent.spec.skills.scripts == "ask":
        return Verdict("ask", "skills.scripts ask", agent.place("skills", "scripts"))
    if tool.source == "memory" and tool.name in MEMORY_WRITERS and agent.spec.memory.write == "ask":
        return Verdict("ask", "memory.write ask", agent.place("memory"))
    allowed = _allowed(agent, tool)
    return allowed if allowed.kind == "deny" else _asked_by_risk(agent, tool) or allowed


def _allowed(agent: Agent, tool: Tool) -> Verdict:
    """Return the verdict on a call of an offered tool that nothing denies, and about which nobody is asked."""
    allowing = agent.toolset.rules_for(tool.name).allow
    if tool.source == "client":
        allowing = agent.toolset.client_rule(tool.name)
        allowing = None if allowing is None or allowing.kind == "ask" else allowing
    if allowing is None and tool.allowed_by:
        return Verdict("allow", tool.allowed_by, SETTINGS_FILE)
    if keys := _ALLOWED_BY.get(tool.source):
        return Verdict("allow", keys[0], agent.place(keys[1]))
    if allowing is None and tool.source == "run":
        rule, key = ("tools.defer", "defer") if tool.name == TOOL_SEARCH else ("reads what was cut", "allow")
        return Verdict("allow", rule, agent.place("skill_policy", key))
    if allowing is None:  # offered by an ask rule whose conditions are not met
        why = "an ask rule permits only calls that meet its conditions"
        return Verdict("deny", "not in tools.allow", agent.place("skill_policy", "allow"), why)
    return Verdict("allow", f"allow {allowing.rule.tool}", allowing.place)


def _denial(agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: BaseFolder) -> Verdict | None:
    if tool.name in agent.toolset.blocked:
        server = tool.name.split(".")[1]
        why = f"it changed, or appeared, after its server was accepted: agentsd tools accept {tool.name}"
        return Verdict("deny", "pin: block", agent.place("mcp_policy", server, "pin"), why)
    if tool.source == "skills" and (denying := denying_skill_rule(agent.spec, str(arguments.get("name", "")))):
        index, skill_rule = denying
        return Verdict(
            "deny", f"skills.deny {skill_rule.skill}", agent.place("skills", "deny", index), skill_rule.reason
        )
    for rule in agent.toolset.rules_for(tool.name).deny:
        if not rule.rule.at_most and rule_matches(rule.rule, arguments, tool, base):
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
        if not rule.rule.at_most and rule_matches(rule.rule, arguments, tool, base):
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
    if key := {"agent": "agents", "a2a": "agents", "handoff": "handoffs"}.get(tool.source):
        return Verdict("deny", f"not in {key}", agent.place("sub_agents" if key == "agents" else key))
    if tool.source == "skills" and tool.name not in agent.toolset.tools:
        return Verdict("deny", "not in skills.allow", agent.place("skills"))
    if tool.source == "memory" and tool.name not in agent.toolset.tools:
        is_on = agent.spec.memory.scope is not None
        return Verdict("deny", "memory.write never" if is_on else "no memory", agent.place("memory"))
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


_WARNING_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class ExpectedUse:
    """What a model call will use: an estimate of its request, and the most that it can use."""

    tokens: int
    """Tokens of the request; 0 if unknown."""
    most: Mapping[BudgetLimit, float]
    """Upper bounds, by limit; infinite if unknown."""


@dataclass(slots=True)
class AdmittedCall:
    """A model call in progress."""

    names: Collection[str]
    """Names of the budgets that pay for it."""
    expected: ExpectedUse
    budgets: tuple[tuple[DefinedBudget, CounterKey], ...] = ()
    """The budgets that pay for its current attempt, each with its counter."""
    counters: dict[CounterKey, BudgetUse] = field(default_factory=dict)
    """The counters when the attempt was admitted, plus what it has used since."""
    is_sent: bool = False
    """Whether an attempt is in progress; otherwise the call waits for the next one."""


@dataclass(slots=True)
class BudgetLedger:
    """The shared budgets of one root run and its sub-runs."""

    root: RunState
    store: Store
    definitions: Callable[[], tuple[Budgets, Budgets]]
    """Returns the budgets of the run's generation and of the live one. Both apply."""
    clock: Callable[[], float] | None = None
    """Returns Unix time; by default that of the store. It decides in which day or month a call counts."""
    calls: dict[tuple[str, ...], AdmittedCall] = field(default_factory=dict)
    """Calls in progress that shared budgets pay for, by path of the run or sub-run: one call for each."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when an attempt ends."""

    def cost_limit(self, path: tuple[str, ...]) -> str | None:
        """Return the place of a cost limit of the call in progress; None without one."""
        call = self.calls.get(path)
        places = (one.places.get("max_cost_usd") for one, _ in call.budgets) if call else iter(())
        return next((place for place in places if place), None)

    async def admit(self, path: tuple[str, ...], names: Collection[str], expected: ExpectedUse) -> None:
        """Wait until a model call may be sent.

        Args:
            path: path of the run or sub-run that makes the call.
            names: the budgets that pay for it.
            expected: what the call will use.

        Raises:
            LimitExceeded: a budget is used up, or what remains is too little for the request.
            ConfigError: a budget is not defined.
            StoreError: the counters cannot be read.
        """
        await self._admit(path, AdmittedCall(names, expected))

    async def readmit(self, path: tuple[str, ...]) -> None:
        """Wait until another attempt at the call in progress may be sent; raises like `admit`."""
        if (call := self.calls.get(path)) is not None:
            call.is_sent = False
            self._report_end()
            await self._admit(path, call)

    def count(self, path: tuple[str, ...], usage: Usage) -> bool:
        """Count usage of the call in progress, for the run's next write. Return False if no budget pays for it."""
        call = self.calls.get(path)
        if call is None:
            return False
        for key, use in call.counters.items():
            call.counters[key] = use.plus(usage.total_tokens, usage.cost_usd or 0.0)
        self._add(call.counters, usage)
        return True

    def count_earlier(self, names: Iterable[str], usage: Usage) -> None:
        """Count usage from before the run started, such as the choice of its agent."""
        self._add(dict.fromkeys(key for _, key in self._in_force(names)), usage)

    def release(self, path: tuple[str, ...]) -> None:
        """End the call in progress of a run or sub-run, if there is one."""
        if self.calls.pop(path, None) is not None:
            self._report_end()

    def new_warnings(self, path: tuple[str, ...]) -> Iterator[str]:
        """Yield a message for each budget of the call in progress of which 80 % are used, once per run."""
        call = self.calls.get(path)
        for one, key in call.budgets if call else ():
            mark = f"budget {one.name}"
            for limit, allowed in one.budget.limits():
                used = call.counters[key].of(limit) if call else 0
                if used >= _WARNING_SHARE * allowed and mark not in self.root.warned:
                    self.root.warned.append(mark)
                    yield f"{mark}: {_reached(one, key, limit).describe(used, allowed)} ({one.places[limit]})"

    # --- inside

    async def _admit(self, path: tuple[str, ...], call: AdmittedCall) -> None:
        call.budgets = self._in_force(call.names)
        empty = {key: BudgetUse(budget=key[0], scope=key[1], period=key[2]) for _, key in call.budgets}
        while True:
            released = self._released
            stored = {use.key: use for use in await self.store.budget_uses(empty.keys())}
            if released.is_set():  # an attempt of this run ended meanwhile, and what it used may be missing
                continue
            call.counters = empty | stored
            _check(call)
            if self.calls.get(path, call) is call and self._fits(call):
                break
            await released.wait()
        self.calls[path], call.is_sent = call, True

    def _in_force(self, names: Iterable[str]) -> tuple[tuple[DefinedBudget, CounterKey], ...]:
        """Return the definitions of budgets, with their counters. An edit during a run can add a stricter one."""
        pinned, live = self.definitions()
        found: list[DefinedBudget] = []
        for name in names:
            known = [budgets[name] for budgets in (pinned, live) if name in budgets]
            if not known:
                raise ConfigError(
                    f"there is no budget {name!r} any longer: define it under `budgets` in {SETTINGS_FILE}"
                )
            found += known[:1] if known[0] == known[-1] else known
        return tuple((one, self._key(one)) for one in found)

    def _key(self, one: DefinedBudget) -> CounterKey:
        root, budget = self.root, one.budget
        scope = counter_scope(
            budget.per, tenant=root.tenant, user=root.user, conversation=root.conversation_id, run_id=root.run_id
        )
        return one.name, scope, budget.period((self.clock or self.store.now)())

    def _fits(self, call: AdmittedCall) -> bool:
        """Return whether a call fits next to the attempts in progress that share its counters, whatever they use."""
        for one, key in call.budgets:
            sent = [other for other in self.calls.values() if other.is_sent and other is not call]
            others = [other.expected for other in sent if key in other.counters]
            for limit, allowed in one.budget.limits():
                most = sum(expected.most[limit] for expected in (*others, call.expected))
                if others and call.counters[key].of(limit) + most > allowed:
                    return False
        return True

    def _report_end(self) -> None:
        """Wake the calls that wait for the end of an attempt."""
        self._released.set()
        self._released = asyncio.Event()

    def _add(self, keys: Iterable[CounterKey], usage: Usage) -> None:
        self.root.uncounted += [
            BudgetUse(
                budget=key[0],
                scope=key[1],
                period=key[2],
                tokens=usage.total_tokens,
                cost_usd=usage.cost_usd or 0.0,
            )
            for key in keys
        ]


def _check(call: AdmittedCall) -> None:
    """Raise LimitExceeded if a budget is used up, or what remains is too little for the request."""
    for one, key in call.budgets:
        for limit, allowed in one.budget.limits():
            used = call.counters[key].of(limit)
            needed = call.expected.tokens if limit == "max_total_tokens" else 0
            if used >= allowed or used + needed > allowed:
                place, reached = one.places[limit], _reached(one, key, limit)
                raise LimitExceeded("budget", used=used + needed, allowed=allowed, place=place, budget=reached)


def _reached(one: DefinedBudget, key: CounterKey, limit: BudgetLimit) -> ReachedBudget:
    return ReachedBudget(name=one.name, limit=limit, per=one.budget.per, resets_at=period_end(key[2]))


class CostLimit(NamedTuple):
    """A limit of the cost of a run."""

    place: str
    """What sets it, such as `agents.d/a.yaml:7`."""
    needs_prices: bool
    """Whether a model may be called only if its price is known; otherwise a call of unknown price counts as 0."""
    shared: bool = False
    """Whether a shared budget sets it. It always needs prices: the agent file cannot opt out."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The use of a run's limits. It is counted in the run's state, so that it survives a pause or a crash."""

    state: RunState
    agent: Agent
    """The version the run is pinned to."""
    current: Callable[[str], Agent | None]
    """Returns the live version of an agent: a limit that it lowers applies immediately."""
    above: tuple[Budget, ...] = ()
    """The budgets of the runs that this one is part of, its caller's first."""
    ledger: BudgetLedger | None = None
    """Counters of the budgets that runs share; None for a model call before its run exists."""
    earlier: tuple[Agent, ...] = ()
    """Agents that have handed the conversation over since the user's message: their limits and budgets apply, too."""

    @property
    def _versions(self) -> Iterator[tuple[Agent, Agent | None]]:
        """Iterate over the versions that the run is pinned to, the agent's own first, each with the live version."""
        for agent in (self.agent, *self.earlier):
            yield agent, self.current(agent.name)

    @property
    def chain(self) -> tuple[Budget, ...]:
        """This budget and those above it; the last one is the root run's."""
        return self, *self.above

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        limits = self.state.limits
        for agent in (self.agent, *self.earlier):
            live = self.current(agent.name)
            if live is not None and live is not agent:
                limits = with_lowered_limits(limits, agent.spec.runtime_policy, live.spec.runtime_policy)
        return limits

    @property
    def cost_limit(self) -> CostLimit | None:
        """The cost limit of a model call, one that needs prices before one that does not; None without a limit."""
        lenient = None
        for budget in self.chain:
            if budget.limits.max_cost_usd is not None:
                limit = CostLimit(budget._place("max_cost_usd"), budget._needs_prices())
                if limit.needs_prices:
                    return limit
                lenient = lenient or limit
        ledger = self.ledger
        place = ledger.cost_limit(self.state.path) if ledger is not None and ledger.calls else None
        return lenient if place is None else CostLimit(place, needs_prices=True, shared=True)

    @property
    def shared(self) -> Collection[str]:
        """Names of the shared budgets that pay for a model call: of the run and its callers, as pinned and as live."""
        names: dict[str, None] = {}
        for budget in self.chain:
            for agent in (agent for versions in budget._versions for agent in versions):
                if agent is not None and agent.spec.budgets:
                    names |= dict.fromkeys(agent.spec.budgets)
        return names.keys()

    def claim_warning(self, code: WarningCode) -> bool:
        """Return whether this is the first time that the run, with its sub-runs, reports this warning."""
        *_, root = self.chain
        if code in root.state.warned:
            return False
        root.state.warned.append(code)
        return True

    def check_steps(self) -> None:
        """Raise LimitExceeded before a model call if its steps, tokens or dollars are used up."""
        for budget in self.chain:
            limits = budget.limits
            budget._check("max_steps", budget.state.steps, limits.max_steps)
            budget._check_spent(limits)

    def spend_step(self) -> None:
        """Count a model call; raises LimitExceeded if its steps, tokens or dollars are used up."""
        self.check_steps()
        for budget in self.chain:
            budget.state.steps += 1

    @property
    def limits_tokens(self) -> bool:
        """Whether a limit of this run or of a caller applies to tokens."""
        return any(budget.limits.max_total_tokens is not None for budget in self.chain)

    def check_tokens(self, expected: int) -> None:
        """Raise LimitExceeded before a model call if it needs more tokens than remain; `expected` is an estimate."""
        for budget in self.chain:
            limit, used = budget.limits.max_total_tokens, budget.state.usage.total_tokens
            if limit is not None and used + expected > limit:
                raise budget._exceeded("max_total_tokens", used + expected, limit)

    def check_spent(self) -> None:
        """Raise LimitExceeded before another attempt at a model call if tokens or dollars are used up."""
        for budget in self.chain:
            budget._check_spent(budget.limits)

    def spend_tokens(self, usage: Usage, model: ModelInfo) -> bool:
        """Add the usage of a model call. Return whether shared budgets pay for it, so that it must be saved now."""
        *_, root = chain = self.chain
        for budget in chain:
            budget.state.usage = budget.state.usage + usage
        use = root.state.model_uses.get(model.name) or ModelUse()
        root.state.model_uses[model.name] = use.plus(usage)
        ledger = self.ledger
        return ledger is not None and bool(ledger.calls) and ledger.count(self.state.path, usage)

    async def admit_call(self, expected: ExpectedUse) -> None:
        """Wait until the shared budgets admit a model call; raises like `BudgetLedger.admit`."""
        if self.ledger is not None:
            await self.ledger.admit(self.state.path, self.shared, expected)

    async def admit_retry(self) -> None:
        """Wait until the shared budgets admit another attempt at the model call; raises like `BudgetLedger.admit`."""
        if self.ledger is not None and self.ledger.calls:
            await self.ledger.readmit(self.state.path)

    def release_call(self) -> None:
        """End the model call that was admitted, if there is one."""
        if self.ledger is not None and self.ledger.calls:
            self.ledger.release(self.state.path)

    def reserve_call(self) -> bool:
        """Count a tool call. Return False, and count nothing, if `max_tool_calls` is reached."""
        for budget in self.chain:
            limit = budget.limits.max_tool_calls
            if limit is not None and budget.state.tool_calls >= limit:
                return False
        for budget in self.chain:
            budget.state.tool_calls += 1
        return True

    def calls_exhausted(self) -> LimitExceeded:
        """Return the error for a turn without a single tool call left."""
        exhausted = next(b for b in self.chain if b.state.tool_calls >= (b.limits.max_tool_calls or float("inf")))
        return exhausted._exceeded("max_tool_calls", exhausted.state.tool_calls, exhausted.limits.max_tool_calls or 0)

    def spend_repeat(self, key: str) -> int:
        """Count a tool call with these arguments, and return the count; raises LimitExceeded if it is too high."""
        count = self.state.call_counts.get(key, 0) + 1
        limit = self.limits.max_repeated_calls
        if limit is not None and count > limit:
            raise self._exceeded("max_repeated_calls", count, limit)
        self.state.call_counts[key] = count
        return count

    def spend_correction(self) -> None:
        """Count a turn with an invalid call; raises LimitExceeded after too many in a row."""
        if self.state.corrections >= self.limits.max_corrections:
            raise self._exceeded("max_corrections", self.state.corrections + 1, self.limits.max_corrections)
        self.state.corrections += 1

    def time_left(self) -> float | None:
        """Return the remaining active time in seconds, or None without a timeout."""
        limit = self.limits.timeout
        return None if limit is None else max(0.0, limit - self.state.elapsed_ms / 1000)

    def timeout_error(self) -> LimitExceeded:
        """Return the error for a run that has timed out."""
        return self._exceeded("timeout", self.limits.timeout or 0, self.limits.timeout or 0)

    def new_warnings(self) -> Iterator[tuple[WarningCode, str]]:
        """Yield code and message of each limit and shared budget of which 80 % are used, each once per run."""
        state, limits = self.state, self.limits
        uses: dict[WarningCode, tuple[float, float | None]] = {
            "max_steps": (state.steps, limits.max_steps),
            "max_tool_calls": (state.tool_calls, limits.max_tool_calls),
            "max_total_tokens": (state.usage.total_tokens, limits.max_total_tokens),
            "max_cost_usd": (state.usage.cost_usd or 0.0, limits.max_cost_usd),
        }
        for name, (used, limit) in uses.items():
            if limit is not None and used >= _WARNING_SHARE * limit and name not in state.warned:
                state.warned.append(name)
                yield name, f"{used:.10g} of {name} {limit:.10g} used"
        if self.ledger is not None and self.ledger.calls:
            yield from (("budget", message) for message in self.ledger.new_warnings(state.path))

    def _check_spent(self, limits: Limits) -> None:
        usage = self.state.usage
        self._check("max_total_tokens", usage.total_tokens, limits.max_total_tokens)
        self._check("max_cost_usd", usage.cost_usd or 0.0, limits.max_cost_usd)

    def _check(self, limit: str, used: float, allowed: float | None) -> None:
        if allowed is not None and used >= allowed:
            raise self._exceeded(limit, used, allowed)

    def _exceeded(self, limit: str, used: float, allowed: float) -> LimitExceeded:
        return LimitExceeded(limit, used=used, allowed=allowed, place=self._place(limit))

    def _needs_prices(self) -> bool:
        """Return whether a version of an agent that the run is pinned to, or its live version, requires prices."""
        agents = (agent for versions in self._versions for agent in versions)
        return any(agent.spec.runtime_policy.cost == "known" for agent in agents if agent)

    def _place(self, limit: str) -> str:
        for agent in (agent for versions in self._versions for agent in versions):
            if agent and getattr(self.limits, limit) == getattr(agent.spec.runtime_policy, limit):
                return agent.place("runtime_policy", limit)
        return f"limits.{limit} of the request"


def with_lowered_limits(own: Limits, pinned: Limits, live: Limits) -> Limits:
    """Return a run's limits, lowered where the live file is stricter than the version the run is pinned to.

    Args:
        own: the limits that the run started with.
        pinned: limits in the agent file's version that the run is pinned to.
        live: limits in the live agent file.
    """
    lower = {}
    for name in Limits.model_fields:
        now = getattr(live, name)
        if _is_lower(now, getattr(pinned, name)) and _is_lower(now, getattr(own, name)):
            lower[name] = now
    return own.model_copy(update=lower) if lower else own


def _lowest_limits(own: Limits, other: Limits) -> Limits:
    """Return the lower one of each of two agents' limits."""
    lower = {
        name: getattr(other, name)
        for name in Limits.model_fields
        if _is_lower(getattr(other, name), getattr(own, name))
    }
    return own.model_copy(update=lower) if lower else own


def _is_lower(one: float | None, other: float | None) -> bool:
    """Return whether the first limit is lower; None is no limit."""
    return one is not None and (other is None or one < other)
