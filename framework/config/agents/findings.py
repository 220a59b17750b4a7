"""Finds the errors of a rejected agent file that its first errors hide, so that one round reports all of them.

A file is checked in stages: its shape, its name, its references, its templates, its models. A file that fails one stage
does not reach the next one. Here, all stages check the valid parts of the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from framework.config.agents.compile import (
    Agent,
    CompileContext,
    build_agent,
    cycle_problems,
    fixed_plan_problems,
    input_problems,
    template_names,
    unresolved_references,
)
from framework.config.agents.models import (
    Budgets,
    PriceList,
    budget_price_problems,
    model_setting_problems,
    price_problems,
    unknown_model_message,
)
from framework.config.snapshot import PLUGINS
from framework.config.templates.prompt_check import prompt_problems, runtime_templates
from framework.config.templates.prompts import (
    OWN_VARIABLE_TEXTS,
    PLAN_TEMPLATE,
    PROMPTS_FOLDER,
    RUN_VARIABLE_TEXTS,
    base_name,
)
from framework.config.yaml.agent_keys import read_agent_keys
from framework.config.yaml.document import Document, DocumentError, read_document, read_keys, read_unique_keys
from framework.config.yaml.parse import merge_valid
from framework.tools.plugins import plugins_of
from framework.types.errors import AgentBroken
from framework.types.problem import Problem
from framework.types.spec import AGENT_NAME, AgentSpec, FileStep, Hooks, InputSpec, Routing, TemplateRef
from framework.types.text import shorten


@dataclass(frozen=True, slots=True)
class RejectedAgent:
    """The valid parts of a rejected agent file."""

    spec: AgentSpec
    """The valid keys; the others have their defaults."""
    document: Document
    is_named: bool = True
    """Whether the name is the one in the file; otherwise that is missing or invalid."""


def read_valid_parts(path: str, source: bytes) -> RejectedAgent | None:
    """Return the valid parts of a file with an invalid shape; None if it is not valid YAML."""
    read = read_unique_keys(path, source)
    if read is None:
        return None
    document = read_agent_keys(read).document
    fields = {key: value for key, value in document.data.items() if key in AgentSpec.model_fields}
    if isinstance(plan := fields.get("plan"), dict) and isinstance(steps := plan.get("steps"), list):
        fields["plan"] = {**plan, "steps": [_known_keys(step) for step in steps]}
    minimal = {"version": 1, "name": "x", "description": "x", "instructions": "x", **_outline(fields)}
    base = AgentSpec.model_validate(minimal).model_dump(mode="json", by_alias=True)
    spec = AgentSpec.model_validate(merge_valid(AgentSpec, base, fields)[0])
    return RejectedAgent(spec, document.without_data(), is_named=fields.get("name") == spec.name)


@dataclass(frozen=True, slots=True)
class BrokenAgent:
    """An agent that has never been valid in this process: its messages must not be given to another one."""

    path: str
    name: str
    """The name in the file, or that of the file."""
    description: str
    routing: Routing | None
    """Its rules; None if they cannot be read, so that any message may be for it."""
    problems: tuple[Problem, ...]


def broken_agent(
    path: str, source: bytes | None, valid: RejectedAgent | None, problems: Iterable[Problem]
) -> BrokenAgent:
    """Return what is known about an agent whose file is rejected.

    Args:
        path: the file.
        source: its content, if it does not parse.
        valid: its valid parts; everything, if the file parses.
        problems: its errors.
    """
    if source is None and valid is not None:
        spec = valid.spec
        return BrokenAgent(path, spec.name, spec.description, spec.routing, tuple(problems))
    read = read_unique_keys(path, source) if source else None
    document = read_agent_keys(read).document if read else None
    keys = document.data if document else read_keys(path, source or b"", ("name", "description", "routing"))
    unknown = [*(keys.keys() - AgentSpec.model_fields.keys())]
    known = not get_close_matches("routing", unknown) if document else b"routing" not in (source or b"routing")
    name, description = keys.get("name"), keys.get("description", "")
    own_name = isinstance(name, str) and re.fullmatch(AGENT_NAME, name)
    return BrokenAgent(
        path,
        str(name) if own_name else PurePosixPath(path).stem,
        description if isinstance(description, str) else "",
        _routing(keys, is_complete=known),
        tuple(problems),
    )


def _routing(keys: Mapping[str, Any], *, is_complete: bool) -> Routing | None:
    """Return the rules among the keys of a file; None if they are invalid or may be elsewhere in the file."""
    misplaced = Routing.model_fields.keys() - AgentSpec.model_fields.keys()
    if not misplaced.isdisjoint(keys) or ("routing" not in keys and not is_complete):
        return None
    try:
        return Routing.model_validate(keys.get("routing", {}))
    except ValidationError:
        return None


def find_broken(name: str, broken: Sequence[BrokenAgent]) -> BrokenAgent | None:
    """Return the broken agent with a name, or None."""
    return next((agent for agent in broken if agent.name == name), None)


def require_valid(name: str, broken: Sequence[BrokenAgent], reason: str = "") -> None:
    """Raise AgentBroken if the agent that a message is for, for this reason, is broken."""
    if agent := find_broken(name, broken):
        why = f"would get this message ({reason}), but its file" if reason else "cannot be used: its file"
        message = f"agent {name!r} {why} has errors; correct them, or name another agent"
        raise AgentBroken(message, [name], agent.problems)


def hidden_problems(
    agent: RejectedAgent, context: CompileContext, prices: PriceList, budgets: Budgets
) -> list[Problem]:
    """Return the errors in the valid parts of a rejected file, except for those of its shape.

    Args:
        agent: the valid parts.
        context: where the references of the file are resolved. It contains the other agents, rejected ones included:
            a rejected agent is an error in its own file only.
        prices: the prices of models.
        budgets: the shared budgets.
    """
    spec, document, specs = agent.spec, agent.document, context.specs
    usable = _resolvable(spec, document, context)
    built = build_agent(usable, document, "", context)
    found = chain(
        unresolved_references(spec, document, context),
        cycle_problems(spec, document, specs),
        prompt_problems(built),
        fixed_plan_problems(built),
        model_setting_problems(usable, document, prices),
        price_problems(usable, document, specs, prices),
        budget_price_problems(usable, document, specs, prices, budgets),
    )
    return [problem for problem in found if problem.severity == "error"]


def _outline(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the templates and input names of a file, because a template is checked with the names of all inputs."""
    outline: dict[str, Any] = {}
    for key in ("instructions", "guidance"):
        match fields.get(key):
            case {"template": str(template)}:
                outline[key] = {"template": template}
    match fields.get("plan"):
        case {"template": str(template)}:
            outline["plan"] = {"template": template}
    if isinstance(inputs := fields.get("inputs"), dict):
        outline["inputs"] = {name: {} if _is_input(field) else {"required": True} for name, field in inputs.items()}
    return outline


