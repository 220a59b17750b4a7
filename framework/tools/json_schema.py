"""JSON Schemas of tools: parsing, repair of arguments, and schemas of Python return types."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from framework.types.errors import ToolError
from framework.types.file import File
from framework.types.flat_schema import resolve_reference
from framework.types.text import MAX_JSON_DEPTH, read_json, shorten

_MAX_HOPS = 16
"""Maximum number of references and choices followed for one part of a value."""
_MAX_VISITED = 200
"""Maximum number of schemas visited for one part of a value, because nested choices multiply."""
_MAX_CHOICES = 12
_MAX_DESCRIBED_CHARS = 160
_SIGNS = {
    "minimum": ">= {}",
    "exclusiveMinimum": "> {}",
    "maximum": "<= {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "multiple of {}",
    "minLength": "length >= {}",
    "maxLength": "length <= {}",
    "minItems": "items >= {}",
    "maxItems": "items <= {}",
    "pattern": "pattern {}",
    "format": "format {}",
}
"""Symbols rather than words, so that descriptions read the same in every language."""
_NAMES: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    Mapping: "object",
}


class JsonSchema:
    """A JSON Schema whose references are resolved within it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def branches(self, node: Any, *leaves: str) -> list[Mapping[str, Any]]:
        """Return the schemas that a value may match; empty if other values may be allowed, too.

        Each has a `type`, or one of the keywords `leaves`.
        """
        branches: list[Mapping[str, Any]] = []
        pending = [(node, 0)]
        for _ in range(_MAX_VISITED):
            if not pending:
                return branches
            node, hops = pending.pop()
            if not isinstance(node, Mapping) or hops > _MAX_HOPS:
                return []
            if "type" in node or any(keyword in node for keyword in leaves):
                branches.append(node)
            elif inner := self._alternatives(node):
                pending.extend((choice, hops + 1) for choice in reversed(inner))
            else:
                return []
        return []

    def _alternatives(self, node: Mapping[str, Any]) -> list[Any]:
        """Return the schemas that replace a schema without a type: the target of its reference, or its choices."""
        if "$ref" in node:
            return [resolve_reference(self.root, node["$ref"])]
        for keyword in ("anyOf", "oneOf", "allOf"):
            choices = node.get(keyword)
            if isinstance(choices, list) and choices and (keyword != "allOf" or len(choices) == 1):
                return choices
        return []

    def child(self, node: Any, value: Any, part: str | int) -> Any:
        """Return the schema of a part of an object or a list, or None if it is ambiguous."""
        container_type = "object" if isinstance(value, Mapping) else "array"
        containers = [branch for branch in self.branches(node) if container_type in type_names([branch])]
        if len(containers) != 1:
            return None
        (branch,) = containers
        if container_type == "array":
            return None if "prefixItems" in branch else branch.get("items")
        properties = branch.get("properties")
        if isinstance(properties, Mapping) and part in properties:
            return properties[part]
        return None if "patternProperties" in branch else branch.get("additionalProperties")

    def optional_properties(self, node: Any) -> frozenset[str]:
        """Return the properties of an object that may be omitted; empty if that is ambiguous."""
        objects = [branch for branch in self.branches(node) if "object" in type_names([branch])]
        if len(objects) != 1 or not isinstance(objects[0].get("properties"), Mapping):
            return frozenset()
        required = objects[0].get("required")
        return frozenset(objects[0]["properties"]) - frozenset(required if isinstance(required, list) else ())

    def at(self, path: Iterable[str | int], value: Any) -> Any:
        """Return the schema of the place in a value that a path leads to, or None if it is ambiguous."""
        node: Any = self.root
        for part in path:
            node = self.child(node, value, part)
            exists = isinstance(value, (Mapping, list)) and _contains(value, part)
            value = value[part] if exists else None
        return node

    def describe(self, node: Any) -> str:
        """Describe the allowed values, such as `integer, >= 1` or `"asc" | "desc"`; empty if they are unrestricted."""
        if isinstance(node, Mapping) and ("enum" in node or "const" in node):
            description = _list_choices(node)
        else:
            description = self.describe_any(self.branches(node))
        return shorten(description, _MAX_DESCRIBED_CHARS)

    def describe_any(self, branches: Iterable[Mapping[str, Any]]) -> str:
        """Describe the values that one of these schemas allows."""
        described = " | ".join(dict.fromkeys(self._describe_branch(branch) for branch in branches))
        return shorten(described, _MAX_DESCRIBED_CHARS)

    def _describe_branch(self, branch: Mapping[str, Any]) -> str:
        if "enum" in branch or "const" in branch:
            return _list_choices(branch)
        kind = " | ".join(sorted(type_names([branch])))
        if kind == "array" and isinstance(items := branch.get("items"), Mapping):
            inner = " | ".join(sorted(type_names(self.branches(items))))
            kind = f"array of {inner}" if inner else kind
        return ", ".join([kind, *(sign.format(branch[key]) for key, sign in _SIGNS.items() if key in branch)])


