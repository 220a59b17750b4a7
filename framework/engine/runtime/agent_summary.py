"""The agents of a generation, each in a few words."""

from __future__ import annotations

from framework.config.generations.generation import Generation
from framework.types.frozen import Frozen


class AgentSummary(Frozen):
    """What a list of agents says of one."""

    name: str
    description: str
    path: str
    """Its file, relative to the project's root."""
    model: str
    """Its own, or that of the settings."""
    executor: str
    tools: int
    """How many it is offered."""
    stale: bool
    """This is its last good version: its file cannot be used now."""


def summarize_agents(generation: Generation) -> list[AgentSummary]:
    """All agents, by name."""
    return [
        AgentSummary(
            name=agent.name,
            description=agent.spec.description,
            path=agent.path,
            model=agent.spec.model or generation.settings.model,
            executor=agent.spec.executor,
            tools=len(agent.toolset.offered),
            stale=bool(agent.stale),
        )
        for _, agent in sorted(generation.agents.items())
    ]
