"""Turns past decisions into rules: which calls a person always approves or always rejects, as edits of an agent's file.

A rule that asks is narrowed to the calls outside of a region: the ranges, prefixes and values that approved calls have
in common. An edit is only proposed if the edited file, compiled, allows no call that was rejected. Deny rules, the
risk ceiling and `approve_from` stay as they are.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from fnmatch import fnmatchcase
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal

from framework.config.agents.compile import Agent, compile_agent
from framework.config.generations.generation import Generation
from framework.config.yaml.parse import ParseError, parse_agent
from framework.config.yaml.text_edits import NotEditable, RuleEdit, edit_rules
from framework.engine.context.policy import agent_verdict
from framework.engine.tool_call.call import explain_call
from framework.store.types import DecidedCall, DecidedCalls
from framework.tools.conditions import condition_matches, location_kind, rule_matches, yaml_text
from framework.tools.files import BaseFolder
from framework.tools.tool import Tool
from framework.types.frozen import Frozen
from framework.types.spec import RISKS, Rule, is_glob
from framework.types.text import source_digest

AT_LEAST = 5
"""Number of approvals, or of rejections, from which on a rule is proposed."""
MAX_DECIDED_RUNS = 20_000
"""Number of runs that are read, the newest first."""
_MAX_VALUES = 50
"""Number of different values of an argument up to which each is tried as a condition."""
_MAX_CHARS = 80
_SEPARATORS = "/.:-_@#"
_OTHERS = ("edit", "reject", "respond")
"""Decisions that are no approval of the call as it was."""

CallValues = Mapping[str, Any]
Outside = Mapping[str, tuple[str, ...]]
"""By argument, conditions of which one is met by each value outside of a region."""


Obstacle = Literal["pattern", "tool", "max_risk", "risk", "later", "values", "file"]
"""Why no rule can be proposed although decisions agree."""
_OBSTACLES: Mapping[Obstacle, str] = {
    "pattern": "the rule is about all tools that match {rule}: write one for {tool} above it",
    "tool": "the tool itself requires confirmation: @tool(confirm=True)",
    "max_risk": "its risk is {risk}, above max_risk {ceiling}, so that only asked calls are permitted",
    "risk": "approve_from {threshold} would ask, because its risk is {risk}",
    "later": "a later rule asks about every call of the tool",
    "values": "no range, prefix or value separates the approved calls from the others",
    "file": "edit the file by hand: {detail}",
}


class Suggestion(Frozen):
    """An edit of an agent's rules that past decisions support, or a rule that they say something about."""

    kind: Literal["narrow", "deny", "unused", "kept"]
    """`narrow`: ask about fewer calls; `deny`: deny what is always rejected; `unused`: the rule matched no call;
    `kept`: decisions agree, but no rule can say so, for a reason."""
    agent: str
    path: str
    """The agent's file."""
    place: str
    """`file:line` of the rule."""
    rule: str
    """The rule that asked, or was never met."""
    tool: str = ""
    asked: int = 0
    """Calls that the rule asked about."""
    approved: int = 0
    """Those that were approved as they were."""
    rejected: int = 0
    """Those that were rejected, changed, or answered instead."""
    expired: int = 0
    """Those that nobody decided in time."""
    people: int = 0
    """How many people approved, or rejected, them."""
    covers: int = 0
    """Calls that nobody would have been asked about, or that would have been denied."""
    when: dict[str, str] = {}
    """What the calls have in common, by argument, such as `12 to 96.5`."""
    becomes: tuple[str, ...] = ()
    """The new rules, as they are written in the file."""
    obstacle: Obstacle | None = None
    """Why no rule can be proposed, if the kind is `kept`."""
    summary: str
    """What was decided, and what the edit changes, in one sentence."""


class AgentSuggestions(Frozen):
    """What past decisions suggest for an agent."""

    agent: str
    path: str
    suggestions: tuple[Suggestion, ...] = ()
    diff: str = ""
    """All edits as a unified diff, which `git apply` accepts; empty without any."""
    digest: str = ""
    """Digest of the file that the edits are for."""


@dataclass(frozen=True, slots=True)
class Suggested:
    """The suggestions for an agent, and its file with all edits."""

    found: AgentSuggestions
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Region:
    """Calls that were approved, and the conditions that they have in common."""

    outside: Outside
    inside: Mapping[str, str]
    """The same in words."""
    calls: int


