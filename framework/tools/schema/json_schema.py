"""Looks up what a JSON Schema allows at a place in a value, and describes it in a few words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from framework.types.flat_schema import resolve_reference
from framework.types.text import shorten

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
        if isinstance(node, dict) and "type" in node:  # fast path: nearly always true, once per argument
            return [node]
        branches: list[Mapping[str, Any]] = []
        pending = [(node, 0)]
        for _ in range(_MAX_VISITED):
            if not pending:
                return branches
            node, hops = pending.pop()
            if not isinstance(node, (dict, Mapping)) or hops > _MAX_HOPS:  # dict first: Mapping is slow to check
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
        container_type = "object" if isinstance(value, (dict, Mapping)) else "array"
        containers = [branch for branch in self.branches(node) if container_type in type_names([branch])]
        if len(containers) != 1:
            return None
        (branch,) = containers
        if container_type == "array":
            return None if "prefixItems" in branch else branch.get("items")
        properties = branch.get("properties")
        if isinstance(properties, (dict, Mapping)) and part in properties:
            return properties[part]
        return None if "patternProperties" in branch else branch.get("additionalProperties")

    def optional_properties(self, node: Any) -> frozenset[str]:
        """Return the properties of an object that may be omitted; empty if that is ambiguous."""
        objects = [branch for branch in self.branches(node) if "object" in type_names([branch])]
        if len(objects) != 1 or not isinstance(objects[0].get("properties"), (dict, Mapping)):
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
