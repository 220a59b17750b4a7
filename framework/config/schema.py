"""The formats of a project's files as JSON Schema, for editors: made from the models that load the files."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from framework.config.settings import Settings
from framework.types.case import CaseFile
from framework.types.frozen import Duration
from framework.types.spec import AgentSpec, ToolPattern
from framework.types.tool_servers import Sources

EditorSchema = dict[str, Any]

_DURATION: EditorSchema = {
    "type": ["string", "number"],
    "pattern": r"^(?=.*[1-9])\d+(\.\d+)?\s*(ms|s|m|h|d)$",
    "patternErrorMessage": "invalid duration: write it as 500ms, 90s, 15m, 24h or 30d",
    "exclusiveMinimum": 0,
}
_VARIABLE = r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"
"""What `agentsd.yaml` may hold instead of a value: it is filled in before the value is checked."""
_ANNOTATIONS = frozenset({"default", "description", "markdownDescription"})
_FOR_ANY_TYPE = frozenset({"enum", "const", "anyOf", "oneOf", "allOf", "$ref", *_ANNOTATIONS})


@dataclass(frozen=True, slots=True)
class ProjectNames:
    """What the files of a project may refer to. Editors offer these; others stay valid, for they may come later."""

    tools: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by name."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by name."""
    models: Collection[str] = ()
    """Aliases, and providers as `openai/`."""
    executors: Collection[str] = ()
    """All there are: no other is valid."""
    templates: Collection[str] = ()
    """Paths below `prompts/`."""


def agent_schema(names: ProjectNames) -> EditorSchema:
    """The schema of an agent file, with a project's names as completions."""
    schema = _generate(AgentSpec, "urn:agentsd:agent")
    agent, definitions = schema["properties"], schema["$defs"]
    policy, rule = definitions["SkillPolicy"]["properties"], definitions["Rule"]["properties"]
    settings, template = definitions["ModelSettings"]["properties"], definitions["TemplateRef"]["properties"]
    pattern = TypeAdapter(ToolPattern).json_schema()
    tools = {**names.tools, **{f"agent.{name}": text for name, text in names.agents.items()}}
    policy["allow"] = _offer(policy["allow"], names.tools)
    for kind in ("deny", "ask"):
        policy[kind]["items"]["anyOf"] = [
            pattern if option == {"type": "string"} else option for option in policy[kind]["items"]["anyOf"]
        ]
        policy[kind] = _offer(policy[kind], tools)
    rule["tool"] = _offer(rule["tool"], tools)
    settings["tool_choice"] = _offer(settings["tool_choice"], dict.fromkeys(("auto", "none", "required"), ""))
    template["template"] = _offer(template["template"], dict.fromkeys(names.templates, ""))
    for keys in (agent, definitions["PlanSettings"]["properties"]):
        keys["model"] = _offer(keys["model"], dict.fromkeys(names.models, ""))
    agent["fallback_models"] = _offer(agent["fallback_models"], dict.fromkeys(names.models, ""))
    agent["sub_agents"] = _offer(agent["sub_agents"], names.agents)
    if names.executors:
        agent["executor"]["enum"] = sorted(names.executors)
    return schema


def settings_schema(names: ProjectNames) -> EditorSchema:
    """The schema of `agentsd.yaml`, with a project's names as completions."""
    schema = _generate(Settings, "urn:agentsd:settings")
    definitions, models = schema["$defs"], dict.fromkeys(names.models, "")
    alias, routing = definitions["ModelAlias"]["properties"], definitions["RoutingSettings"]["properties"]
    schema["properties"]["model"] = _offer(schema["properties"]["model"], models)
    alias["model"] = _offer(alias["model"], models)
    routing["model"] = _offer(routing["model"], models)
    routing["default_agent"] = _offer(routing["default_agent"], names.agents)
    for model in (schema, *definitions.values()):
        model["properties"] = {key: _or_variable(node) for key, node in model["properties"].items()}
    return schema


def cases_schema(names: ProjectNames) -> EditorSchema:
    """The schema of the cases beside an agent, with a project's names as completions."""
    schema = _generate(CaseFile, "urn:agentsd:cases")
    definitions, tools = schema["$defs"], {**names.tools, **{f"agent.{name}": "" for name in names.agents}}
    case, expect = definitions["Case"]["properties"], definitions["Expect"]["properties"]
    case["expect"].pop("default")  # editors would fill it in
    case["agent"] = _offer(case["agent"], names.agents)
    for answer in ("ScriptedAnswer", "ScriptedCall"):
        definitions[answer]["properties"]["call"] = _offer(definitions[answer]["properties"]["call"], tools)
    for key in ("offered", "not_offered", "called", "called_exactly", "not_called", "denied", "asked"):
        expect[key] = _offer(expect[key], tools)
    return schema


