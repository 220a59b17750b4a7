"""What the APIs refuse in the JSON Schemas of tools' arguments, each with its provider's words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema

from tests.support.peers.rule import nested_schemas

PART: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
ODD: dict[str, dict[str, Any]] = {
    "anyOf": {"type": "object", "anyOf": [PART, {"properties": {"b": {}}}]},
    "oneOf": {"oneOf": [PART, {"properties": {"b": {}}}]},
    "$ref": {"$ref": "#/$defs/part", "$defs": {"part": PART}},
    "list without items": {"type": "object", "properties": {"xs": {"type": "array"}}},
    "list or text": {"type": "object", "properties": {"xs": {"type": ["string", "array"]}}},
    "tuple of an old draft": {"properties": {"xs": {"type": "array", "items": [{"type": "string"}]}}},
    "no choices": {"type": "object", "properties": {"n": {"type": "string", "enum": []}}},
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"n": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "exclusiveMaximum": False}},
    },
    "keys": {"properties": {"$filter": {}, "page[size]": {}, "k" * 70: {}, "@type": {}}, "required": ["$filter"]},
    "anything": {"type": "object", "properties": {"any": True, "n": {"type": "string", "nullable": True}}},
    "names": {
        "$id": "https://example.org/a",
        "properties": {"o": {"$id": "b", "$schema": "c", "type": "object", "properties": {"$id": {"type": "string"}}}},
    },
    "nested": {"properties": {"o": {"type": "object", "properties": {"xs": {"type": "array"}}}}},
}
_ROOT_OF_OPENAI = ("oneOf", "anyOf", "allOf", "enum", "not")
_ROOT_OF_ANTHROPIC = ("oneOf", "allOf", "anyOf")
_KEY_OF_ANTHROPIC = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_KNOWN_TO_GEMINI = {
    *("$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems"),
    *("minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required"),
    "propertyOrdering",
}


def refused_by_openai(schema: Any) -> str:
    """Return why OpenAI refuses the parameters of a function, or an empty text.

    See https://github.com/nspady/google-calendar-mcp/issues/39 for the root and
    https://github.com/PrefectHQ/fastmcp/issues/2464 for lists.
    """
    if not _is_object(schema):
        return "schema must be a JSON Schema of 'type: \"object\"'"
    if any(keyword in schema for keyword in _ROOT_OF_OPENAI):
        choices = "/".join(f"'{keyword}'" for keyword in _ROOT_OF_OPENAI)
        return f"schema must have type 'object' and not have {choices} at the top level."
    for at, inner in nested_schemas(schema):
        kinds = inner.get("type")
        if "array" in (kinds if isinstance(kinds, list) else [kinds]) and "items" not in inner:
            return f"In context={at}, array schema missing items."
        if inner.get("enum") == []:
            return f"In context={at}, [] should be non-empty"
    return ""


def refused_by_anthropic(schema: Any) -> str:
    """Return why Anthropic refuses an input schema, with the place in it, or an empty text.

    See https://github.com/dearlordylord/huly-mcp/issues/66 for the root,
    https://github.com/beautyfree/appstore-connect-mcp/issues/2 for names of arguments, and
    https://github.com/anthropics/claude-code/issues/2758 for the draft.
    """
    if not _is_object(schema):
        return ".type: Input should be 'object'"
    if any(keyword in schema for keyword in _ROOT_OF_ANTHROPIC):
        return ": input_schema does not support oneOf, allOf, or anyOf at the top level"
    if not all(_KEY_OF_ANTHROPIC.fullmatch(name) for name in schema.get("properties", {})):
        return ".properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    if invalid(schema):
        return ": JSON schema is invalid. It must match JSON Schema draft 2020-12"
    return ""


def refused_by_mistral(schema: Any) -> str:
    """Return why Mistral refuses the parameters of a function, or an empty text.

    See https://github.com/SylphxAI/pdf-reader-mcp/issues/63, and https://github.com/BerriAI/litellm/pull/13389 for the
    keywords that it cannot compile.
    """
    if not _is_object(schema) or invalid(schema):
        return f"Invalid tool schema: {schema} is not valid under any of the given schemas"
    if any(keyword in inner for _, inner in nested_schemas(schema) for keyword in ("$id", "$schema")):
        return "Grammar error: at 3(11): failed to compile JSON schema"
    return ""


def refused_by_gemini(schema: Any) -> str:
    """Return why Gemini refuses the `parametersJsonSchema` of a function, or an empty text.

    The keywords are those of https://ai.google.dev/api/generate-content#FIELDS.response_json_schema; a reference has no
    other keyword beside it. Seen in https://github.com/pizza-bot-app/pizza-bot/issues/62.
    """
    if not _is_object(schema):
        return 'parameters_json_schema should be of "object" type'
    for at, inner in nested_schemas(schema):
        known = {"$ref", "$defs"} if "$ref" in inner else _KNOWN_TO_GEMINI
        for keyword in inner.keys() - known:
            return f"Unknown name \"{keyword}\" at '{'.'.join(at)}': Cannot find field."
        if any(
            isinstance(choice, bool) or not isinstance(choice, (str, int, float)) for choice in inner.get("enum", ())
        ):
            return f"Invalid value at '{'.'.join(at)}.enum' (TYPE_STRING)"
    return ""


def invalid(schema: Any) -> bool:
    """Return whether a schema is not one of draft 2020-12."""
    return _is_invalid(json.dumps(schema))


@lru_cache(maxsize=256)  # to check one takes milliseconds, and each request of a run repeats the schemas of its tools
def _is_invalid(text: str) -> bool:
    try:
        jsonschema.Draft202012Validator.check_schema(json.loads(text))
    except jsonschema.SchemaError:
        return True
    return False


def _is_object(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "object"
