"""JSON Schemas of the project's files for editors, from the models that load the files and the names in a project."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from framework.config.agents.compile import BUILTIN_EXECUTORS
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.config.snapshot import PROMPTS
from framework.config.triggers import TriggerSpec
from framework.config.yaml.agent_keys import INPUT_TYPES, LIMITS, PLAN_APPROVALS, SECTION_KEYS, TOP_LEVEL, WRITTEN
from framework.llm.providers import OFFLINE, PROVIDERS
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
"""A variable reference, which `agentsd.yaml` may contain in place of a value."""
_ANNOTATIONS = frozenset({"default", "description", "markdownDescription"})
_FOR_ANY_TYPE = frozenset({"enum", "const", "anyOf", "oneOf", "allOf", "$ref", *_ANNOTATIONS})


@dataclass(frozen=True, slots=True)
class ProjectNames:
    """Names that a project's files may refer to. Editors suggest them; other names remain valid."""

    tools: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by name."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by name."""
    models: Collection[str] = ()
    """Aliases, and prefixes of providers such as `openai/`."""
    executors: Collection[str] = ()
    """All executors: no other name is valid."""
    templates: Collection[str] = ()
    """Paths below `prompts/`."""
    budgets: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the shared budgets by name."""


def agent_schema(names: ProjectNames) -> EditorSchema:
    """Return the schema of agent files, with a project's names as completions."""
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
    conversation = definitions["ConversationSettings"]["properties"]
    conversation["compress_model"] = _offer(conversation["compress_model"], dict.fromkeys(names.models, ""))
    agent["fallback_models"] = _offer(agent["fallback_models"], dict.fromkeys(names.models, ""))
    agent["sub_agents"] = _offer(agent["sub_agents"], names.agents)
    agent["handoffs"] = _offer(agent["handoffs"], names.agents)
    agent["budgets"] = _offer(agent["budgets"], names.budgets)
    if names.executors:
        agent["executor"]["enum"] = sorted(names.executors)
    _add_keys(schema)
    return schema


def _add_keys(schema: EditorSchema) -> None:
    """Add the keys that the parser moves to other fields. The older spellings stay valid, but are not suggested."""
    agent, definitions = schema["properties"], schema["$defs"]
    policy, runtime = definitions["SkillPolicy"]["properties"], definitions["RuntimePolicy"]["properties"]
    confirm, plan = definitions["ConfirmPolicy"]["properties"], definitions["PlanSettings"]["properties"]
    rules = _section("Tools that the agent can use.", {key: policy[key] for key in SECTION_KEYS["tools",]})
    rules["anyOf"] = [{"required": ["allow"]}, {"required": ["ask"]}]
    definitions["Tools"], definitions["Approval"] = (
        rules,
        _section(
            str(definitions["ConfirmPolicy"]["description"]), {"risk": confirm["from"], **_without(confirm, "from")}
        ),
    )
    limits = {key: runtime[str(path[-1])] for key, path in LIMITS.items() if key != "budgets"}
    names = agent["budgets"]
    limits["budgets"] = {"description": names["description"], "anyOf": [names["items"], _without(names, "description")]}
    definitions["RunLimits"] = _section("Limits of a run.", limits)
    other = {"max_risk": "risk_level", "strict_arguments": "strict_arguments"}
    keys = {key: runtime[name] for key, name in other.items()}
    keys |= {key: agent[str(path[0])] for key, path in TOP_LEVEL.items() if key in ("agents", "mode", "mcp")}
    keys["tools"] = {
        "description": "Tools that the agent can use: a list of those that it may call, or a mapping with rules.",
        "anyOf": [_without(policy["allow"], "description"), {"$ref": "#/$defs/Tools"}],
    }
    keys["approve_from"] = {
        "description": "Risk from which a person must approve each call. `never`: only where a rule or the tool asks.",
        "default": "high",
        "anyOf": [{"enum": [*confirm["from"]["enum"]]}, {"$ref": "#/$defs/Approval"}],
    }
    keys["limits"] = {"$ref": "#/$defs/RunLimits"}
    plan["approve"] = {
        "description": "Risk of a step from which a person must approve the plan, or `always` or `never`.",
        "default": "high",
        "enum": [*PLAN_APPROVALS],
    }
    template = definitions["TemplateRef"]
    template["properties"]["file"] = template["properties"]["template"]
    template["anyOf"] = [{"required": ["file"]}, {"required": template.pop("required")}]
    types = [word for kind in INPUT_TYPES for word in (kind, f"{kind}!")]
    default = {"type": ["string", "number", "boolean"], "pattern": "(^|[^!])$"}
    inputs = agent["inputs"]
    inputs["additionalProperties"] = {"anyOf": [{"enum": types}, default, inputs["additionalProperties"]]}
    words = definitions["Routing"]["properties"]["keywords"]
    agent["routing"] = {
        "description": "Rules by which the router selects this agent when a request names none: words, or a mapping.",
        "anyOf": [_without(words, "description"), {"$ref": "#/$defs/Routing"}],
    }
    schema["required"] = [key for key in schema["required"] if key not in ("version", "name")]
    order = ("model", "instructions", "inputs", "tools", "max_risk", "approve_from", "limits", "agents", "mode")
    schema["properties"] = {key: {**agent, **keys}[key] for key in dict.fromkeys((*order, *agent, *keys))}
    for path, written in WRITTEN.items():
        owner = {1: schema, 2: definitions["PlanSettings"] if path[0] == "plan" else template}.get(len(path))
        if owner and (found := owner["properties"].get(path[-1])) and path[:-1] != ("runtime_policy",):
            note = {"description": f"Older spelling of `{'.'.join(map(str, written))}`.", "doNotSuggest": True}
            if "$ref" in found:  # editors ignore what stands beside a reference
                found = {**_without(found, "$ref"), "allOf": [{"$ref": found["$ref"]}]}
            owner["properties"][path[-1]] = {**found, **note}