def _known_keys(step: object) -> object:
    """Return a step with its keys spelled right, without unknown ones: a step that is missing causes further errors."""
    if not isinstance(step, dict):
        return step
    known = {key: key if key in FileStep.model_fields else None for key in step}
    close = {key: get_close_matches(str(key), FileStep.model_fields, 1) for key, name in known.items() if name is None}
    known |= {key: names[0] for key, names in close.items() if names and names[0] not in step}
    return {name: step[key] for key, name in known.items() if name}


def _is_input(field: object) -> bool:
    try:
        InputSpec.model_validate(field)
    except ValidationError:
        return False
    return True


def _resolvable(spec: AgentSpec, document: Document, context: CompileContext) -> AgentSpec:
    """Return the spec without the names that do not resolve: they are errors already, and cause no further ones."""

    def known(names: Collection[str], choices: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name in choices)

    def model(name: str | None) -> str | None:
        return None if name is None or unknown_model_message(name, context.models) else name

    agents = {name for name, other in context.specs.items() if other.inputs == _valid_inputs(other, document)}
    update = {
        "model": model(spec.model),
        "fallback_models": tuple(name for name in spec.fallback_models if model(name)),
        "plan": spec.plan.model_copy(update={"model": model(spec.plan.model)}),
        "conversation": spec.conversation.model_copy(
            update={"compress_model": model(spec.conversation.compress_model)}
        ),
        "sub_agents": known(spec.sub_agents, agents | context.toolbox.external.agents.keys()),
        "handoffs": known(spec.handoffs, agents - {spec.name}),
        "budgets": known(spec.budgets, context.budgets),
        "inputs": _valid_inputs(spec, document),
        "hooks": Hooks(),
    }
    return spec.model_copy(update=update)


def _valid_inputs(spec: AgentSpec, document: Document) -> dict[str, InputSpec]:
    """Return the inputs that a model can be built from: without invalid names, and without invalid defaults."""

    def is_valid(name: str, field: InputSpec) -> bool:
        return not any(input_problems(spec.model_copy(update={"inputs": {name: field}}), document))

    fields = {name: field if is_valid(name, field) else InputSpec(required=True) for name, field in spec.inputs.items()}
    return {name: field for name, field in fields.items() if is_valid(name, field)}


_SOURCES: Mapping[str, str] = {"mcp_servers": "mcp.", "skill_hosts": "skill.", "openapi": ""}
"""Sections of files of tool servers, with what precedes the name of an entry in the names of its tools."""
_HTTP_TOOLS, _A2A_AGENTS = "http_tools", "a2a_agents"
_MAX_VALUE_CHARS = 60


