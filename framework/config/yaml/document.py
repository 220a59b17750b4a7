"""Parses YAML 1.2 into plain data, with the line and column of every key and value.

Scalars follow the core schema (`no` is a string). Duplicate keys, anchors, tags, merge keys and more than one document
are errors. The parser reads libyaml's events: `yaml.load` is not used, because deep nesting crashes its C composer.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf, isfinite
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
)

from framework.types.problem import Fix, Problem
from framework.types.redact import redact
from framework.types.text import shorten

Mark = tuple[int, int]
"""1-based line and column."""
Explanation = tuple[Mark, str, str | None]
"""Where a mistake is, what it is, and what to do."""
_QUOTE_IT = 'put the whole value in quotes: "…"'
_NO_SPACE = re.compile(r"[\w.-]+:[^\s/]")
_ALL_LEVELS = 4
"""Lines with other indentations that a hint names at most."""
QUOTE_TEMPLATE = 'put the whole value in quotes: "{{ … }}"'


_FIXED: Mapping[str, tuple[bool, str, str | None]] = {
    "found unexpected end of stream": (True, "this quote is not closed", "close it where the text ends"),
    "found unexpected document indicator": (True, "this quote is not closed", "close it where the text ends"),
    "block sequence entries are not allowed in this context": (
        False,
        "a list starts on the line of its key",
        "write [a, b], or each `- item` on a line of its own",
    ),
    "did not find expected comment or line break": (
        False,
        "text on the line of `|` or `>`",
        "start the text on the next line, indented",
    ),
}
"""Whether the mistake is where the construct starts, what it is and what to do, by libyaml's description."""


def explain(error: yaml.YAMLError, lines: Sequence[str], last: Event | None, opened: Mark) -> Explanation:
    """Explain an error of libyaml.

    Args:
        error: the error.
        lines: the lines of the text.
        last: the last event before it.
        opened: where the innermost mapping or list that has not ended starts.
    """
    problem, context = str(getattr(error, "problem", "")), getattr(error, "context", None)
    mark = _position(getattr(error, "problem_mark", None)) or _position(getattr(error, "context_mark", None)) or (1, 1)
    start = _position(getattr(error, "context_mark", None)) or mark
    if fixed := _FIXED.get(problem):
        at_start, message, hint = fixed
        return (start if at_start else mark), message, hint
    match problem:
        case "mapping values are not allowed in this context":
            return _colon(mark, lines, last)
        case "could not find expected ':'":
            return _no_key(start, lines)
        case (
            "did not find expected key"
            | "did not find expected <document start>"
            | "did not find expected '-' indicator"
        ):
            return _misplaced(mark, lines, last)
        case "did not find expected ',' or ']'" | "did not find expected ',' or '}'":
            return _not_closed(mark, start, lines)
        case "did not find expected node content":
            at_end = not any(line.strip() for line in lines[mark[0] - 1 :])
            return _not_closed(mark, opened, lines) if at_end else (mark, "a value is missing here", None)
    message = ": ".join(part for part in (context, problem) if part)
    hint = "check the indentation and the quotes of this line and the one above"
    return _character(problem, mark, start, lines) or (mark, message or "not YAML", hint)


def _character(problem: str, mark: Mark, start: Mark, lines: Sequence[str]) -> Explanation | None:
    """Explain a character that is not allowed where it is; None if that is not the mistake."""
    char, template = _text_at(lines, mark)[:1], (mark[0], mark[1] - 1)
    if "tab character" in problem or (char == "\t" and "cannot start" in problem):
        return mark, "this line starts with a tab", "use spaces: YAML allows no tabs in an indentation"
    match problem:
        case "found character that cannot start any token" if _text_at(lines, template).startswith("{%"):
            return template, "`{%` outside of quotes", _QUOTE_IT
        case "found character that cannot start any token":
            return mark, f"a value without quotes cannot start with `{char}`", _QUOTE_IT
        case "did not find expected alphabetic or numeric character":
            sign = _text_at(lines, start)[:1]
            return start, f"a value without quotes cannot start with `{sign}`", _QUOTE_IT
        case "found unknown escape character":
            escape = _text_at(lines, mark)[:2]
            return mark, f"unknown escape `{escape}`", "write `\\\\` for a backslash, or use single quotes: '…'"
    return None


