"""`/agents`: the agents that are available, and what each of them may do."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from framework.engine.runtime.agent_summary import summarize_agents
from framework.engine.runtime.runtime import Runtime
from framework.server.identity import identity_of
from framework.server.openapi import error_responses
from framework.server.request_handling import json_response
from framework.server.roles import requires
from framework.server.schemas import AgentDetail, AgentList
from framework.types.errors import AgentNotFound


def add_agent_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add the routes below `/agents` of a runtime."""

    @routes.get("/agents", response_model=AgentList, dependencies=[requires("read")])
    async def agents(request: Request) -> object:
        """Return the available agents, sorted by name."""
        generation, identity = runtime.catalog.current, identity_of(request)
        visible = tuple(agent for agent in summarize_agents(generation) if identity.may_use(agent.name))
        return json_response(AgentList(generation=generation.number, agents=visible))

    @routes.get(
        "/agents/{name}",
        response_model=AgentDetail,
        dependencies=[requires("read")],
        responses=error_responses(404),
    )
    async def agent(
        request: Request,
        name: str,
        locale: Annotated[str | None, Query(max_length=35, description="Language of the rendered prompt.")] = None,
    ) -> object:
        """Return what an agent may do, its inputs, its prompt, and the problems of its files."""
        generation, identity = runtime.catalog.current, identity_of(request)
        found = generation.agents.get(name) if identity.may_use(name) else None
        if found is None:
            visible = [known for known in generation.agents if identity.may_use(known)]
            raise AgentNotFound(name, visible, generation.errors if identity.agents is None else ())
        # Its template may be slow.
        return json_response(await asyncio.to_thread(AgentDetail.of, found, generation, locale))
