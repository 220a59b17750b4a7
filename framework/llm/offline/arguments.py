"""Arguments for a tool out of a clause: by each parameter's name and JSON Schema type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from framework.llm.offline.words import (
    ACTION_WORDS,
    CJK,
    NUMBER,
    Clause,
    expressions,
    is_file_name,
    word_pattern,
    words,
)
from framework.types.messages import ToolDefinition

_PATHS = frozenset({"path", "file", "filename", "dir", "root", "folder", "directory"})
_DIRECTORIES = frozenset({"dir", "root", "folder", "directory"})
_URLS = frozenset({"url", "uri", "link", "href"})
_EXPRESSIONS = frozenset({"expression", "expr", "formula"})
_TEXTS = frozenset({"text", "message", "content", "body", "input", "prompt", "question", "task", "note"})
_QUERIES = frozenset({"query", "pattern", "keyword", "keywords", "term", "search", "q", "regex", "phrase"})
_QUANTITIES = frozenset({"max", "limit", "count", "num", "number", "size", "top", "n", "k"})
_NEAR = 40
"""Characters: how far around a word is looked, so that long texts take no longer than they must."""
_MODES = frozenset({"operation", "mode", "kind", "view"})
_UNITS = {"行": "line", "条": "result", "个": "result"}
_LINE = words("line")
_COUNTED = words("results, hits, matches, entries, lines, items, rows, records")

_POINTING = re.compile(
    r"\b(?:it|them|(?:that|this|the)\s+(?:(?:first|second|third)\s+)?(?:file|result|match|hit|one))\b"
    r"|\b(?:first|second|third)\s+one\b|它|[该这那](?:个)?文件|第[一二三]个|结果",
    re.IGNORECASE,
)
_FILLER_BEFORE = re.compile(
    r"^(?:[\s:：,，。.?？!！]+|(?:for|all|any|the|an?|of|in|about|up|me|to|files?|documents?|that|which|contain(?:s|ing)?|with"
    r"|mention(?:s|ing)?|named|called|please|first|back|is|text|word|this|today|now)(?![\w-])"
    r"|一下|一遍|包含|含有|关于|名为|名叫|叫做|有关|帮我|今天|现在|的(?:文件|文档)?|文件|文档)",
    re.IGNORECASE,
)
_FILLER_AFTER = re.compile(
    r"(?:[\s:：,，。.?？!！]+|(?<![\w-])(?:in|the|an?|of|please|files?|documents?|for|from|under|to|with|on|at|me"
    r"|directory|folder|today|now)"
    r"|的?(?:日志)?(?:文件|文档|内容)|一下|今天|现在|怎么样|如何|吧|的|里面?|中|(?<!存)在|目录下?|文件夹)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FilledCall:
    """A tool's arguments; how many literals of the clause went into them and how many were left; options it names."""

    arguments: dict[str, Any]
    used: int
    left: int
    options: int


def fill_arguments(tool: ToolDefinition, clause: Clause, earlier: Sequence[str]) -> list[FilledCall]:
    """Every way the clause calls the tool: none when a required parameter stays open, several for several expressions.

    `earlier` are results of tools, the latest first: what "read it" points at.
    """
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    required = [name for name in tool.parameters.get("required", ()) if name in properties]
    sums = [name for name in required if _parts(name) & _EXPRESSIONS]
    filled = (_fill_once(tool, clause, earlier, sum_) for sum_ in (expressions(clause, earlier) if sums else [""]))
    return [one for one in filled if one is not None]


