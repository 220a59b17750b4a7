"""Puts the JSON Schema of a tool's arguments into the form that a provider accepts. Pure.

The model sees less of the schema, but arguments are still validated against the complete one. A provider refuses a
whole request for one schema that it does not accept, so each rule here is one that a provider is known to enforce:

- all: an object at the root, without `anyOf`, `oneOf`, `allOf`, `not`, `enum` or a reference beside it;
- OpenAI, and the servers and gateways with its API: lists have `items`, choices are not empty;
- Mistral: no `$schema` and no `$id`, at any depth;
- Anthropic: draft 2020-12, and names of arguments of 1 to 64 letters, digits, `_`, `.` and `-` (at the root);
- Gemini: the subset in `_KEPT` and below.

No tool is sent in a provider's strict mode: it forbids optional arguments, and OpenAI then refuses most schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from framework.types.flat_schema import flat_schema
from framework.types.messages import ToolDefinition, wire_keys
from framework.types.text import shorten

SchemaForm = Literal["openai", "anthropic", "gemini"]
"""The form of schemas, by the API format of the provider."""
_Schema = dict[str, Any]

_KEPT = ("type", "title", "description", "minItems", "maxItems", "minimum", "maximum", "required")
_FORMATS = ("date-time", "date", "time")
_SUBSCHEMAS = ("items", "additionalProperties")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "$defs")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords with schemas by name, in any provider's form."""
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SCHEMAS = ("items", "additionalProperties", "contains", "not")
_MAX_SHOWN_CHARS = 80
_BLAMED = tuple(
    map(
        re.compile,
        (r"function_declarations\[(\d+)\]", r"\b(?:function|tool) [`'\"]?([\w.-]+\w)", r"\btools[.\[](\d+)"),
    )
)
"""Where messages of Gemini, OpenAI and Anthropic name the tool that they reject."""
_OF_HISTORY = re.compile(r"\b(?:messages|contents|input)[.\[]\d|\bthought_signature\b")
"""Messages about an earlier call, not about the definition of its tool."""
_WORD = re.compile(r"[\w.-]+")
_QUOTES = ("`", "'", '"')
_MAX_DIGITS = 6


def wire_schema(schema: Mapping[str, Any], api: SchemaForm) -> _Schema:
    """Return the schema of a tool's arguments as it is sent to a provider; an accepted one is unchanged."""
    sent: _Schema = {"type": "object", **_corrected(flat_schema(schema))}
    if api == "gemini":
        return {**_clean(sent), "type": "object"}
    for keyword in ("enum", "const"):
        sent.pop(keyword, None)
    properties = sent.get("properties")
    if api == "anthropic" and isinstance(properties, Mapping):
        real = wire_keys(properties)
        if any(wire != name for wire, name in real.items()):
            sent["properties"] = {wire: properties[name] for wire, name in real.items()}
            wires = {name: wire for wire, name in real.items()}
            sent["required"] = [wires.get(name, name) for name in sent.get("required", ())]
    return sent


def gemini_parameters(schema: Mapping[str, Any]) -> _Schema | None:
    """Return a function's parameters, or None if it has none: Gemini rejects an object without properties."""
    parameters = wire_schema(schema, "gemini")
    return parameters if parameters.get("properties") else None


def schema_changes(written: object, sent: object, place: str = "") -> Iterator[str]:
    """Yield what differs between a schema and the one that is sent, such as `properties.n.format: removed`."""
    if not isinstance(written, Mapping) or not isinstance(sent, Mapping):
        if written != sent:
            yield f"{place}: sent as {shorten(str(sent), _MAX_SHOWN_CHARS)}"
        return
    prefix = f"{place}." if place else ""
    for key in dict.fromkeys((*written, *sent)):
        if key not in sent:
            yield f"{prefix}{key}: removed"
        elif key not in written:
            yield f"{prefix}{key}: added"
        else:
            yield from schema_changes(written[key], sent[key], f"{prefix}{key}")


def blamed_tool(message: str, tools: Sequence[ToolDefinition]) -> ToolDefinition | None:
    """Return the tool that a provider's message about a rejected request names, by its name or its position."""
    by_name = {tool.name: tool for tool in tools} | {tool.wire_name: tool for tool in tools}
    for pattern in _BLAMED:
        for found in pattern.finditer(message):
            named = by_name.get(found[1])
            if named is None and found[1].isdecimal() and len(found[1]) < _MAX_DIGITS and int(found[1]) < len(tools):
                named = tools[int(found[1])]
            if named is not None:
                return named
    if _OF_HISTORY.search(message):
        return None
    # A name without quotes may be a word of the sentence, unless it is one that no sentence has.
    words = {
        found[0].rstrip(".-")
        for found in _WORD.finditer(message)
        if message.endswith(_QUOTES, 0, found.start()) or not found[0].rstrip(".-").isalpha()
    }
    named_tools = {tool.name: tool for name, tool in by_name.items() if name in words}
    return next(iter(named_tools.values())) if len(named_tools) == 1 else None


# --- every provider


def _corrected(node: Mapping[str, Any]) -> _Schema:
    """Return a schema without what every provider refuses; the same object if there is nothing."""
    changed: _Schema = {}
    for key, value in node.items():
        new = _corrected_part(key, value)
        if new is not value:
            changed[key] = new
    fixed: _Schema = {**node, **changed} if changed else dict(node)
    kinds = node.get("type")
    if "array" in (kinds if isinstance(kinds, list) else [kinds]) and "items" not in fixed:
        fixed["items"] = {}
    if isinstance(fixed.get("items"), list):  # an older draft's tuple
        fixed["prefixItems"], fixed["items"] = fixed["items"], fixed.pop("additionalItems", {})
    if fixed.get("enum") == []:
        del fixed["enum"]
    for unknown in ("$schema", "$id", "nullable"):  # Mistral cannot compile the first two; the third is OpenAPI's
        fixed.pop(unknown, None)
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(flag := fixed.get(exclusive), bool):  # draft 4
            del fixed[exclusive]
            if flag and limit in fixed:
                fixed[exclusive] = fixed.pop(limit)
    return node if fixed == node and isinstance(node, dict) else fixed


def _corrected_part(key: str, value: Any) -> Any:
    if key in _SCHEMA_MAPS and isinstance(value, Mapping):
        fixed = {name: _corrected_node(part) for name, part in value.items()}
        return fixed if any(fixed[name] is not value[name] for name in fixed) else value
    if key in _SCHEMA_LISTS and isinstance(value, list):
        parts = [_corrected_node(part) for part in value]
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return _corrected_node(value) if key in _SCHEMAS and isinstance(value, Mapping) else value


def _corrected_node(node: Any) -> Any:
    if node is True:
        return {}
    return _corrected(node) if isinstance(node, Mapping) else node


# --- Gemini


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
