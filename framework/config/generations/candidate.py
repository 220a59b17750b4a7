"""A generation that is built but not live, with the changes that it would make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from framework.config.agents.compile import Agent
from framework.config.agents.diff import diff_agents, diff_settings
from framework.config.agents.unexpected_errors import problem_from_exception
from framework.config.files.snapshot import Snapshot
from framework.config.generations.generation import Generation
from framework.types.change import Change
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem

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

    @classmethod
    def of(
        cls,
        generation: Generation,
        before: Generation,
        snapshot: Snapshot | None = None,
        built: tuple[int, int] | None = None,
    ) -> Candidate:
        """Compare a built generation with the live one. It is rejected if they cannot be compared."""
        old = {name: agent.spec for name, agent in before.agents.items()}
        new = {name: agent.spec for name, agent in generation.agents.items()}
        try:
            changes = (*diff_settings(before.settings, generation.settings), *diff_agents(old, new))
        except Exception as error:  # noqa: BLE001 - an edit that cannot be compared is rejected; the process continues
            problems = (*generation.rejection, problem_from_exception("the project's files", error))
            rejected = replace(before, number=generation.number, digest=generation.digest, rejection=problems)
            return cls(replace(rejected, external=generation.external), before, (), snapshot, built)
        return cls(generation, before, changes, snapshot, built)

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
        return sorted({change.agent for change in self.changes if change.effect == "tightens"})

    @property
    def removes(self) -> bool:
        """Whether an agent was removed."""
        return bool(self.before.agents.keys() - self.generation.agents.keys())

    def event(self) -> ConfigReloaded | ConfigRejected:
        """Return the event for its publication: `ConfigRejected` if errors kept every agent unchanged."""
        old, new = self.before.agents, self.generation.agents
        added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
        changed = sorted(name for name in new.keys() & old.keys() if _differ(old[name], new[name]))
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


def _differ(old: Agent, new: Agent) -> bool:
    return new is not old and new.digest != old.digest


@dataclass(frozen=True, slots=True)
class Preview:
    """The result of reading the files without publishing them."""

    outcome: ReloadOutcome
    candidate: Candidate
    held: bool
    """Whether the files are ignored because of a rollback."""
    problems: tuple[Problem, ...]
