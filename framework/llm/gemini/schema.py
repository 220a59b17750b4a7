"""JSON Schema in the part of it that Gemini takes for a function's parameters. Pure.

What is left out only tells the model less: arguments are checked against the tool's own schema all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_Schema = dict[str, Any]

_KEPT = ("type", "title", "description", "minItems", "maxItems", "minimum", "maximum", "required")
_FORMATS = ("date-time", "date", "time")
_NESTED = ("items", "additionalProperties")
_LISTED = ("anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "$defs")


def gemini_parameters(schema: Mapping[str, Any]) -> _Schema | None:
    """A function's parameters; None where there are none, for an object without properties is refused."""
    made = _clean(schema)
    if not made.get("properties"):
        return None
    return {**made, "type": "object"}


def _clean(node: object) -> _Schema:
    if not isinstance(node, Mapping):  # `true` and `false`: anything at all
        return {}
    if "$ref" in node:
        return _reference(str(node["$ref"]))
    node = _merged(node)
    made: _Schema = {key: node[key] for key in _KEPT if key in node}
    made |= {key: _clean(node[key]) for key in _NESTED if isinstance(node.get(key), Mapping)}
    made |= {key: [_clean(option) for option in node[key]] for key in _LISTED if isinstance(node.get(key), list)}
    made |= {key: _clean_all(node[key]) for key in _NAMED if isinstance(node.get(key), Mapping)}
    if node.get("additionalProperties") is False:
        made["additionalProperties"] = False
    if node.get("format") in _FORMATS:
        made["format"] = node["format"]
    if choices := _choices(node):
        made["enum"] = choices
    if "minimum" not in made and isinstance(node.get("exclusiveMinimum"), (int, float)):
        made["minimum"] = node["exclusiveMinimum"]
    if "maximum" not in made and isinstance(node.get("exclusiveMaximum"), (int, float)):
        made["maximum"] = node["exclusiveMaximum"]
    return made


def _clean_all(nodes: Mapping[str, Any]) -> _Schema:
    return {name: _clean(node) for name, node in nodes.items()}


def _reference(target: str) -> _Schema:
    """Beside a reference nothing may stand; one that leads elsewhere is not followed."""
    local = target.replace("#/definitions/", "#/$defs/", 1)
    return {"$ref": local} if local.startswith("#/$defs/") else {}


def _merged(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node with all of its `allOf` in it, and older drafts' `definitions` under their new name."""
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
    """An enum of texts and numbers; any other is left out as a whole, or a part would be all that is offered."""
    choices = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(choices, list):
        return []
    plain = [choice for choice in choices if isinstance(choice, (str, int, float)) and not isinstance(choice, bool)]
    return plain if len(plain) == len(choices) else []
