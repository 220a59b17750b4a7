"""Routes of the protocols of other programs: AG-UI, MCP and A2A. Their SDKs are imported by the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from framework.server.errors import NotInstalled
from framework.server.identity import identity_of, requires
from framework.server.openapi import STREAM_RESPONSE, error_responses
from framework.server.request_handling import counted_body
from framework.server.run_service import RunService

if TYPE_CHECKING:
    from framework.server.a2a import A2aApp
    from framework.server.mcp import McpEndpoint


_AguiRespond = Callable[[Request, RunService, str], Awaitable[Response]]
_AGUI_ROLES = ["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
_AGUI_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "RunAgentInput of AG-UI 1.0.",
                "required": ["threadId", "runId", "messages"],
                "anyOf": [
                    {"properties": {"messages": {"type": "array", "items": {}, "minItems": 1}}},
                    {"required": ["resume"], "properties": {"resume": {"type": "array", "items": {}, "minItems": 1}}},
                ],
                "properties": {
                    "threadId": {"type": "string", "description": "Id of the conversation."},
                    "runId": {"type": "string"},
                    "messages": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["id", "role"],
                            "properties": {
                                "id": {"type": "string"},
                                "role": {"enum": _AGUI_ROLES},
                                "content": {"description": "A text, or a list of parts."},
                            },
                        },
                    },
                    "context": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["description", "value"],
                            "properties": {"description": {"type": "string"}, "value": {"type": "string"}},
                        },
                    },
                    "forwardedProps": {"type": "object"},
                    "resume": {
                        "type": "array",
                        "description": "The answers to the interrupts of the run that is paused.",
                        "items": {
                            "type": "object",
                            "required": ["interruptId", "status"],
                            "properties": {
                                "interruptId": {"type": "string"},
                                "status": {"type": "string", "enum": ["resolved", "cancelled"]},
                                "payload": {"description": "The answer, as the interrupt asks for it."},
                            },
                        },
                    },
                },
            },
        }
    },
}


def add_agui_routes(routes: APIRouter, service: RunService) -> None:
    """Add `/agui/{agent}`."""

    @routes.post(
        "/agui/{agent}",
        response_class=StreamingResponse,
        dependencies=[requires("chat")],
        responses={200: STREAM_RESPONSE, **error_responses(404, 409, 413, 501, 503)},
        openapi_extra={"requestBody": _AGUI_BODY},
    )
    async def run_agui(request: Request, agent: str) -> Response:
        """Run an agent, or continue it after an interrupt, and stream AG-UI events.

        The agent `auto` is chosen by the router.
        """
        respond = await asyncio.to_thread(_agui_respond)  # the first import takes 0.1 s
        return await respond(request, service, agent)


def _agui_respond() -> _AguiRespond:
    """Import the protocol's SDK, which not every server has; raises NotInstalled."""
    try:
        from framework.server.agui import respond
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "ag_ui":
            raise
        raise NotInstalled("AG-UI needs the package ag-ui-protocol: install agentsd with the extra `serve`") from None
    return respond


_MAX_VALUES = 10_000
"""Limit of JSON values in a body: the SDK parses it in the event loop, at 5 microseconds a value."""


def add_mcp_routes(routes: APIRouter, service: RunService) -> None:
    """Add `/mcp`. It is not part of the OpenAPI document: its bodies are JSON-RPC."""
    endpoints: list[McpEndpoint] = []

    @routes.api_route(
        "/mcp", methods=["GET", "POST", "DELETE"], dependencies=[requires("chat")], include_in_schema=False
    )
    async def mcp(request: Request) -> Response:
        """Answer a message of an MCP client, or open or end its session."""
        create = await asyncio.to_thread(_mcp_endpoint)  # the first import takes a second
        if not endpoints:
            endpoints.append(create(service))
        return await endpoints[0].response(identity_of(request), await counted_body(request, _MAX_VALUES))


def _mcp_endpoint() -> type[McpEndpoint]:
    """Import the MCP SDK, which not every server has; raises NotInstalled."""
    try:
        from framework.server.mcp import McpEndpoint
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise NotInstalled("the MCP server needs the MCP SDK: install agentsd with the extra `mcp`") from None
    return McpEndpoint


"""Limit of JSON values in a body: the SDK parses it in the event loop."""
_CARD = ".well-known/agent-card.json"
"""Path of the description of an agent (RFC 8615, and the A2A specification 8.2)."""


def add_a2a_routes(routes: APIRouter, service: RunService) -> None:
    """Add `/a2a` and the cards. They are not part of the OpenAPI document: the protocol describes them."""
    apps: list[A2aApp] = []

    async def loaded() -> A2aApp:
        create = await asyncio.to_thread(_a2a_app)  # the first import takes a second
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


def _a2a_app() -> Callable[[RunService], A2aApp]:
    """Import the A2A SDK, which not every server has; raises NotInstalled."""
    try:
        from framework.server.a2a import A2aApp
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "a2a":
            raise
        raise NotInstalled("A2A needs its SDK: install agentsd with the extra `a2a`") from None
    return A2aApp
