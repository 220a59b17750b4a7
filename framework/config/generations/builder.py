"""Builds a generation from a snapshot of the files.

An agent, plugin or template that fails keeps its last good version; the other files are not affected.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from weakref import WeakValueDictionary

from framework.config.agents.budgets import Budgets, define_budgets, with_used_budgets
from framework.config.agents.compile import Agent
from framework.config.agents.external_tools import ExternalTools
from framework.config.agents.link import LinkContext, Linker, ParsedAgent, restrict_agents
from framework.config.agents.models import missing_sdk_warnings, setting_problems
from framework.config.agents.prices import PriceList, zero_price_warnings
from framework.config.agents.sources import SourceCache, SourceFiles
from framework.config.agents.toolbox import PluginCache, Toolbox
from framework.config.agents.unexpected_errors import find_problems, problem_from_exception
from framework.config.agents.unused_limits import unused_limit_warnings
from framework.config.files.snapshot import AGENTS, PLUGINS, PROMPTS, Snapshot, source_digest
from framework.config.generations.generation import Generation
from framework.config.generations.reload_effects import SettingsFile
from framework.config.settings import EMPTY_SETTINGS, SETTINGS_FILE, Settings
from framework.config.templates.prompts import Prompts
from framework.config.yaml.parse import ParseError, parse_agent, sort_problems
from framework.tools.plugins.loader import Plugin, plugins_of
from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.frozen import Frozen
from framework.types.problem import Problem
from framework.types.spec import AgentSpec


class _SpecInterner:
    """Shares equal parts of agent specs: a thousand agents often have only a handful of different policies."""

    def __init__(self) -> None:
        self._parts: WeakValueDictionary[tuple[type[Frozen], str], Frozen] = WeakValueDictionary()

    def spec(self, spec: AgentSpec) -> AgentSpec:
        """Return an equal spec whose parts are shared with other specs."""
        fields = {name: getattr(spec, name) for name in spec.model_fields_set}
        parts = {name: self._part(value) for name, value in fields.items() if isinstance(value, Frozen)}
        return spec.model_copy(update=parts) if parts else spec

    def _part(self, part: Frozen) -> Frozen:
        return self._parts.setdefault((type(part), part.model_dump_json(exclude_unset=True)), part)


class GenerationBuilder:
    """Builds one generation after another. Parsed files and loaded plugins are reused while their bytes are the same.

    Thread-safe: a cancelled reload leaves its build running in a thread.
    """

    def __init__(
        self, tools: Iterable[Tool], executors: Collection[str], models: Collection[str], settings: SettingsFile
    ) -> None:
        self._plugins = PluginCache(tools)
        self._models, self._settings, self._sources = models, settings, SourceCache()
        self._link_context = LinkContext(Toolbox({}), Prompts({}), executors, frozenset(), PriceList("", None, {}, ()))
        self._templates: Mapping[str, str] = {}
        self._parsed: dict[str, ParsedAgent | ParseError] = {}
        self._agent_files: dict[str, bytes] = {}
        """The bytes that `_parsed` was parsed from, by path."""
        self._interner = _SpecInterner()
        self._lock = threading.Lock()

    def sources(self, snapshot: Snapshot) -> SourceFiles:
        """Return the tool servers that a snapshot declares."""
        with self._lock:
            return self._sources.read(snapshot.files_in(PLUGINS), snapshot.unreadable(PLUGINS, ()))

    def build(self, snapshot: Snapshot, previous: Generation, external: ExternalTools) -> Generation:
        """Build the generation after `previous`. Its `problems` contain every file that was not usable."""
        with self._lock:
            try:
                return self._build(snapshot, previous, external)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - an edit that cannot be built is rejected; the process continues
                return _rejected(snapshot, previous, external, [problem_from_exception("the project's files", error)])

    def reject_plugins(self, failed: Mapping[Plugin, tuple[Problem, ...]]) -> None:
        """Use the last good versions of these plugins until their files change."""
        with self._lock:
            self._plugins.reject(failed)

    def build_restricted(
        self, snapshot: Snapshot, previous: Generation, external: ExternalTools, reasons: tuple[Problem, ...]
    ) -> Generation:
        """Build the generation after `previous` for a rejected edit: only the restrictions of the edit take effect.

        If the edit restricts nothing, the generation has a `rejection` and must not be published.
        """
        with self._lock:
            try:
                return self._build_restricted(snapshot, previous, external, reasons)
            except Exception as error:  # noqa: BLE001 - as in `build`
                unexpected = problem_from_exception("the project's files", error)
                return _rejected(snapshot, previous, external, [*reasons, unexpected])

    def _build_restricted(
        self, snapshot: Snapshot, previous: Generation, external: ExternalTools, reasons: tuple[Problem, ...]
    ) -> Generation:
        files = snapshot.files_in(AGENTS)
        parsed: dict[str, ParsedAgent | ParseError] = self._parse_all(files)
        unreadable = snapshot.unreadable(AGENTS, [agent.path for agent in previous.agents.values()])
        parsed |= {path: ParseError([problem]) for path, problem in unreadable.items()}
        agents, agent_warnings = restrict_agents(previous.agents, parsed, files, reasons)
        settings, settings_problems = self._settings.restrict(snapshot, previous.settings)
        problems = tuple(dict.fromkeys(sort_problems([*reasons, *agent_warnings, *settings_problems])))
        rejected = _rejected(snapshot, previous, external, problems)
        same = agents.keys() == previous.agents.keys() and all(agents[name] is previous.agents[name] for name in agents)
        if same and settings == previous.settings:
            return rejected
        defined = define_budgets(settings, snapshot.files.get(SETTINGS_FILE, EMPTY_SETTINGS), previous.budgets)
        budgets = {**previous.budgets, **defined}
        files = _shared_files(snapshot, previous)
        restricted = replace(rejected, agents=agents, settings=settings, budgets=budgets, files=files)
        return replace(restricted, problems=problems, rejection=())

    def _build(self, snapshot: Snapshot, previous: Generation, external: ExternalTools) -> Generation:
        try:
            settings = self._settings.settings(snapshot)
        except ConfigError as error:
            return self._build_restricted(snapshot, previous, external, tuple(error.problems))
        problems = [*snapshot.problems, *self._settings.restart_warnings()]
        source = snapshot.files.get(SETTINGS_FILE, EMPTY_SETTINGS)
        problems += find_problems(SETTINGS_FILE, lambda: setting_problems(settings, source, self._models))
        problems += find_problems(SETTINGS_FILE, lambda: zero_price_warnings(settings, source))
        toolbox = self._toolbox(snapshot, previous, external)
        prompts = self._prompts(snapshot.files_in(PROMPTS), problems)
        parsed = self._parse_all(snapshot.files_in(AGENTS))
        budgets = define_budgets(settings, source, previous.budgets)
        self._update_link_context(settings, toolbox, prompts, budgets)
        valid = {path: result for path, result in parsed.items() if isinstance(result, ParsedAgent)}
        linker = Linker(self._link_context, valid, previous.agents)
        for path, result in parsed.items():
            if isinstance(result, ParseError):
                linker.reject(path, result.problems, self._agent_files[path])
        for path, problem in snapshot.unreadable(AGENTS, [agent.path for agent in previous.agents.values()]).items():
            linker.reject(path, [problem])
        agents = linker.link()
        self._link_context.retain_digests(valid.values())
        problems += find_problems(SETTINGS_FILE, lambda: unused_limit_warnings(settings, source, agents, self._models))
        current = [(agent.spec, agent.document) for agent in agents.values() if not agent.stale]
        missing_sdks = find_problems(
            SETTINGS_FILE, lambda: missing_sdk_warnings(current, settings, source, self._models)
        )
        problems += [*missing_sdks, *toolbox.problems, *prompts.problems(), *linker.problems]
        return Generation(
            previous.number + 1,
            snapshot.digest,
            agents,
            toolbox.tools,
            tuple(sort_problems(problems)),
            _shared_files(snapshot, previous),
            snapshot.cases,
            toolbox.plugins,
            plugins=_plugins_in_use(toolbox, agents.values()),
            settings=settings,
            external=external,
            missing_sdks=tuple(missing_sdks),
            budgets=with_used_budgets(budgets, previous.budgets, (agent.spec for agent in agents.values())),
        )

    def _toolbox(self, snapshot: Snapshot, previous: Generation, external: ExternalTools) -> Toolbox:
        unreadable = snapshot.unreadable(PLUGINS, self._plugins.paths)
        files, is_serving = snapshot.files_in(PLUGINS), previous.number > 0
        toolbox = self._plugins.toolbox(files, unreadable, previous.live_plugins, is_serving=is_serving)
        return toolbox.with_external(external)

    def _update_link_context(self, settings: Settings, toolbox: Toolbox, prompts: Prompts, budgets: Budgets) -> None:
        """Replace the parts that changed. An unchanged context keeps its cached digests."""
        models = frozenset({*self._models, *settings.models})
        if (prices := PriceList.of(settings, self._models)) != self._link_context.prices:
            self._link_context = replace(self._link_context, prices=prices)
        if budgets != self._link_context.budgets:
            self._link_context = replace(self._link_context, budgets=budgets, digests={})
        context = self._link_context
        before = (context.toolbox.tools, context.toolbox.extensions, context.toolbox.external.digest)
        after = (toolbox.tools, toolbox.extensions, toolbox.external.digest)
        if after != before or (prompts, models) != (context.prompts, context.models):
            self._link_context = replace(context, toolbox=toolbox, prompts=prompts, models=models, digests={})

    def _prompts(self, files: Mapping[str, bytes], problems: list[Problem]) -> Prompts:
        sources = {}
        for path, source in files.items():
            try:
                sources[path.removeprefix(PROMPTS + "/")] = source.decode("utf-8")
            except UnicodeDecodeError as error:
                line = source.count(b"\n", 0, error.start) + 1
                problems.append(Problem(path=path, line=line, message=f"not UTF-8: byte 0x{source[error.start]:02x}"))
        if sources != self._templates:
            self._templates = sources
            return Prompts(sources, self._link_context.prompts)
        return self._link_context.prompts

    def _parse_all(self, files: Mapping[str, bytes]) -> dict[str, ParsedAgent | ParseError]:
        self._parsed = {path: self._parse(path, source) for path, source in sorted(files.items())}
        self._agent_files = dict(files)
        return dict(self._parsed)

    def _parse(self, path: str, source: bytes) -> ParsedAgent | ParseError:
        if self._agent_files.get(path) == source:
            return self._parsed[path]
        try:
            spec, document = parse_agent(path, source)
            return ParsedAgent(self._interner.spec(spec), document, source_digest(source))
        except ParseError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one file must not keep the others from going live
            return ParseError([problem_from_exception(path, error)])


def _rejected(
    snapshot: Snapshot, previous: Generation, external: ExternalTools, problems: Iterable[Problem]
) -> Generation:
    """Return the previous generation with the digest of these files and a `rejection`. It is never published."""
    number, rejection = previous.number + 1, tuple(problems)
    return replace(previous, number=number, digest=snapshot.digest, external=external, rejection=rejection)


def _shared_files(snapshot: Snapshot, previous: Generation) -> dict[str, bytes]:
    """Return the files of a snapshot. Generations share the bytes of unchanged files: the history keeps them all."""
    before = previous.files
    return {path: before[path] if before.get(path) == source else source for path, source in snapshot.files.items()}


def _plugins_in_use(toolbox: Toolbox, agents: Collection[Agent]) -> tuple[Plugin, ...]:
    """Return the current plugins, and earlier versions whose functions stale or unchanged agents still use."""
    offered = {id(tool): tool.function for agent in agents for tool in agent.toolset.offered.values()}
    extended = (agent for agent in agents if agent.hooks or agent.executor)
    functions = [*offered.values(), *(function for agent in extended for function in agent.functions())]
    return tuple(dict.fromkeys([*toolbox.plugins, *plugins_of(functions)]))
