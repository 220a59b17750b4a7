"""What an agent's runs need to go on when the project's files are others, as data: its own files, by their digest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from framework.config.agents.compile import Agent, CompileContext, assemble, templates_of
from framework.config.agents.extensions import extensions_of
from framework.config.agents.link import ParsedAgent
from framework.config.agents.toolbox import Toolbox
from framework.config.files.snapshot import source_digest
from framework.config.generations.generation import Generation
from framework.config.templates.prompts import PROMPTS_FOLDER, Prompts
from framework.config.yaml.parse import ParseError, parse_agent
from framework.store.protocol import Blueprint
from framework.types.errors import ConfigError


class Blueprints:
    """Makes blueprints of agents, and agents of blueprints."""

    def __init__(self, executors: Collection[str]) -> None:
        self._executors = executors
        self._made: dict[str, Blueprint] = {}
        self._of = -1

    def of(self, generation: Generation, name: str) -> Blueprint:
        """The files that an agent of a generation is made of."""
        if generation.number != self._of:
            self._made, self._of = {}, generation.number
        if name not in self._made:
            files = dict(_files(generation.agents, name))
            self._made[name] = Blueprint(
                source_digest(*(part for file in sorted(files.items()) for part in file)), files
            )
        return self._made[name]

    def matches(self, digest: str, generation: Generation, name: str) -> bool:
        """Is an agent of a generation made of exactly these files?"""
        return name in generation.agents and self.of(generation, name).digest == digest

    def agents(self, blueprint: Blueprint, current: Generation) -> dict[str, Agent]:
        """The agents of a blueprint, with the tools, hooks and executors that there are now.

        Raises:
            ConfigError: it needs a hook or an executor that is not there any more, or cannot be read by this version.
        """
        below = PROMPTS_FOLDER + "/"
        templates = {name.removeprefix(below): text for name, text in blueprint.files.items() if name.startswith(below)}
        try:
            parsed = [
                ParsedAgent(*parse_agent(path, text.encode()), digest=source_digest(text))
                for path, text in blueprint.files.items()
                if not path.startswith(below)
            ]
        except ParseError as error:
            raise ConfigError("the agent as the run began with it cannot be read any more", error.problems) from None
        extensions = {one.name: one for plugin in current.live_plugins for one in plugin.extensions}
        toolbox = Toolbox(current.tools, extensions, external=current.external)
        specs = {own.spec.name: own.spec for own in parsed}
        context = CompileContext(toolbox, Prompts(templates), specs, self._executors, ())
        for own in parsed:
            missing = [n for n in extensions_of(own.spec) if n not in extensions and n not in self._executors]
            if missing:
                named = ", ".join(missing)
                raise ConfigError(f"the agent {own.spec.name!r} needs {named}, which no plugin has any more")
        return {own.spec.name: assemble(own.spec, own.document, own.digest, context) for own in parsed}


def _files(agents: Mapping[str, Agent], name: str) -> Iterator[tuple[str, str]]:
    """Of an agent and all that it may call, directly or not."""
    left, seen = [name], {name}
    while left:
        agent = agents[left.pop()]
        yield agent.path, agent.document.source.decode("utf-8-sig")
        for template, source in agent.prompts.closure(templates_of(agent.spec)).items():
            if template in agent.prompts.project_names:
                yield f"{PROMPTS_FOLDER}/{template}", source
        for below in agent.spec.sub_agents:
            if below not in seen and below in agents:
                seen.add(below)
                left.append(below)
