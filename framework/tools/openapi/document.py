"""An OpenAPI document: its references, and its schemas as JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import isfinite
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from framework.types.errors import ConfigError
from framework.types.text import shorten

# The documents are untrusted, and much larger than the project's own files: some have 13 MB.


MAX_API_DOCUMENT_BYTES = 32 * 1024 * 1024
"""Maximum size of a document."""
_MAX_DEPTH = 100
_MAX_NODES = 3_000_000
_MARKED_LEVELS = 3
"""Levels of keys whose lines are recorded: `paths`, the paths, and the methods of each."""
_MAX_REFERENCES = 32
"""Maximum number of references that lead from one to the next."""
_YAML_CONSTANTS: Mapping[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_YAML_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_MAX_NUMBER_CHARS = 100
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ApiDocumentError(ConfigError):
    """A document, or a part of it, that cannot be used. `line` is where, from 1, if known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class ApiDocument:
    """A document as plain data. Keys are strings: a status code such as `200` is one in YAML, too."""

    data: Mapping[str, Any]
    _lines: Mapping[tuple[str, ...], int] = field(default_factory=dict, repr=False)
    """Lines of the keys of the upper levels of YAML."""
    _text: str = field(default="", repr=False)
    """The text of a JSON document, in which keys are searched."""

    def line_of(self, *keys: str) -> int | None:
        """Return the line of the key at a path such as `("paths", "/pets", "get")`; None if it is not known."""
        if not self._text:
            return next((self._lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in self._lines), None)
        place, found = 0, False
        for key in keys:
            if (after := _find_key(self._text, key, place)) is None:
                break
            place, found = after, True
        return self._text.count("\n", 0, place) + 1 if found else None

    def resolve(self, reference: object) -> Any:
        """Return what a reference within the document refers to.

        Raises:
            ApiDocumentError: it refers to nothing, or to another document.
        """
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise ApiDocumentError(f"the reference {_short(reference)} is not within the document")
        node: Any = self.data
        for token in reference[2:].split("/"):
            key = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and len(key) < _MAX_NUMBER_CHARS and int(key) < len(node):
                node = node[int(key)]
            else:
                raise ApiDocumentError(f"the reference {_short(reference)} refers to nothing")
        return node

    def followed(self, node: Any) -> Mapping[str, Any]:
        """Return an object of the document, or the one that its `$ref` leads to. Raise ApiDocumentError."""
        for _ in range(_MAX_REFERENCES):
            if not isinstance(node, Mapping):
                raise ApiDocumentError(f"expected an object: {_short(node)}")
            if "$ref" not in node:
                return node
            node = self.resolve(node["$ref"])
        raise ApiDocumentError(f"references that lead to each other: {_short(node)}")


def _short(value: object) -> str:
    """Return a value for a message; only the type of one with parts, whose text may be huge."""
    is_plain = value is None or isinstance(value, str | int | float)
    return repr(shorten(str(value), 200)) if is_plain else f"a {type(value).__name__}"


def _find_key(text: str, key: str, start: int) -> int | None:
    """Return the offset after a key of a JSON text."""
    quoted = json.dumps(key, ensure_ascii=False)
    while (at := text.find(quoted, start)) >= 0:
        start = at + len(quoted)
        if text[start : start + 20].lstrip().startswith(":"):
            return start
    return None


def read_api_document(source: bytes) -> ApiDocument:
    """Read a document in JSON or YAML.

    Raises:
        ApiDocumentError: it is neither, too large, or nested too deep.
    """
    if len(source) > MAX_API_DOCUMENT_BYTES:
        raise ApiDocumentError(f"the document has {len(source)} bytes; the limit is {MAX_API_DOCUMENT_BYTES}")
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        data, start = error.object, error.start  # without a byte order mark
        raise ApiDocumentError(f"not UTF-8: byte 0x{data[start]:02x}", data.count(b"\n", 0, start) + 1) from None
    try:
        document = _read_json(text) if text.lstrip()[:1] == "{" else _YamlReader().read(text)
    except RecursionError:
        raise ApiDocumentError(_TOO_DEEP) from None
    if not isinstance(document.data, Mapping):
        raise ApiDocumentError("the document is not an object with `openapi` and `paths`", 1)
    return document


_TOO_DEEP = f"nested deeper than {_MAX_DEPTH} levels"


def _read_json(text: str) -> ApiDocument:
    try:
        return ApiDocument(json.loads(text, parse_constant=str), _text=text)
    except json.JSONDecodeError as error:
        raise ApiDocumentError(f"not JSON: {error.msg}", error.lineno) from None
    except ValueError as error:  # a number with too many digits
        raise ApiDocumentError(f"not JSON: {error}") from None