def _position(mark: Any) -> Mark | None:  # a mark of libyaml or of its Python version
    return (mark.line + 1, mark.column + 1) if mark else None


def _text_at(lines: Sequence[str], mark: Mark) -> str:
    """Return the rest of a line from a mark."""
    line, column = mark
    return lines[line - 1][max(column - 1, 0) :] if 0 < line <= len(lines) else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _colon(mark: Mark, lines: Sequence[str], last: Event | None) -> Explanation:
    """Explain a colon after text that is a value."""
    started = _position(last.start_mark) if isinstance(last, ScalarEvent) else None
    if started is None or started[0] == mark[0]:
        return mark, "a second `: ` in a value without quotes", _QUOTE_IT
    if _NO_SPACE.match(_text_at(lines, started)):
        return _no_key(started, lines)
    column = _indent(lines[started[0] - 1]) + 1
    hint = f"start a key at column {column}, as on line {started[0]}; put longer text below `KEY: |`"
    return mark, f"a `:` in the text that starts on line {started[0]}", hint


def _no_key(mark: Mark, lines: Sequence[str]) -> Explanation:
    """Explain a line that is neither a key nor a part of the value above it."""
    if _NO_SPACE.match(_text_at(lines, mark)):
        return mark, "a space is missing after the `:`", "write it as `KEY: VALUE`"
    hint = "write it as `KEY: VALUE`; indent the lines of a longer text below `KEY: |`"
    return mark, "a `:` is missing: this line is no key", hint


def _misplaced(mark: Mark, lines: Sequence[str], last: Event | None) -> Explanation:
    """Explain something where a key, or the next item of a list, is expected."""
    line, column = mark
    text = lines[line - 1] if line <= len(lines) else ""
    begins_line = column - 1 <= _indent(text)
    if isinstance(last, ScalarEvent) and last.style in ("'", '"') and not begins_line:
        return _after_quote(mark, last)
    if not begins_line:
        if (char := text[column - 1]) in "]}":
            return mark, f"`{char}` closes nothing", f"remove it, or open it with `{'[' if char == ']' else '{'}`"
        return mark, "text after the end of a value", _QUOTE_IT
    levels = dict[int, int]()  # line by indentation
    for number in range(line - 1, 0, -1):
        above = lines[number - 1]
        if (
            above.strip()
            and not above.lstrip().startswith("#")
            and _indent(above) < min(levels, default=len(text) + 99)
        ):
            levels[_indent(above)] = number
    if (indent := _indent(text)) in levels:
        kind = "a list item among keys" if text[indent:].startswith("-") else "a key among the items of a list"
        return mark, kind, "a value is a list or a mapping: indent this line below its key, or correct the lines above"
    places = [f"column {indent + 1} (line {number})" for indent, number in sorted(levels.items())[-_ALL_LEVELS:]]
    return mark, "the indentation of this line matches no line above", f"start it at {' or '.join(places)}"


def _after_quote(mark: Mark, quoted: ScalarEvent) -> Explanation:
    """Explain text after a closing quote, at the opening one if a closing one is missing on its line."""
    start, end = _position(quoted.start_mark) or (1, 1), _position(quoted.end_mark) or (1, 1)
    if end[0] > start[0]:
        return start, f"this quote is closed on line {end[0]} only", "close it where the text ends"
    inner = "write '' for an apostrophe inside '…'" if quoted.style == "'" else 'write \\" for a quote inside "…"'
    return mark, "text after a closing quote", f"{inner}, or quote the whole value"


def _not_closed(mark: Mark, start: Mark, lines: Sequence[str]) -> Explanation:
    """Explain a list or mapping in brackets that does not end."""
    bracket = _text_at(lines, start)[:1]
    closing = {"[": "]", "{": "}"}.get(bracket, bracket)
    if mark[0] == start[0]:
        return mark, f"expected `,` or `{closing}`: the `{bracket}` at column {start[1]} is still open", None
    return start, f"this `{bracket}` is not closed", f"add `{closing}`, or a comma between two items of it"


