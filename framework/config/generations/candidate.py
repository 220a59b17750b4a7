"""A generation that has been built but is not live: what it would change, and in which direction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from framework.config.agents.diff import diff_agents, diff_settings
from framework.config.files.snapshot import Snapshot
from framework.config.generations.generation import Generation
from framework.types.change import Change
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem

ReloadOutcome = Literal["applied", "partial", "rejected", "unchanged"]
"""What becomes of files: all of them can be used, some, none may go live, or they say nothing new."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The next generation beside the current one."""

    generation: Generation
    before: Generation
    changes: tuple[Change, ...]
    snapshot: Snapshot | None = None
    """The files it was built from; none if it has been live before."""
    built: tuple[int, int] | None = None
    """From when to when it was built: Unix time in nanoseconds."""

    @classmethod
    def of(
        cls,
        generation: Generation,
        before: Generation,
        snapshot: Snapshot | None = None,
        built: tuple[int, int] | None = None,
    ) -> Candidate:
        """Compare a built generation with the one that is live."""
        old = {name: agent.spec for name, agent in before.agents.items()}
        new = {name: agent.spec for name, agent in generation.agents.items()}
        changes = (*diff_settings(before.settings, generation.settings), *diff_agents(old, new))
        return cls(generation, before, changes, snapshot, built)

    def with_traceparent(self, traceparent: str) -> Candidate:
        """The same; its generation knows where in a trace it went live."""
        return replace(self, generation=replace(self.generation, traceparent=traceparent)) if traceparent else self

    @property
    def digest(self) -> str:
        """Of the bytes it was built from."""
        return self.generation.digest

    @property
    def widens(self) -> bool:
        """Some agent may do or use up more than before."""
        return any(change.effect == "widens" for change in self.changes)

    @property
    def restricts(self) -> list[str]:
        """The agents that may do or use up less than before; `agentsd.yaml` for what applies to all."""
        return sorted({change.agent for change in self.changes if change.effect == "tightens"})

    @property
    def removes(self) -> bool:
        """Some agent is not there any more."""
        return bool(self.before.agents.keys() - self.generation.agents.keys())

    def event(self) -> ConfigReloaded | ConfigRejected:
        """What to tell once it is live: a set of files that changed nothing because they are broken was refused."""
        old, new = self.before.agents, self.generation.agents
        added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
        changed = sorted(name for name in new.keys() & old.keys() if new[name].digest != old[name].digest)
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


@dataclass(frozen=True, slots=True)
class Preview:
    """What the files would do, beside what is live."""

    outcome: ReloadOutcome
    candidate: Candidate
    held: bool
    """A rollback holds the files back that it was made over."""
    problems: tuple[Problem, ...]
