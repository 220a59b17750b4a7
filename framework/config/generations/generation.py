"""One immutable set of agents, tools and settings."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from framework.config.agents.budgets import Budgets
from framework.config.agents.compile import Agent
from framework.config.agents.external_tools import ExternalTools
from framework.config.agents.findings import BrokenAgent, require_valid
from framework.config.agents.settled import Linked
from framework.config.files.snapshot import Cases
from framework.config.settings import Settings
from framework.config.yaml.parse import sort_problems
from framework.tools.plugins.loader import Plugin
from framework.tools.tool import Tool
from framework.types.errors import AgentNotFound
from framework.types.problem import Problem


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
    """The agents that have been invalid since the process began: their messages are not given to others."""
    rejection: tuple[Problem, ...] = ()
    """Errors that prevent the whole generation from being published; empty if it may be."""
    traceparent: str = ""
    """The W3C `traceparent` of the reload that published it; empty without one."""
    external: ExternalTools = field(default_factory=ExternalTools)
    """The state of the tool servers when it was built."""
    missing_sdks: tuple[Problem, ...] = ()
    """Warnings about models whose SDK is not installed."""
    plugins: tuple[Plugin, ...] = ()
    """All plugins in use: `live_plugins`, and the earlier versions whose tools stale agents have."""
    files_sum: int = -1
    """`Snapshot.files_sum` of `files`."""
    linked: Linked | None = field(default=None, compare=False, repr=False)
    """How `agents` were linked, for the build of the next generation; None if they come from elsewhere."""

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
    def summary(self) -> str:
        """One line for the log: number, agents, tools, and invalid files."""
        agents = "1 agent" if len(self.agents) == 1 else f"{len(self.agents)} agents"
        text = f"generation {self.number} is live: {agents}, {len(self.tools)} tools"
        return f"{text}; invalid files: {', '.join(self.unusable)}" if self.unusable else text

    def problems_with(self, external: ExternalTools) -> tuple[Problem, ...]:
        """Return the problems with the current ones of tool servers, which change without a new generation."""
        own = [problem for problem in self.problems if problem not in self.external.problems]
        return tuple(sort_problems([*own, *external.problems]))


def empty_generation(settings: Settings) -> Generation:
    """Return generation 0, which is current before the first load."""
    return Generation(0, "", {}, {}, settings=settings)