@dataclass(slots=True)
class _Asked:
    """The decisions about the calls of one tool that one ask rule asked about."""

    index: int
    rule: Rule
    tool: Tool
    calls: list[DecidedCall] = field(default_factory=list)

    def count(self, *decisions: str) -> int:
        return sum(call.decision in decisions for call in self.calls)


def suggest(
    agent: Agent, generation: Generation, decided: DecidedCalls, everyone: DecidedCalls, base: Path
) -> Suggested:
    """Return what past decisions suggest for an agent, which is live or was read from the files.

    Args:
        agent: the agent.
        generation: its generation.
        decided: the calls to count and to learn from.
        everyone: the same of all tenants and users: nothing is proposed that any of them rejected.
        base: the folder that paths in arguments are relative to.
    """
    source = generation.files.get(agent.path, agent.document.source)
    head = AgentSuggestions(agent=agent.name, path=agent.path, digest=source_digest(source))
    if agent.stale or agent.original or _compiled(agent, source) is None:
        return Suggested(head, source, source)
    own, others = (
        [call for call in calls.calls if call.agent == agent.name and call.tool in agent.toolset.tools]
        for calls in (decided, everyone)
    )
    judge, found, text, edits = _Judge(agent, base, others), list[Suggestion](), source, list[RuleEdit]()
    for asked in _by_rule(agent, own, base):
        proposal, edit = _proposal(agent, asked, judge)
        if edit is not None:
            try:
                changed = edit_rules(agent.path, source, [*edits, edit])
                compiled = _compiled(agent, changed)
                if compiled is None or not judge.accepts(compiled, asked, edit):
                    proposal = _kept(agent, asked, "values")
                else:
                    text, edits = changed, [*edits, edit]
            except NotEditable as error:
                proposal = _kept(agent, asked, "file", str(error))
        found += [proposal] if proposal else []
    found += _unused(agent, own, decided, base)
    diff = diff_of(agent.path, source, text)
    return Suggested(head.model_copy(update={"suggestions": tuple(found), "diff": diff}), source, text)


def _compiled(agent: Agent, source: bytes) -> Agent | None:
    """Compile an agent from another text of its file, next to the same tools and agents; None if that is invalid."""
    try:
        spec, document = parse_agent(agent.path, source)
        return compile_agent(spec, document, source_digest(source), agent.context)[0]
    except ParseError:
        return None


