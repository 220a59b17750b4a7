"""Agent files and `agentsd.yaml`, from their JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from examples.reference.markdown import code, prose, table
from framework.config.schema import ProjectNames, agent_schema, settings_schema
from framework.config.yaml.agent_keys import written_path

Schema = Mapping[str, Any]

_AGENT = """\
Every key of `agents.d/**/*.yaml`; [Agent files](../agents.md) has examples, and
[older keys](agent-file-older.md) a page of their own.
"""
_SETTINGS = """\
Every key of `agentsd.yaml`, and the environment variables that replace them.
[Settings](../settings.md) has examples.

## Environment variables

A variable replaces a key, also that of an environment's file: `AGENTSD_SECTION__KEY`, with two
underscores between levels, such as `AGENTSD_SERVER__PORT=9000`, or `AGENTSD_KEY` for a key outside
a section, such as `AGENTSD_LOCALE=zh`. Lists and mappings are JSON:
`AGENTSD_SERVER__CORS_ORIGINS='["http://localhost:3000"]'`. An unknown variable that begins with
`AGENTSD_` is an error.
"""


_OLDER = """\
Sections and keys that agent files had before. They stay valid, and `agentsd check --fix` rewrites
them; [Keys of agent files](agent-file.md) has the keys to write instead. `skill_policy` never lifts
the risk ceiling of a tool, as `tools` does for tools that it names without a wildcard.
"""
_OLDER_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "SkillPolicy": ("skill_policy",),
    "RuntimePolicy": ("runtime_policy",),
    "ConfirmPolicy": ("runtime_policy", "confirm"),
    "ApprovalFrom": ("plan", "approval"),
}
"""The definitions of older sections, with the paths of their keys."""


def agent_page() -> Iterator[str]:
    """Yield the lines of the page on agent files."""
    schema = agent_schema(ProjectNames())
    keys = {key: one for key, one in schema["properties"].items() if written_path((key,)) == (key,)}
    others = [name for name in schema["$defs"] if name not in _OLDER_SECTIONS]
    links = {name: f"agent-file-older.md#{''.join(path)}" for name, path in _OLDER_SECTIONS.items()}
    for line in _page("Keys of agent files", _AGENT, {**schema, "properties": keys}, others):
        for name, target in links.items():
            line = line.replace(f"](#{name.lower()})", f"]({target})")
        yield line


def older_agent_page() -> Iterator[str]:
    """Yield the lines of the page on the older keys of agent files."""
    schema = agent_schema(ProjectNames())
    yield "---\nsearch: {exclude: true}\n---\n"  # a search for an older key shall lead to the newer one
    yield "# Older keys of agent files\n"
    yield _OLDER
    yield from table(("older", "now"), [(code(key), _now((key,))) for key in _older_keys(schema, ())])
    for name, path in _OLDER_SECTIONS.items():
        yield f"\n## {'.'.join(path)}\n"
        rows = [(code(key), _now((*path, key))) for key in _older_keys(schema["$defs"][name], path)]
        yield from table(("older", "now"), rows)


def _older_keys(part: Schema, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys of a section that are written elsewhere now."""
    for key in part["properties"]:
        if written_path((*path, key)) != (*path, key):
            yield key


def _now(path: tuple[str, ...]) -> str:
    return code(".".join(map(str, written_path(path))))


def settings_page() -> Iterator[str]:
    """Yield the lines of the page on `agentsd.yaml`."""
    schema = settings_schema(ProjectNames())
    yield from _page("Keys of agentsd.yaml", _SETTINGS, schema, schema["$defs"])


def _page(title: str, opening: str, schema: Schema, sections: Iterable[str]) -> Iterator[str]:
    yield f"# {title}\n"
    yield opening
    yield "Durations are written as `500ms`, `90s`, `15m`, `24h` or `30d`.\n"
    yield "## The file\n"
    yield from _keys(schema, schema)
    described = {_text(found, schema) for part in (schema, *schema["$defs"].values()) for found in _rows_of(part)}
    for name in sections:
        definition = schema["$defs"][name]
        if "properties" in definition:
            yield f"\n## {name}\n"
            text = str(definition.get("description", ""))
            yield "" if text in described else f"{prose(text)}\n"
            yield from _keys(definition, schema)


def _rows_of(part: Schema) -> Iterable[Schema]:
    found: Iterable[Schema] = part.get("properties", {}).values()
    return found


def _keys(part: Schema, schema: Schema) -> Iterator[str]:
    required = part.get("required", ())
    rows = [
        (code(name), _value(found, schema, is_required=name in required), _text(found, schema))
        for name, found in part["properties"].items()
    ]
    yield from table(("key", "value", "meaning"), rows)
    yield ""


def _value(found: Schema, schema: Schema, *, is_required: bool) -> str:
    """Return the type of a value, with its default."""
    default = "required" if is_required else _default(found, schema)
    return ", ".join(
        filter(None, (_type(found, schema), default and (default if is_required else f"default {default}")))
    )


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


def _default(found: Schema, schema: Schema) -> str:
    value = found.get("default")
    if value in (None, [], {}, ""):
        return ""
    if isinstance(value, dict):
        if any("properties" in _definition(one, schema) for one in (found, *found.get("anyOf", ()))):
            return ""  # those of its keys
        return code(f"{{{', '.join(f'{key}: {one}' for key, one in value.items())}}}")
    return code(_duration(value) if _type(found, schema) == "duration" else json.dumps(value, ensure_ascii=False))


def _duration(value: str) -> str:
    """Return a duration in the unit that people use: `2592000s` becomes `30d`, `0.5s` becomes `500ms`."""
    seconds = float(value.removesuffix("s"))
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds / 86400:.0f}d" if seconds % 86400 == 0 else value


def _text(found: Schema, schema: Schema) -> str:
    """Return the description of a key, or that of the section it contains."""
    return str(found.get("description") or _definition(found, schema).get("description", ""))


def _definition(found: Schema, schema: Schema) -> Schema:
    """Return the definition that a key refers to; empty if it refers to none."""
    definition: Schema = schema["$defs"].get(found.get("$ref", "").rsplit("/", 1)[-1], {})
    return definition
