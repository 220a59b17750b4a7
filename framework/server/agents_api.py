"""`/agents`: the agents that are available."""

from __future__ import annotations

from fastapi import APIRouter, Request

from framework.engine.runtime.agent_summary import summarize_agents
from framework.engine.runtime.runtime import Runtime
from framework.server.identity import identity_of, requires
from framework.server.request_handling import json_response
from framework.server.schemas import AgentList


def add_agent_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add the `/agents` route of a runtime."""

    @routes.get("/agents", response_model=AgentList, dependencies=[requires("read")])
    async def agents(request: Request) -> object:
        """Return the available agents, sorted by name."""
        generation, identity = runtime.catalog.current, identity_of(request)
        visible = tuple(agent for agent in summarize_agents(generation) if identity.may_use(agent.name))
        return json_response(AgentList(generation=generation.number, agents=visible))
