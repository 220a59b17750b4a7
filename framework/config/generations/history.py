"""The last generations that were live, archived in compact form for rollbacks.

Most of a generation are its agents: thousands of small objects, which every garbage collection would traverse while
all threads wait. An archived generation holds the bytes of the agent files instead, and parses them on restore.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from framework.config.agents.compile import Agent, CompileContext, compile_agent
from framework.config.generations.candidate import Candidate
from framework.config.generations.generation import Generation
from framework.config.yaml.parse import parse_agent
from framework.types.errors import GenerationNotFound
from framework.types.problem import Change, Problem

_MAX_ENTRIES = 20
Trigger = Literal["startup", "watch", "api", "rollback", "source"]


@dataclass(frozen=True, slots=True)
class ArchivedGeneration:
    """A generation with the files of its agents instead of the agents."""

    without_agents: Generation
    """The generation without its agents."""
    paths: Mapping[str, str]
    sources: Mapping[str, bytes]
    digests: Mapping[str, str]
    contexts: Mapping[str, CompileContext]
    """The context that each agent was compiled in; mostly the same object."""
    stale: Mapping[str, tuple[Problem, ...]]
    """The errors of the agents whose files were invalid."""
    restricted: Mapping[str, Agent]
    """The agents that are restricted by an invalid file."""

    @classmethod
    def of(
        cls, generation: Generation, before: ArchivedGeneration | None = None, different: Collection[str] = ()
    ) -> ArchivedGeneration:
        """Archive a generation.

        Args:
            generation: the generation.
            before: the archive of an earlier one, whose entries are copied.
            different: the names of the agents that may differ from that one.
        """
        agents, base = generation.agents, before or cls(generation, {}, {}, {}, {}, {}, {})
        if any((name in agents) != (name in base.paths) for name in different) or not before:
            base, different = cls(generation, {}, {}, {}, {}, {}, {}), agents.keys()
        changed = {name: agents[name] for name in different}
        kept = {name: problems for name, problems in base.stale.items() if name not in changed}
        restricted = {name: agent for name, agent in base.restricted.items() if name not in changed}
        return cls(
            replace(generation, agents={}, linked=None),
            {**base.paths, **{name: agent.path for name, agent in changed.items()}},
            {**base.sources, **{name: agent.document.source for name, agent in changed.items()}},
            {**base.digests, **{name: agent.last_good.digest for name, agent in changed.items()}},
            {**base.contexts, **{name: agent.last_good.context for name, agent in changed.items()}},
            {**kept, **{name: agent.stale for name, agent in changed.items() if agent.stale}},
            {**restricted, **{name: agent for name, agent in changed.items() if agent.original}},
        )

    def version(self, name: str) -> tuple[str, tuple[Problem, ...]] | None:
        """Return the digest of an agent and the errors in its file; None if there is no such agent."""
        return (self.digests[name], self.stale.get(name, ())) if name in self.digests else None

    def restore(self, current: Generation) -> Generation:
        """Return the generation. Agents that are equal in the current generation are shared with it."""
        agents = {name: self._agent(name, current.agents.get(name)) for name in self.paths}
        return replace(self.without_agents, agents={**agents, **self.restricted})

    def _agent(self, name: str, current: Agent | None) -> Agent:
        digest, stale = self.digests[name], self.stale.get(name, ())
        if current and (current.digest, current.path) == (digest, self.paths[name]):
            return current if current.stale == stale else replace(current, stale=stale)
        spec, document = parse_agent(self.paths[name], self.sources[name])
        agent, _ = compile_agent(spec, document, digest, self.contexts[name])
        return replace(agent, stale=stale) if stale else agent


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A generation with the time and the trigger of its publication."""

    archived: ArchivedGeneration
    at: datetime
    trigger: Trigger
    pickled_changes: bytes
    """Pickled: there may be thousands of changes, and garbage collections do not traverse bytes."""

    @property
    def number(self) -> int:
        """The number of the generation."""
        return self.archived.without_agents.number

    @property
    def digest(self) -> str:
        """The digest of the files that it was built from."""
        return self.archived.without_agents.digest

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The errors and warnings of the generation."""
        return self.archived.without_agents.problems

    @property
    def unusable(self) -> tuple[str, ...]:
        """The paths of the invalid files."""
        return self.archived.without_agents.unusable

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents."""
        return tuple(self.archived.paths)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes against the generation before it."""
        changes: tuple[Change, ...] = pickle.loads(self.pickled_changes)
        return changes


class History:
    """The last generations that were live, oldest first; at most 20."""

    def __init__(self) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=_MAX_ENTRIES)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> HistoryEntry | None:
        """The entry of the live generation, or None before the first load."""
        return self._entries[-1] if self._entries else None

    def add(self, candidate: Candidate, trigger: Trigger) -> None:
        """Add a candidate that has just gone live."""
        last, before = self.last, candidate.before
        follows = last is not None and (last.number, last.digest) == (before.number, before.digest)
        archived = ArchivedGeneration.of(
            candidate.generation, last.archived if last and follows else None, candidate.different
        )
        self._entries.append(HistoryEntry(archived, datetime.now(UTC), trigger, pickle.dumps(candidate.changes)))

    def entry(self, number: int) -> HistoryEntry:
        """Return the entry of a generation. Raises GenerationNotFound if it is not in the history."""
        for entry in self._entries:
            if entry.number == number:
                return entry
        numbers = ", ".join(str(entry.number) for entry in self._entries)
        raise GenerationNotFound(
            f"generation {number} is not in the history; available: {numbers or 'none'}", param="generation"
        )
