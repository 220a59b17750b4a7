"""Finds one's way in a JSON Schema: what may stand at a place, and how to say that in few words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from framework.types.text import shorten

MAX_HOPS = 16
"""How many references and choices are followed without getting any deeper into a value."""
MAX_VISITED = 200
"""How many schemas are visited for one place: choices of choices multiply."""
MAX_CHOICES = 12
MAX_DIGITS = 10
"""Of an index in a reference: Python refuses to read very long numbers."""
MAX_DESCRIBED_CHARS = 160
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
"""Formulas rather than words: they read the same in every language."""
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
    """A schema with the references inside it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def branches(self, node: Any) -> list[Mapping[str, Any]]:
        """The schemas a value may choose from, each with its `type`; none where anything else may be allowed too."""
        if isinstance(node, dict) and "type" in node:  # nearly always, and asked for each argument
            return [node]
        found: list[Mapping[str, Any]] = []
        pending = [(node, 0)]
        for _ in range(MAX_VISITED):
            if not pending:
                return found
            node, hops = pending.pop()
            if not isinstance(node, (dict, Mapping)) or hops > MAX_HOPS:  # dict first: an abstract class takes long
                return []
            if "type" in node:
                found.append(node)
            elif inner := self._choices(node):
                pending.extend((choice, hops + 1) for choice in reversed(inner))
            else:
                return []
        return []

    def _choices(self, node: Mapping[str, Any]) -> list[Any]:
        """What takes the place of a schema without a type: the target of its reference, or its choices."""
        if "$ref" in node:
            return [referred(self.root, node["$ref"])]
        for keyword in ("anyOf", "oneOf", "allOf"):
            choices = node.get(keyword)
            if isinstance(choices, list) and choices and (keyword != "allOf" or len(choices) == 1):
                return choices
        return []

    def child(self, node: Any, value: Any, part: str | int) -> Any:
        """The schema of a part of a value that is an object or a list; nothing where that is not clear."""
        wanted = "object" if isinstance(value, (dict, Mapping)) else "array"
        fitting = [branch for branch in self.branches(node) if wanted in types_of([branch])]
        if len(fitting) != 1:
            return None
        (branch,) = fitting
        if wanted == "array":
            return None if "prefixItems" in branch else branch.get("items")
        properties = branch.get("properties")
        if isinstance(properties, (dict, Mapping)) and part in properties:
            return properties[part]
        return None if "patternProperties" in branch else branch.get("additionalProperties")

    def optional(self, node: Any) -> frozenset[str]:
        """The properties of an object that need not be given; none where that is not clear."""
        objects = [branch for branch in self.branches(node) if "object" in types_of([branch])]
        if len(objects) != 1 or not isinstance(objects[0].get("properties"), (dict, Mapping)):
            return frozenset()
        required = objects[0].get("required")
        return frozenset(objects[0]["properties"]) - frozenset(required if isinstance(required, list) else ())

    def at(self, path: Iterable[str | int], value: Any) -> Any:
        """The schema of the place in a value that a path leads to."""
        node: Any = self.root
        for part in path:
            node = self.child(node, value, part)
            inside = isinstance(value, (Mapping, list)) and _has(value, part)
            value = value[part] if inside else None
        return node

    def described(self, node: Any) -> str:
        """What may stand there, such as `integer, >= 1` or `"asc" | "desc"`; empty where the schema does not say."""
        if isinstance(node, Mapping) and ("enum" in node or "const" in node):
            told = _choices(node)
        else:
            told = " | ".join(dict.fromkeys(self._told(branch) for branch in self.branches(node)))
        return shorten(told, MAX_DESCRIBED_CHARS)

    def _told(self, branch: Mapping[str, Any]) -> str:
        if "enum" in branch or "const" in branch:
            return _choices(branch)
        kind = " | ".join(sorted(types_of([branch])))
        if kind == "array" and isinstance(items := branch.get("items"), Mapping):
            inner = " | ".join(sorted(types_of(self.branches(items))))
            kind = f"array of {inner}" if inner else kind
        return ", ".join([kind, *(sign.format(branch[key]) for key, sign in _SIGNS.items() if key in branch)])


def referred(root: Any, reference: Any) -> Any:
    """The subschema that a reference such as `#/$defs/filter` leads to; None if that is nothing in the schema."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    node = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and len(key) < MAX_DIGITS and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


def types_of(branches: Iterable[Mapping[str, Any]]) -> set[str]:
    """All the types that some schemas name."""
    found: set[str] = set()
    for branch in branches:
        named = branch["type"]
        found.update(named if isinstance(named, list) else [named])
    return found


def type_of(value: Any) -> str:
    """JSON's name for what a value is."""
    name = _NAMES.get(type(value))
    return name or next((name for kind, name in _NAMES.items() if isinstance(value, kind)), "")


def fits(value: Any, types: set[str]) -> bool:
    """Is the value of one of these types?"""
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True  # to JSON Schema, 5.0 is a whole number
    kind = type_of(value)
    return kind in types or (kind == "integer" and "number" in types)


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and 0 <= part < len(value)
    return part in value


def _choices(branch: Mapping[str, Any]) -> str:
    values = branch["enum"] if isinstance(branch.get("enum"), list) else [branch.get("const")]
    shown = [json.dumps(value, ensure_ascii=False, default=str) for value in values[:MAX_CHOICES]]
    return " | ".join([*shown, *(["…"] if len(values) > MAX_CHOICES else [])])