DEFAULT_PLACE = "default"
"""The place of a key that no file defines."""
MAX_DOCUMENT_BYTES = 1 << 20
_MAX_DUPLICATES = 20
"""Maximum number of duplicate keys that are reported."""
_MAX_DEPTH = 32
_MAX_NODES = 50_000
_MAX_NUMBER_CHARS = 100
_MAX_EXCERPT_CHARS = 2000
MAX_SHOWN_CHARS = 60
"""Length to which keys and tags are shortened in messages."""

KeyPath = tuple[str | int, ...]
Marks = tuple[Mark, Mark]
"""Start of a key (or list item) and start of its value."""
_BITS = 21
"""Bits per line or column number: neither exceeds `MAX_DOCUMENT_BYTES`."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
"""The line endings that libyaml recognizes."""
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
"""The characters that YAML does not allow; excluding all the others takes ten times as long to compile."""
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...] = (
    (re.compile(r"[-+]?[0-9]+\Z"), int),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"), float),
    (re.compile(r"0(o[0-7]+|x[0-9a-fA-F]+)\Z"), lambda text: int(text, 0)),
    (re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"), lambda _: inf),
)
_PLAIN = re.compile(r"[^\s,\[\]{}#]+")
"""A scalar without quotes and spaces."""
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class DocumentError(Exception):
    """Raised for text that is not a valid document; `problem` has the position and the cause.

    If duplicate keys are the only error, `problems` contains all of them, and `document` is the text without them.
    """

    def __init__(self, problem: Problem, *others: Problem, document: Document | None = None) -> None:
        super().__init__(str(problem))
        self.problem, self.problems = problem, (problem, *others)
        self.document = document


class PackedMarks(Mapping[KeyPath, Marks]):
    """Marks stored as strings and integers, which the garbage collector does not traverse."""

    __slots__ = ("_packed",)

    def __init__(self, marks: Mapping[KeyPath, Marks]) -> None:
        self._packed = {repr(path): _packed(*key, *value) for path, (key, value) in marks.items()}

    def __getitem__(self, path: KeyPath) -> Marks:
        packed, all_bits = self._packed[repr(path)], (1 << _BITS) - 1
        key_line, key_column, line, column = (packed >> part * _BITS & all_bits for part in range(4))
        return (key_line, key_column), (line, column)

    def __iter__(self) -> Iterator[KeyPath]:
        return map(literal_eval, self._packed)

    def __len__(self) -> int:
        return len(self._packed)


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed data with the position of each key and value."""

    path: str
    source: bytes
    data: dict[str, Any]
    marks: Mapping[KeyPath, Marks]
    """The positions of keys and values."""
    other_files: Mapping[KeyPath, str] = field(default_factory=dict)
    """The file of each key that was merged from another version of the document, if that file was renamed."""
    layers: tuple[Document, ...] = ()
    """The documents of which this one is made, the upper first; none if it is the document of one file."""
    moved: Mapping[KeyPath, KeyPath] = field(default_factory=dict)
    """The paths in the file of values that `data` has at another path."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the source, split as libyaml does."""
        return _lines(self.source.decode("utf-8-sig")) if self.source else ()

    def without_data(self) -> Document:
        """Return a copy with packed marks and no data, to keep after the data was validated into a model."""
        return replace(self, data={}, marks=PackedMarks(self.marks))

    def over(self, base: Document) -> Document:
        """Return this document over another one: mappings are merged, other values replace those below them."""
        data = merged(base.data, self.data)
        return Document(self.path, self.source, data, ChainMap(dict(self.marks), dict(base.marks)), layers=(self, base))

    def layer(self, path: KeyPath) -> Document:
        """Return the document of the file that defines the longest part of a path, the upper one if both do."""
        while self.layers and path:
            for layer in self.layers:
                if path in layer.marks:
                    return layer
            path = path[:-1]
        return self.layers[0] if self.layers else self

    def place(self, path: KeyPath) -> str:
        """Return `file:line` of a key, or `default` if the file does not define it."""
        if self.layers:
            return self.layer(path).place(path)
        while path and path not in self.marks and isinstance(path[-1], int):  # a single value in place of a list
            path = path[:-1]
        return (
            f"{self.other_files.get(path, self.path)}:{self.marks[path][0][0]}" if path in self.marks else DEFAULT_PLACE
        )

    def problem(
        self, path: KeyPath, message: str, *, hint: str | None = None, at_key: bool = False, fix: Fix | None = None
    ) -> Problem:
        """Create a Problem at a value, or at its key."""
        if self.layers:
            return self.layer(path).problem(path, message, hint=hint, at_key=at_key, fix=fix)
        key, value = self._closest(path)
        line, column = key if at_key else value
        problem = problem_at(self.path, self.lines, line, column, message, hint)
        return problem.model_copy(update={"fix": fix}) if fix else problem

    def warning(self, path: KeyPath, message: str, *, hint: str | None = None, at_key: bool = False) -> Problem:
        """Create a warning at a value, or at its key."""
        problem = self.problem(path, message, hint=hint, at_key=at_key)
        return problem.model_copy(update={"severity": "warning"})

    def written(self, path: KeyPath) -> str:
        """Return a plain scalar as the file writes it, such as `0123` for 123; empty if it is not in the file."""
        if self.layers:
            return self.layer(path).written(path)
        line, column = self.marks[path][1] if path in self.marks else (0, 0)
        lines = self.lines
        match = _PLAIN.match(lines[line - 1], column - 1) if 0 < line <= len(lines) else None
        return match[0] if match else ""

    def empty_values(self) -> list[Problem]:
        """Return a problem for each key that has no value: a limit that is typed halfway shall not be none."""
        if self.layers:
            return [problem for layer in self.layers for problem in layer.empty_values()]
        hint = "write a value, or null for none"
        return [
            self.problem(path, f"the key {shorten(str(path[-1]), MAX_SHOWN_CHARS)!r} has no value", hint=hint)
            for path in _null_keys(self.data)
            if path in self.marks and not self.written(path)
        ]

    def _closest(self, path: KeyPath) -> Marks:
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, ((1, 1), (1, 1)))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return data over other data, key by key: mappings are merged, other values replace those below them."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _packed(*numbers: int) -> int:
    return sum(number << part * _BITS for part, number in enumerate(numbers))


