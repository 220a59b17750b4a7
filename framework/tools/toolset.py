"""Which tools an agent is offered: its rules matched against all tools, once per generation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Literal

from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.messages import ToolDefinition
from framework.types.spec import RISKS, Risk, Rule, SkillPolicy

RuleKind = Literal["deny", "ask", "allow"]


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """A rule and where it stands."""

    kind: RuleKind
    rule: Rule
    place: str
    """`file:line`."""

    def __str__(self) -> str:
        return f"{self.kind} {self.rule.tool} ({self.place})"


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The rules whose pattern matches one tool, in the order of the file."""

    deny: tuple[PlacedRule, ...]
    ask: tuple[PlacedRule, ...]
    allow: PlacedRule | None


class Patterns:
    """Globs compiled into one expression, and singly to find the one that matched."""

    def __init__(self, rules: Sequence[PlacedRule]) -> None:
        self._rules = tuple((re.compile(translate(rule.rule.tool)).match, rule) for rule in rules)
        self._any = re.compile("|".join(translate(rule.rule.tool) for rule in rules) or r"(?!)").match

    def match(self, name: str) -> bool:
        """Does any of them match?"""
        return self._any(name) is not None

    def matching(self, name: str) -> tuple[PlacedRule, ...]:
        """All that match."""
        return tuple(rule for matches, rule in self._rules if matches(name))

    def reach(self, names: Iterable[str]) -> list[tuple[PlacedRule, tuple[str, ...]]]:
        """Each rule, with those of the names that it matches."""
        names = tuple(names)
        return [(rule, tuple(name for name in names if matches(name))) for matches, rule in self._rules]


class Toolset:
    """The tools of one agent. `offered` is what the model sees; everything else is denied if it is asked for."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        policy: SkillPolicy,
        *,
        risk_level: Risk,
        place: Callable[[RuleKind, int], str] = lambda kind, index: f"skill_policy.{kind}[{index}]",
    ) -> None:
        rules = {kind: _placed(kind, policy, place) for kind in ("deny", "ask", "allow")}
        self._deny, self._ask, self._allow = (Patterns(rules[kind]) for kind in ("deny", "ask", "allow"))
        always_denied = Patterns([rule for rule in rules["deny"] if not rule.rule.when])
        ceiling = RISKS.index(risk_level)
        self.tools = tools
        self.offered: Mapping[str, Tool] = {
            name: tool
            for name, tool in tools.items()
            if (tool.source == "agent" or self._allow.match(name) or self._ask.match(name))
            and not always_denied.match(name)
            and RISKS.index(tool.risk) <= ceiling
        }
        self.definitions: tuple[ToolDefinition, ...] = tuple(tool.definition for tool in self.offered.values())
        self._rules = {name: self._rules_of(name) for name in self.offered}

    def rules_for(self, name: str) -> ToolRules:
        """The rules that match this tool, offered or not."""
        return self._rules.get(name) or self._rules_of(name)

    def reach(self) -> list[tuple[PlacedRule, tuple[str, ...]]]:
        """Each rule, with the tools there are that it matches, offered or not."""
        return [pair for patterns in (self._deny, self._ask, self._allow) for pair in patterns.reach(self.tools)]

    def always_denying(self, name: str) -> PlacedRule | None:
        """The rule that denies a tool whatever its arguments."""
        return next((rule for rule in self._deny.matching(name) if not rule.rule.when), None)

    def _rules_of(self, name: str) -> ToolRules:
        allow = self._allow.matching(name)
        return ToolRules(self._deny.matching(name), self._ask.matching(name), allow[0] if allow else None)


def _placed(kind: RuleKind, policy: SkillPolicy, place: Callable[[RuleKind, int], str]) -> list[PlacedRule]:
    if kind == "allow":
        rules: Sequence[Rule] = [Rule(tool=pattern) for pattern in policy.allow]
    else:
        rules = policy.deny if kind == "deny" else policy.ask
    return [PlacedRule(kind, rule, place(kind, index)) for index, rule in enumerate(rules)]


def filter_tools(
    tools: Iterable[Tool], allow: str | Iterable[str] | None = None, deny: str | Iterable[str] = ()
) -> list[Tool]:
    """Pick tools by name or glob: `allow=None` (or empty) means all, a deny beats an allow."""
    allowed, denied = _globs(_listed(allow) or ("*",)), _globs(_listed(deny))
    return [tool for tool in tools if allowed.match(tool.name) and not denied.match(tool.name)]


def _listed(patterns: str | Iterable[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())


def _globs(patterns: Iterable[str]) -> Patterns:
    return Patterns([PlacedRule("allow", Rule(tool=pattern), "") for pattern in patterns])


def index_tools(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Tools by name; raises ConfigError where two names are equal on the provider's wire."""
    by_name: dict[str, Tool] = {}
    by_wire: dict[str, str] = {}
    for tool in tools:
        wire = tool.definition.wire_name
        if wire in by_wire:
            same = tool.name == by_wire[wire]
            raise ConfigError(
                f"two tools are named {tool.name!r}"
                if same
                else f"{tool.name!r} and {by_wire[wire]!r} are both {wire!r} on the wire"
            )
        by_name[tool.name], by_wire[wire] = tool, tool.name
    return by_name
