"""`/agents`: the agents that are available."""

from __future__ import annotations

from fastapi import APIRouter

from framework.engine.runtime.agent_summary import summarize_agents
from framework.engine.runtime.runtime import Runtime
from framework.server.request_handling import json_response
from framework.server.schemas import AgentList


def add_agent_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add the `/agents` route of a runtime."""

    @routes.get("/agents", response_model=AgentList)
    async def agents() -> object:
        """Return the available agents, sorted by name."""
        generation = runtime.catalog.current
        return json_response(AgentList(generation=generation.number, agents=tuple(summarize_agents(generation))))
