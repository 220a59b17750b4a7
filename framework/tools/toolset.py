"""The tools of one agent: which are offered to the model, and which rules match each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Protocol, get_args

from framework.tools.script_functions import (
    RUN_SCRIPT,
    ScriptFunction,
    is_function,
    script_functions,
    script_prompt,
)
from framework.tools.tool import Tool
from framework.tools.tool_search import TOOL_SEARCH, ToolIndex, with_groups
from framework.types.errors import ConfigError
from framework.types.messages import ToolDefinition
from framework.types.spec import RISKS, Risk, Rule, SkillPolicy


class Globs:
    """A set of globs, each equal to `fnmatch.fnmatchcase`: `*`, `?` and `[…]` over the whole name.

    `name`, `prefix*`, `*suffix` and `*infix*` are compared as text: all globs of the first three kinds together.
    """

    __slots__ = ("_exact", "_infixes", "_others", "_prefixes", "_suffixes")

    def __init__(self, globs: Iterable[str]) -> None:
        kinds: tuple[list[str], ...] = [], [], [], [], []
        exact, prefixes, suffixes, infixes, others = kinds
        for glob in globs:
            begins, ends, literal = glob.startswith("*"), glob.endswith("*"), glob.strip("*")
            if "*" in literal or "?" in literal or "[" in literal:
                others.append(glob)
            elif ends:
                (infixes if begins and literal else prefixes).append(literal)
            else:
                (suffixes if begins else exact).append(literal)
        self._exact, self._prefixes, self._suffixes = frozenset(exact), tuple(prefixes), tuple(suffixes)
        self._infixes, self._others = tuple(infixes), tuple(others)

    def matching(self, names: Collection[str]) -> set[str]:
        """Return the names that at least one of the globs matches."""
        found: set[str] = set(self._exact.intersection(names)) if self._exact else set()
        if prefixes := self._prefixes:
            found.update([name for name in names if name.startswith(prefixes)])
        if suffixes := self._suffixes:
            found.update([name for name in names if name.endswith(suffixes)])
        if self._infixes or self._others:
            left = [name for name in names if name not in found] if found else names
            everything = "\n".join(left)  # what it does not contain, no name does
            for infix in self._infixes:
                if infix in everything:
                    found.update([name for name in left if infix in name])
            for glob in self._others:
                found.update([name for name in left if fnmatchcase(name, glob)])
        return found


RuleKind = Literal["deny", "ask", "allow"]
_RULE_KINDS: tuple[RuleKind, ...] = get_args(RuleKind)
CLIENT = "client."
"""Beginning of the names of tools that the client of a run executes."""
_NO_NAMES: frozenset[str] = frozenset()
_SPECIAL_TOKEN = re.compile(r"<[|｜][^<>]*[|｜]>")
"""A special token of a chat template, such as `<|channel|>`, which servers leave in the names of tools."""
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")
_ADDED = re.compile(r"^(?:(?:functions?|default_api|tools?|mcp)[._:/]+)+|:\d+$")
"""A namespace before the name of a tool, or a counter after it, which only chat templates and models add."""
_MAX_REPAIRED_CHARS = 256
"""A longer name is not repaired."""


class RulesFile(Protocol):
    """A file that can locate its keys."""

    def place(self, path: tuple[str | int, ...]) -> str:
        """Return `file:line` of a key, such as `("skill_policy", "deny", 0)`."""
        ...


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """A rule and its place in the agent file."""

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
    """The tools of one agent. The model is offered those in `offered`; calls of any other tool are denied.

    Projects have thousands of toolsets, so they store little: each garbage collection traverses them.
    """

    __slots__ = (
        *("_definitions", "_functions", "_index", "_placed_rules", "_policy", "_rules", "_source"),
        *("blocked", "deferred", "offered", "on_demand", "scope", "tools"),
    )

    def __init__(
        self,
        tools: Mapping[str, Tool],
        policy: SkillPolicy,
        *,
        risk_level: Risk,
        source: RulesFile | None = None,
        blocked: Collection[str] = (),
    ) -> None:
        """Match a policy against all tools.

        Args:
            tools: all tools, by name.
            policy: the rules of the agent.
            risk_level: highest risk of tools to offer, except for those that the policy offers at any risk.
            source: file that contains the policy.
            blocked: names of tools that are not offered, regardless of the rules.
        """
        names = Globs((*policy.allow, *(rule.tool for rule in policy.ask))).matching(tools.keys())
        names.update([name for name, tool in tools.items() if tool.source in ("agent", "a2a", "code", "skills")])
        names -= Globs(rule.tool for rule in policy.deny if not rule.when).matching(names)
        names.difference_update(blocked)
        own = {name: tool for name, tool in tools.items() if tool.source == "run"}
        names -= own.keys() - (set(policy.allow) - {TOOL_SEARCH})
        risks, lifted = RISKS[: RISKS.index(risk_level) + 1], {*policy.any_risk, *policy.any_risk_if_asked}
        self._policy, self._source = policy, source
        self._rules: dict[str, ToolRules] = {}
        """Cache of `rules_for`."""
        self._placed_rules: dict[RuleKind, list[PlacedRule]] = {}
        """Cache of `_placed`: finding a line takes longer than matching a rule."""
        self.tools, self.blocked = tools, frozenset(blocked) if blocked else _NO_NAMES
        self.offered: Mapping[str, Tool] = {
            name: tool for name, tool in tools.items() if name in names and (tool.risk in risks or name in lifted)
        }
        denied = Globs(rule.tool for rule in policy.deny if not rule.when).matching(own.keys())
        self.on_demand: Mapping[str, Tool] = {
            name: tool for name, tool in own.items() if self.offered and name not in denied
        }
        """Tools that a run adds to its requests when it needs them: `result.read` once a result was cut. They are in
        `offered`, too, and in each request, if `allow` names them without a wildcard."""
        self.deferred: frozenset[str] = _NO_NAMES
        """Names of offered tools that requests do not contain until the model has found them with `tool_search`."""
        self._index: ToolIndex | None = None
        self._functions: Mapping[str, ScriptFunction] | None = None
        self._definitions: tuple[ToolDefinition, ...] | None = None
        self.scope = ""
        """The part of the agent's work that the toolset was narrowed to, for messages; empty otherwise."""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Definitions of the tools in a run's first request: the offered ones that are not deferred.

        Returns the same object each time.
        """
        if self._definitions is None:
            self._definitions = self.first_definitions(self.deferred)
        return self._definitions

    def first_definitions(self, searchable: Collection[str], added: Iterable[str] = ()) -> tuple[ToolDefinition, ...]:
        """Return `definitions` for a run in which the tools with these names can be searched for, then added ones.

        In code mode, they do not contain the tools that scripts call. Added tools that no longer exist are left out.
        """
        first = [tool for name, tool in self.offered.items() if name not in self.deferred]
        later = [self.tools[name] for name in added if name in self.tools]
        return tuple(
            with_groups(tool.definition, searchable) if tool.name == TOOL_SEARCH else tool.definition
            for tool in (*first, *later)
            if not (self.in_code_mode and is_function(tool))
        )

    @property
    def in_code_mode(self) -> bool:
        """Whether scripts call the tools."""
        return RUN_SCRIPT in self.offered

    @property
    def functions(self) -> Mapping[str, ScriptFunction]:
        """All tools that scripts call, offered or not, by the names of their functions. Built on first access."""
        if self._functions is None:
            self._functions = script_functions(self.tools.values())
        return self._functions

    def code_prompt(self) -> str:
        """Return the part of the system prompt about the functions of scripts; empty without code mode."""
        if not self.in_code_mode:
            return ""
        shown = self.offered.keys() - self.deferred
        return script_prompt(function for function in self.functions.values() if function.tool in shown)

    def is_deferred(self, name: str) -> bool:
        """Return whether the model may call a tool that the first request of a run does not contain."""
        return name in self.deferred or (name in self.on_demand and name != TOOL_SEARCH and name not in self.offered)

    def deferring(self, names: Collection[str]) -> Toolset:
        """Return the same tools and rules; of the offered ones, the model must find those with these names first.

        `tool_search` is offered, unless a rule denies it.
        """
        deferring = copy(self)
        deferring.deferred = frozenset(name for name in self.offered if name in names)
        if deferring.deferred and (search := self.on_demand.get(TOOL_SEARCH)):
            deferring.offered = {**self.offered, TOOL_SEARCH: search}
        deferring._definitions = deferring._index = None
        return deferring

    def find_deferred(self, words: str, allowed: Collection[str]) -> list[str]:
        """Return the names of the deferred tools that fit words best, of those that are allowed.

        The first call takes about 30 µs for each tool.
        """
        if self._index is None:
            self._index = ToolIndex(self.offered[name] for name in self.deferred)
        return self._index.search(words, allowed)

    def narrowed(self, names: Collection[str], scope: str) -> Toolset:
        """Return the same tools and rules, offering no more than `names`, for a part of the agent's work."""
        narrowed = copy(self)
        narrowed.offered = {name: tool for name, tool in self.offered.items() if name in names}
        narrowed.deferred, narrowed._index = _NO_NAMES, None
        narrowed._definitions, narrowed.scope = None, scope
        return narrowed

    def by_wire_name(self, name: str) -> Tool | None:
        """Return the tool with this name on the provider's wire, offered or not, or None."""
        return next((tool for tool in self.tools.values() if tool.definition.wire_name == name), None)

    def by_misspelt_name(self, name: str) -> Tool | None:
        """Return the tool that a model may call and meant by an unknown name, or None unless exactly one remains.

        Chat templates and models add special tokens, namespaces such as `functions.`, counters such as `:0`, blanks
        and capital letters.
        """
        if len(name) > _MAX_REPAIRED_CHARS:
            return None
        recipient = _RECIPIENT.search(name)
        parts = _SPECIAL_TOKEN.split(recipient[1] if recipient else name)
        bare = next((text.strip() for text in parts if text.strip()), "")
        wanted = {bare.casefold(), _ADDED.sub("", bare).casefold()}
        found = [
            tool
            for tool in ({**self.on_demand, **self.offered}).values()
            if tool.name.casefold() in wanted or tool.definition.wire_name.casefold() in wanted
        ]
        return found[0] if len(found) == 1 else None

    def rules_for(self, name: str) -> ToolRules:
        """Return the rules that match a tool, offered or not."""
        known = self._rules.get(name)
        if known is None:
            deny, ask, allow = (
                tuple(rule for rule in self._placed(kind) if fnmatchcase(name, rule.rule.tool)) for kind in _RULE_KINDS
            )
            known = ToolRules(deny, ask, allow[0] if allow else None)
            if name in self.tools:  # clients choose the names of their own tools
                self._rules[name] = known
        return known

    def client_rule(self, name: str) -> PlacedRule | None:
        """Return the rule that offers a tool of a client, `client.NAME`, to the model: an `allow` rule before `ask`.

        Only a rule that begins with `client.` does: `*` means the tools of the project. If the project itself has tools
        with that prefix, its rules mean those.
        """
        if any(own.startswith(CLIENT) and tool.source != "client" for own, tool in self.tools.items()):
            return None
        rules = (rule for kind in ("allow", "ask") for rule in self._placed(kind) if rule.rule.tool.startswith(CLIENT))
        return next((rule for rule in rules if fnmatchcase(name, rule.rule.tool)), None)

    def with_client_tools(self, tools: Iterable[Tool]) -> Toolset:
        """Return the toolset with the tools of a client, as far as the rules offer them.

        Those whose name the project uses itself are left out.
        """
        own = {*self.tools, *(tool.definition.wire_name for tool in self.tools.values())}
        extended = copy(self)
        offered = {
            tool.name: tool
            for tool in tools
            if tool.definition.wire_name not in own
            and (tool.allowed_by or self.client_rule(tool.name))
            and not self.unconditional_deny(tool.name)
        }
        extended.tools, extended.offered = {**self.tools, **offered}, {**self.offered, **offered}
        extended._rules, extended._definitions = {}, None
        return extended

    def matches(self) -> list[tuple[PlacedRule, tuple[str, ...]]]:
        """Return each rule with the names of the tools that it matches, offered or not."""
        placed = [rule for kind in _RULE_KINDS for rule in self._placed(kind)]
        return [(rule, tuple(name for name in self.tools if fnmatchcase(name, rule.rule.tool))) for rule in placed]

    def unconditional_deny(self, name: str) -> PlacedRule | None:
        """Return the rule that denies a tool regardless of its arguments, or None."""
        return next((rule for rule in self.rules_for(name).deny if not rule.rule.when), None)

    def _placed(self, kind: RuleKind) -> list[PlacedRule]:
        if (known := self._placed_rules.get(kind)) is not None:
            return known
        policy = self._policy
        if kind == "allow":
            rules: Sequence[Rule] = [Rule(tool=pattern) for pattern in policy.allow]
        else:
            rules = policy.deny if kind == "deny" else policy.ask
        placed = [PlacedRule(kind, rule, self._place(kind, index)) for index, rule in enumerate(rules)]
        self._placed_rules[kind] = placed
        return placed

    def _place(self, kind: RuleKind, index: int) -> str:
        if self._source is None:
            return f"tools.{kind}[{index}]"
        return self._source.place(("skill_policy", kind, index))


def filter_tools(
    tools: Iterable[Tool], allow: str | Iterable[str] | None = None, deny: str | Iterable[str] = ()
) -> list[Tool]:
    """Select tools by name or glob. `allow=None` or empty means all; `deny` takes precedence over `allow`."""
    tools = list(tools)
    allowed = Globs(_listed(allow) or ("*",)).matching([tool.name for tool in tools])
    allowed -= Globs(_listed(deny)).matching(allowed)
    return [tool for tool in tools if tool.name in allowed]


def _listed(patterns: str | Iterable[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())


def index_tools(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by name. Raise ConfigError if two names are equal on the provider's wire."""
    by_name: dict[str, Tool] = {}
    by_wire: dict[str, str] = {}
    for tool in tools:
        wire = tool.definition.wire_name
        if wire in by_wire:
            same = tool.name == by_wire[wire]
            raise ConfigError(
                f"duplicate tool name {tool.name!r}"
                if same
                else f"tools {tool.name!r} and {by_wire[wire]!r} share the provider name {wire!r}"
            )
        by_name[tool.name], by_wire[wire] = tool, tool.name
    return by_name
