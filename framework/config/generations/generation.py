"""One immutable set of agents, tools and settings; and the files of an agent, from which it is rebuilt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from framework.config.agents.compile import Agent, CompileContext, build_agent, extension_names, template_names
from framework.config.agents.diff import diff_agents, diff_settings
from framework.config.agents.findings import BrokenAgent, require_valid
from framework.config.agents.link import ParsedAgent
from framework.config.agents.models import Budgets, PriceList
from framework.config.agents.skills import read_skill
from framework.config.agents.toolbox import ExternalTools, Toolbox, problem_from_exception
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ComparisonGate, ReloadSettings, Settings
from framework.config.snapshot import Cases, Snapshot
from framework.config.templates.prompts import PROMPTS_FOLDER, Prompts
from framework.config.triggers import LoadedTrigger, trigger_changes
from framework.config.yaml.parse import ParseError, parse_agent, sort_problems
from framework.store.types import Blueprint
from framework.tools.plugins import Plugin, PluginLease, PluginLifecycle
from framework.tools.skills import AgentSkill
from framework.tools.tool import Tool
from framework.types.errors import AgentNotFound, ConfigError
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Change, ChangeEffect, Problem
from framework.types.text import source_digest


@dataclass(frozen=True, slots=True)
class Generation:
    """A version of the configuration. Published by a single assignment; a run keeps the one it started with."""

    number: int
    digest: str
    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    problems: tuple[Problem, ...] = ()
    """Errors and warnings, sorted by file and line."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files it was built from, by path, test case files excepted. Those that are equal are the previous ones."""
    cases: Cases = field(default_factory=dict)
    """The test case files next to the agents."""
    live_plugins: tuple[Plugin, ...] = ()
    """The current plugins, each in its last good version."""
    settings: Settings = field(default_factory=Settings.model_construct)
    """The settings of the runs that start with it."""
    budgets: Budgets = field(default_factory=dict)
    """The shared budgets of the settings, and removed ones that the last good version of an agent still names."""
    broken: tuple[BrokenAgent, ...] = ()
    """The agents that have been invalid since the process started: their messages are not given to others."""
    rejection: tuple[Problem, ...] = ()
    """Errors that prevent the whole generation from being published; empty if it may be."""
    traceparent: str = ""
    """The W3C `traceparent` of the reload that published it; empty without one."""
    external: ExternalTools = field(default_factory=ExternalTools)
    """The state of the tool servers when it was built."""
    skills: Mapping[str, AgentSkill] = field(default_factory=dict)
    """The valid Agent Skills of the project, by name."""
    triggers: Mapping[str, LoadedTrigger] = field(default_factory=dict)
    """What starts runs by itself, by name."""
    missing_sdks: tuple[Problem, ...] = ()
    """Warnings about models whose SDK is not installed."""
    plugins: tuple[Plugin, ...] = ()
    """All plugins in use: `live_plugins`, and the earlier versions whose tools stale agents have."""
    root: Path = Path()
    """The project's folder."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make a file invalid."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def names(self) -> Set[str]:
        """The names of the agents, broken ones included."""
        return self.agents.keys() | {agent.name for agent in self.broken}

    def agent(self, name: str) -> Agent:
        """Return an agent by name; raises AgentBroken or AgentNotFound."""
        if name not in self.agents:
            require_valid(name, self.broken)
            raise AgentNotFound(name, sorted(self.agents), self.errors)
        return self.agents[name]

    @property
    def startup_problems(self) -> tuple[Problem, ...]:
        """Errors in files, models without their SDK, and problems of tool servers, to show before a run."""
        return tuple(dict.fromkeys((*self.errors, *self.missing_sdks, *self.external.problems)))

    @property
    def unusable(self) -> tuple[str, ...]:
        """The paths of invalid files. If such a file was valid before, its last good version is live."""
        return tuple(dict.fromkeys(problem.path for problem in self.errors))

    @property
    def own_tools(self) -> int:
        """The number of tools that are not built in."""
        return sum(tool.source not in ("builtin", "run") for tool in self.tools.values())

    @property
    def summary(self) -> str:
        """One line for the log: number, agents, tools that are not built in, and invalid files."""
        agents = "1 agent" if len(self.agents) == 1 else f"{len(self.agents)} agents"
        text = f"generation {self.number} is live: {agents}, {self.own_tools} own tools"
        return f"{text}; invalid files: {', '.join(self.unusable)}" if self.unusable else text

    def problems_with(self, external: ExternalTools) -> tuple[Problem, ...]:
        """Return the problems with the current ones of tool servers, which change without a new generation."""
        own = [problem for problem in self.problems if problem not in self.external.problems]
        return tuple(sort_problems([*own, *external.problems]))


def empty_generation(settings: Settings) -> Generation:
    """Return generation 0, which is current before the first load."""
    return Generation(0, "", {}, {}, settings=settings)


Gate = Callable[[Generation, Generation, Sequence[Literal["tests"] | ComparisonGate]], Awaitable[Sequence[Problem]]]
"""Checks a candidate, next to the live generation, by the gates of the settings. Returned problems reject it."""


_AGAIN = "it runs again when a file changes; `agentsd test` runs the cases without the gate"


class Admission:
    """Decides whether a candidate may be published."""

    def __init__(self, settings: ReloadSettings, gate: Gate | None, *, gate_start: bool = True) -> None:
        """Create the checks.

        Args:
            settings: whether they are strict, and use the gate.
            gate: the gate.
            gate_start: use it for the files at the start, too.
        """
        self._gate_start = gate_start
        self._strict = settings.mode == "strict"
        self._gates = settings.gates
        self._gate = gate if settings.gates else None

    @property
    def runs_cases(self) -> bool:
        """Return whether candidates must pass the gate, which depends on test case files."""
        return self._gate is not None

    def check_files(self, generation: Generation) -> tuple[Problem, ...]:
        """Return why a candidate is rejected, without running the gate; empty if it is not."""
        if generation.rejection:
            return generation.rejection
        return generation.problems if self._strict and generation.errors else ()

    async def check(self, generation: Generation, live: Generation) -> tuple[Problem, ...]:
        """Return why a candidate is rejected, by its files or by the gates; empty if it may be published.

        The gates are those that were set at the start: an edit of them does not decide about itself. One that fails
        holds the edit.
        """
        if problems := self.check_files(generation):
            return problems
        if self._gate is None or not (self._gate_start or generation.number > 1):
            return ()
        try:
            return tuple(await self._gate(generation, live, self._gates))
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            found = problem_from_exception(SETTINGS_FILE, error)
            message = f"the gate failed, so the edit is held: {found.message.removeprefix('unexpected error: ')}"
            return (found.model_copy(update={"message": message, "hint": _AGAIN}),)


Compared = tuple[Generation, tuple[Change, ...], frozenset[str]]
"""`generation`, `changes` and `different` of a `Candidate`."""

ReloadOutcome = Literal["applied", "partial", "rejected", "unchanged"]
"""The result of a reload: all files are valid, some are, the edit is rejected, or no file has changed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The next generation, compared with the current one."""

    generation: Generation
    before: Generation
    changes: tuple[Change, ...]
    snapshot: Snapshot | None = None
    """The files it was built from; None for a rollback."""
    built: tuple[int, int] | None = None
    """Start and end of the build, as Unix time in nanoseconds."""
    different: frozenset[str] = frozenset()
    """The names of the agents that are not the same objects in both, or are in one of them only."""

    @classmethod
    def of(
        cls,
        generation: Generation,
        before: Generation,
        snapshot: Snapshot | None = None,
        built: tuple[int, int] | None = None,
    ) -> Candidate:
        """Compare a generation that is live or becomes live in any case. If that fails, no change is known."""
        compared, changes, different = compare(generation, before)
        if compared is not generation:
            different = _different(before.agents, generation.agents)
        return cls(generation, before, changes, snapshot, built, different)

    def with_traceparent(self, traceparent: str) -> Candidate:
        """Return a copy whose generation has this `traceparent`; the same object if it is empty."""
        return replace(self, generation=replace(self.generation, traceparent=traceparent)) if traceparent else self

    @property
    def digest(self) -> str:
        """The digest of the files that it was built from."""
        return self.generation.digest

    @property
    def widens(self) -> bool:
        """Whether some agent may do or consume more than before."""
        return any(change.effect == "widens" for change in self.changes)

    @property
    def restricts(self) -> list[str]:
        """The agents that may do or consume less than before; `agentsd.yaml` for restrictions that apply to all."""
        return sorted({one.agent for one in self.changes if one.effect == "tightens" or one.also_tightens})

    @property
    def removes(self) -> bool:
        """Whether an agent was removed."""
        return bool(self._only_in(self.before))

    def _only_in(self, generation: Generation) -> list[str]:
        """Return the names of the agents that only one of the two generations has, sorted."""
        other = self.before if generation is self.generation else self.generation
        return sorted(name for name in self.different if name in generation.agents and name not in other.agents)

    def event(self) -> ConfigReloaded | ConfigRejected:
        """Return the event for its publication: `ConfigRejected` if errors kept every agent unchanged."""
        old, new = self.before.agents, self.generation.agents
        added, removed = self._only_in(self.generation), self._only_in(self.before)
        both = self.different.difference(added, removed)
        changed = sorted(name for name in both if old[name].digest != new[name].digest)
        if self.generation.errors and not (added or removed or changed):
            return ConfigRejected(generation=self.generation.number, problems=self.generation.problems)
        return ConfigReloaded(
            generation=self.generation.number,
            digest=self.digest,
            added=tuple(added),
            changed=tuple(changed),
            removed=tuple(removed),
            changes=self.changes,
            problems=self.generation.problems,
        )


def compare(generation: Generation, before: Generation) -> Compared:
    """Compare a built generation with the live one. It is rejected if they cannot be compared."""
    different = _different(before.agents, generation.agents)
    old, new = (
        {name: agents[name].spec for name in different if name in agents}
        for agents in (before.agents, generation.agents)
    )
    try:
        changes = (
            *diff_settings(before.settings, generation.settings),
            *diff_agents(old, new),
            *_skill_changes(before.agents, generation.agents, different),
            *trigger_changes(before.triggers, generation.triggers),
        )
    except Exception as error:  # noqa: BLE001 - an edit that cannot be compared is rejected; the process continues
        problems = (*generation.rejection, problem_from_exception("the project's files", error))
        rejected = replace(before, number=generation.number, digest=generation.digest, rejection=problems)
        return replace(rejected, external=generation.external), (), frozenset()
    return generation, changes, different


def _skill_changes(
    before: Mapping[str, Agent], after: Mapping[str, Agent], different: Iterable[str]
) -> Iterator[Change]:
    """Yield the skills that agents of both generations gain, lose, or have in another version."""
    for agent in sorted(name for name in different if name in before and name in after):
        old, new = (
            {name: skill.digest for name, skill in agents[agent].skills.skills.items()} for agents in (before, after)
        )
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name), new.get(name)
            if was != now:
                effect: ChangeEffect = "widens" if was is None else "tightens" if now is None else "neutral"
                yield Change(agent=agent, key=f"skill {name}", before=was, after=now, effect=effect)


def _different(before: Mapping[str, Agent], after: Mapping[str, Agent]) -> frozenset[str]:
    if before is after:
        return frozenset()
    different = {name for name, agent in after.items() if before.get(name) is not agent}
    return frozenset(different.union(name for name in before if name not in after))


@dataclass(frozen=True, slots=True)
class Preview:
    """The result of reading the files without publishing them."""

    outcome: ReloadOutcome
    candidate: Candidate
    held: bool
    """Whether the files are ignored because of a rollback."""
    problems: tuple[Problem, ...]


class Lease:
    """A generation whose plugins are set up. Enter it with `with lease as generation:`, any number of times."""

    __slots__ = ("_on_release", "_use", "_users", "generation")

    def __init__(self, generation: Generation, use: PluginLease, on_release: Callable[[Lease], None]) -> None:
        self.generation = generation
        self._use, self._on_release, self._users = use, on_release, 0

    @property
    def failed(self) -> Mapping[Plugin, tuple[Problem, ...]]:
        """The plugins whose setup failed, with the reasons."""
        return self._use.failed

    def __enter__(self) -> Generation:
        self._users += 1
        return self.generation

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self.release()

    def release(self) -> None:
        """Release the plugins. Called when the last user exits, or for a lease that was never entered."""
        self._on_release(self)
        self._use.release()


class Leases:
    """The generations in use; one of them is live."""

    def __init__(
        self, lifecycle: PluginLifecycle | None, first: Generation, on_unused: Callable[[], None] = lambda: None
    ) -> None:
        """Start with `first` as the live generation. `on_unused` is called when a generation is no longer in use."""
        self._lifecycle, self._on_unused = lifecycle, on_unused
        self._used: dict[int, Lease] = {}
        self.live = Lease(first, PluginLease(), self._remove)
        self.live.__enter__()

    async def acquire(self, generation: Generation) -> Lease:
        """Set up the plugins of a generation, and return its lease. `Lease.failed` contains the failures."""
        use = await self._lifecycle.acquire(generation.plugins) if self._lifecycle else PluginLease()
        return Lease(generation, use, self._remove)

    async def set_up(self, plugins: Iterable[Plugin]) -> PluginLease:
        """Set up plugins that no generation has yet, and return their lease."""
        return await self._lifecycle.acquire(plugins) if self._lifecycle else PluginLease()

    async def reacquire(self, generation: Generation) -> Lease:
        """Return the lease of an earlier generation. Plugins that were torn down since are set up again.

        Raises:
            ConfigError: the setup of a plugin failed.
        """
        if existing := self._used.get(generation.number):
            return existing
        lease = await self.acquire(generation)
        if errors := [problem for problems in lease.failed.values() for problem in problems]:
            lease.release()
            raise ConfigError(f"cannot set up the plugins of generation {generation.number} again", errors)
        if existing := self._used.get(generation.number):  # another task was faster
            lease.release()
            return existing
        self._used[generation.number] = lease
        return lease

    def publish(self, lease: Lease) -> None:
        """Make the generation of a lease the live one."""
        before, self.live = self.live, lease
        self._used[lease.generation.number] = lease
        lease.__enter__()
        before.__exit__()

    async def close(self) -> None:
        """Tear down all plugins, even those in use."""
        if self._lifecycle:
            await self._lifecycle.close()

    def _remove(self, lease: Lease) -> None:
        if self._used.get(lease.generation.number) is lease:
            del self._used[lease.generation.number]
            self._on_unused()

    def generations(self) -> list[Generation]:
        """Return the generations in use."""
        return [lease.generation for lease in self._used.values()]


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
        toolbox = Toolbox(current.tools, extensions, external=current.external, skills=skills, root=current.root)
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
    """Yield path and text of the files of an agent and of all others that it can call, or hand over to."""
    queue, seen = [name], {name}
    while queue:
        agent = agents[queue.pop()]
        yield agent.path, agent.document.source.decode("utf-8-sig")
        for template, source in agent.prompts.closure(template_names(agent.spec)).items():
            if template in agent.prompts.project_names:
                yield f"{PROMPTS_FOLDER}/{template}", source
        for skill in agent.skills.skills.values():
            yield f"{_SKILL}{skill.digest}:{skill.path}", skill.source
        for other in (*agent.spec.sub_agents, *agent.spec.handoffs):
            if other not in seen and other in agents:
                seen.add(other)
                queue.append(other)
