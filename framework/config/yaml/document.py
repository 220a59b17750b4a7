"""YAML text as plain data in which every key and value knows its line and column.

One pass over libyaml's events: YAML 1.2 core scalars (`no` is a string), duplicate keys are errors, and so are anchors,
tags, merge keys and more than one document. Never `yaml.load`: deeply nested input crashes its C composer.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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

DEFAULT_PLACE = "default"
"""In the place of a line, for a key that a file does not have."""
MAX_DOCUMENT_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_NODES = 50_000
_MAX_NUMBER_CHARS = 100
_MAX_EXCERPT_CHARS = 2000

KeyPath = tuple[str | int, ...]
Mark = tuple[int, int]
"""1-based line and column."""
Marks = tuple[Mark, Mark]
"""Where a key, or list item, begins, and where its value does."""
_BITS = 21
"""A line or a column is no more than `MAX_BYTES`."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
"""What libyaml counts as the end of a line."""
_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...] = (
    (re.compile(r"[-+]?[0-9]+\Z"), int),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"), float),
    (re.compile(r"0(o[0-7]+|x[0-9a-fA-F]+)\Z"), lambda text: int(text, 0)),
    (re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"), lambda _: inf),
)
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class DocumentError(Exception):
    """The text is not a document of our kind; `problem` says where and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class PackedMarks(Mapping[KeyPath, Marks]):
    """Marks as texts and numbers, which no garbage collection has to look through."""

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
    """Parsed data with the place of everything in it."""

    path: str
    source: bytes
    data: dict[str, Any]
    marks: Mapping[KeyPath, Marks]
    """Where everything in it begins."""
    elsewhere: Mapping[KeyPath, str] = field(default_factory=dict)
    """The file of what another version of the document added, where that is not `path`: the file was moved."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The text's lines, as libyaml counts them."""
        return _lines(self.source.decode("utf-8-sig")) if self.source else ()

    def without_data(self) -> Document:
        """Only the places, packed: what is kept when the data has become a model."""
        return replace(self, data={}, marks=PackedMarks(self.marks))

    def place(self, path: KeyPath) -> str:
        """`file:line` of a key, or `default` if the file does not have it."""
        while path and path not in self.marks and isinstance(path[-1], int):  # one value in the place of a list
            path = path[:-1]
        return (
            f"{self.elsewhere.get(path, self.path)}:{self.marks[path][0][0]}" if path in self.marks else DEFAULT_PLACE
        )

    def problem(
        self, path: KeyPath, message: str, *, hint: str | None = None, at_key: bool = False, fix: Fix | None = None
    ) -> Problem:
        """A Problem at a value, or at its key."""
        key, value = self._closest(path)
        line, column = key if at_key else value
        found = problem_at(self.path, self.lines, line, column, message, hint)
        return found.model_copy(update={"fix": fix}) if fix else found

    def _closest(self, path: KeyPath) -> Marks:
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, ((1, 1), (1, 1)))


def _packed(*numbers: int) -> int:
    return sum(number << part * _BITS for part, number in enumerate(numbers))


def problem_at(
    path: str, lines: tuple[str, ...], line: int, column: int, message: str, hint: str | None = None
) -> Problem:
    """A Problem with its source line; what looks like a secret in it is masked."""
    text = lines[line - 1] if 0 < line <= len(lines) else None
    excerpt = None if text is None or len(text) > _MAX_EXCERPT_CHARS else _UNREADABLE.sub("\ufffd", redact(text))
    return Problem(path=path, line=line, column=column, message=message, hint=hint, excerpt=excerpt)


def read_document(path: str, source: bytes) -> Document:
    """Parse the bytes of one file; raises DocumentError."""
    if len(source) > MAX_DOCUMENT_BYTES:
        raise DocumentError(Problem(path=path, message=f"{len(source)} bytes; at most {MAX_DOCUMENT_BYTES} are read"))
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        column = error.start - source.rfind(b"\n", 0, error.start)
        message = f"not UTF-8: byte 0x{source[error.start]:02x}"
        raise DocumentError(Problem(path=path, line=line, column=column, message=message)) from None
    return Document(path, source, *_Builder(path, text).build())