def diff_of(path: str, before: bytes, after: bytes) -> str:
    """Return a unified diff that `git apply` accepts; empty if nothing differs."""
    old, new = (source.decode("utf-8").splitlines(keepends=True) for source in (before, after))
    lines = unified_diff(old, new, f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


# --- what was decided


class _Judge:
    """Checks compiled edits against the past decisions about an agent's calls."""

    def __init__(self, agent: Agent, base: Path, calls: Iterable[DecidedCall]) -> None:
        self._agent, self._base = agent, base
        closed: dict[str, tuple[Tool, CallValues]] = {}
        for call in calls:
            if call.decision not in ("approve", "expired"):  # nobody decided about an expired one
                tool = agent.toolset.tools[call.tool]
                closed.setdefault(f"{call.tool}\n{json.dumps(call.arguments, sort_keys=True)}", (tool, call.arguments))
        self._closed = [one for one in closed.values() if self._verdict(agent, *one) != "allow"]
        """The different calls that were not approved as they were, and that the file does not allow now."""

    def closed(self, tool: str) -> list[CallValues]:
        """Return the arguments of these calls of a tool."""
        return [arguments for one, arguments in self._closed if one.name == tool]

    def accepts(self, edited: Agent, asked: _Asked, edit: RuleEdit) -> bool:
        """Return whether an edited agent allows none of the calls that were not approved, and an approved one."""
        if any(self._verdict(edited, *one) == "allow" for one in self._closed):
            return False
        approved = (call.arguments for call in asked.calls if call.decision == "approve")
        return not edit.rules or any(self._verdict(edited, asked.tool, one) == "allow" for one in approved)

    def _verdict(self, agent: Agent, tool: Tool, arguments: CallValues) -> str:
        """Return the verdict on a call. Most are decided by the arguments as they are, which is fast."""
        tool = agent.toolset.tools.get(tool.name, tool)
        quick = agent_verdict(agent, tool, tool.with_defaults(arguments), BaseFolder(self._base)).kind
        return quick if quick != "allow" else explain_call(agent, tool, arguments, self._base)[0].verdict.kind


def _by_rule(agent: Agent, calls: Iterable[DecidedCall], base: Path) -> list[_Asked]:
    """Return the decided calls by the ask rule that matches them now, and by tool, in the order of the rules."""
    found: dict[tuple[int, str], _Asked] = {}
    folder = BaseFolder(base)
    for call in calls:
        tool = agent.toolset.tools[call.tool]
        arguments = tool.with_defaults(call.arguments)
        for index, rule in enumerate(agent.spec.skill_policy.ask):
            if fnmatchcase(tool.name, rule.tool) and rule_matches(rule, arguments, tool, folder):
                found.setdefault((index, tool.name), _Asked(index, rule, tool)).calls.append(call)
                break
    return [found[key] for key in sorted(found)]


def _proposal(agent: Agent, asked: _Asked, judge: _Judge) -> tuple[Suggestion | None, RuleEdit | None]:
    approved, others = asked.count("approve"), asked.count(*_OTHERS)
    if asked.count("reject") == len(asked.calls) - asked.count("expired") >= AT_LEAST:
        rule = asked.rule.model_copy(update={"tool": asked.tool.name})
        about: dict[str, Any] = {"covers": others, "becomes": (rule_text(rule),)}
        return _suggestion(agent, asked, "deny", "would have denied all of them", **about), RuleEdit(deny=(rule,))
    if approved < AT_LEAST:
        return None, None
    reason, region = _obstacle(agent, asked), None
    if reason is None:
        made = [call.arguments for call in asked.calls if call.decision == "approve"]
        region = find_region(asked.tool, asked.rule, made, judge.closed(asked.tool.name))
    if region is None:
        return (_kept(agent, asked, reason or "values") if approved > others else None), None
    rules = narrowed(asked.rule, region.outside)
    allow = () if agent.toolset.rules_for(asked.tool.name).allow else (asked.tool.name,)
    about = {"covers": region.calls, "when": dict(region.inside), "becomes": tuple(map(rule_text, rules))}
    outcome = f"would have allowed {region.calls} of them, and nothing that was rejected"
    found = _suggestion(agent, asked, "narrow", outcome, **about)
    return found, RuleEdit(index=asked.index, rules=rules, allow=allow)


def _obstacle(agent: Agent, asked: _Asked) -> Obstacle | None:
    """Return why narrowing a rule is not proposed; None if it may be."""
    tool, limits, rules = asked.tool, agent.spec.runtime_policy, agent.spec.skill_policy
    risk, threshold = RISKS.index(tool.risk), limits.confirm.from_
    if is_glob(asked.rule.tool):
        return "pattern"
    if tool.confirm:
        return "tool"
    if risk > RISKS.index(limits.risk_level) and tool.name not in rules.any_risk:
        return "max_risk"
    if threshold != "never" and risk >= RISKS.index(threshold):
        return "risk"
    later = rules.ask[asked.index + 1 :]
    return "later" if any(fnmatchcase(tool.name, rule.tool) and not rule.when for rule in later) else None


def _suggestion(
    agent: Agent, asked: _Asked, kind: Literal["narrow", "deny", "kept"], outcome: str, **about: Any
) -> Suggestion:
    """Return a suggestion with what was decided, and with its outcome."""
    approved, others, expired = asked.count("approve"), asked.count(*_OTHERS), asked.count("expired")
    people = len({call.by for call in asked.calls if call.decision == ("reject" if kind == "deny" else "approve")})
    made = f"rejected {others}" if kind == "deny" else f"approved {approved}"
    parts = [f"asked {len(asked.calls)}", f"{made} by {people} {'person' if people == 1 else 'people'}"]
    parts += [f"rejected or changed {others}"] if others and kind != "deny" else []
    parts += [f"expired {expired}"] if expired else []
    return Suggestion(
        kind=kind,
        agent=agent.name,
        path=agent.path,
        place=agent.place("skill_policy", "ask", asked.index),
        rule=rule_text(asked.rule),
        tool=asked.tool.name,
        asked=len(asked.calls),
        approved=approved,
        rejected=others,
        expired=expired,
        people=people,
        summary=f"{', '.join(parts)}; {outcome}",
        **about,
    )


def _kept(agent: Agent, asked: _Asked, obstacle: Obstacle, detail: str = "") -> Suggestion:
    limits, tool = agent.spec.runtime_policy, asked.tool
    about = {"rule": asked.rule.tool, "tool": tool.name, "risk": tool.risk, "detail": detail}
    reason = _OBSTACLES[obstacle].format(**about, ceiling=limits.risk_level, threshold=limits.confirm.from_)
    return _suggestion(agent, asked, "kept", f"no rule is proposed: {reason}", obstacle=obstacle)


def _unused(agent: Agent, calls: Iterable[DecidedCall], decided: DecidedCalls, base: Path) -> Iterator[Suggestion]:
    """Yield the ask rules, and the deny rules with conditions, that no call matched.

    A tool that a rule denies without conditions is not offered to the model, so no call of it says anything.
    """
    policy, folder, tools = agent.spec.skill_policy, BaseFolder(base), agent.toolset.tools
    asked = [(call.tool, call.arguments) for call in calls]
    asked += [(tool, arguments) for name, tool, arguments in decided.asked if name == agent.name and tool in tools]

    def is_met(rule: Rule) -> bool:
        matching = ((tools[name], arguments) for name, arguments in asked if fnmatchcase(name, rule.tool))
        return any(rule_matches(rule, tool.with_defaults(given), tool, folder) for tool, given in matching)

    unmet = [("ask", index, rule) for index, rule in enumerate(policy.ask) if not is_met(rule)]
    for index, rule in enumerate(policy.deny):
        if rule.when and not any(f"deny {rule.tool} (" in text for _, text in decided.denied):
            unmet.append(("deny", index, rule))
    for kind, index, rule in unmet:
        yield Suggestion(
            kind="unused",
            agent=agent.name,
            path=agent.path,
            place=agent.place("skill_policy", kind, index),
            rule=rule_text(rule),
            summary=f"no call matched this {kind} rule",
        )


def rule_text(rule: Rule) -> str:
    """Return a rule in one line, as YAML."""
    if not rule.when:
        return rule.tool
    return f"{rule.tool} when {', '.join(f'{name}: {yaml_text(value)}' for name, value in rule.when.items())}"


# --- regions


def find_region(tool: Tool, rule: Rule, approved: Sequence[CallValues], others: Sequence[CallValues]) -> Region | None:
    """Return the largest region of approved calls without any other call; None if it is too small, or there is none.

    Only required arguments may have conditions: a call without an argument meets none, so it would be allowed. The
    conditions of the rule that asked are narrowed, never dropped.
    """
    names = [*_plain_arguments(tool, approved)]
    best: Region | None = None
    for chosen in _subsets(names, approved, others):
        if len(chosen) < AT_LEAST or (best is not None and len(chosen) <= best.calls):
            continue
        region = _region_of(tool, names, rule, chosen)
        if region.outside and not any(is_in_region(region.outside, arguments) for arguments in others):
            best = _simplified(region, tool, others)
    return best


def is_in_region(outside: Outside, arguments: CallValues) -> bool:
    """Return whether a call is in the region: it meets none of the conditions of what is outside."""
    return not any(
        condition_matches(condition, arguments[name])
        for name, conditions in outside.items()
        if name in arguments
        for condition in conditions
    )


def narrowed(rule: Rule, outside: Outside) -> tuple[Rule, ...]:
    """Return rules that together match the calls outside of a region that a rule matches."""
    return tuple(
        rule.model_copy(update={"when": {**rule.when, name: condition}})
        for name, conditions in outside.items()
        for condition in conditions
    )


def _plain_arguments(tool: Tool, approved: Sequence[CallValues]) -> Iterator[str]:
    """Yield the required arguments that are a number, text or boolean in every approved call."""
    required = tool.definition.parameters.get("required", ())
    for name in required:
        if "." not in name and all(isinstance(one.get(name), (str, int, float, bool)) for one in approved):
            yield name


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _subsets(
    names: Sequence[str], approved: Sequence[CallValues], others: Sequence[CallValues]
) -> Iterator[Sequence[CallValues]]:
    """Yield groups of approved calls: all, those between rejected numbers, and those with one value of an argument."""
    yield from _runs(names, approved, others)
    for name in names:
        values = Counter(one[name] for one in approved if isinstance(one[name], (str, bool)))
        for value, count in values.most_common(_MAX_VALUES) if 1 < len(values) <= _MAX_VALUES else ():
            if count >= AT_LEAST:
                group = [one for one in approved if one[name] == value]
                yield from _runs(names, group, [one for one in others if one.get(name) == value])


def _runs(
    names: Sequence[str], approved: Sequence[CallValues], others: Sequence[CallValues]
) -> Iterator[Sequence[CallValues]]:
    """Yield all approved calls, and for each number, those between two neighbours that were not approved."""
    yield approved
    for name in names:
        if not all(_is_number(one[name]) for one in approved):
            continue
        bounds = sorted({float(one[name]) for one in others if _is_number(one.get(name))})
        groups: dict[int, list[CallValues]] = {}
        for one in approved:
            value = float(one[name])
            place = bisect_left(bounds, value)
            if place == len(bounds) or bounds[place] != value:
                groups.setdefault(place, []).append(one)
        yield from sorted(groups.values(), key=len, reverse=True)


def _region_of(tool: Tool, names: Sequence[str], rule: Rule, chosen: Sequence[CallValues]) -> Region:
    """Return what calls have in common, as far as conditions can say it."""
    conditions = {name: _condition(tool, name, rule, [one[name] for one in chosen]) for name in names}
    found = {name: one for name, one in conditions.items() if one}
    outside = {name: one for name, (one, _) in found.items()}
    return Region(outside, {name: text for name, (_, text) in found.items()}, len(chosen))


def _condition(tool: Tool, name: str, rule: Rule, values: Sequence[Any]) -> tuple[tuple[str, ...], str] | None:
    """Return the conditions of values outside of these, and what these have in common in words.

    A start with a slash only counts in arguments that are declared as paths or URLs: `..` leads out of others.
    """
    if all(map(_is_number, values)):
        return _range(rule.when.get(name), min(values), max(values))
    if name in rule.when or not all(isinstance(value, type(values[0])) for value in values):
        return None
    if len({*values}) == 1:
        text = yaml_text(values[0])
        return ((f"!= {text}",), text) if _is_literal(text) else None
    prefix = commonprefix([*values]) if isinstance(values[0], str) else ""  # noqa: RUF071 - of characters
    end = max(map(prefix.rfind, _SEPARATORS)) + 1
    text = prefix[:end]
    is_safe = "/" not in text or location_kind(tool, name) is not None
    return ((f"!= {text}*",), f"{text}…") if end > 1 and is_safe and _is_literal(text) else None


def _range(own: object, low: float, high: float) -> tuple[tuple[str, ...], str] | None:
    """Return the conditions of numbers outside of a range, within those that the rule's own condition matches."""
    first, last = yaml_text(low), yaml_text(high)
    if own is None:
        text = last if low == high else f"{first} to {last}"
        return (f"< {first}", f"> {last}"), text
    if isinstance(own, str) and own.startswith(">"):
        return (f"> {last}",), f"up to {last}"
    if isinstance(own, str) and own.startswith("<") and not own.startswith("<>"):
        return (f"< {first}",), f"{first} or more"
    return None


def _is_literal(text: str) -> bool:
    """Return whether a text means itself in a pattern, and is easily read in a rule."""
    return 0 < len(text) <= _MAX_CHARS and text.isprintable() and text == text.strip() and not is_glob(text)


def _simplified(region: Region, tool: Tool, others: Sequence[CallValues]) -> Region:
    """Return a region without the conditions on prose, if the remaining ones exclude the other calls as well."""
    properties = tool.definition.parameters.get("properties", {})
    for name in [*region.outside]:
        conditions = region.outside[name]
        is_prose = (
            conditions[0].startswith("!= ") and " " in conditions[0][3:] and "enum" not in properties.get(name, {})
        )
        rest = {key: value for key, value in region.outside.items() if key != name}
        if is_prose and rest and not any(is_in_region(rest, arguments) for arguments in others):
            words = {key: text for key, text in region.inside.items() if key != name}
            region = Region(rest, words, region.calls)
    return region
