"""One immutable, closed set of agents and tools, and how it is built from a snapshot.

An object that fails keeps its last good version, marked stale with its Problems; the others are not disturbed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from framework.config.compile import Agent, World, compile_agent
from framework.config.document import Document
from framework.config.parse import ParseError, parse_agent
from framework.config.prompts import Prompts
from framework.config.snapshot import AGENTS, PLUGINS, PROMPTS, Snapshot, digest_of
from framework.tools.plugins import Plugin, PluginError, PluginLoader
from framework.tools.tool import Tool
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError
from framework.types.problem import Problem
from framework.types.spec import AgentSpec


@dataclass(frozen=True, slots=True)
class Generation:
    """What is live at one time. Published by a single assignment; a run keeps the one it started on."""

    number: int
    digest: str
    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep a file from being used."""
        return tuple(problem for problem in self.problems if problem.severity == "error")


EMPTY = Generation(0, "", {}, {})


@dataclass(frozen=True, slots=True)
class _Parsed:
    spec: AgentSpec
    document: Document
    digest: str


class Builder:
    """Builds generations, one after the other; remembers what it parsed and loaded, by content."""

    def __init__(self, tools: Iterable[Tool], executors: Collection[str], models: Collection[str]) -> None:
        self._own_tools = tuple(tools)
        self._executors, self._models = executors, models
        self._loader = PluginLoader()
        self._parsed: dict[str, tuple[bytes, _Parsed | ParseError]] = {}
        self._plugins: dict[str, tuple[bytes, Plugin | None, PluginError | None]] = {}

    def build(self, snapshot: Snapshot, previous: Generation) -> Generation:
        """Build the generation after `previous`; its problems say what of the snapshot could not be used."""
        problems = list(snapshot.problems)
        tools = self._tools(snapshot.below(PLUGINS), problems)
        prompts = self._prompts(snapshot.below(PROMPTS), problems)
        parsed = self._agents(snapshot.below(AGENTS), previous, problems)
        world = World(tools, prompts, {p.spec.name: p.spec for p in parsed.values()}, self._executors, self._models)
        around = digest_of(*(part for below in (PLUGINS, PROMPTS) for part in _flat(snapshot.below(below))))
        by_path = {agent.path: agent for agent in previous.agents.values()}
        agents: dict[str, Agent] = {}
        for path, own in parsed.items():
            last_good = by_path.get(path)
            if agent := self._compile(own, world, digest_of(own.digest, around), last_good, problems):
                agents[agent.name] = agent
        return Generation(previous.number + 1, snapshot.digest, agents, tools, tuple(problems))

    def _tools(self, files: Mapping[str, bytes], problems: list[Problem]) -> Mapping[str, Tool]:
        plugins = [plugin for path in sorted(files) if (plugin := self._plugin(path, files[path], problems))]
        self._plugins = {path: kept for path, kept in self._plugins.items() if path in files}
        try:
            return index_tools([*self._own_tools, *(tool for plugin in plugins for tool in plugin.tools)])
        except ConfigError as error:
            problems.append(Problem(path=PLUGINS, message=error.message))
            return index_tools(self._own_tools)

    def _plugin(self, path: str, source: bytes, problems: list[Problem]) -> Plugin | None:
        """The plugin as the file says, or as it last worked."""
        kept_source, kept, failure = self._plugins.get(path, (b"", None, None))
        if path not in self._plugins or source != kept_source:
            try:
                kept, failure = self._loader.load(path, source), None
            except PluginError as error:
                failure = error
            self._plugins[path] = (source, kept, failure)
        if failure:
            problems.append(failure.problem)
        return kept

    def _prompts(self, files: Mapping[str, bytes], problems: list[Problem]) -> Prompts:
        sources = {}
        for path, source in files.items():
            try:
                sources[path.removeprefix(PROMPTS + "/")] = source.decode("utf-8")
            except UnicodeDecodeError as error:
                problems.append(Problem(path=path, message=f"not UTF-8: {error.reason}"))
        prompts = Prompts(sources)
        problems.extend(prompts.problems())
        return prompts

    def _agents(self, files: Mapping[str, bytes], previous: Generation, problems: list[Problem]) -> dict[str, _Parsed]:
        """Every file's spec; a broken file stands in with its last good one, so that others may still refer to it."""
        by_path = {agent.path: agent for agent in previous.agents.values()}
        parsed: dict[str, _Parsed] = {}
        for path, source in sorted(files.items()):
            result = self._parse(path, source)
            if isinstance(result, ParseError):
                problems.extend(result.problems)
                if last_good := by_path.get(path):
                    parsed[path] = _Parsed(last_good.spec, last_good.document, "")
            else:
                parsed[path] = result
        self._parsed = {path: kept for path, kept in self._parsed.items() if path in files}
        return _without_duplicates(parsed, previous, problems)

    def _parse(self, path: str, source: bytes) -> _Parsed | ParseError:
        kept = self._parsed.get(path)
        if kept is not None and kept[0] == source:
            return kept[1]
        try:
            spec, document = parse_agent(path, source)
            result: _Parsed | ParseError = _Parsed(spec, document, digest_of(source))
        except ParseError as error:
            result = error
        self._parsed[path] = (source, result)
        return result

    def _compile(
        self, own: _Parsed, world: World, digest: str, last_good: Agent | None, problems: list[Problem]
    ) -> Agent | None:
        if not own.digest:
            return _stale(last_good, [p for p in problems if p.path == own.document.path])
        if last_good is not None and last_good.digest == digest and not last_good.stale:
            return last_good
        try:
            agent, warnings = compile_agent(own.spec, own.document, digest, world)
        except ParseError as error:
            problems.extend(error.problems)
            return _stale(last_good, error.problems)
        problems.extend(warnings)
        return agent


def _stale(agent: Agent | None, problems: Iterable[Problem]) -> Agent | None:
    return replace(agent, stale=tuple(problems)) if agent else None


def _without_duplicates(
    parsed: Mapping[str, _Parsed], previous: Generation, problems: list[Problem]
) -> dict[str, _Parsed]:
    """One file a name: of two that claim it, the one that served before goes on, at a first start neither does."""
    claims: dict[str, list[str]] = {}
    for path, own in parsed.items():
        claims.setdefault(own.spec.name, []).append(path)
    kept = dict(parsed)
    for name, paths in claims.items():
        if len(paths) == 1:
            continue
        owner = previous.agents[name].path if name in previous.agents else None
        for path in paths:
            others = ", ".join(other for other in paths if other != path)
            problems.append(kept[path].document.problem(("name",), f"the name {name!r} is also used by {others}"))
            if path != owner:
                del kept[path]
    return kept


def _flat(files: Mapping[str, bytes]) -> Iterable[bytes | str]:
    return (part for path, source in sorted(files.items()) for part in (path, source))