def sources_schema(names: ProjectNames) -> EditorSchema:  # noqa: ARG001 - one signature for all
    """The schema of tool sources in `plugins/`."""
    schema = _generate(Sources, "urn:agentsd:sources")
    for model in (schema, *schema["$defs"].values()):
        model["properties"] = {key: _or_variable(node) for key, node in model["properties"].items()}
    return schema


def _generate(model: type[BaseModel], identity: str) -> EditorSchema:
    made = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, "$id": identity, **made}


class _Generator(GenerateJsonSchema):
    """Pydantic's schema as editors like it: fields with their docstrings, no titles, few alternatives."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """What may stand at one place."""
        made = super().generate_inner(schema)
        return dict(_DURATION) if made == _declared_duration() else _merge_alternatives(made)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the signature is pydantic's
        """Never: editors would show each key a second time, capitalized."""
        return False

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """One model, its fields described."""
        made = super().model_schema(schema)
        made.pop("title", None)
        model: type[BaseModel] = schema["cls"]
        docs = field_docs(model)
        for name, info in model.model_fields.items():
            node = made["properties"][info.alias or name]
            if name in docs:
                node["description"] = docs[name]
                if "`" in docs[name]:
                    node["markdownDescription"] = docs[name]
            if node.get("pattern") == _DURATION["pattern"] and isinstance(node.get("default"), float):
                node["default"] = f"{node['default']:.15g}s"
        return made


@cache
def _declared_duration() -> EditorSchema:
    """What `Duration` says of itself: less than it checks."""
    return TypeAdapter(Duration).json_schema()


def _merge_alternatives(node: EditorSchema) -> EditorSchema:
    """Alternatives of different types as one: editors then tell one mistake, and show the description once."""
    options = node.get("anyOf", ())
    keys = [key for option in options for key in option if key != "type"]
    # `null` first: editors fill in what may be text or a number, when they complete the mapping around it
    kinds = sorted((kind for option in options for kind in _types(option)), key=lambda kind: kind != "null")
    apart = all("type" in option for option in options) and len(keys) == len(set(keys))
    mixed = keys and {"integer", "number"}.issubset(kinds)  # a limit of the one would hold for the other
    if not options or not apart or mixed or not _FOR_ANY_TYPE.isdisjoint(keys):
        return node
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    merged = {key: value for option in options for key, value in option.items()}
    return {**merged, "type": kinds, **rest}


def _types(node: EditorSchema) -> list[str]:
    kind = node.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a model's fields, inherited ones too; none where the source is not at hand."""
    docs: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if model.model_fields.keys() & inspect.get_annotations(cls).keys():
            docs.update(_module_docs(cls.__module__).get(cls.__qualname__, {}))
    return docs


@cache
def _module_docs(module: str) -> Mapping[str, Mapping[str, str]]:
    """What stands under the attributes of a module's classes. Read here, for at import every start would pay for it."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {node.name: dict(_attribute_docs(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _attribute_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for attribute, below in zip(node.body, node.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def _offer(node: EditorSchema, names: Mapping[str, str]) -> EditorSchema:
    """The same place, with names offered for the text in it: alternatives, so that other text stays valid."""
    if "items" in node:
        return {**node, "items": _offer(node["items"], names)}
    if not names:
        return node
    named: EditorSchema = {"enum": sorted(names)}
    if any(names.values()):
        named["enumDescriptions"] = [names[name] for name in named["enum"]]
    if "anyOf" in node:
        return {**node, "anyOf": [{"type": "string", **named}, *node["anyOf"]]}
    about, rest = _split_annotations(node)
    return {**about, "type": rest.pop("type"), "anyOf": [named, rest]}


def _or_variable(node: EditorSchema) -> EditorSchema:
    """The same place, where a value that is more than any text may also be a `${VARIABLE}`."""
    if "anyOf" in node:  # names that are offered; beside them is the text that may be a variable
        return {**node, "anyOf": [option if "enum" in option else _or_variable(option) for option in node["anyOf"]]}
    if "enum" in node:
        about, rest = _split_annotations(node)
        return {**about, "anyOf": [rest, {"type": "string", "pattern": _VARIABLE}]}
    kinds, patterns = _types(node), [node["pattern"]] if "pattern" in node else []
    if not patterns and not {"integer", "number", "boolean"}.intersection(kinds):
        return node
    also = {"type": list(dict.fromkeys([*kinds, "string"]))} if kinds else {}
    return {**node, **also, "pattern": "|".join([*patterns, _VARIABLE])}


def _split_annotations(node: EditorSchema) -> tuple[EditorSchema, EditorSchema]:
    """What is said about a place, and what may stand there."""
    about = {key: value for key, value in node.items() if key in _ANNOTATIONS}
    return about, {key: value for key, value in node.items() if key not in _ANNOTATIONS}