def type_names(branches: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return all types that the schemas name."""
    names: set[str] = set()
    for branch in branches:
        types = branch["type"]
        names.update(types if isinstance(types, list) else [types])
    return names


def type_of(value: Any) -> str:
    """Return JSON Schema's name for the type of a value; empty if it has none."""
    name = _NAMES.get(type(value))
    return name or next((name for kind, name in _NAMES.items() if isinstance(value, kind)), "")


def is_of_type(value: Any, types: set[str]) -> bool:
    """Return whether the value has one of these JSON types."""
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True  # for JSON Schema, 5.0 is an integer
    kind = type_of(value)
    return kind in types or (kind == "integer" and "number" in types)


def _contains(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and 0 <= part < len(value)
    return part in value


def _list_choices(branch: Mapping[str, Any]) -> str:
    values = branch["enum"] if isinstance(branch.get("enum"), list) else [branch.get("const")]
    shown = [json.dumps(value, ensure_ascii=False, default=str) for value in values[:_MAX_CHOICES]]
    return " | ".join([*shown, *(["…"] if len(values) > _MAX_CHOICES else [])])


_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "false": False}
UNREADABLE: Final = object()
"""Returned by `parse_as` for a text that represents no value of the expected types."""


_OMITTED: Any = object()


@dataclass(frozen=True, slots=True)
class RepairedArguments:
    """Arguments after repair."""

    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()
    """One line per repaired field, without its value, such as `limit: string converted to integer`."""


def repair_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> RepairedArguments:
    """Return repaired arguments; those that match the schema are unchanged."""
    repairs = _Repairs(JsonSchema(schema))
    repaired = repairs.repair_parts(schema, dict(arguments), ())
    return RepairedArguments(repaired, tuple(repairs.notes))


class _Repairs:
    def __init__(self, schema: JsonSchema) -> None:
        self.notes: list[str] = []
        self._schema = schema

    def repair_parts(self, node: Any, value: Any, place: tuple[str | int, ...]) -> Any:
        """Repair the parts of an object or a list; return the same object if nothing needs repair."""
        if not isinstance(value, (dict, list)) or len(place) >= MAX_JSON_DEPTH:
            return value
        parts = list(value.items() if isinstance(value, dict) else enumerate(value))
        optional = (
            self._schema.optional_properties(node)
            if isinstance(value, dict) and None in value.values()
            else frozenset()
        )
        repaired = [
            self._repair_value(self._schema.child(node, value, part), item, (*place, part), optional=part in optional)
            for part, item in parts
        ]
        if all(new is old for new, (_, old) in zip(repaired, parts, strict=True)):
            return value
        if isinstance(value, list):
            return repaired
        return {key: new for key, new in zip(value, repaired, strict=True) if new is not _OMITTED}

    def _repair_value(self, node: Any, value: Any, place: tuple[str | int, ...], *, optional: bool) -> Any:
        types = type_names(self._schema.branches(node))
        if value is None and optional and (_is_choice_without_null(node) or (types and "null" not in types)):
            self._note(place, "null omitted")
            return _OMITTED
        if not types or is_of_type(value, types):
            return self.repair_parts(node, value, place)
        parsed = parse_as(value, types) if isinstance(value, str) else UNREADABLE
        if parsed is not UNREADABLE:
            self._note(place, f"string converted to {type_of(parsed)}")
            return self.repair_parts(node, parsed, place)
        if "array" in types and self._may_be_item(node, value):
            self._note(place, "single value converted to array")
            return self.repair_parts(node, [value], place)
        return value

    def _may_be_item(self, node: Any, value: Any) -> bool:
        """Return whether a list of this one value can match; a string that looks like truncated JSON cannot."""
        if value is None or (isinstance(value, str) and value.lstrip().startswith(("[", "{"))):
            return False
        types = type_names(self._schema.branches(self._schema.child(node, [value], 0)))
        return is_of_type(value, types) or (isinstance(value, str) and parse_as(value, types) is not UNREADABLE)

    def _note(self, place: tuple[str | int, ...], description: str) -> None:
        self.notes.append(f"{'.'.join(str(part) for part in place)}: {description}")


def _is_choice_without_null(node: Any) -> bool:
    return isinstance(node, Mapping) and isinstance(choices := node.get("enum"), list) and None not in choices


def parse_as(text: str, types: set[str]) -> Any:
    """Return the value of one of these JSON types that a text represents exactly, or UNREADABLE."""
    if not types.isdisjoint(("integer", "number")) and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text) and _is_exact(text):
        return float(text)
    if "boolean" in types and text in _BOOLEANS:
        return _BOOLEANS[text]
    opening = text.lstrip()[:1]
    if ("object" in types and opening == "{") or ("array" in types and opening == "["):
        try:
            return read_json(text)
        except ValueError:
            return UNREADABLE
    return UNREADABLE


