"""The tools of one agent: which are offered to the model, which rules match each, and a search for them by words."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import filter as filter_names
from fnmatch import fnmatchcase
from itertools import islice
from typing import Literal, NamedTuple, Protocol, get_args

from framework.tools.scripts import RUN_SCRIPT, ScriptFunction, is_function, script_functions, script_prompt
from framework.tools.tool import BY_KEY, Tool, tool
from framework.types.errors import ConfigError, ToolError
from framework.types.messages import ToolDefinition
from framework.types.spec import RISKS, Risk, Rule, SkillPolicy

# A tool is known by its name, the first paragraph of its description and the names of its parameters. A word that few
# tools have counts more, and one in the name counts most. Texts come from servers, so none can win every search by
# being long: a word counts once for each tool, only the first words of a description count, and one server or file
# takes at most half of the places while others have matches.

TOOL_SEARCH = "tool_search"
MAX_FOUND = 10
"""Maximum number of tools that one search finds."""
_MAX_GROUPS = 30
"""Maximum number of groups that are named."""
_MAX_WORDS = 30
"""Maximum number of words of a description, of parameter names, and of a search."""
_IN_NAME, _IN_SUMMARY, _IN_PARAMETERS = 3.0, 2.0, 0.7
_ALIKE = 0.6
"""Weight of a word that only starts alike, such as `repo` for `repository`, or that means the same."""
_MIN_ALIKE = 4
"""Length from which on words that start alike count."""
_OTHERS = "other"
_WORD = re.compile(r"[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STOP = frozenset(
    re.findall(
        "[a-z]+",
        "a about all an and any are as at be by can could do does for from have how i if in into is it its me my of on "
        "or our please so tell than that the their them there these this to tool tools us use using want was we what "
        "when where which who will with would you your",
    )
)
_SAME = (
    "create add new open make insert register submit post write",
    "delete remove erase drop destroy cancel revoke discard",
    "get fetch show read retrieve view lookup find see check look describe detail",
    "list all browse enumerate overview",
    "search find query lookup filter",
    "update edit change modify set patch rename adjust correct",
    "send deliver notify message mail email",
    "copy duplicate clone",
    "move transfer",
    "restore recover undelete",
    "invite share",
    "access permission role",
    "upload import attach",
    "download export",
    "start run launch trigger execute begin",
    "stop halt end cancel terminate abort",
    "enable activate unlock",
    "disable deactivate suspend lock block",
    "assign give allocate grant",
    "user person people member account employee",
    "picture image photo",
    "customer client buyer",
    "money payment pay charge",
    "bill invoice",
    "meeting event appointment",
    "folder directory",
    "file document",
    "answer reply respond comment remark note",
    "bug issue ticket request",
    "holiday vacation leave",
    "parcel package shipment delivery",
    "discount coupon voucher",
    "build workflow pipeline job",
    "restart rerun retry again",
    "reserve book",
    "company organization enterprise account",
    "supplier vendor",
    "error failure incident outage",
    "spreadsheet csv export",
    "follow watch track tail",
    "hide mute silence",
    "publish release online",
)
"""Words that mean nearly the same in names of tools."""


@tool(risk="low", idempotent=True)
async def tool_search(words: str) -> str:
    """Find further tools by what they do; those that are found can be called from the next turn on.

    Args:
        words: What the tool does, in a few words: a verb and a thing, such as `create invoice`.
    """
    raise ToolError(f"the engine searches tools: {words!r}")


def group_of(name: str) -> str:
    """Return the server or file that a tool comes from, such as `mcp.github` for `mcp.github.create_issue`."""
    first, *others = name.split(".")
    return (f"{first}.{others[0]}" if first in ("mcp", "skill") else first) if others else _OTHERS


def with_groups(definition: ToolDefinition, names: Iterable[str]) -> ToolDefinition:
    """Return the definition of `tool_search` that says where tools with these names come from, and how many."""
    counts = Counter(map(group_of, names))
    largest = sorted(counts, key=lambda group: (-counts[group], group))[:_MAX_GROUPS]
    shown = [f"{group} ({counts[group]})" for group in largest]
    more = f", and {len(counts) - _MAX_GROUPS} more" if len(counts) > _MAX_GROUPS else ""
    where = f"Searches {counts.total()} tools of: {', '.join(shown)}{more}." if shown else "There are none at present."
    return definition.model_copy(update={"description": f"{definition.description}\n\n{where}"})


class ToolIndex:
    """The words of tools."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._weights: dict[str, dict[str, float]] = defaultdict(dict)
        """The weight of each word, for each tool that has it, by word and name of the tool."""
        self._lengths: dict[str, int] = {}
        """Number of words in the name of each tool, without those of its group."""
        self._wire_names: dict[str, str] = {}
        for one in tools:
            self._add(one)
        self._beginnings: dict[str, list[str]] = defaultdict(list)
        for word in self._weights:
            self._beginnings[word[:_MIN_ALIKE]].append(word)

    def search(self, words: str, allowed: Collection[str]) -> list[str]:
        """Return the names of the tools that fit best, at most `MAX_FOUND`."""
        wanted = set(islice(dict.fromkeys(_stems(words)), _MAX_WORDS))
        scores: dict[str, float] = defaultdict(float)
        named: Counter[str] = Counter()
        for word in wanted:
            best: dict[str, float] = {}
            for alike, factor in self._alike(word):
                found = self._weights[alike]
                rarity = factor * math.log(1 + len(self._lengths) / len(found))
                for name in found.keys() & allowed:
                    if (score := rarity * found[name]) > best.get(name, 0.0):
                        best[name] = score
            for name, score in best.items():
                scores[name] += score
                named[name] += any(self._weights[one].get(name) == _IN_NAME for one, _ in self._alike(word))
        ranks = {name: score * (1 + min(1.0, named[name] / self._lengths[name])) for name, score in scores.items()}
        ranked = sorted(ranks, key=lambda name: (-ranks[name], len(name), name))
        exact = [name for name in map(self._wire_names.get, words.split()) if name in allowed]
        return _mixed([*dict.fromkeys([*filter(None, exact), *ranked])])

    def _add(self, one: Tool) -> None:
        name, definition = one.name, one.definition
        own = list(_stems(name.removeprefix(f"{group_of(name)}.")))
        self._lengths[name] = max(1, len(set(own)))
        self._wire_names |= {name: name, definition.wire_name: name}
        parameters = " ".join(map(str, islice(definition.parameters.get("properties", {}), _MAX_WORDS)))
        texts = (
            (_IN_PARAMETERS, _stems(parameters)),
            (_IN_SUMMARY, _stems(f"{group_of(name)} {definition.summary}")),
            (_IN_NAME, own),
        )
        for weight, stems in texts:
            for stem in islice(dict.fromkeys(stems), _MAX_WORDS):
                self._weights[stem][name] = weight

    def _alike(self, word: str) -> Iterator[tuple[str, float]]:
        """Yield the known words that a word can mean, each with its weight."""
        if word in self._weights:
            yield word, 1.0
        for same in _SYNONYMS.get(word, ()):
            if same in self._weights:
                yield same, _ALIKE
        if len(word) >= _MIN_ALIKE:
            for other in self._beginnings.get(word[:_MIN_ALIKE], ()):
                if other != word and (other.startswith(word) or word.startswith(other)):
                    yield other, _ALIKE


