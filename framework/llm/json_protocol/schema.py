"""The JSON Schema of a reply, for servers that enforce one.

Servers support different parts of JSON Schema and reject requests with the rest, so arguments are described with the
keywords that all of them support. The engine checks arguments against the complete schema anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.types.messages import ToolDefinition

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})


def reply_schema(
    tools: Sequence[ToolDefinition], *, must_act: bool, answer: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON Schema of a reply: an action with the arguments of its tool, or a final answer.

    Args:
        tools: the tools that may be called.
        must_act: a tool must be called now.
        answer: schema of the final answer, an object; None for text.
    """
    replies = [_reply("action", tool={"const": tool.name}, args=_object(tool.parameters)) for tool in tools]
    if not (tools and must_act):
        replies.append(
            _reply("final", answer={"type": "string", "minLength": 1} if answer is None else _object(answer))
        )
    return {"oneOf": replies} if len(replies) > 1 else replies[0]


def _reply(kind: str, **values: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **values}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**_simplified(schema), "type": "object"}


def _simplified(schema: object) -> dict[str, Any]:
    """Return a schema that accepts what `schema` accepts, and perhaps more: a reference accepts everything."""
    if not isinstance(schema, Mapping):
        return {}
    simple = {key: schema[key] for key in ("enum", "const") if key in schema}
    if (types := _types(schema.get("type"))) is not None:
        simple["type"] = types
    if isinstance(properties := schema.get("properties"), Mapping):
        simple["properties"] = {name: _simplified(value) for name, value in properties.items()}
        simple["required"] = [name for name in schema.get("required", ()) if name in properties]
        if schema.get("additionalProperties") is False:
            simple["additionalProperties"] = False
    if "items" in schema:
        simple["items"] = _simplified(schema["items"])
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            simple["anyOf"] = [_simplified(choice) for choice in choices]
    return simple


def _types(value: object) -> str | list[str] | None:
    """Return the valid `type` of a schema, or None if there is none."""
    types = [name for name in (value if isinstance(value, list) else [value]) if name in _TYPES]
    return types[0] if len(types) == 1 else types or None
