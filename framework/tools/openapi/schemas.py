"""Copies schemas of an OpenAPI document as JSON Schema, with the definitions that they refer to.

References are kept: each schema gets a copy of the definitions that it needs. Replacing a reference by what it refers
to would multiply shared definitions, and never end for those that contain themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from typing import Any, cast

from framework.tools.openapi.document import ApiDocument, ApiDocumentError, as_mapping, as_sequence
from framework.types.text import shorten

MAX_DESCRIPTION_LENGTH = 1_000
"""Maximum length of a description."""
MAX_SCHEMA_DEPTH = 30
"""Maximum nesting of a schema without its definitions."""
_MAX_SCHEMA_CHARS = 60_000
"""Maximum size of the schema of one operation, as JSON."""
_MAX_NODES = 10_000
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


@dataclass(frozen=True, slots=True)
class _Definition:
    """The copy of a definition."""

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
                known = self._definition_of(_definition_name(reference), self._document.resolve(reference))
            except ApiDocumentError as error:
                known = error
            self._definitions[reference] = known
        if isinstance(known, ApiDocumentError):
            raise known
        return known

    def _definition_of(self, name: str, node: Any) -> _Definition:
        self._nodes = 0
        references: dict[str, None] = {}
        copy = self._copy(node, references, 0)
        return _Definition(name, copy, tuple(references), len(json.dumps(copy)))

    def _count(self) -> None:
        self._work, self._nodes = self._work + 1, self._nodes + 1
        if self._nodes > _MAX_NODES:
            raise ApiDocumentError(f"its schema has more than {_MAX_NODES} parts")
        if self._work > _MAX_WORK:
            raise ApiDocumentError("the document's schemas are too large together")

    def _plain(self, value: Any, depth: int) -> Any:
        """Return a copy of a value that is no schema."""
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
            return {"$ref": f"#/$defs/{_definition_name(reference)}"}
        copy = dict(_own_keywords(node)) | dict(self._inner(node, references, depth + 1))
        copy |= {key: self._plain(node[key], depth) for key in _VALUES if key in copy}
        settable = _without_read_only(copy, as_mapping(node.get("properties")))
        return _with_null(settable) if node.get("nullable") is True else settable

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


def _without_read_only(copy: dict[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without the properties that only responses have."""
    hidden = {name for name, entry in properties.items() if as_mapping(entry).get("readOnly") is True}
    if not hidden:
        return copy
    kept = {name: value for name, value in copy["properties"].items() if name not in hidden}
    required = {"required": [name for name in copy["required"] if name not in hidden]} if "required" in copy else {}
    return {**copy, "properties": kept, **required}


def _definition_name(reference: str) -> str:
    """Return the name of a definition: that of the schema, or one made from the whole reference."""
    plain = reference.removeprefix("#/components/schemas/")
    if plain != reference and not _NOT_IN_NAMES.search(plain):
        return plain
    digest = blake2b(reference.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{_NOT_IN_NAMES.sub('_', plain)[-80:]}_{digest}"


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
    if isinstance(kind := copy.get("type"), str):
        choices = {"enum": [*copy["enum"], None]} if "enum" in copy and None not in copy["enum"] else {}
        return {**copy, "type": [kind, "null"], **choices}
    if "type" in copy or not any(key in copy for key in (*_SCHEMA_LISTS, "enum", "const")):
        return copy
    return {"anyOf": [copy, {"type": "null"}]}
