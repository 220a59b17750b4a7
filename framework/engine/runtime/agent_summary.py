"""Summaries of the agents in a generation, for lists."""

from __future__ import annotations

from framework.config.generations.generation import Generation
from framework.types.frozen import Frozen


class AgentSummary(Frozen):
    """One agent, as shown in lists."""

    name: str
    description: str
    path: str
    """The agent file, relative to the project root."""
    model: str
    """The agent's model, or the default of the settings."""
    executor: str
    tools: int
    """Number of tools that the agent is offered."""
    stale: bool
    """The file has errors; this is its last good version."""


def summarize_agents(generation: Generation) -> list[AgentSummary]:
    """Return a summary of every agent, sorted by name."""
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