def problem_at(
    path: str, lines: tuple[str, ...], line: int, column: int, message: str, hint: str | None = None
) -> Problem:
    """Create a Problem with an excerpt of its source line; secrets in the excerpt are masked."""
    text = lines[line - 1] if 0 < line <= len(lines) else None
    excerpt = None if text is None or len(text) > _MAX_EXCERPT_CHARS else _UNREADABLE.sub("\ufffd", redact(text))
    return Problem(path=path, line=line, column=column, message=message, hint=hint, excerpt=excerpt)


def read_document(path: str, source: bytes) -> Document:
    """Parse the bytes of one file; raise DocumentError if they are not a valid document."""
    if len(source) > MAX_DOCUMENT_BYTES:
        raise DocumentError(
            Problem(path=path, message=f"file has {len(source)} bytes; the limit is {MAX_DOCUMENT_BYTES}")
        )
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text_bytes, start = error.object, error.start  # without a byte order mark
        line = text_bytes.count(b"\n", 0, start) + 1
        column = start - text_bytes.rfind(b"\n", 0, start)
        message = f"not UTF-8: byte 0x{text_bytes[start]:02x}"
        raise DocumentError(Problem(path=path, line=line, column=column, message=message)) from None
    builder = _Builder(path, text)
    document = Document(path, source, *builder.build())
    if builder.duplicates:
        raise DocumentError(*builder.duplicates, document=document)
    return document


def read_unique_keys(path: str, source: bytes) -> Document | None:
    """Parse a file whose duplicate keys have been reported: the last of them applies. None for any other error."""
    try:
        return read_document(path, source)
    except DocumentError as error:
        return error.document


