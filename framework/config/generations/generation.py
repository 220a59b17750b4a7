"""One immutable, closed set of agents and tools, and how it is built from a snapshot.

An object that fails keeps its last good version, marked stale with its Problems; the others are not disturbed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from framework.config.agents.compile import Agent
from framework.config.agents.external_tools import Outside
from framework.config.agents.interning import Shared
from framework.config.agents.link import Linker, Parsed, Surroundings, hold
from framework.config.agents.models import setting_problems
from framework.config.agents.prices import PriceList
from framework.config.agents.sources import SourceFiles, SourceShelf
from framework.config.agents.toolbox import PluginShelf, Toolbox
from framework.config.agents.unexpected import unexpected
from framework.config.files.snapshot import AGENTS, PLUGINS, PROMPTS, SETTINGS, Cases, Snapshot, digest_of
from framework.config.generations.reload_effects import SettingsFile
from framework.config.settings import NO_FILE, Settings
from framework.config.templates.prompts import Prompts
from framework.config.yaml.parse import ParseError, in_order, parse_agent
from framework.tools.plugins.loader import Plugin, plugins_of
from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.problem import Problem


@dataclass(frozen=True, slots=True)
class Generation:
    """What is live at one time. Published by a single assignment; a run keeps the one it started on."""

    number: int
    digest: str
    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    problems: tuple[Problem, ...] = ()
    """By file and line."""
    cases: Cases = field(default_factory=dict)
    """The files of cases that lay beside the agents when it was built."""
    serving: tuple[Plugin, ...] = ()
    """The plugin files, each at its last good version."""
    settings: Settings = field(default_factory=Settings.model_construct)
    """What holds for the runs that begin on it."""
    refusal: tuple[Problem, ...] = ()
    """What is wrong with the settings: a generation that has this never goes live."""
    traceparent: str = ""
    """Where in a trace it went live, as W3C writes it."""
    outside: Outside = field(default_factory=Outside)
    """What tool servers gave when it was built."""
    plugins: tuple[Plugin, ...] = ()
    """All that it uses: those that serve, and the versions whose tools its agents have."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep a file from being used."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def obstacles(self) -> tuple[Problem, ...]:
        """Errors of files and of tool servers, to show before a run."""
        return (*self.errors, *self.outside.problems)

    @property
    def unusable(self) -> tuple[str, ...]:
        """The files with errors: of those that were usable before, the last good version is live."""
        return tuple(dict.fromkeys(problem.path for problem in self.errors))

    @property
    def summary(self) -> str:
        """One line for the log."""
        text = f"generation {self.number} is live: {len(self.agents)} agents, {len(self.tools)} tools"
        return f"{text}; last good versions instead of {', '.join(self.unusable)}" if self.unusable else text

    def problems_with(self, outside: Outside) -> tuple[Problem, ...]:
        """The problems, with those of tool servers as they are now: they come and go without a new generation."""
        own = [problem for problem in self.problems if problem not in self.outside.problems]
        return tuple(in_order([*own, *outside.problems]))


def nothing(settings: Settings) -> Generation:
    """What is live before anything is."""
    return Generation(0, "", {}, {}, settings=settings)


