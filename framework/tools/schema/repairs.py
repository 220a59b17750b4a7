"""Repairs arguments whose meaning is clear and only their form is wrong, by the tool's JSON Schema.

A value is repaired only if the schema rejects it and it is one of these: a number or boolean written as a string, an
object or array written as a JSON string, a single value where a list is expected, or null for an optional argument that
must not be null, which is then omitted. Nothing else is omitted, and nothing is truncated, rounded or guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from framework.tools.schema.json_schema import JsonSchema, is_of_type, type_names, type_of
from framework.types.strict_json import MAX_JSON_DEPTH, read_json

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "false": False}
_PLAIN_TYPES: Mapping[type, str] = {str: "string", int: "integer", bool: "boolean"}
"""Types of values without parts, and JSON Schema's names for them."""
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
    if _are_plain(schema, arguments):
        return RepairedArguments(dict(arguments))
    repairs = _Repairs(JsonSchema(schema))
    repaired = repairs.repair_parts(schema, dict(arguments), ())
    return RepairedArguments(repaired, tuple(repairs.notes))


def _are_plain(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether each argument has the one type that its property names, so that nothing needs repair.

    It is true for most calls, and known in a fraction of the time of looking for repairs.
    """
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict):
        return False
    for name, value in arguments.items():
        expected = properties.get(name)
        if not isinstance(expected, dict) or expected.get("type") != _PLAIN_TYPES.get(type(value), ""):
            return False
    return True


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
