"""The files that an agent is made of, stored with its runs so that they can be resumed after edits.

Blueprints are stored under the digest of their files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from framework.config.agents.compile import Agent, CompileContext, build_agent, extension_names, template_names
from framework.config.agents.link_context import ParsedAgent
from framework.config.agents.models import PriceList
from framework.config.agents.skills import read_skill
from framework.config.agents.toolbox import Toolbox
from framework.config.files.snapshot import source_digest
from framework.config.generations.generation import Generation
from framework.config.overlay import SETTINGS_FILE
from framework.config.templates.prompts import PROMPTS_FOLDER, Prompts
from framework.config.yaml.parse import ParseError, parse_agent
from framework.store.types import Blueprint
from framework.tools.skills import AgentSkill
from framework.types.errors import ConfigError

_SKILL = "skill:"
"""Prefix of the paths of skills in blueprints. The digest of all files of the skill, and its `SKILL.md`, follow it."""


class Blueprints:
    """Creates blueprints from agents, and agents from blueprints."""

    def __init__(self, executors: Collection[str]) -> None:
        self._executors = executors
        self._cache: dict[str, Blueprint] = {}
        self._generation = -1

    def of(self, generation: Generation, name: str) -> Blueprint:
        """Return the blueprint of an agent."""
        if generation.number != self._generation:
            self._cache, self._generation = {}, generation.number
        if name not in self._cache:
            files = dict(_files(generation.agents, name))
            self._cache[name] = Blueprint(
                source_digest(*(part for file in sorted(files.items()) for part in file)), files
            )
        return self._cache[name]

    def matches(self, digest: str, generation: Generation, name: str) -> bool:
        """Return whether an agent of a generation consists of exactly the files with this digest."""
        return name in generation.agents and self.of(generation, name).digest == digest

    def agents(self, blueprint: Blueprint, current: Generation) -> dict[str, Agent]:
        """Return the agents of a blueprint, with the current tools, hooks and executors.

        Raises:
            ConfigError: a hook or executor no longer exists, or a file is invalid for this version of agentsd.
        """
        prefix = PROMPTS_FOLDER + "/"
        skills = dict(_stored_skills(blueprint, current.skills))
        templates = {
            path.removeprefix(prefix): text for path, text in blueprint.files.items() if path.startswith(prefix)
        }
        try:
            parsed = [
                ParsedAgent(*parse_agent(path, text.encode()), digest=source_digest(text))
                for path, text in blueprint.files.items()
                if not path.startswith((prefix, _SKILL))
            ]
        except ParseError as error:
            raise ConfigError("cannot read the agent files stored with the run", error.problems) from None
        extensions = {one.name: one for plugin in current.live_plugins for one in plugin.extensions}
        toolbox = Toolbox(current.tools, extensions, external=current.external, skills=skills)
        specs = {own.spec.name: own.spec for own in parsed}
        prices = PriceList.of(current.settings, ())
        context = CompileContext(toolbox, Prompts(templates), specs, self._executors, (), window=prices.window)
        for own in parsed:
            missing = [n for n in extension_names(own.spec) if n not in extensions and n not in self._executors]
            if missing:
                names = ", ".join(missing)
                raise ConfigError(f"agent {own.spec.name!r} needs {names}: no plugin defines it any longer")
            if undefined := [name for name in own.spec.budgets if name not in current.budgets]:
                names = ", ".join(undefined)
                raise ConfigError(f"agent {own.spec.name!r} needs the budget {names}: {SETTINGS_FILE} must define it")
        return {own.spec.name: build_agent(own.spec, own.document, own.digest, context) for own in parsed}


def _stored_skills(blueprint: Blueprint, current: Mapping[str, AgentSkill]) -> Iterator[tuple[str, AgentSkill]]:
    """Yield the skills that were stored with a run: the current ones, except for those that have changed since."""
    for key, text in blueprint.files.items():
        if key.startswith(_SKILL):
            _, digest, path = key.split(":", 2)
            stored, _ = read_skill(path, text.encode(), {})
            now = current.get(stored.name) if stored else None
            if now and now.digest == digest:
                yield now.name, now
            elif stored:
                yield stored.name, replace(stored, digest=digest, is_pinned=True)


def _files(agents: Mapping[str, Agent], name: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of the files of an agent and of all its direct and indirect sub-agents."""
    queue, seen = [name], {name}
    while queue:
        agent = agents[queue.pop()]
        yield agent.path, agent.document.source.decode("utf-8-sig")
        for template, source in agent.prompts.closure(template_names(agent.spec)).items():
            if template in agent.prompts.project_names:
                yield f"{PROMPTS_FOLDER}/{template}", source
        for skill in agent.skills.skills.values():
            yield f"{_SKILL}{skill.digest}:{skill.path}", skill.source
        for sub_agent in agent.spec.sub_agents:
            if sub_agent not in seen and sub_agent in agents:
                seen.add(sub_agent)
                queue.append(sub_agent)