def read_keys(path: str, source: bytes, keys: Iterable[str]) -> dict[str, Any]:
    """Return some keys of a mapping that is not YAML as a whole: each that can be read by itself, with its value."""
    lines, found = source.decode("utf-8", "replace").splitlines(keepends=True), dict[str, Any]()
    for key in keys:
        after = iter(lines)
        if first := next((line for line in after if line.startswith(f"{key}:")), None):
            block = [first, *takewhile(lambda line: line[0] in " \t\r\n#", after)]
            document = read_unique_keys(path, "".join(block).encode())
            found |= document.data if document else {}
    return found


def line_starts(text: str) -> list[int]:
    """Return the offset of each line, split as libyaml does; the first is 0."""
    return [0, *(match.end() for match in _BREAK.finditer(text))]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(_BREAK.split(text))


class BlockDumper(yaml.SafeDumper):
    """Writes YAML as people do: a text of several lines as a block of its lines, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Return True: equal values are written again."""
        return True

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> yaml.ScalarNode:
        """Return the node of a value; a text that could be read as another one without quotes has them."""
        if tag.endswith(":str"):
            lines = value.split("\n")
            is_plain = value[:1].strip() and all(map(str.isprintable, lines))
            is_text = value not in _CONSTANTS and value[:1] not in "0123456789+-."
            style = '"' if not is_plain else "|" if len(lines) > 1 else style if is_text else '"'
        return super().represent_scalar(tag, value, style)


def plain_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar under the YAML 1.2 core schema.

    Raises:
        ValueError: the number is not finite, or has more than `_MAX_NUMBER_CHARS` characters.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "0123456789+-.":
        return text
    convert = next((convert for pattern, convert in _NUMBERS if pattern.match(text)), None)
    if convert is None:
        return text
    if len(text) > _MAX_NUMBER_CHARS:
        raise ValueError(f"number with {len(text)} characters; the limit is {_MAX_NUMBER_CHARS}")
    number = convert(text)
    if not isfinite(number):
        raise ValueError("a number must be finite")
    return number


def _mark(event: Event) -> Mark:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


@dataclass(slots=True)
class _Level:
    """A mapping or list whose items are being read."""

    container: dict[str, Any] | list[Any]
    path: KeyPath
    key: str | None = None
    key_mark: Mark = (1, 1)


