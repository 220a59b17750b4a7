"""The router with all routes of a runtime, and the routes of protocols whose SDKs the first request imports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import HTTPConnection

from framework.config.overlay import settings_source
from framework.config.settings import unset_key_problems
from framework.engine.runtime.runtime import Runtime
from framework.server.agents_api import add_agent_routes
from framework.server.errors import NotInstalled
from framework.server.event_stream import ConfigFeed, OpenStreams
from framework.server.files_api import add_config_routes, add_file_routes
from framework.server.grants_api import add_grant_routes
from framework.server.identity import FULL_ACCESS, Identify, Identity, KeyLimits, access_check, identity_of, requires
from framework.server.logins_api import add_login_routes
from framework.server.memory_api import add_memory_routes
from framework.server.openai.v1_routes import v1_routes
from framework.server.openapi import DEFAULT_RESPONSE, STREAM_RESPONSE, add_openapi_route, error_responses
from framework.server.operations_api import add_event_routes, add_fleet_routes, add_identity_routes
from framework.server.replay_api import add_replay_routes
from framework.server.request_handling import (
    CHAT_BODY_BYTES,
    CONFIG_BODY_BYTES,
    KeyedResponses,
    counted_body,
    guarded_route,
)
from framework.server.run_service import RunService
from framework.server.runs_api import add_approval_routes, add_chat_routes, add_conversation_routes, add_run_routes
from framework.server.triggers_api import add_trigger_routes, add_webhook_route, no_check
from framework.server.usage_api import add_usage_routes
from framework.types.errors import ConfigError

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


async def send_a2a_pushes(runtime: Runtime) -> None:
    """Send the push notifications that are due, if the operator allows any; raises NotInstalled or StoreError."""
    if runtime.settings.server.a2a_push_hosts:
        send = await asyncio.to_thread(_send_pushes)
        await send(runtime)


def _send_pushes() -> Callable[[Runtime], Awaitable[None]]:
    _a2a_app()
    from framework.server.a2a import send_pushes

    return send_pushes


_PREFIX = "/agent"


def router(runtime: Runtime, *, guarded: bool = True, identify: Identify | None = None) -> APIRouter:
    """Return the routes below `/agent`, `/v1`, `/agui`, `/mcp` and `/a2a`, for `app.include_router`.

    Args:
        runtime: the runtime to serve. It must stay open as long as the app runs.
        guarded: require one of `server.api_keys` or, if there are none, a client on this machine. If False, the app
            must check access itself; every request that reaches the routes has full access.
        identify: the app's own access check, in place of `guarded`: returns the `Identity` of a request, or raises
            AccessDenied or Unauthenticated. It is called for each request, and again while a stream is open.
    """
    feed = ConfigFeed()
    runtime.catalog.subscribe(feed.add)
    return build_routes(runtime, feed, identify or (runtime_access_check(runtime) if guarded else _allow_all))


def build_routes(
    runtime: Runtime, feed: ConfigFeed, identify: Identify, streams: OpenStreams | None = None
) -> APIRouter:
    """Return the routes.

    Args:
        runtime: the runtime to serve.
        feed: the configuration events. The caller closes it to end the streams of events.
        identify: the access check.
        streams: the streams of runs. The caller closes them to end the open ones.
    """

    def routes_of(tag: str, max_body_bytes: int, prefix: str = _PREFIX, identify: Identify = identify) -> APIRouter:
        inbound = lambda: runtime.settings.telemetry.inbound  # noqa: E731 - read at each request
        route = guarded_route(identify, inbound, max_body_bytes, limits.bodies)
        return APIRouter(
            prefix=prefix,
            route_class=route,
            tags=[tag],
            responses=DEFAULT_RESPONSE,
            generate_unique_id_function=lambda added: added.name,
        )

    limits = KeyLimits(runtime.store, runtime.settings.server)
    service = RunService(runtime, limits, streams or OpenStreams())
    keyed = KeyedResponses()
    runs, config = routes_of("runs", CHAT_BODY_BYTES), routes_of("configuration", CONFIG_BODY_BYTES)
    add_chat_routes(runs, service)
    add_run_routes(runs, service, keyed)
    add_approval_routes(runs, runtime)
    add_grant_routes(runs, service)
    public = APIRouter()
    add_login_routes(runs, public, runtime)
    add_replay_routes(runs, service, keyed)
    add_conversation_routes(runs, runtime, keyed)
    add_memory_routes(runs, runtime)
    add_usage_routes(runs, runtime)
    add_identity_routes(config, runtime)
    add_agent_routes(config, runtime)
    add_config_routes(config, runtime, keyed)
    add_fleet_routes(config, runtime)
    add_trigger_routes(config, runtime)
    hooks = routes_of("runs", CHAT_BODY_BYTES, "", no_check)
    add_webhook_route(hooks, runtime)
    files = routes_of("configuration", CHAT_BODY_BYTES)
    add_file_routes(files, runtime)
    add_event_routes(config, feed, limits, service.streams)
    protocols = routes_of("protocols", CHAT_BODY_BYTES, "")
    add_agui_routes(protocols, service)
    add_mcp_routes(protocols, service)
    add_a2a_routes(protocols, service)
    add_openapi_route(config, [*runs.routes, *config.routes, *files.routes, *protocols.routes])
    router = APIRouter()
    for part in (public, hooks, runs, config, files, protocols, v1_routes(service, identify)):
        router.routes.extend(part.routes)  # complete; `include_router` would build each of them again
    return router


def runtime_access_check(runtime: Runtime) -> Identify:
    """Return an access check that uses the live `server.api_keys` at each request.

    Raises:
        ConfigError: a variable of `server.api_keys` is not set.
    """
    current = runtime.catalog.current
    if problems := unset_key_problems(current.settings, settings_source(current.files)):
        raise ConfigError(f"{problems[0].path} is invalid", problems)
    return access_check(lambda: runtime.settings.server.api_keys, lambda: runtime.settings.server.cors_origins)


def _allow_all(connection: HTTPConnection) -> Identity:  # noqa: ARG001 - all access checks share a signature
    """Accept every request: the app around the routes checks access."""
    return FULL_ACCESS
