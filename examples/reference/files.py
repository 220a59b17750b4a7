"""Agent files and `agentsd.yaml`, from their JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from examples.reference.markdown import code, prose, table
from framework.config.schema import ProjectNames, agent_schema, settings_schema

Schema = Mapping[str, Any]

_AGENT = """\
After this page you know every key of an agent file, `agents.d/**/*.yaml`.
[Agent files](../agents.md) explains them with examples.
"""
_SETTINGS = """\
After this page you know every key of `agentsd.yaml`, and of the environment variables that replace
them: `AGENTSD_SECTION__KEY`, such as `AGENTSD_SERVER__PORT=9000`. [Settings](../settings.md)
explains them with examples.
"""


def agent_page() -> Iterator[str]:
    """Yield the lines of the page on agent files."""
    yield from _page("Keys of agent files", _AGENT, agent_schema(ProjectNames()))


def settings_page() -> Iterator[str]:
    """Yield the lines of the page on `agentsd.yaml`."""
    yield from _page("Keys of agentsd.yaml", _SETTINGS, settings_schema(ProjectNames()))


def _page(title: str, opening: str, schema: Schema) -> Iterator[str]:
    yield f"# {title}\n"
    yield opening
    yield "Durations are written as `500ms`, `90s`, `15m`, `24h` or `30d`.\n"
    yield "## The file\n"
    yield from _keys(schema, schema)
    for name, definition in schema["$defs"].items():
        if "properties" in definition:
            yield f"\n## {name}\n"
            yield f"{prose(str(definition.get('description', '')))}\n"
            yield from _keys(definition, schema)


def _keys(part: Schema, schema: Schema) -> Iterator[str]:
    required = part.get("required", ())
    rows = [
        (code(name), _type(found, schema), "required" if name in required else _default(found), _text(found))
        for name, found in part["properties"].items()
    ]
    yield from table(("key", "value", "default", "meaning"), rows)


def _type(found: Schema, schema: Schema) -> str:
    """Return the type of a value: a name of this page as a link, choices, or a type of JSON."""
    if reference := found.get("$ref"):
        name = reference.rsplit("/", 1)[-1]
        definition = schema["$defs"][name]
        return f"[{name}](#{name.lower()})" if "properties" in definition else _type(definition, schema)
    if choices := found.get("enum"):
        return ", ".join(code(str(choice)) for choice in choices)
    if "const" in found:
        return code(json.dumps(found["const"]))
    if "pattern" in found and "ms|s|m|h|d" in found["pattern"]:
        return "duration"
    if branches := found.get("oneOf") or (found.get("anyOf") if "type" not in found else None):
        return " or ".join(dict.fromkeys(filter(None, (_type(branch, schema) for branch in branches))))
    kinds = found.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    if "array" in kinds:
        return f"list of {_type(found.get('items', {}), schema)}"
    if "object" in kinds and isinstance(found.get("additionalProperties"), dict):
        return f"map to {_type(found['additionalProperties'], schema)}"
    return " or ".join(kinds)


def _default(found: Schema) -> str:
    value = found.get("default")
    if value in (None, [], {}, ""):
        return ""
    return "its keys' defaults" if isinstance(value, dict) else code(json.dumps(value, ensure_ascii=False))


def _text(found: Schema) -> str:
    return str(found.get("description", ""))