class _YamlReader:
    """Builds data from libyaml's events: its own composer crashes on deep nesting, and reads `no` as false."""

    def __init__(self) -> None:
        self._levels: list[dict[str, Any] | list[Any]] = []
        self._keys: list[str | None] = []
        """For each open mapping, the key of the next value."""
        self._path: list[str] = []
        """The keys that lead to each open mapping or list; empty for the root and in lists."""
        self._anchors: dict[str, Any] = {}
        self._lines: dict[tuple[str, ...], int] = {}
        self._root: Any = None
        self._nodes = self._documents = 0

    def read(self, text: str) -> ApiDocument:
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                self._take(event)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            message = str(getattr(error, "problem", None) or "invalid")
            raise ApiDocumentError(f"not YAML: {message}", mark.line + 1 if mark else None) from None
        return ApiDocument(self._root, self._lines)

    def _take(self, event: Any) -> None:
        if isinstance(event, CollectionEndEvent):
            self._levels.pop()
            self._keys.pop()
            self._path.pop()
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise ApiDocumentError("more than one YAML document", _line(event))
        elif isinstance(event, NodeEvent):
            self._take_node(event)

    def _take_node(self, event: Any) -> None:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise ApiDocumentError(f"more than {_MAX_NODES} values", _line(event))
        if self._levels and isinstance(self._levels[-1], dict) and self._keys[-1] is None:
            self._take_key(event)
            return
        value, key = self._value(event), (self._keys[-1] or "") if self._keys else ""
        self._add(value)
        if isinstance(event, CollectionStartEvent):
            if len(self._levels) >= _MAX_DEPTH:
                raise ApiDocumentError(_TOO_DEEP, _line(event))
            self._levels.append(value)
            self._keys.append(None)
            self._path.append(key)
        if not isinstance(event, AliasEvent) and event.anchor:
            self._anchors[event.anchor] = value

    def _take_key(self, event: Any) -> None:
        if not isinstance(event, ScalarEvent):
            raise ApiDocumentError("a key that is not a text", _line(event))
        self._keys[-1] = event.value
        if len(self._levels) <= _MARKED_LEVELS:
            self._lines[(*self._path[1:], event.value)] = _line(event)

    def _value(self, event: Any) -> Any:
        if isinstance(event, CollectionStartEvent):
            return {} if isinstance(event, MappingStartEvent) else []
        if isinstance(event, ScalarEvent):
            return _scalar(event.value) if event.implicit[0] else event.value
        if event.anchor not in self._anchors:
            raise ApiDocumentError(f"unknown alias {_short(event.anchor)}", _line(event))
        value = self._anchors[event.anchor]
        if any(value is level for level in self._levels):
            raise ApiDocumentError(f"the alias {_short(event.anchor)} is inside the value that it names", _line(event))
        return value

    def _add(self, value: Any) -> None:
        if not self._levels:
            self._root = value
        elif isinstance(level := self._levels[-1], dict):
            key = self._keys[-1] or ""
            if key != "<<":
                level[key] = value
            elif isinstance(value, dict):  # a merge key of YAML 1.1
                level.update({name: item for name, item in value.items() if name not in level})
            self._keys[-1] = None
        else:
            level.append(value)


def _line(event: Any) -> int:
    mark = event.start_mark
    return int(mark.line) + 1 if mark else 1


def _scalar(text: str) -> Any:
    """Return the value of an unquoted scalar. Numbers in other notations than JSON's stay text."""
    if text in _YAML_CONSTANTS:
        return _YAML_CONSTANTS[text]
    if len(text) > _MAX_NUMBER_CHARS or not _YAML_NUMBER.match(text):
        return text
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return number if isfinite(number) else text


