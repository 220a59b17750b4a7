"""`/agents`: the agents that are available, what each of them may do, its prompt and its history."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from framework.config.agents.compile import Agent
from framework.config.generations.catalog import Catalog
from framework.config.generations.file_changes import agent_revisions
from framework.config.generations.generation import Generation
from framework.engine.runtime.agent_summary import summarize_agents
from framework.engine.runtime.request import checked_inputs
from framework.engine.runtime.runtime import Runtime
from framework.server.agent_schemas import (
    AgentDetail,
    AgentHistory,
    AgentList,
    AgentPrompt,
    AgentVersion,
    PromptSample,
)
from framework.server.identity import Identity, identity_of
from framework.server.openapi import error_responses
from framework.server.paging import Cursor, OptionalSize, page_of
from framework.server.request_handling import json_response
from framework.server.roles import requires
from framework.types.errors import AgentNotFound


def add_agent_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add the routes below `/agents` of a runtime. Bodies are built in threads: templates and files may be large."""
    catalog = runtime.catalog

    @routes.get("/agents", response_model=AgentList, dependencies=[requires("read")])
    async def list_agents(request: Request, cursor: Cursor = None, limit: OptionalSize = None) -> object:
        """List the available agents, sorted by name."""
        generation, identity = catalog.current, identity_of(request)
        visible = [agent for agent in summarize_agents(generation) if identity.may_use(agent.name)]
        page, following = page_of(visible, cursor, limit, lambda agent: agent.name)
        return json_response(AgentList(generation=generation.number, agents=tuple(page), next=following))

    @routes.get(
        "/agents/{name}",
        response_model=AgentDetail,
        dependencies=[requires("read")],
        responses=error_responses(404),
    )
    async def show_agent(
        request: Request,
        name: str,
        locale: Annotated[str | None, Query(max_length=35, description="Language of the rendered prompt.")] = None,
    ) -> object:
        """Return what an agent may do, its inputs, its prompt, and the problems of its files."""
        generation = catalog.current
        found = _visible_agent(generation, name, identity_of(request))
        return await asyncio.to_thread(lambda: json_response(AgentDetail.of(found, generation, locale)))

    _add_prompt_route(routes, catalog)
    _add_history_route(routes, catalog)


def _add_prompt_route(routes: APIRouter, catalog: Catalog) -> None:
    @routes.post(
        "/agents/{name}/prompt",
        response_model=AgentPrompt,
        dependencies=[requires("read")],
        responses=error_responses(404, 413),
    )
    async def render_prompt(request: Request, name: str, sample: PromptSample) -> object:
        """Render the system prompt of an agent with sample inputs. No model is called."""
        generation = catalog.current
        found = _visible_agent(generation, name, identity_of(request))

        def rendered() -> Response:
            inputs = checked_inputs(found, sample.inputs)
            return json_response(AgentPrompt.of(found, generation, sample.locale, inputs))

        return await asyncio.to_thread(rendered)


def _add_history_route(routes: APIRouter, catalog: Catalog) -> None:
    @routes.get(
        "/agents/{name}/history",
        response_model=AgentHistory,
        dependencies=[requires("read")],
        responses=error_responses(404),
    )
    async def list_agent_versions(
        request: Request, name: str, cursor: Cursor = None, limit: OptionalSize = None
    ) -> object:
        """List the generations in the history that changed an agent, the latest first, with its files' texts."""
        _visible_agent(catalog.current, name, identity_of(request))
        entries = tuple(catalog.history)

        def compared() -> Response:
            revisions = [*agent_revisions(entries, name)][::-1]
            versions = [AgentVersion.of(one, live=one is revisions[0]) for one in revisions]
            page, following = page_of(versions, cursor, limit, lambda version: str(version.generation))
            return json_response(AgentHistory(agent=name, versions=tuple(page), next=following))

        return await asyncio.to_thread(compared)


def _visible_agent(generation: Generation, name: str, identity: Identity) -> Agent:
    """Return an agent; raises AgentNotFound if there is none that the identity may use."""
    found = generation.agents.get(name) if identity.may_use(name) else None
    if found is None:
        visible = [known for known in generation.agents if identity.may_use(known)]
        raise AgentNotFound(name, visible, generation.errors if identity.agents is None else ())
    return found