@dataclass(slots=True)
class _Builder:
    path: str
    text: str
    marks: dict[KeyPath, Marks] = field(default_factory=dict)
    levels: list[_Level] = field(default_factory=list)
    root: Any = None
    nodes: int = 0
    documents: int = 0
    duplicates: list[Problem] = field(default_factory=list)

    def build(self) -> tuple[dict[str, Any], dict[KeyPath, Marks]]:
        """Return the data and the positions of its keys and values."""
        if unreadable := _UNREADABLE.search(self.text):
            before = _BREAK.split(self.text[: unreadable.start()])
            message = f"character U+{ord(unreadable[0]):04X} is not allowed in files"
            raise DocumentError(problem_at(self.path, _lines(self.text), len(before), len(before[-1]) + 1, message))
        for event in self._events():
            if isinstance(event, DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise self._error(event, "a second document: only one per file is allowed")
            elif isinstance(event, CollectionEndEvent):
                self.levels.pop()
            elif isinstance(event, (ScalarEvent, CollectionStartEvent, AliasEvent)):
                self._node(event)
        if not isinstance(self.root, dict):
            what = "nothing" if self.root is None else f"a {'list' if isinstance(self.root, list) else 'single value'}"
            raise DocumentError(
                problem_at(self.path, _lines(self.text), 1, 1, f"expected a mapping of keys, found {what}")
            )
        return self.root, self.marks

    def _events(self) -> Iterator[Event]:
        loader = event = None
        try:
            loader = _LOADER(self.text)
            while loader.check_event():
                event = loader.get_event()
                yield event
        except yaml.YAMLError as error:
            lines = _lines(self.text)
            opened = self.marks[self.levels[-1].path][1] if self.levels else (1, 1)
            mark, message, hint = explain(error, lines, event, opened)
            raise DocumentError(problem_at(self.path, lines, *mark, message, hint)) from None
        finally:
            if loader is not None:
                loader.dispose()

    def _node(self, event: ScalarEvent | CollectionStartEvent | AliasEvent) -> None:
        self._reject_unsupported(event)
        mark = _mark(event)
        level = self.levels[-1] if self.levels else None
        if level is not None and isinstance(level.container, dict) and level.key is None:
            self._start_key(level, event, mark)
            return
        value = self._value(event)
        path = self._attach(level, value, mark)
        if isinstance(value, (dict, list)):
            if len(self.levels) >= _MAX_DEPTH:
                raise self._error(event, f"nested deeper than {_MAX_DEPTH} levels")
            self.levels.append(_Level(value, path))

    def _start_key(self, level: _Level, event: Event, mark: Mark) -> None:
        if not isinstance(event, ScalarEvent):
            raise self._not_a_key(event)
        key = event.value
        if key == "<<" and not event.style:
            raise self._error(event, "merge keys (<<) are not supported: write the values out")
        if key in level.container:
            first = self.marks[(*level.path, key)][0][0]
            message = f"duplicate key {shorten(key, MAX_SHOWN_CHARS)!r}: first defined on line {first}"
            error = self._error(event, message)
            if len(self.duplicates) == _MAX_DUPLICATES:
                raise DocumentError(*self.duplicates, error.problem)
            self.duplicates.append(error.problem)
        level.key, level.key_mark = key, mark

    def _not_a_key(self, event: Event) -> DocumentError:
        (line, column), lines = _mark(event), _lines(self.text)
        if lines[line - 1][max(column - 2, 0) :].startswith("{{"):
            problem = problem_at(self.path, lines, line, max(column - 1, 1), "`{{` outside of quotes", QUOTE_TEMPLATE)
            return DocumentError(problem)
        return self._error(event, "a key must be plain text")

    def _attach(self, level: _Level | None, value: Any, mark: Mark) -> KeyPath:
        path: KeyPath
        if level is None:
            self.root, path, key_mark = value, (), mark
        elif isinstance(level.container, dict):
            assert level.key is not None
            level.container[level.key] = value
            path, key_mark, level.key = (*level.path, level.key), level.key_mark, None
        else:
            level.container.append(value)
            path, key_mark = (*level.path, len(level.container) - 1), mark
        self.marks[path] = key_mark, mark
        return path

    def _value(self, event: ScalarEvent | CollectionStartEvent | AliasEvent) -> Any:
        if isinstance(event, ScalarEvent):
            return event.value if event.style or event.tag else self._plain(event)
        return {} if isinstance(event, MappingStartEvent) else []

    def _plain(self, event: ScalarEvent) -> Any:
        try:
            return plain_scalar(event.value)
        except ValueError as error:
            raise self._error(event, str(error)) from None

    def _reject_unsupported(self, event: ScalarEvent | CollectionStartEvent | AliasEvent) -> None:
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise self._error(event, f"more than {_MAX_NODES} values")
        if isinstance(event, AliasEvent) or event.anchor:
            raise self._error(event, "anchors and aliases are not supported: write the value out, or put it in quotes")
        if event.tag and event.tag != "!":
            raise self._error(event, f"the tag {shorten(event.tag, MAX_SHOWN_CHARS)} is not supported")

    def _error(self, event: Event, message: str) -> DocumentError:
        return DocumentError(problem_at(self.path, _lines(self.text), *_mark(event), message))


_MIN_WORD_CHARS = 3
"""Shorter words are one edit away from too many others."""
YAML_1_1_BOOLEANS: Mapping[str, str] = {
    word: meant
    for meant, words in (("true", ("y", "yes", "on")), ("false", ("n", "no", "off")))
    for small in words
    for word in (small, small.capitalize(), small.upper())
}
"""Words that are booleans in YAML 1.1 but strings in YAML 1.2, with their YAML 1.2 spelling."""


def key_fix(document: Document, path: KeyPath, known: Collection[str]) -> Fix | None:
    """Return the fix for an unknown key, if a known key is one edit away."""
    siblings, letters = _value_at(document.data, path[:-1]), sorted(str(path[-1]))
    transposed = [name for name in known if sorted(name) == letters]  # `modle` is `model` rather than `mode`
    unused = [name for name in transposed or known if not isinstance(siblings, dict) or name not in siblings]
    return text_fix(document, path, str(path[-1]), _only_match(str(path[-1]), unused), at_key=True) if path else None


def value_fix(document: Document, path: KeyPath, word: object, options: Sequence[str]) -> Fix | None:
    """Return the fix for an invalid value, if one of the options is one edit away."""
    return text_fix(document, path, word, _only_match(word, options)) if isinstance(word, str) else None


def boolean_fix(document: Document, path: KeyPath, word: object) -> Fix | None:
    """Return the fix for a YAML 1.1 boolean where `true` or `false` is required."""
    return text_fix(document, path, word, YAML_1_1_BOOLEANS.get(word)) if isinstance(word, str) else None


def apply_fixes(path: str, source: bytes, problems: Iterable[Problem]) -> bytes:
    """Return a file's bytes with the fixes of its problems applied.

    Fixes that no longer match the text, or would make it invalid YAML, are skipped.
    """
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError:
        return source
    fixes = {(problem.line, problem.column): problem.fix for problem in problems if problem.fix}
    for (line, column), fix in sorted(fixes.items(), key=lambda entry: (entry[0][0] or 0, entry[0][1] or 0))[::-1]:
        at = _offset(text, line or 0, column or 0)
        if not text.startswith(fix.written, at):
            continue
        changed = text[:at] + fix.instead + text[at + len(fix.written) :]
        if _is_readable(path, changed):
            text = changed
    return text.encode("utf-8")


def _only_match(word: object, known: Iterable[str]) -> str | None:
    """Return the known name that is one edit away, if there is exactly one."""
    close = [name for name in dict.fromkeys(known) if isinstance(word, str) and _is_typo(word, name)]
    return close[0] if len(close) == 1 else None


def _is_typo(one: str, other: str) -> bool:
    """Return whether two words differ by one missing, extra, wrong or transposed character."""
    short, long = sorted((one, other), key=len)
    if len(short) < _MIN_WORD_CHARS or len(long) - len(short) > 1 or one == other:
        return False
    same = next((index for index, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    if len(short) < len(long):
        return short[same:] == long[same + 1 :]
    swapped = short[same : same + 2] == long[same : same + 2][::-1] and short[same + 2 :] == long[same + 2 :]
    return swapped or short[same + 1 :] == long[same + 1 :]


def text_fix(document: Document, path: KeyPath, word: object, meant: str | None, *, at_key: bool = False) -> Fix | None:
    """Return a fix for a word, including its quotes; None if the file spells the word differently."""
    if meant is None or path not in document.marks:
        return None
    document = document.layer(path)
    line, column = document.marks[path][0 if at_key else 1]
    rest = document.lines[line - 1][column - 1 :]
    for quote in ("", '"', "'"):
        written = f"{quote}{word}{quote}"
        if rest.startswith(written) and not rest[len(written) : len(written) + 1].isalnum():
            return Fix(written=written, instead=meant)
    return None


def _value_at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _null_keys(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of the keys whose value is null."""
    if data is None and path and isinstance(path[-1], str):
        yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from _null_keys(value, (*path, key))


def _offset(text: str, line: int, column: int) -> int:
    """Return the offset of a line and column. A byte order mark does not count as a column."""
    starts = line_starts(text)
    has_bom = line == 1 and text.startswith("\ufeff")
    return starts[line - 1] + column - 1 + has_bom if 0 < line <= len(starts) else len(text)


def _is_readable(path: str, text: str) -> bool:
    """Return whether the text is still a document: fixing two keys may have made them equal."""
    try:
        read_document(path, text.encode("utf-8"))
    except DocumentError:
        return False
    return True