def expand_modes(tool: ToolDefinition, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The call in the tool's first three modes, where it has modes and the arguments name none; else as it is."""
    for name, schema in tool.parameters.get("properties", {}).items():
        if name in _MODES - arguments.keys() and isinstance(schema, dict) and schema.get("enum"):
            return [{**arguments, name: option} for option in schema["enum"][:3]]
    return [arguments]


def _fill_once(tool: ToolDefinition, clause: Clause, earlier: Sequence[str], expression: str) -> FilledCall | None:
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    required = [name for name in tool.parameters.get("required", ()) if name in properties]
    filler = _Filler(tool, clause, earlier, expression)
    arguments: dict[str, Any] = {}
    # A choice comes last: a pattern that was found makes `grep` the fitting one.
    for name in sorted(properties, key=lambda name: (name not in required, "enum" in filler.schema(properties[name]))):
        value = filler.named(name, filler.schema(properties[name]), name in required)
        if value is not None:
            arguments[name] = value
    for name in required:
        if name not in arguments and filler.schema(properties[name]).get("type") == "string":
            arguments[name] = filler.from_rest(name)
        if name not in arguments or arguments[name] == "":
            return None
    left = 0 if filler.took_all else max(0, clause.literals - len(filler.used))
    arguments = {name: arguments[name] for name in properties if name in arguments}
    return FilledCall(arguments, len(filler.used), left, filler.options)


class _Filler:
    """Hands the parts of one clause out to one call; each part once."""

    def __init__(self, tool: ToolDefinition, clause: Clause, earlier: Sequence[str], expression: str) -> None:
        self.tool, self.clause, self.earlier, self.expression = tool, clause, earlier, expression
        self.names = words(tool.name)
        self.rest = clause.plain
        self.used: set[str] = set()
        self.took_all = False
        self.searches = False
        self.options = 0

    def schema(self, spec: Any) -> dict[str, Any]:
        """The part of a schema that decides: references resolved, the first alternative that is not null."""
        for _ in range(5):
            if not isinstance(spec, dict):
                break
            inner = next((spec[key] for key in ("anyOf", "oneOf", "allOf") if spec.get(key)), None)
            if inner is not None:
                spec = next((one for one in inner if isinstance(one, dict) and one.get("type") != "null"), {})
            elif isinstance(reference := spec.get("$ref"), str):
                spec = self.tool.parameters.get("$defs", {}).get(reference.rpartition("/")[2], {})
            else:
                break
        if not isinstance(spec, dict):
            return {}
        if isinstance(kinds := spec.get("type"), list):
            return {**spec, "type": next((kind for kind in kinds if kind != "null"), None)}
        return dict(spec)

    def named(self, name: str, schema: dict[str, Any], required: bool) -> Any:
        """A value that the clause names for this parameter; None for none."""
        if "const" in schema:
            return schema["const"] if required else None
        if schema.get("enum"):
            return self._option(schema["enum"])
        match schema.get("type"):
            case "integer" | "number":
                return self._number(name, schema["type"] == "integer", required)
            case "boolean":
                return self._switch(name, required)
            case "array":
                return self._list(self.schema(schema.get("items", {})).get("type"))
            case "string":
                return self._string(_parts(name), required)
        return None

    def from_rest(self, name: str) -> str:
        """What the clause says besides, for a required text nothing was named for; empty for nothing."""
        parts = _parts(name)
        if parts & (_PATHS | _URLS | _EXPRESSIONS):
            return ""
        if parts & _TEXTS:
            self.took_all = True
            whole = self.tool.name.startswith("agent.")
            text = self.clause.text if whole else self._after_verb(self.clause.text, _unpadded)
            return text.strip(" :：")
        if parts & {"id", "number", "no", "code", "key"}:
            found = re.search(r"(?<![\w])[#A-Za-z_-]{0,40}[0-9][\w-]*", self.rest, re.ASCII)
            if found is None:
                return ""
            self.rest = self.rest.replace(found[0], " ", 1)
            return found[0].lstrip("#")
        text, self.rest = self._after_verb(self.rest, _bare), ""
        own = word_pattern(words(name)).match(text)
        return (_bare(text[own.end() :]) if own else "") or text

    def _string(self, parts: frozenset[str], required: bool) -> str | None:
        if parts & _EXPRESSIONS:
            self.used.update(self.clause.lists, [self.expression])
            return self.expression if required else None
        if parts & _URLS:
            return self._take(self.clause.urls)
        if parts & _PATHS:
            return self._path(parts, required)
        if not required and not parts & (_TEXTS | _QUERIES):
            return None
        quoted = self._take(self.clause.quoted)
        self.searches = self.searches or (quoted is not None and bool(parts & _QUERIES))
        return quoted

    def _path(self, parts: frozenset[str], required: bool) -> str | None:
        paths = self.clause.paths
        if parts & _DIRECTORIES and not parts & {"file", "path"}:
            paths = tuple(path for path in paths if not is_file_name(path))
        path = self._take(paths)
        if path is not None:
            return path
        if required:
            return self._take(self.clause.quoted) or self._pointed_at() or self._bare_name(capital=True)
        return self._bare_name(capital=False) if "dir" in self.names else None

    def _pointed_at(self) -> str | None:
        pointing = _POINTING.search(self.rest)
        if pointing is None:
            return None
        word = pointing[0].lower()
        place = 1 if re.search("second|二", word) else 2 if re.search("third|三", word) else 0
        for result in self.earlier:
            found = re.findall(r"(?<![\w/.-])[A-Za-z0-9_./-]*\.[A-Za-z]\w{0,7}\b", result, re.ASCII)
            paths = list(dict.fromkeys(path for path in found if is_file_name(path)))
            if paths:
                return paths[place] if place < len(paths) else None
        return None

    def _bare_name(self, capital: bool) -> str | None:
        own = self.names | {"file", "dir", "list", "read", "search"}
        names = [name for name in re.findall(r"[A-Za-z][\w-]*", self.rest, re.ASCII) if words(name) - own]
        names = [name for name in names if name[0].isupper()] if capital else names
        return self._take(names) if len(names) == 1 else None

    def _take(self, literals: Sequence[str]) -> str | None:
        literal = next((literal for literal in literals if literal not in self.used), None)
        if literal is not None:
            self.used.add(literal)
        return literal

    def _option(self, options: Sequence[Any]) -> Any:
        said = (self.clause.words - ACTION_WORDS) | ({"search"} if self.searches else frozenset())
        plain = re.findall(r"[a-z0-9_-]+", self.clause.plain.lower())
        texts = [option for option in options if isinstance(option, str)]
        literal = [option for option in texts if option.lower() in plain]
        meant = [option for option in texts if words(option) and words(option) <= said]
        chosen = next(iter(literal or meant), None)
        if literal:
            self.rest = re.sub(re.escape(literal[0]), " ", self.rest, count=1, flags=re.IGNORECASE)
        self.options += chosen is not None
        return chosen

    def _number(self, name: str, whole: bool, required: bool) -> int | float | None:
        numbers = [n for n in NUMBER.finditer(self.rest) if not whole or "." not in n[0]]
        found = next(
            (n for n in numbers if _is_named(name, self.rest, n)), numbers[0] if required and numbers else None
        )
        if found is None:
            return None
        before = re.search(
            r"[A-Za-z_]*[\s:=]*$" if _parts(name) & _QUANTITIES else r"$",
            self.rest[max(0, found.start() - _NEAR) : found.start()],
        )
        start = found.start() - (len(before[0]) if before and words(before[0]) & words(name) else 0)
        self.rest = self.rest[:start] + " " + self.rest[found.end() :]
        return int(found[0]) if whole or "." not in found[0] else float(found[0])

    def _switch(self, name: str, required: bool) -> bool | None:
        if required:
            return not re.search(r"\b(?:no|not|off|false|without|disable)\b|不|关闭", self.clause.plain, re.IGNORECASE)
        return True if words(name) and words(name) <= self.clause.words else None

    def _list(self, items: str | None) -> list[Any] | None:
        if items == "string":
            quoted = [quote for quote in self.clause.quoted if quote not in self.used]
            self.used.update(quoted)
            return quoted or None
        numbers = self._take(self.clause.lists)
        if numbers is None or items not in ("integer", "number", None):
            return None
        whole = [NUMBER.fullmatch(number) is not None and "." not in number for number in numbers.split(",")]
        if all(whole):
            return [int(number) for number in numbers.split(",")]
        return None if items == "integer" else [float(number) for number in NUMBER.findall(numbers)] or None

    def _after_verb(self, text: str, cleaned: Callable[[str], str]) -> str:
        """What stands after the word the tool is named by; what stands before it, when that is the end."""
        verb = word_pattern(self.names).search(text)
        if verb is None:
            return cleaned(text)
        return cleaned(text[verb.end() :]) or cleaned(text[: verb.start()])


def _parts(name: str) -> frozenset[str]:
    return frozenset(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_").split("_"))


def _is_named(name: str, text: str, number: re.Match[str]) -> bool:
    """Whether the word before a number, or for a quantity the one after it, is the parameter's."""
    own, parts = words(name), _parts(name)
    before = re.search(r"(\S+)[\s:=]*$", text[max(0, number.start() - _NEAR) : number.start()])
    if before and words(before[1]) & (own - _LINE if parts & _QUANTITIES else own):
        return True
    after = re.match(r"\s*([行条个]|[A-Za-z]+)", text[number.end() :])
    if after is None or not parts & _QUANTITIES:
        return False
    unit = words(_UNITS.get(after[1], after[1]))
    others = own - _QUANTITIES
    return bool(unit & (others or _COUNTED))


def _unpadded(text: str) -> str:
    return re.sub(r"^(?:\s*(?:[:：,，]|一下|一遍|back\b))*\s*", "", text, flags=re.IGNORECASE).strip()


def _bare(text: str) -> str:
    """The text without filler words at its ends."""
    before = None
    while before != text:
        before = text
        text = _FILLER_BEFORE.sub("", text.strip()).strip()
        text = text[:-_NEAR] + _FILLER_AFTER.sub("", text[-_NEAR:])
    return text if CJK.search(text) or re.search(r"\w", text) else ""