def _section(description: str, properties: EditorSchema) -> EditorSchema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": False,
    }


def _without(node: EditorSchema, key: str) -> EditorSchema:
    return {name: value for name, value in node.items() if name != key}


def settings_schema(names: ProjectNames) -> EditorSchema:
    """Return the schema of `agentsd.yaml`, with a project's names as completions."""
    schema = _generate(Settings, "urn:agentsd:settings")
    definitions, models = schema["$defs"], dict.fromkeys(names.models, "")
    alias, routing = definitions["ModelAlias"]["properties"], definitions["RoutingSettings"]["properties"]
    schema["properties"]["model"] = _offer(schema["properties"]["model"], models)
    alias["model"] = _offer(alias["model"], models)
    routing["model"] = _offer(routing["model"], models)
    entries = schema["properties"]["models"]
    entries["additionalProperties"] = {
        "anyOf": [_offer({"type": "string"}, models), entries["additionalProperties"]],
    }
    routing["default_agent"] = _offer(routing["default_agent"], names.agents)
    for model in (schema, *definitions.values()):
        model["properties"] = {key: _or_variable(node) for key, node in model["properties"].items()}
    return schema


def cases_schema(names: ProjectNames) -> EditorSchema:
    """Return the schema of an agent's case file, with a project's names as completions."""
    schema = _generate(CaseFile, "urn:agentsd:cases")
    definitions, tools = schema["$defs"], {**names.tools, **{f"agent.{name}": "" for name in names.agents}}
    case, expect = definitions["Case"]["properties"], definitions["Expect"]["properties"]
    case["expect"].pop("default")  # editors would insert it
    case["agent"] = _offer(case["agent"], names.agents)
    for answer in ("ScriptedAnswer", "ScriptedCall"):
        definitions[answer]["properties"]["call"] = _offer(definitions[answer]["properties"]["call"], tools)
    for key in ("offered", "not_offered", "called", "called_exactly", "not_called", "denied", "asked"):
        expect[key] = _offer(expect[key], tools)
    return schema


def sources_schema(names: ProjectNames) -> EditorSchema:  # noqa: ARG001 - all schema functions have one signature
    """Return the schema of tool sources in `plugins/`."""
    schema = _generate(Sources, "urn:agentsd:sources")
    for model in (schema, *schema["$defs"].values()):
        model["properties"] = {key: _or_variable(node) for key, node in model["properties"].items()}
    return schema


def _generate(model: type[BaseModel], identity: str) -> EditorSchema:
    return {"$schema": _Generator.schema_dialect, "$id": identity, **json.loads(_generated(model))}


@cache
def _generated(model: type[BaseModel]) -> str:
    """Return a model's schema as JSON. It is the same in all projects, and takes 40 ms."""
    return json.dumps(model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator))


