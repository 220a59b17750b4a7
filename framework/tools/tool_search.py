"""Finds tools by words: those that an agent may call and that its requests do not contain from the beginning.

A tool is known by its name, the first paragraph of its description and the names of its parameters. A word that few
tools have counts more, and one in the name counts most. Texts come from servers, so none can win every search by being
long: a word counts once for each tool, only the first words of a description count, and one server or file takes at
most half of the places while others have matches.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from framework.tools.tool import Tool, tool
from framework.types.errors import ToolError
from framework.types.messages import ToolDefinition

TOOL_SEARCH = "tool_search"
MAX_FOUND = 10
"""Maximum number of tools that one search finds."""
_MAX_GROUPS = 30
"""Maximum number of groups that are named."""
_MAX_WORDS = 30
"""Maximum number of words of a description, of parameter names, and of a search."""
_IN_NAME, _IN_SUMMARY, _IN_PARAMETERS = 3.0, 2.0, 0.7
_ALIKE = 0.6
"""Weight of a word that only begins alike, such as `repo` for `repository`, or that means the same."""
_MIN_ALIKE = 4
"""Length from which on words that begin alike count."""
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
        """Return the names of the tools that fit best, at most `MAX_FOUND`.

        Args:
            words: what the tool does, or its name.
            allowed: the names of tools that may be found.
        """
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
