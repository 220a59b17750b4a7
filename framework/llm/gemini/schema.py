"""Reduces a JSON Schema to the subset that Gemini accepts for a function's parameters. Pure.

The model sees less of the schema, but arguments are still validated against the complete one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_Schema = dict[str, Any]

_KEPT = ("type", "title", "description", "minItems", "maxItems", "minimum", "maximum", "required")
_FORMATS = ("date-time", "date", "time")
_SUBSCHEMAS = ("items", "additionalProperties")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "$defs")


def gemini_parameters(schema: Mapping[str, Any]) -> _Schema | None:
    """Return a function's parameters, or None if it has none: Gemini rejects an object without properties."""
    parameters = _clean(schema)
    if not parameters.get("properties"):
        return None
    return {**parameters, "type": "object"}


def _clean(node: object) -> _Schema:
    if not isinstance(node, Mapping):  # `true` or `false`: no constraint
        return {}
    if "$ref" in node:
        return _reference(str(node["$ref"]))
    node = _merged(node)
    cleaned: _Schema = {key: node[key] for key in _KEPT if key in node}
    cleaned |= {key: _clean(node[key]) for key in _SUBSCHEMAS if isinstance(node.get(key), Mapping)}
    cleaned |= {
        key: [_clean(option) for option in node[key]] for key in _SUBSCHEMA_LISTS if isinstance(node.get(key), list)
    }
    cleaned |= {key: _clean_all(node[key]) for key in _SUBSCHEMA_MAPS if isinstance(node.get(key), Mapping)}
    if node.get("additionalProperties") is False:
        cleaned["additionalProperties"] = False
    if node.get("format") in _FORMATS:
        cleaned["format"] = node["format"]
    if choices := _choices(node):
        cleaned["enum"] = choices
    if "minimum" not in cleaned and isinstance(node.get("exclusiveMinimum"), (int, float)):
        cleaned["minimum"] = node["exclusiveMinimum"]
    if "maximum" not in cleaned and isinstance(node.get("exclusiveMaximum"), (int, float)):
        cleaned["maximum"] = node["exclusiveMaximum"]
    return cleaned


def _clean_all(nodes: Mapping[str, Any]) -> _Schema:
    return {name: _clean(node) for name, node in nodes.items()}


def _reference(target: str) -> _Schema:
    """Return a local reference, without its siblings; drop any other."""
    local = target.replace("#/definitions/", "#/$defs/", 1)
    return {"$ref": local} if local.startswith("#/$defs/") else {}


def _merged(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the node merged with its `allOf`, and with `definitions` of older drafts renamed to `$defs`."""
    merged: _Schema = {}
    parts = node.get("allOf")
    for part in [*(parts if isinstance(parts, list) else []), node]:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            key = "$defs" if key == "definitions" else key
            before = merged.get(key)
            if isinstance(before, dict) and isinstance(value, Mapping):
                merged[key] = {**before, **value}
            elif key == "required" and isinstance(before, list) and isinstance(value, list):
                merged[key] = list(dict.fromkeys([*before, *value]))
            else:
                merged[key] = value
    return merged


def _choices(node: Mapping[str, Any]) -> list[str | int | float]:
    """Return an enum of strings and numbers. Any other is dropped: a part of it would exclude valid values."""
    choices = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(choices, list):
        return []
    plain = [choice for choice in choices if isinstance(choice, (str, int, float)) and not isinstance(choice, bool)]
    return plain if len(plain) == len(choices) else []