class _Generator(GenerateJsonSchema):
    """Pydantic's schema adapted to editors: fields described by their docstrings, no titles, few alternatives."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of one value."""
        generated = super().generate_inner(schema)
        return dict(_DURATION) if generated == _declared_duration() else _merge_alternatives(generated)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the signature is pydantic's
        """Return False: editors would display each key a second time, capitalized."""
        return False

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model, with descriptions of its fields."""
        generated = super().model_schema(schema)
        generated.pop("title", None)
        model: type[BaseModel] = schema["cls"]
        docs = field_docs(model)
        for name, info in model.model_fields.items():
            node = generated["properties"][info.alias or name]
            if name in docs:
                node["description"] = docs[name]
                if "`" in docs[name]:
                    node["markdownDescription"] = docs[name]
            if node.get("pattern") == _DURATION["pattern"] and isinstance(node.get("default"), float):
                node["default"] = f"{node['default']:.15g}s"
        return generated


@cache
def _declared_duration() -> EditorSchema:
    """Return the schema that `Duration` declares, which is less strict than its validation."""
    return TypeAdapter(Duration).json_schema()


def _merge_alternatives(node: EditorSchema) -> EditorSchema:
    """Merge alternatives of different types, so that editors report one error and display the description once."""
    options = node.get("anyOf", ())
    keys = [key for option in options for key in option if key != "type"]
    # `null` first: completing a mapping, editors insert an empty value for a string or number
    kinds = sorted((kind for option in options for kind in _types(option)), key=lambda kind: kind != "null")
    is_disjoint = all("type" in option for option in options) and len(keys) == len(set(keys))
    is_mixed = keys and {"integer", "number"}.issubset(kinds)  # a limit of one type would apply to the other
    if not options or not is_disjoint or is_mixed or not _FOR_ANY_TYPE.isdisjoint(keys):
        return node
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    merged = {key: value for option in options for key, value in option.items()}
    return {**merged, "type": kinds, **rest}


def _types(node: EditorSchema) -> list[str]:
    kind = node.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields, including inherited ones; empty if the source is unavailable."""
    docs: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if model.model_fields.keys() & inspect.get_annotations(cls).keys():
            docs.update(_module_docs(cls.__module__).get(cls.__qualname__, {}))
    return docs


@cache
def _module_docs(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the attribute docstrings of a module's classes. Parsed on demand, to keep starts fast."""
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
    """Return the schema with names as suggestions. They are alternatives, so that other strings remain valid."""
    if "items" in node:
        return {**node, "items": _offer(node["items"], names)}
    if not names:
        return node
    named: EditorSchema = {"enum": sorted(names)}
    if any(names.values()):
        named["enumDescriptions"] = [names[name] for name in named["enum"]]
    if "anyOf" in node:
        return {**node, "anyOf": [{"type": "string", **named}, *node["anyOf"]]}
    annotations, rest = _split_annotations(node)
    return {**annotations, "type": rest.pop("type"), "anyOf": [named, rest]}


def _or_variable(node: EditorSchema) -> EditorSchema:
    """Return the schema with `${VARIABLE}` as an alternative, unless it already accepts any string."""
    if "anyOf" in node:  # suggested names, and an alternative for other strings
        return {**node, "anyOf": [option if "enum" in option else _or_variable(option) for option in node["anyOf"]]}
    if "enum" in node:
        annotations, rest = _split_annotations(node)
        return {**annotations, "anyOf": [rest, {"type": "string", "pattern": _VARIABLE}]}
    kinds, patterns = _types(node), [node["pattern"]] if "pattern" in node else []
    if not patterns and not {"integer", "number", "boolean"}.intersection(kinds):
        return node
    also = {"type": list(dict.fromkeys([*kinds, "string"]))} if kinds else {}
    return {**node, **also, "pattern": "|".join([*patterns, _VARIABLE])}


def _split_annotations(node: EditorSchema) -> tuple[EditorSchema, EditorSchema]:
    """Split a schema into its annotations and its constraints."""
    annotations = {key: value for key, value in node.items() if key in _ANNOTATIONS}
    return annotations, {key: value for key, value in node.items() if key not in _ANNOTATIONS}


def trigger_schema(names: ProjectNames) -> EditorSchema:
    """Return the schema of a trigger file, with a project's agents as completions."""
    schema = _generate(TriggerSpec, "urn:agentsd:trigger")
    schema["properties"]["agent"] = _offer(schema["properties"]["agent"], names.agents)
    return schema


SchemaKind = Literal["agent", "cases", "settings", "sources", "trigger"]
"""The kinds of YAML files of a project."""
SCHEMAS: Mapping[SchemaKind, Callable[[ProjectNames], EditorSchema]] = {
    "agent": agent_schema,
    "cases": cases_schema,
    "settings": settings_schema,
    "sources": sources_schema,
    "trigger": trigger_schema,
}


def names_of(catalog: Catalog) -> ProjectNames:
    """Return the names that files of a project can refer to. Reads the names of its templates from the disk."""
    generation = catalog.current
    return ProjectNames(
        tools={name: tool.definition.description for name, tool in generation.tools.items()},
        agents={name: agent.spec.description for name, agent in generation.agents.items()},
        models={OFFLINE, *generation.settings.models, *(f"{provider.name}/" for provider in PROVIDERS)},
        executors=[*BUILTIN_EXECUTORS, *_executors(generation)],
        budgets={name: one.budget.describe() for name, one in generation.budgets.items()},
        templates=[path.removeprefix(PROMPTS + "/") for path in catalog.snapshot().files_in(PROMPTS)],
    )


def _executors(generation: Generation) -> Iterator[str]:
    """Yield the names of the executors of plugins."""
    extensions = (extension for plugin in generation.live_plugins for extension in plugin.extensions)
    return (extension.name for extension in extensions if extension.kind == "executor")