def _mixed(names: list[str]) -> list[str]:
    """Return the first names: at most half of them from one group, as long as other groups have any."""
    counts: Counter[str] = Counter()
    first, later = list[str](), list[str]()
    for name in names:
        counts[group_of(name)] += 1
        (first if counts[group_of(name)] <= MAX_FOUND // 2 else later).append(name)
    kept = {*first[:MAX_FOUND], *later[: max(0, MAX_FOUND - len(first))]}
    return [name for name in names if name in kept]


def _stems(text: str) -> Iterator[str]:
    """Yield the stems of the words of a text, without frequent words; other scripts in pairs of characters."""
    for word in _WORD.findall(_CAMEL.sub(" ", text).lower()):
        if not word.isascii() and len(word) > 1:
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        elif word not in _STOP:
            yield _stem(word)


def _stem(word: str) -> str:
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + instead
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _synonyms() -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for line in _SAME:
        stems = set(map(_stem, line.split()))
        for stem in stems:
            found[stem] |= stems - {stem}
    return {stem: frozenset(others) for stem, others in found.items()}


_SYNONYMS = _synonyms()


def matching_names(globs: Iterable[str], names: Collection[str]) -> set[str]:
    """Return the names that at least one of the globs matches, as `fnmatch.fnmatchcase` does."""
    found: set[str] = set()
    for glob in globs:
        if any(sign in glob for sign in "*?["):
            found.update(filter_names(names, glob))
        elif glob in names:
            found.add(glob)
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


class ToolRules(NamedTuple):
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
        names = matching_names((*policy.allow, *(rule.tool for rule in policy.ask)), tools.keys())
        names.update([name for name, tool in tools.items() if tool.source in BY_KEY])
        denied = [rule.tool for rule in policy.deny if not rule.is_conditional]
        names -= matching_names(denied, names)
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
        no_names = matching_names(denied, own.keys()) if self.offered else own.keys()
        self.on_demand: Mapping[str, Tool] = {name: tool for name, tool in own.items() if name not in no_names}
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

        In code mode, they do not contain the tools that scripts call. Added tools are left out if they no longer exist,
        or can no longer be searched for.
        """
        first = [tool for name, tool in self.offered.items() if name not in self.deferred]
        on_demand = self.on_demand.keys() - self.offered.keys()
        later = [self.tools[name] for name in added if name in self.tools and (name in searchable or name in on_demand)]
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
        """Return the same tools and rules, offering no more than `names`, for a part of the agent's work.

        None of them is deferred.
        """
        narrowed = copy(self)
        narrowed.offered = {name: tool for name, tool in self.offered.items() if name in names}
        narrowed.deferred, narrowed._index = _NO_NAMES, None
        narrowed._definitions, narrowed.scope = None, scope
        return narrowed

    def without(self, names: Collection[str]) -> Toolset:
        """Return the same tools and rules, not offering those with these names."""
        reduced = copy(self)
        reduced.offered = {name: tool for name, tool in self.offered.items() if name not in names}
        reduced.deferred = self.deferred.difference(names)
        reduced._definitions = reduced._index = None
        return reduced

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

        Only a rule that starts with `client.` does: `*` means the tools of the project. If the project itself has tools
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
        return next((rule for rule in self.rules_for(name).deny if not rule.rule.is_conditional), None)

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
    allowed = matching_names(_listed(allow) or ("*",), {tool.name for tool in tools})
    allowed -= matching_names(_listed(deny), allowed)
    return [tool for tool in tools if tool.name in allowed]


def _listed(patterns: str | Iterable[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())


def index_tools(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by name. Raise ConfigError if two names are equal on the provider's wire."""
    by_name: dict[str, Tool] = {}
    by_wire: dict[str, str] = {}
    for one in tools:
        wire = one.definition.wire_name
        if wire in by_wire:
            same = one.name == by_wire[wire]
            raise ConfigError(
                f"duplicate tool name {one.name!r}"
                if same
                else f"tools {one.name!r} and {by_wire[wire]!r} share the provider name {wire!r}"
            )
        by_name[one.name], by_wire[wire] = one, one.name
    return by_name
