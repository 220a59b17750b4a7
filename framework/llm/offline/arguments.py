"""Fills a tool's arguments from a clause, by each parameter's name and JSON Schema type."""

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
"""Characters searched around a word, so that the time for long texts stays linear."""
_MODES = frozenset({"operation", "mode", "kind", "view"})
_UNITS = {"行": "line", "条": "result", "个": "result"}
_LINE = words("line")
_COUNTED = words("results, hits, matches, entries, lines, items, rows, records")

_REFERENCE = re.compile(
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
    """A tool's arguments, the number of the clause's literals used and unused, and of the options it names."""

    arguments: dict[str, Any]
    used: int
    unused: int
    options: int


def fill_arguments(tool: ToolDefinition, clause: Clause, earlier: Sequence[str]) -> list[FilledCall]:
    """Return the calls of the tool in a clause: one per expression, none if a required argument is missing.

    `earlier` are results of tools, the latest first, for references such as "read it".
    """
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    required = [name for name in tool.parameters.get("required", ()) if name in properties]
    needs_expression = any(_parts(name) & _EXPRESSIONS for name in required)
    texts = expressions(clause, earlier) if needs_expression else [""]
    calls = (_fill_once(tool, clause, earlier, expression) for expression in texts)
    return [call for call in calls if call is not None]


def expand_modes(tool: ToolDefinition, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the call in each of the tool's first three modes, if it has modes and the arguments name none."""
    for name, schema in tool.parameters.get("properties", {}).items():
        if name in _MODES - arguments.keys() and isinstance(schema, dict) and schema.get("enum"):
            return [{**arguments, name: option} for option in schema["enum"][:3]]
    return [arguments]


def _fill_once(tool: ToolDefinition, clause: Clause, earlier: Sequence[str], expression: str) -> FilledCall | None:
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    required = [name for name in tool.parameters.get("required", ()) if name in properties]
    filler = _Filler(tool, clause, earlier, expression)
    arguments: dict[str, Any] = {}
    # A choice comes last: if a pattern is found, `grep` is the right one.
    for name in sorted(properties, key=lambda name: (name not in required, "enum" in filler.schema(properties[name]))):
        value = filler.named(name, filler.schema(properties[name]), name in required)
        if value is not None:
            arguments[name] = value
    for name in required:
        if name not in arguments and filler.schema(properties[name]).get("type") == "string":
            arguments[name] = filler.from_rest(name)
        if name not in arguments or arguments[name] == "":
            return None
    unused = 0 if filler.used_all else max(0, clause.literals - len(filler.used))
    arguments = {name: arguments[name] for name in properties if name in arguments}
    return FilledCall(arguments, len(filler.used), unused, filler.options)


class _Filler:
    """Assigns the parts of one clause to the arguments of one call, each part once."""

    def __init__(self, tool: ToolDefinition, clause: Clause, earlier: Sequence[str], expression: str) -> None:
        self.tool, self.clause, self.earlier, self.expression = tool, clause, earlier, expression
        self.names = words(tool.name)
        self.rest = clause.plain
        self.used: set[str] = set()
        self.used_all = False
        self.searches = False
        self.options = 0

    def schema(self, spec: Any) -> dict[str, Any]:
        """Return the schema with references resolved, as its first alternative that is not null."""
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
        """Return the value that the clause names for this parameter, or None."""
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
        """Return the rest of the clause, for a required text without a named value; empty if there is none."""
        parts = _parts(name)
        if parts & (_PATHS | _URLS | _EXPRESSIONS):
            return ""
        if parts & _TEXTS:
            self.used_all = True
            whole = self.tool.name.startswith("agent.")
            text = self.clause.text if whole else self._after_verb(self.clause.text, _unpadded)
            return text.strip(" :：")
        if parts & {"id", "number", "no", "code", "key"}:
            number = re.search(r"(?<![\w])[#A-Za-z_-]{0,40}[0-9][\w-]*", self.rest, re.ASCII)
            if number is None:
                return ""
            self.rest = self.rest.replace(number[0], " ", 1)
            return number[0].lstrip("#")
        text, self.rest = self._after_verb(self.rest, _bare), ""
        own = word_pattern(words(name)).match(text)
        return (_bare(text[own.end() :]) if own else "") or text

    def _string(self, parts: frozenset[str], required: bool) -> str | None:
        if parts & _EXPRESSIONS:
            self.used.update(self.clause.lists, [self.expression])
            return self.expression if required else None
        if parts & _URLS:
            return self._next_unused(self.clause.urls)
        if parts & _PATHS:
            return self._path(parts, required)
        if not required and not parts & (_TEXTS | _QUERIES):
            return None
        quoted = self._next_unused(self.clause.quoted)
        self.searches = self.searches or (quoted is not None and bool(parts & _QUERIES))
        return quoted

    def _path(self, parts: frozenset[str], required: bool) -> str | None:
        paths = self.clause.paths
        if parts & _DIRECTORIES and not parts & {"file", "path"}:
            paths = tuple(path for path in paths if not is_file_name(path))
        path = self._next_unused(paths)
        if path is not None:
            return path
        if required:
            return self._next_unused(self.clause.quoted) or self._referenced_path() or self._bare_name(capital=True)
        return self._bare_name(capital=False) if "dir" in self.names else None

    def _referenced_path(self) -> str | None:
        reference = _REFERENCE.search(self.rest)
        if reference is None:
            return None
        word = reference[0].lower()
        position = 1 if re.search("second|二", word) else 2 if re.search("third|三", word) else 0
        for result in self.earlier:
            names = re.findall(r"(?<![\w/.-])[A-Za-z0-9_./-]*\.[A-Za-z]\w{0,7}\b", result, re.ASCII)
            paths = list(dict.fromkeys(path for path in names if is_file_name(path)))
            if paths:
                return paths[position] if position < len(paths) else None
        return None

    def _bare_name(self, capital: bool) -> str | None:
        own = self.names | {"file", "dir", "list", "read", "search"}
        names = [name for name in re.findall(r"[A-Za-z][\w-]*", self.rest, re.ASCII) if words(name) - own]
        names = [name for name in names if name[0].isupper()] if capital else names
        return self._next_unused(names) if len(names) == 1 else None

    def _next_unused(self, literals: Sequence[str]) -> str | None:
        literal = next((literal for literal in literals if literal not in self.used), None)
        if literal is not None:
            self.used.add(literal)
        return literal

    def _option(self, options: Sequence[Any]) -> Any:
        clause_words = (self.clause.words - ACTION_WORDS) | ({"search"} if self.searches else frozenset())
        plain = re.findall(r"[a-z0-9_-]+", self.clause.plain.lower())
        texts = [option for option in options if isinstance(option, str)]
        literal = [option for option in texts if option.lower() in plain]
        implied = [option for option in texts if words(option) and words(option) <= clause_words]
        chosen = next(iter(literal or implied), None)
        if literal:
            self.rest = re.sub(re.escape(literal[0]), " ", self.rest, count=1, flags=re.IGNORECASE)
        self.options += chosen is not None
        return chosen

    def _number(self, name: str, whole: bool, required: bool) -> int | float | None:
        numbers = [n for n in NUMBER.finditer(self.rest) if not whole or "." not in n[0]]
        match = next(
            (n for n in numbers if _is_named(name, self.rest, n)), numbers[0] if required and numbers else None
        )
        if match is None:
            return None
        before = re.search(
            r"[A-Za-z_]*[\s:=]*$" if _parts(name) & _QUANTITIES else r"$",
            self.rest[max(0, match.start() - _NEAR) : match.start()],
        )
        start = match.start() - (len(before[0]) if before and words(before[0]) & words(name) else 0)
        self.rest = self.rest[:start] + " " + self.rest[match.end() :]
        return int(match[0]) if whole or "." not in match[0] else float(match[0])

    def _switch(self, name: str, required: bool) -> bool | None:
        if required:
            return not re.search(r"\b(?:no|not|off|false|without|disable)\b|不|关闭", self.clause.plain, re.IGNORECASE)
        return True if words(name) and words(name) <= self.clause.words else None

    def _list(self, items: str | None) -> list[Any] | None:
        if items == "string":
            quoted = [quote for quote in self.clause.quoted if quote not in self.used]
            self.used.update(quoted)
            return quoted or None
        numbers = self._next_unused(self.clause.lists)
        if numbers is None or items not in ("integer", "number", None):
            return None
        whole = [NUMBER.fullmatch(number) is not None and "." not in number for number in numbers.split(",")]
        if all(whole):
            return [int(number) for number in numbers.split(",")]
        return None if items == "integer" else [float(number) for number in NUMBER.findall(numbers)] or None

    def _after_verb(self, text: str, cleaned: Callable[[str], str]) -> str:
        """Return the text after the word the tool is named after, or the text before it if nothing follows."""
        verb = word_pattern(self.names).search(text)
        if verb is None:
            return cleaned(text)
        return cleaned(text[verb.end() :]) or cleaned(text[: verb.start()])


def _parts(name: str) -> frozenset[str]:
    return frozenset(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_").split("_"))


def _is_named(name: str, text: str, number: re.Match[str]) -> bool:
    """Return whether the word before a number, or for a quantity the one after it, names the parameter."""
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
    """Return the text without filler words at its ends."""
    previous = None
    while previous != text:
        previous = text
        text = _FILLER_BEFORE.sub("", text.strip()).strip()
        text = text[:-_NEAR] + _FILLER_AFTER.sub("", text[-_NEAR:])
    return text if CJK.search(text) or re.search(r"\w", text) else ""
