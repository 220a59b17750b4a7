"""`/a2a/{agent}`: messages of other agents, by JSON-RPC and by plain HTTP; `agent-card.json` describes an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from framework.server.errors import NotInstalled
from framework.server.identity import identity_of, requires
from framework.server.request_handling import counted_body
from framework.server.run_service import RunService

if TYPE_CHECKING:
    from framework.server.a2a.tasks import A2aApp

_MAX_VALUES = 10_000
"""Limit of JSON values in a body: the SDK parses it in the event loop."""
_CARD = ".well-known/agent-card.json"
"""Path of the description of an agent (RFC 8615, and the A2A specification 8.2)."""


def add_a2a_routes(routes: APIRouter, service: RunService) -> None:
    """Add `/a2a` and the cards. They are not part of the OpenAPI document: the protocol describes them."""
    apps: list[A2aApp] = []

    async def loaded() -> A2aApp:
        create = await asyncio.to_thread(_load)  # the first import takes a second
        if not apps:
            apps.append(create(service))
        return apps[0]

    @routes.get(f"/{_CARD}", dependencies=[requires("chat", "read")], include_in_schema=False)
    async def card(request: Request) -> Response:
        """Describe the only agent that the client may use, or the router and all agents."""
        return JSONResponse((await loaded()).card(request, None))

    @routes.get(f"/a2a/{{agent}}/{_CARD}", dependencies=[requires("chat", "read")], include_in_schema=False)
    async def card_of_agent(request: Request, agent: str) -> Response:
        """Describe an agent."""
        return JSONResponse((await loaded()).card(request, agent))

    @routes.api_route(
        "/a2a/{agent}{rest:path}",
        methods=["GET", "POST", "DELETE"],
        dependencies=[requires("chat")],
        include_in_schema=False,
    )
    async def a2a(request: Request) -> Response:
        """Answer a request of an A2A client."""
        app = await loaded()
        body = await counted_body(request, _MAX_VALUES) if request.method == "POST" else b""
        with service.limits.admit_stream(identity_of(request)) as admitted:
            return app.response(request, body, admitted.pop_all())


def _load() -> Callable[[RunService], A2aApp]:
    """Import the A2A SDK, which not every server has; raises NotInstalled."""
    try:
        from framework.server.a2a.tasks import A2aApp
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "a2a":
            raise
        raise NotInstalled("A2A needs its SDK: install agentsd with the extra `a2a`") from None
    return A2aApp
