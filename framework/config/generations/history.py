"""The generations that have been live, newest last."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from framework.config.agents.compile import Agent, CompileContext, compile_agent
from framework.config.generations.generation import Generation
from framework.config.yaml.parse import parse_agent
from framework.types.change import Change
from framework.types.errors import GenerationNotFound
from framework.types.problem import Problem

_MAX_ENTRIES = 20
Trigger = Literal["startup", "watch", "api", "rollback", "source"]


@dataclass(frozen=True, slots=True)
class ArchivedGeneration:
    """The files of a generation's agents by name, and all else of it."""

    without_agents: Generation
    """The generation without its agents."""
    paths: Mapping[str, str]
    sources: Mapping[str, bytes]
    digests: Mapping[str, str]
    contexts: Mapping[str, CompileContext]
    """What each was compiled in: mostly one and the same."""
    stale: Mapping[str, tuple[Problem, ...]]
    """Why the files of some could not be used."""
    restricted: Mapping[str, Agent]
    """Those that permit less than their last good version."""

    @classmethod
    def of(cls, generation: Generation) -> ArchivedGeneration:
        """Keep a generation."""
        agents = generation.agents
        return cls(
            replace(generation, agents={}),
            {name: agent.path for name, agent in agents.items()},
            {name: agent.document.source for name, agent in agents.items()},
            {name: agent.last_good.digest for name, agent in agents.items()},
            {name: agent.last_good.context for name, agent in agents.items()},
            {name: agent.stale for name, agent in agents.items() if agent.stale},
            {name: agent for name, agent in agents.items() if agent.original},
        )

    def restore(self, current: Generation) -> Generation:
        """The generation as it was; agents that the current one has just so are the very same objects."""
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
    """One generation's time of going live, and why."""

    archived: ArchivedGeneration
    at: datetime
    trigger: Trigger
    pickled: bytes
    """The changes, as bytes: there may be thousands, and no garbage collection has to look through these."""

    @property
    def number(self) -> int:
        """The generation's."""
        return self.archived.without_agents.number

    @property
    def digest(self) -> str:
        """Of the bytes it was built from."""
        return self.archived.without_agents.digest

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What of the files could not be used, or was odd."""
        return self.archived.without_agents.problems

    @property
    def unusable(self) -> tuple[str, ...]:
        """The files that could not be used."""
        return self.archived.without_agents.unusable

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents."""
        return tuple(self.archived.paths)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What it changed, each change with its direction."""
        changes: tuple[Change, ...] = pickle.loads(self.pickled)
        return changes


class History:
    """The last generations."""

    def __init__(self) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=_MAX_ENTRIES)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> HistoryEntry | None:
        """The one of what is live; none before anything is."""
        return self._entries[-1] if self._entries else None

    def add(self, generation: Generation, trigger: Trigger, changes: tuple[Change, ...]) -> None:
        """Note a generation that went live now."""
        self._entries.append(
            HistoryEntry(ArchivedGeneration.of(generation), datetime.now(UTC), trigger, pickle.dumps(changes))
        )

    def entry(self, number: int) -> HistoryEntry:
        """What is known of a generation; raises GenerationNotFound when it is not kept."""
        for entry in self._entries:
            if entry.number == number:
                return entry
        kept = ", ".join(str(entry.number) for entry in self._entries)
        raise GenerationNotFound(f"generation {number} is not kept; kept: {kept or 'none'}")