class Builder:
    """Builds generations, one after the other; remembers what it parsed and loaded, by content."""

    def __init__(
        self, tools: Iterable[Tool], executors: Collection[str], models: Collection[str], settings: SettingsFile
    ) -> None:
        self._plugins = PluginShelf(tools)
        self._models, self._settings, self._sources = models, settings, SourceShelf()
        self._around = Surroundings(Toolbox({}), Prompts({}), executors, frozenset(), PriceList("", None, {}, ()))
        self._templates: Mapping[str, str] = {}
        self._parsed: dict[str, Parsed | ParseError] = {}
        self._agent_files: dict[str, bytes] = {}
        """What the parsed files were."""
        self._shared = Shared()
        self._building = threading.Lock()

    def sources(self, snapshot: Snapshot) -> SourceFiles:
        """The tool servers that a snapshot declares."""
        with self._building:
            return self._sources.sources(snapshot.below(PLUGINS), snapshot.unreadable(PLUGINS, ()))

    def build(self, snapshot: Snapshot, previous: Generation, outside: Outside) -> Generation:
        """Build the generation after `previous`; its problems say what of the snapshot could not be used."""
        with self._building:  # a reload that was cancelled leaves its build going on in a thread
            try:
                return self._build(snapshot, previous, outside)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - an edit that cannot be built is refused; it ends nothing
                return _refused(snapshot, previous, outside, [unexpected("the project's files", error)])

    def refuse(self, failed: Mapping[Plugin, tuple[Problem, ...]]) -> None:
        """Build with the last good versions of these plugins from now on, until their files change."""
        with self._building:
            self._plugins.refuse(failed)

    def hold(self, snapshot: Snapshot, previous: Generation, outside: Outside, why: tuple[Problem, ...]) -> Generation:
        """The generation after `previous` when files are refused as a whole: only what they restrict goes live.

        Its `refusal` says why, if they restrict nothing.
        """
        with self._building:
            try:
                return self._hold(snapshot, previous, outside, why)
            except Exception as error:  # noqa: BLE001 - as in `build`
                return _refused(snapshot, previous, outside, [*why, unexpected("the project's files", error)])

    def _hold(self, snapshot: Snapshot, previous: Generation, outside: Outside, why: tuple[Problem, ...]) -> Generation:
        files = snapshot.below(AGENTS)
        parsed: dict[str, Parsed | ParseError] = self._parse_all(files)
        unreadable = snapshot.unreadable(AGENTS, [agent.path for agent in previous.agents.values()])
        parsed |= {path: ParseError([problem]) for path, problem in unreadable.items()}
        agents, notes = hold(previous.agents, parsed, files, why)
        settings, unread = self._settings.held(snapshot, previous.settings)
        problems = tuple(dict.fromkeys(in_order([*why, *notes, *unread])))
        refused = _refused(snapshot, previous, outside, problems)
        same = agents.keys() == previous.agents.keys() and all(agents[name] is previous.agents[name] for name in agents)
        if same and settings == previous.settings:
            return refused
        return replace(refused, agents=agents, settings=settings, problems=problems, refusal=())

    def _build(self, snapshot: Snapshot, previous: Generation, outside: Outside) -> Generation:
        try:
            settings = self._settings.settings(snapshot)
        except ConfigError as error:
            return self._hold(snapshot, previous, outside, tuple(error.problems))
        problems = [*snapshot.problems, *self._settings.notices()]
        models = frozenset({*self._models, *settings.models})
        problems += setting_problems(settings, snapshot.files.get(SETTINGS, NO_FILE), self._models)
        unreadable = snapshot.unreadable(PLUGINS, self._plugins.paths)
        files, serving = snapshot.below(PLUGINS), previous.number > 0
        own = self._plugins.toolbox(files, unreadable, previous.serving, serving=serving)
        toolbox = own.with_outside(outside)
        prompts = self._prompts(snapshot.below(PROMPTS), problems)
        parsed = self._parse_all(snapshot.below(AGENTS))
        known = self._around.toolbox
        same = (toolbox.tools, toolbox.extensions, toolbox.outside.digest)
        if (prices := PriceList.of(settings, self._models)) != self._around.prices:
            self._around = replace(self._around, prices=prices)
        if same != (known.tools, known.extensions, known.outside.digest) or (prompts, models) != (
            self._around.prompts,
            self._around.models,
        ):
            self._around = replace(self._around, toolbox=toolbox, prompts=prompts, models=models, digests={})
        good = {path: result for path, result in parsed.items() if isinstance(result, Parsed)}
        linker = Linker(self._around, good, previous.agents)
        for path, result in parsed.items():
            if isinstance(result, ParseError):
                linker.refuse(path, result.problems, self._agent_files[path])
        for path, problem in snapshot.unreadable(AGENTS, [agent.path for agent in previous.agents.values()]).items():
            linker.refuse(path, [problem])
        agents = linker.link()
        self._around.keep_digests(good.values())
        problems += [*toolbox.problems, *prompts.problems(), *linker.problems]
        return Generation(
            previous.number + 1,
            snapshot.digest,
            agents,
            toolbox.tools,
            tuple(in_order(problems)),
            snapshot.cases,
            toolbox.plugins,
            plugins=_used(toolbox, agents.values()),
            settings=settings,
            outside=outside,
        )

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
            return Prompts(sources, self._around.prompts)
        return self._around.prompts

    def _parse_all(self, files: Mapping[str, bytes]) -> dict[str, Parsed | ParseError]:
        self._parsed = {path: self._parse(path, source) for path, source in sorted(files.items())}
        self._agent_files = dict(files)
        return dict(self._parsed)

    def _parse(self, path: str, source: bytes) -> Parsed | ParseError:
        if self._agent_files.get(path) == source:
            return self._parsed[path]
        try:
            spec, document = parse_agent(path, source)
            return Parsed(self._shared.spec(spec), document, digest_of(source))
        except ParseError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever one file causes, the others go live
            return ParseError([unexpected(path, error)])


def _refused(snapshot: Snapshot, previous: Generation, outside: Outside, problems: Iterable[Problem]) -> Generation:
    """The previous generation under these files: it never goes live, and says why."""
    refusal = tuple(problems)
    return replace(previous, number=previous.number + 1, digest=snapshot.digest, outside=outside, refusal=refusal)


def _used(toolbox: Toolbox, agents: Iterable[Agent]) -> tuple[Plugin, ...]:
    """An agent that is stale, or was not compiled anew for the same bytes, has functions of an earlier load."""
    functions = {id(function): function for agent in agents for function in agent.functions()}
    return tuple(dict.fromkeys([*toolbox.plugins, *plugins_of(functions.values())]))
