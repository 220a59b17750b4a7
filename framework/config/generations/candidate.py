"""A generation that is built but not live, with the changes that it would make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from framework.config.agents.compile import Agent
from framework.config.agents.diff import diff_agents, diff_settings
from framework.config.agents.unexpected_errors import problem_from_exception
from framework.config.files.snapshot import Snapshot
from framework.config.generations.generation import Generation
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Change, Problem

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
        """Compare a built generation with the live one. It is rejected if they cannot be compared."""
        generation, changes, different = compare(generation, before)
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
        return sorted({change.agent for change in self.changes if change.effect == "tightens"})

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
        changes = (*diff_settings(before.settings, generation.settings), *diff_agents(old, new))
    except Exception as error:  # noqa: BLE001 - an edit that cannot be compared is rejected; the process continues
        problems = (*generation.rejection, problem_from_exception("the project's files", error))
        rejected = replace(before, number=generation.number, digest=generation.digest, rejection=problems)
        return replace(rejected, external=generation.external), (), frozenset()
    return generation, changes, different


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