def line_starts(text: str) -> list[int]:
    """Where each line begins, as libyaml counts them: the first at 0."""
    return [0, *(found.end() for found in _BREAK.finditer(text))]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(_BREAK.split(text))


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar by the YAML 1.2 core schema.

    Raises:
        ValueError: a number that is not finite, or longer than any that is meant.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "0123456789+-.":
        return text
    convert = next((convert for pattern, convert in _NUMBERS if pattern.match(text)), None)
    if convert is None:
        return text
    if len(text) > _MAX_NUMBER_CHARS:
        raise ValueError(f"a number of {len(text)} characters; at most {_MAX_NUMBER_CHARS} are read")
    number = convert(text)
    if not isfinite(number):
        raise ValueError("a number must be finite")
    return number


def _mark(event: Event) -> Mark:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


@dataclass(slots=True)
class _Level:
    """A mapping or a list that is being filled."""

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

    def build(self) -> tuple[dict[str, Any], dict[KeyPath, Marks]]:
        """The data, and where everything in it begins."""
        if unreadable := _UNREADABLE.search(self.text):
            before = _BREAK.split(self.text[: unreadable.start()])
            message = f"the character U+{ord(unreadable[0]):04X} cannot stand in a file"
            raise DocumentError(problem_at(self.path, _lines(self.text), len(before), len(before[-1]) + 1, message))
        for event in self._events():
            if isinstance(event, DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise self._error(event, "a second document: one file holds one")
            elif isinstance(event, CollectionEndEvent):
                self.levels.pop()
            elif isinstance(event, (ScalarEvent, CollectionStartEvent, AliasEvent)):
                self._node(event)
        if not isinstance(self.root, dict):
            what = "empty" if self.root is None else f"a {'list' if isinstance(self.root, list) else 'single value'}"
            raise DocumentError(
                problem_at(self.path, _lines(self.text), 1, 1, f"a mapping of keys is expected, this is {what}")
            )
        return self.root, self.marks

    def _events(self) -> Iterator[Event]:
        loader = None
        try:
            loader = _LOADER(self.text)
            while loader.check_event():
                yield loader.get_event()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            message = ": ".join(part for name in ("context", "problem") if (part := getattr(error, name, None)))
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            raise DocumentError(problem_at(self.path, _lines(self.text), line, column, message or "not YAML")) from None
        finally:
            if loader is not None:
                loader.dispose()

    def _node(self, event: ScalarEvent | CollectionStartEvent | AliasEvent) -> None:
        self._reject_unsupported(event)
        mark = _mark(event)
        level = self.levels[-1] if self.levels else None
        if level is not None and isinstance(level.container, dict) and level.key is None:
            self._begin_key(level, event, mark)
            return
        value = self._value(event)
        path = self._attach(level, value, mark)
        if isinstance(value, (dict, list)):
            if len(self.levels) >= _MAX_DEPTH:
                raise self._error(event, f"nested deeper than {_MAX_DEPTH} levels")
            self.levels.append(_Level(value, path))

    def _begin_key(self, level: _Level, event: Event, mark: Mark) -> None:
        if not isinstance(event, ScalarEvent):
            raise self._error(event, "a key must be plain text")
        key = event.value
        if key == "<<" and not event.style:
            raise self._error(event, "merge keys (<<) are not used here: write the values out")
        if key in level.container:
            first = self.marks[(*level.path, key)][0][0]
            raise self._error(event, f"the key {shorten(key)!r} stands twice; first on line {first}")
        level.key, level.key_mark = key, mark

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
            raise self._error(event, "anchors and aliases are not used here: write the value out")
        if event.tag and event.tag != "!":
            raise self._error(event, f"the tag {shorten(event.tag)} is not used here")

    def _error(self, event: Event, message: str) -> DocumentError:
        return DocumentError(problem_at(self.path, _lines(self.text), *_mark(event), message))


def shorten(text: str, length: int = 60) -> str:
    """A word of a file, cut to what an error message can hold."""
    return text if len(text) <= length else text[: length - 1] + "…"
