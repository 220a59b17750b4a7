"""A generation that is live no more, as little as is needed to make it again.

Most of a generation are its agents: thousands of small objects, which each garbage collection looks through while all
threads stand still. What is kept of them is the bytes of their files; reading those again gives the same agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from framework.config.agents.compile import Agent, World, compile_agent
from framework.config.generations.generation import Generation
from framework.config.yaml.parse import parse_agent
from framework.types.problem import Problem


@dataclass(frozen=True, slots=True)
class Kept:
    """The files of a generation's agents by name, and all else of it."""

    bare: Generation
    """The generation without its agents."""
    paths: Mapping[str, str]
    sources: Mapping[str, bytes]
    digests: Mapping[str, str]
    worlds: Mapping[str, World]
    """What each was compiled in: mostly one and the same."""
    stale: Mapping[str, tuple[Problem, ...]]
    """Why the files of some could not be used."""
    restricted: Mapping[str, Agent]
    """Those that permit less than their last good version."""

    @classmethod
    def of(cls, generation: Generation) -> Kept:
        """Keep a generation."""
        agents = generation.agents
        return cls(
            replace(generation, agents={}),
            {name: agent.path for name, agent in agents.items()},
            {name: agent.document.source for name, agent in agents.items()},
            {name: agent.last_good.digest for name, agent in agents.items()},
            {name: agent.last_good.world for name, agent in agents.items()},
            {name: agent.stale for name, agent in agents.items() if agent.stale},
            {name: agent for name, agent in agents.items() if agent.original},
        )

    def again(self, current: Generation) -> Generation:
        """The generation as it was; agents that the current one has just so are the very same objects."""
        agents = {name: self._agent(name, current.agents.get(name)) for name in self.paths}
        return replace(self.bare, agents={**agents, **self.restricted})

    def _agent(self, name: str, current: Agent | None) -> Agent:
        digest, stale = self.digests[name], self.stale.get(name, ())
        if current and (current.digest, current.path) == (digest, self.paths[name]):
            return current if current.stale == stale else replace(current, stale=stale)
        spec, document = parse_agent(self.paths[name], self.sources[name])
        agent, _ = compile_agent(spec, document, digest, self.worlds[name])
        return replace(agent, stale=stale) if stale else agent