def _is_exact(text: str) -> bool:
    number = float(text)
    return math.isfinite(number) and Decimal(repr(number)) == Decimal(text)


MAX_DESCRIBED_SCHEMA_CHARS = 2000
"""Maximum length of a schema that is described to the model, because every request pays for it."""
_MAX_PROBLEMS = 5
_GENERATED_KEYS = ("title", "description")
"""Keys of a schema that Pydantic generates; descriptions of fields are kept."""


class ReturnError(ToolError):
    """A tool returned data that its annotation does not allow. Correct the tool or its annotation."""

    code = "invalid_return"


@dataclass(frozen=True, slots=True)
class ReturnType:
    """The declared return type of a tool."""

    name: str
    adapter: TypeAdapter[Any]

    @classmethod
    def from_annotation(cls, annotation: Any) -> ReturnType | None:
        """Return the type of a return annotation, or None if it declares no structure."""
        parts = [*_parts(annotation)]
        if File in parts or not any(map(_is_structure, parts)):
            return None
        name = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
        return cls(name, TypeAdapter(annotation))

    @property
    def schema(self) -> dict[str, Any]:
        """Type as JSON Schema."""
        return self.adapter.json_schema(by_alias=False, mode="serialization")

    @property
    def described(self) -> str:
        """Type as JSON Schema, for the description of the tool; empty if it is too long."""
        text = json.dumps(_without_titles(self.schema), ensure_ascii=False, separators=(",", ":"))
        return f"Returns JSON of this schema: {text}" if len(text) <= MAX_DESCRIBED_SCHEMA_CHARS else ""

    def check(self, output: Any) -> Any:
        """Return the output as JSON data of the declared type.

        Raises:
            ReturnError: the output does not match. The tool has already run.
        """
        try:
            value = self.adapter.validate_python(output)
            return self.adapter.dump_python(value, mode="json", by_alias=False, warnings="error")
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False, include_context=False)
            problems = [f"{'.'.join(map(str, detail['loc'])) or 'result'}: {detail['msg']}" for detail in details]
            reason = "; ".join(problems[:_MAX_PROBLEMS])
        except Exception as error:  # noqa: BLE001 - validators and serializers are the tool's own code
            reason = f"{type(error).__name__}: {error}"
        raise ReturnError(f"the tool ran, but its return value is not a valid {self.name}: {reason}") from None


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all its type arguments, such as those of `list[Out] | None`."""
    yield annotation
    for part in typing.get_args(annotation):
        yield from _parts(part)


def _is_structure(part: Any) -> bool:
    if not isinstance(part, type):
        return False
    return is_dataclass(part) or is_typeddict(part) or (issubclass(part, BaseModel) and part is not BaseModel)


def _without_titles(schema: Any, *, is_names: bool = False) -> Any:
    """Return a schema without its titles and without the descriptions of whole types."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    generated = () if is_names else _GENERATED_KEYS if "properties" in schema else ("title",)
    declared = {key: value for key, value in schema.items() if key not in generated}
    return {key: _without_titles(value, is_names=key in ("properties", "$defs")) for key, value in declared.items()}