def as_sequence(value: Any) -> Sequence[Any]:
    """Return a list of the document; empty for anything else."""
    return value if isinstance(value, list) else ()


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return an object of the document; empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def declared_parameters(
    document: ApiDocument, item: Mapping[str, Any], operation: Mapping[str, Any], places: Sequence[str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the parameters of an operation by place and name: those of its path first, without those it replaces.

    Raises:
        ApiDocumentError: one has no name, or is in none of the places.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in (*as_sequence(item.get("parameters")), *as_sequence(operation.get("parameters"))):
        parameter = dict(document.followed(entry))
        place, name = parameter.get("in"), parameter.get("name")
        if not isinstance(name, str) or not name or not isinstance(place, str) or place not in places:
            raise ApiDocumentError(f"a parameter without a valid `name` and `in`: {shorten(str(name), 80)!r}")
        found[place, name] = parameter
    return found


# References are kept: each schema gets a copy of the definitions that it needs. Replacing a reference by what it refers
# to would multiply shared definitions, and never end for those that contain themselves.


MAX_DESCRIPTION_LENGTH = 1_000
"""Maximum length of a description."""
MAX_SCHEMA_DEPTH = 30
"""Maximum nesting of a schema without its definitions."""
_MAX_SCHEMA_CHARS = 60_000
"""Maximum size of the schema of one operation, as JSON."""
_MAX_SCHEMA_NODES = 10_000
"""Maximum number of schemas in one definition."""
_MAX_WORK = 500_000
"""Maximum number of schemas and references that are followed for one document: some seconds of CPU time."""
_FILE_HINT = "a file: its text, or its content as data:TYPE;base64,…"
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_VALUES = (
    *("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
_VALUES = ("enum", "const", "default")
_TEXTS = ("description", "pattern", "format", "contentEncoding", "contentMediaType")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
)
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


class _Definition(NamedTuple):
    name: str
    copy: Any
    references: tuple[str, ...]
    """The references inside it."""
    size: int
    """Its size, as JSON."""


class SchemaCopies:
    """Copies schemas of a document as JSON Schema 2020-12, with the definitions that they refer to.

    Each definition is copied once. Only keywords that are known are copied, with values of the right type.
    """

    def __init__(self, document: ApiDocument) -> None:
        self._document = document
        self._definitions: dict[str, _Definition | ApiDocumentError] = {}
        """The copy of each definition by its reference, or why it cannot be copied."""
        self._work = self._nodes = 0

    def copied(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a schema with its definitions; raise ApiDocumentError."""
        own = self._definition_of("", schema)
        definitions, size, pending = dict[str, Any](), own.size, list(own.references)
        while pending and size <= _MAX_SCHEMA_CHARS:
            if (reference := pending.pop()) not in definitions:
                self._count()
                found = self._definition(reference)
                definitions[reference], size = found, size + found.size
                pending.extend(found.references)
        if size > _MAX_SCHEMA_CHARS:
            raise ApiDocumentError(f"its schema has more than {_MAX_SCHEMA_CHARS} characters")
        copy = cast("dict[str, Any]", own.copy)
        if definitions:
            copy["$defs"] = dict(sorted((found.name, found.copy) for found in definitions.values()))
        return copy

    def _definition(self, reference: str) -> _Definition:
        if (known := self._definitions.get(reference)) is None:
            try:
                known = self._definition_of(self._name(reference), self._document.resolve(reference))
            except ApiDocumentError as error:
                known = error
            self._definitions[reference] = known
        if isinstance(known, ApiDocumentError):
            raise known
        return known

    def _name(self, reference: str) -> str:
        """Return the name of a definition: that of the schema, or one made from the whole reference."""
        folder = "#/definitions/" if "swagger" in self._document.data else "#/components/schemas/"
        plain = reference.removeprefix(folder)
        if plain != reference and not _NOT_IN_NAMES.search(plain):
            return plain
        digest = blake2b(reference.encode("utf-8", "replace"), digest_size=4).hexdigest()
        return f"{_NOT_IN_NAMES.sub('_', plain)[-80:]}_{digest}"

    def _definition_of(self, name: str, node: Any) -> _Definition:
        self._nodes = 0
        references: dict[str, None] = {}
        copy = self._copy(node, references, 0)
        return _Definition(name, copy, tuple(references), len(json.dumps(copy)))

    def _count(self) -> None:
        self._work, self._nodes = self._work + 1, self._nodes + 1
        if self._nodes > _MAX_SCHEMA_NODES:
            raise ApiDocumentError(f"its schema has more than {_MAX_SCHEMA_NODES} parts")
        if self._work > _MAX_WORK:
            raise ApiDocumentError("the document's schemas are too large together")

    def _plain(self, value: Any, depth: int) -> Any:
        self._count()
        if depth > MAX_SCHEMA_DEPTH:
            raise ApiDocumentError("its schema is nested too deep")
        if isinstance(value, Mapping):
            return {key: self._plain(item, depth + 1) for key, item in value.items()}
        return [self._plain(item, depth + 1) for item in value] if isinstance(value, list) else value

    def _copy(self, node: Any, references: dict[str, None], depth: int) -> Any:
        self._count()
        if isinstance(node, bool):
            return node
        if not isinstance(node, Mapping):
            return {}  # such as `schema: null`: anything
        if depth > MAX_SCHEMA_DEPTH:
            raise ApiDocumentError("its schema is nested too deep")
        if (reference := node.get("$ref")) is not None:
            self._document.resolve(reference)
            references[reference] = None
            return {"$ref": f"#/$defs/{self._name(reference)}"}
        copy = dict(_own_keywords(node)) | dict(self._inner(node, references, depth + 1))
        copy |= {key: self._plain(node[key], depth) for key in _VALUES if key in copy}
        settable = _without_read_only(copy, as_mapping(node.get("properties")), self._read_only(node, depth))
        return _with_null(settable) if node.get("nullable") is True else settable

    def _read_only(self, node: Mapping[str, Any], depth: int) -> set[str]:
        """Return the properties that only responses have, also those of the schemas that a schema extends."""
        names = {name for name, entry in as_mapping(node.get("properties")).items() if _is_read_only(entry)}
        for part in as_sequence(node.get("allOf")) if depth <= MAX_SCHEMA_DEPTH else ():
            self._count()
            try:
                base = self._document.followed(part)
            except ApiDocumentError:
                continue  # such as `true`
            names |= self._read_only(base, depth + 1)
        return names

    def _inner(self, node: Mapping[str, Any], references: dict[str, None], depth: int) -> Iterator[tuple[str, Any]]:
        """Yield copies of the keywords that contain schemas."""
        for key in _SCHEMA_MAPS:
            if isinstance(part := node.get(key), Mapping):
                yield key, {name: self._copy(value, references, depth) for name, value in part.items()}
        for key in _SCHEMA_LISTS:
            if isinstance(part := node.get(key), list) and part:
                yield key, [self._copy(value, references, depth) for value in part]
        for key in _SCHEMA_VALUES:
            if isinstance(part := node.get(key), Mapping | bool):
                yield key, self._copy(part, references, depth)


def _is_read_only(entry: Any) -> bool:
    return as_mapping(entry).get("readOnly") is True


def _without_read_only(copy: dict[str, Any], properties: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a schema without its properties that only responses have; none of `names` is required."""
    if not names:
        return copy
    kept: dict[str, Any] = {}
    if "properties" in copy:
        hidden = {name for name, entry in properties.items() if _is_read_only(entry)}
        kept["properties"] = {name: value for name, value in copy["properties"].items() if name not in hidden}
    if "required" in copy:
        kept["required"] = [name for name in copy["required"] if name not in names]
    if "allOf" in copy:
        kept["allOf"] = [
            _without_read_only(part, {}, names) if isinstance(part, dict) else part for part in copy["allOf"]
        ]
    return {**copy, **kept}


def _own_keywords(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of a schema that contain no schemas, as JSON Schema 2020-12 has them."""
    kinds = [kind for kind in _as_list(node.get("type")) if isinstance(kind, str) and kind in _TYPES]
    if kinds:
        yield "type", kinds if isinstance(node.get("type"), list) else kinds[0]
    yield from _texts(node)
    yield from _bounds(node)
    if isinstance(choices := node.get("enum"), list) and choices:
        yield "enum", choices
    if isinstance(node.get("uniqueItems"), bool):
        yield "uniqueItems", node["uniqueItems"]
    yield from ((key, node[key]) for key in ("const", "default") if key in node)
    if names := list(dict.fromkeys(name for name in as_sequence(node.get("required")) if isinstance(name, str))):
        yield "required", names


def _texts(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    texts = [(key, node[key]) for key in _TEXTS if isinstance(node.get(key), str) and node[key]]
    yield from texts
    about = shorten(str(dict(texts).get("description", "")), MAX_DESCRIPTION_LENGTH)
    if node.get("format") == "binary":
        about = f"{about} ({_FILE_HINT})".strip()
    if about:
        yield "description", about


def _bounds(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _NUMBERS:
        number = node.get(key)
        if number is True and _is_number(bound := node.get(key[9:].lower())):  # OpenAPI 3.0: exclusiveMinimum
            yield key, bound
        elif _is_number(number) and node.get(f"exclusive{key.capitalize()}") is not True:
            yield key, number
    for key in _SIZES:
        if isinstance(size := node.get(key), int) and not isinstance(size, bool) and size >= 0:
            yield key, size


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _with_null(copy: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows null, too: OpenAPI 3.0's `nullable`."""
    is_composed = any(key in copy for key in _SCHEMA_LISTS)
    if isinstance(kind := copy.get("type"), str) and not is_composed:
        choices = {"enum": [*copy["enum"], None]} if "enum" in copy and None not in copy["enum"] else {}
        return {**copy, "type": [kind, "null"], **choices}
    if not (is_composed or ("type" not in copy and copy.keys() & {"enum", "const"})):
        return copy
    return {"anyOf": [copy, {"type": "null"}]}
