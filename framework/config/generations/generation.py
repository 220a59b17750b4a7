"""One immutable, closed set of agents and tools, and how it is built from a snapshot.

An object that fails keeps its last good version, marked stale with its Problems; the others are not disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from framework.config.agents.compile import Agent
from framework.config.agents.external_tools import ExternalTools
from framework.config.files.snapshot import Cases
from framework.config.settings import Settings
from framework.config.yaml.parse import sort_problems
from framework.tools.plugins.loader import Plugin
from framework.tools.tool import Tool
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
    live_plugins: tuple[Plugin, ...] = ()
    """The plugin files, each at its last good version."""
    settings: Settings = field(default_factory=Settings.model_construct)
    """What holds for the runs that begin on it."""
    rejection: tuple[Problem, ...] = ()
    """What is wrong with the settings: a generation that has this never goes live."""
    traceparent: str = ""
    """Where in a trace it went live, as W3C writes it."""
    external: ExternalTools = field(default_factory=ExternalTools)
    """What tool servers gave when it was built."""
    plugins: tuple[Plugin, ...] = ()
    """All that it uses: those that serve, and the versions whose tools its agents have."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep a file from being used."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def startup_problems(self) -> tuple[Problem, ...]:
        """Errors of files and of tool servers, to show before a run."""
        return (*self.errors, *self.external.problems)

    @property
    def unusable(self) -> tuple[str, ...]:
        """The files with errors: of those that were usable before, the last good version is live."""
        return tuple(dict.fromkeys(problem.path for problem in self.errors))

    @property
    def summary(self) -> str:
        """One line for the log."""
        text = f"generation {self.number} is live: {len(self.agents)} agents, {len(self.tools)} tools"
        return f"{text}; last good versions instead of {', '.join(self.unusable)}" if self.unusable else text

    def problems_with(self, external: ExternalTools) -> tuple[Problem, ...]:
        """The problems, with those of tool servers as they are now: they come and go without a new generation."""
        own = [problem for problem in self.problems if problem not in self.external.problems]
        return tuple(sort_problems([*own, *external.problems]))


def empty_generation(settings: Settings) -> Generation:
    """What is live before anything is."""
    return Generation(0, "", {}, {}, settings=settings)