@dataclass(frozen=True, slots=True)
class TemplateVariable:
    """A variable that a template can use."""

    name: str
    description: str
    agents: tuple[str, ...] = ()
    """The agents whose file defines it; empty if every template has it."""


def agents_by_file(agents: Mapping[str, Agent], files: Mapping[str, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the names of the agents that use each file, sorted. Files that no agent uses are missing.

    Args:
        agents: the agents of a generation.
        files: the files that it was built from.
    """
    servers: dict[str, tuple[str, ...]] = {}
    for path, source in files.items():
        for file, prefix in _tool_prefixes(path, source):
            servers[file] = (*servers.get(file, ()), prefix)
    users: dict[str, set[str]] = {}
    for agent in agents.values():
        for path in (*_own_files(agent), *_server_files(agent, servers)):
            users.setdefault(path, set()).add(agent.name)
    return {path: tuple(sorted(names)) for path, names in users.items()}


def _own_files(agent: Agent) -> Iterator[str]:
    yield agent.path
    templates = agent.prompts.closure(template_names(agent.spec))
    yield from (f"{PROMPTS_FOLDER}/{name}" for name in templates if name in agent.prompts.project_names)
    for skill in agent.skills.skills.values():
        yield skill.path
        yield from (f"{skill.folder}/{name}" for name in skill.files)
    for plugin in plugins_of(agent.functions()):
        yield plugin.path
        yield from plugin.files


def _server_files(agent: Agent, servers: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    offered = agent.toolset.offered
    for path, prefixes in servers.items():
        if prefixes and any(name.startswith(prefixes) for name in offered):
            yield path


def _tool_prefixes(path: str, source: bytes) -> Iterator[tuple[str, str]]:
    """Yield the prefixes of the tools that a file declares, each with its path, and with that of an API's document."""
    is_sources = path.startswith(PLUGINS + "/") and not path.endswith(".py")
    if not is_sources or not any(name.encode() in source for name in (*_SOURCES, _HTTP_TOOLS, _A2A_AGENTS)):
        return
    try:
        data = read_document(path, source).data
    except DocumentError:
        return
    sections = [(f"{prefix}{{}}.", data.get(section)) for section, prefix in _SOURCES.items()]
    for form, entries in (*sections, ("{}", data.get(_HTTP_TOOLS)), ("agent.{}", data.get(_A2A_AGENTS))):
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            yield path, form.format(name)
            if isinstance(entry, dict) and isinstance(document := entry.get("document"), str):
                yield document, form.format(name)


def template_variables(agents: Mapping[str, Agent], template: str) -> list[TemplateVariable]:
    """Return the variables of a template, by name: those of every run, and those of the agents that use it.

    Args:
        agents: the agents of a generation.
        template: path below `prompts/`.
    """
    own = {name: TemplateVariable(name, text) for name, text in _own_texts(agents, template).items()}
    for name, description, agent in _defined(agents, template):
        before = own.get(name)
        users = (*before.agents, agent) if before else (agent,)
        own[name] = TemplateVariable(name, before.description if before else description, users)
    shared = {name: TemplateVariable(name, text) for name, text in RUN_VARIABLE_TEXTS.items()}
    return [variable for _, variable in sorted({**shared, **own}.items())]


def _own_texts(agents: Mapping[str, Agent], template: str) -> Mapping[str, str]:
    """Return the variables that only the runtime's own templates receive, if this is one of them or a part of one."""
    found = dict(OWN_VARIABLE_TEXTS.get(base_name(template), {}))
    for agent in agents.values():
        for name in dict.fromkeys(name for name, _ in runtime_templates(agent.spec, {})):
            is_planner = name == agent.spec.plan.template
            if template in agent.prompts.closure([name]):
                found |= OWN_VARIABLE_TEXTS.get(PLAN_TEMPLATE if is_planner else name, {})
    return found


def _defined(agents: Mapping[str, Agent], template: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, description and agent of the `inputs` and `vars` of the agents that render a template."""
    for name, agent in sorted(agents.items()):
        for source in (agent.spec.instructions, agent.spec.guidance):
            if isinstance(source, TemplateRef) and template in agent.prompts.closure([source.template]):
                defined = {
                    key: f"value of `vars`: {shorten(str(value), _MAX_VALUE_CHARS)}"
                    for key, value in source.vars.items()
                }
                if source is agent.spec.instructions:
                    inputs = agent.spec.inputs.items()
                    defined |= {key: field.description or f"an input: {field.type}" for key, field in inputs}
                yield from ((key, text, name) for key, text in defined.items())
