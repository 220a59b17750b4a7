"""The agents that an edit cannot affect, so that linking thousands of agents compiles and checks only the others.

An agent without sub-agents depends on its own file and on the `LinkContext` only. While both are the ones that the live
agents were linked from, the agent is settled: it is used as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from framework.config.agents.compile import Agent
from framework.config.agents.link_context import LinkContext, ParsedAgent
from framework.types.problem import Problem
from framework.types.spec import AgentSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Linked:
    """The linked agents of one generation, from which the next one is linked."""

    context: LinkContext
    agents: Mapping[str, Agent]
    """All agents by name, sorted by path."""
    parsed: Mapping[str, ParsedAgent]
    """The files that are in effect, by path."""
    compiled: Mapping[str, Agent]
    """The agents of these files, by path."""
    rejected: tuple[Agent, ...]
    """The agents whose files are rejected, in their last good version."""
    specs: Mapping[str, AgentSpec]
    """The specs of both, by name."""
    parents: Set[str]
    """The paths of files whose agents have sub-agents; they also depend on other files."""
    warnings: Mapping[str, tuple[Problem, ...]]
    """The warnings about files in effect, by path; only of files with warnings."""
    relinked: tuple[Agent, ...]
    """The agents that were not settled."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The settled agents."""

    agents: Mapping[str, Agent]
    """By path."""
    specs: Mapping[str, AgentSpec]
    """By name."""
    warnings: Mapping[str, tuple[Problem, ...]]
    """By path."""
    last_good: Mapping[str, Agent]
    """The last good versions of all live agents, settled or not, by path."""
    live: Mapping[str, Agent]
    """All live agents by name, sorted by path; empty if none is settled."""
    others: Set[str]
    """The names of those that are not settled."""

    @classmethod
    def of(
        cls, context: LinkContext, parsed: Mapping[str, ParsedAgent], live: Mapping[str, Agent], base: Linked | None
    ) -> Settled:
        """Return the agents of these files that are settled. None is, unless `base` tells how all were linked."""
        if base is None or base.context is not context or base.agents is not live:
            return cls({}, {}, {}, {agent.path: agent.last_good for agent in live.values()}, {}, frozenset())
        before, parents = base.parsed, base.parents
        affected = [path for path, file in before.items() if parsed.get(path) is not file or path in parents]
        names = {base.compiled[path].name for path in affected} | {agent.name for agent in base.rejected}
        return cls(
            _without(base.compiled, affected),
            _without(base.specs, names),
            _without(base.warnings, affected),
            {**base.compiled, **{agent.path: agent for agent in base.rejected}},
            live,
            names,
        )

    def owner(self, name: str) -> str | None:
        """Return the path of the settled agent of this name."""
        agent = self.live.get(name)
        return None if agent is None or name in self.others else agent.path

    def with_others(self, agents: Collection[Agent]) -> dict[str, Agent]:
        """Return all agents by name, sorted by path. `agents` are those that are not settled."""
        combined = dict(self.live)
        if self.others == {agent.name for agent in agents} and all(
            combined[agent.name].path == agent.path for agent in agents
        ):
            combined.update((agent.name, agent) for agent in agents)
            return combined
        for name in self.others:
            del combined[name]
        everything = sorted((*combined.values(), *agents), key=lambda agent: agent.path)
        return {agent.name: agent for agent in everything}


def _without(entries: Mapping[str, T], keys: Collection[str]) -> dict[str, T]:
    remaining = dict(entries)
    for key in keys:
        remaining.pop(key, None)
    return remaining
