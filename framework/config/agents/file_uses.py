"""The agents that use a file, and the variables that a template receives from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from framework.config.agents.compile import Agent, template_names
from framework.config.snapshot import PLUGINS
from framework.config.templates.prompt_check import (
    OWN_VARIABLE_TEXTS,
    PLAN_TEMPLATE,
    RUN_VARIABLE_TEXTS,
    runtime_templates,
)
from framework.config.templates.prompts import PROMPTS_FOLDER, base_name
from framework.config.yaml.document import DocumentError, read_document
from framework.tools.plugins.loader import plugins_of
from framework.types.spec import TemplateRef
from framework.types.text import shorten

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
