"""Which tools an agent is offered: its rules matched against all tools, once per generation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Protocol, get_args

from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.messages import ToolDefinition
from framework.types.spec import RISKS, Risk, Rule, SkillPolicy

RuleKind = Literal["deny", "ask", "allow"]
_RULE_KINDS: tuple[RuleKind, ...] = get_args(RuleKind)
_NO_NAMES: frozenset[str] = frozenset()


class RulesFile(Protocol):
    """A file that knows its places."""

    def place(self, path: tuple[str | int, ...]) -> str:
        """`file:line` of a key, such as `("skill_policy", "deny", 0)`."""
        ...


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


class Toolset:
    """The tools of one agent. `offered` is what the model sees; everything else is denied if it is asked for.

    It holds little: projects have thousands, and all of it is looked through by each garbage collection.
    """

    __slots__ = ("_definitions", "_policy", "_rules", "_source", "blocked", "offered", "scope", "tools")

    def __init__(
        self,
        tools: Mapping[str, Tool],
        policy: SkillPolicy,
        *,
        risk_level: Risk,
        source: RulesFile | None = None,
        blocked: Collection[str] = (),
    ) -> None:
        """Match a policy with all tools there are.

        Args:
            tools: by name.
            policy: which of them.
            risk_level: tools above it are not offered.
            source: the file that the policy stands in.
            blocked: tools that are not offered whatever the rules say.
        """
        always_denied = [rule.tool for rule in policy.deny if not rule.when]
        wanted = [*policy.allow, *(rule.tool for rule in policy.ask)]
        ceiling = RISKS.index(risk_level)
        self._policy, self._source = policy, source
        self._rules: dict[str, ToolRules] = {}
        """Of the tools that were asked about."""
        self.tools, self.blocked = tools, frozenset(blocked) if blocked else _NO_NAMES
        self.offered: Mapping[str, Tool] = {
            name: tool
            for name, tool in tools.items()
            if name not in blocked
            and (tool.source == "agent" or _matches_any(name, wanted))
            and not _matches_any(name, always_denied)
            and RISKS.index(tool.risk) <= ceiling
        }
        self._definitions: tuple[ToolDefinition, ...] | None = None
        self.scope = ""
        """What these tools are narrowed to, if they are."""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What models are told of the tools on offer: the very same list each time, once it was asked for."""
        if self._definitions is None:
            self._definitions = tuple(tool.definition for tool in self.offered.values())
        return self._definitions

    def narrowed(self, names: Collection[str], scope: str) -> Toolset:
        """The same tools under the same rules, with no more than these offered, for a part of the agent's work."""
        narrowed = copy(self)
        narrowed.offered = {name: tool for name, tool in self.offered.items() if name in names}
        narrowed._definitions, narrowed.scope = None, scope
        return narrowed

    def by_wire_name(self, name: str) -> Tool | None:
        """The tool, offered or not, that providers would know by this name."""
        return next((tool for tool in self.tools.values() if tool.definition.wire_name == name), None)

    def rules_for(self, name: str) -> ToolRules:
        """The rules that match this tool, offered or not."""
        known = self._rules.get(name)
        if known is None:
            deny, ask, allow = (
                tuple(rule for rule in self._placed(kind) if fnmatchcase(name, rule.rule.tool)) for kind in _RULE_KINDS
            )
            self._rules[name] = known = ToolRules(deny, ask, allow[0] if allow else None)
        return known

    def matches(self) -> list[tuple[PlacedRule, tuple[str, ...]]]:
        """Each rule, with the tools there are that it matches, offered or not."""
        placed = [rule for kind in _RULE_KINDS for rule in self._placed(kind)]
        return [(rule, tuple(name for name in self.tools if fnmatchcase(name, rule.rule.tool))) for rule in placed]

    def unconditional_deny(self, name: str) -> PlacedRule | None:
        """The rule that denies a tool whatever its arguments."""
        return next((rule for rule in self.rules_for(name).deny if not rule.rule.when), None)

    def _placed(self, kind: RuleKind) -> list[PlacedRule]:
        policy = self._policy
        if kind == "allow":
            rules: Sequence[Rule] = [Rule(tool=pattern) for pattern in policy.allow]
        else:
            rules = policy.deny if kind == "deny" else policy.ask
        return [PlacedRule(kind, rule, self._place(kind, index)) for index, rule in enumerate(rules)]

    def _place(self, kind: RuleKind, index: int) -> str:
        if self._source is None:
            return f"skill_policy.{kind}[{index}]"
        return self._source.place(("skill_policy", kind, index))


def filter_tools(
    tools: Iterable[Tool], allow: str | Iterable[str] | None = None, deny: str | Iterable[str] = ()
) -> list[Tool]:
    """Pick tools by name or glob: `allow=None` (or empty) means all, a deny beats an allow."""
    allowed, denied = _listed(allow) or ("*",), _listed(deny)
    return [tool for tool in tools if _matches_any(tool.name, allowed) and not _matches_any(tool.name, denied)]


def _matches_any(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _listed(patterns: str | Iterable[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())


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
