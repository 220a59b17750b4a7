"""The router with all routes of a runtime, those of protocols whose SDKs the first request imports, `/openapi.json`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from fastapi import APIRouter, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from framework.config.api_keys import ROLES
from framework.config.overlay import settings_source
from framework.config.schema import field_docs
from framework.config.settings import unset_key_problems
from framework.engine.runtime.runtime import Runtime
from framework.server import (
    agents_api,
    approvals_api,
    callbacks_api,
    conversations_api,
    files_api,
    openai_api,
    operations_api,
    replay_api,
    runs_api,
)
from framework.server.errors import NotInstalled
from framework.server.event_stream import OpenStreams
from framework.server.identity import FULL_ACCESS, Identify, KeyLimits, access_check, identity_of, requires
from framework.server.request_handling import (
    STREAM_RESPONSE,
    MessageRoute,
    ServedRuns,
    ServerRoute,
    ServerState,
    api_router,
    counted_body,
    error_responses,
    served_state,
)
from framework.server.run_service import RunService
from framework.types.errors import ConfigError
from framework.types.installation import installed_version

if TYPE_CHECKING:
    from framework.server.a2a import A2aApp
    from framework.server.mcp import McpEndpoint


protocols = api_router("protocols", MessageRoute, prefix="")
"""MCP and A2A are not part of the OpenAPI document: their specifications describe them."""


@protocols.post(
    "/agui/{agent}",
    response_class=StreamingResponse,
    dependencies=[requires("chat")],
    responses={200: STREAM_RESPONSE, **error_responses(404, 409, 413, 501, 503)},
)
async def run_agui(request: Request, service: ServedRuns, agent: str) -> Response:
    """Run an agent, or continue it after an interrupt, and stream AG-UI events.

    The agent `auto` is chosen by the router.
    """
    response: Response = await (await _protocol("agui")).respond(request, service, agent)
    return response


_SDKS = {
    "agui": ("ag_ui", "AG-UI needs the package ag-ui-protocol: install agentsd with the extra `serve`"),
    "mcp": ("mcp", "the MCP server needs the MCP SDK: install agentsd with the extra `mcp`"),
    "a2a": ("a2a", "A2A needs its SDK: install agentsd with the extra `a2a`"),
}
"""By module of this package: what it imports that not every server has, and what to do then."""


async def _protocol(name: str) -> Any:
    """Import the module of a protocol with its SDK, which takes up to a second; raises NotInstalled."""
    try:
        return await asyncio.to_thread(import_module, f"framework.server.{name}")
    except ModuleNotFoundError as missing:
        package, advice = _SDKS[name]
        if (missing.name or "").partition(".")[0] not in (package, f"{package}_types"):
            raise
        raise NotInstalled(advice) from None


_MAX_VALUES = 10_000
"""Limit of JSON values in a body: the SDK parses it in the event loop, at 5 microseconds a value."""


@protocols.api_route(
    "/mcp", methods=["GET", "POST", "DELETE"], dependencies=[requires("chat")], include_in_schema=False
)
async def answer_mcp(request: Request) -> Response:
    """Answer a message of an MCP client, or open or end its session."""
    endpoint: McpEndpoint = served_state(request).part((await _protocol("mcp")).McpEndpoint)
    return await endpoint.response(identity_of(request), await counted_body(request, _MAX_VALUES))


_CARD = ".well-known/agent-card.json"
"""Path of the description of an agent (RFC 8615, and the A2A specification 8.2)."""


@protocols.get(f"/{_CARD}", dependencies=[requires("chat", "read")], include_in_schema=False)
async def show_card(request: Request) -> Response:
    """Describe the only agent that the client may use, or the router and all agents."""
    return JSONResponse((await _a2a_of(request)).card(request, None))


@protocols.get(f"/a2a/{{agent}}/{_CARD}", dependencies=[requires("chat", "read")], include_in_schema=False)
async def show_card_of_agent(request: Request, agent: str) -> Response:
    """Describe an agent."""
    return JSONResponse((await _a2a_of(request)).card(request, agent))


@protocols.api_route(
    "/a2a/{agent}{rest:path}",
    methods=["GET", "POST", "DELETE"],
    dependencies=[requires("chat")],
    include_in_schema=False,
)
async def answer_a2a(request: Request, service: ServedRuns) -> Response:
    """Answer a request of an A2A client."""
    app = await _a2a_of(request)
    body = await counted_body(request, _MAX_VALUES) if request.method == "POST" else b""
    with service.limits.admit_stream(identity_of(request)) as admitted:
        return app.response(request, body, admitted.pop_all())


async def _a2a_of(request: Request) -> A2aApp:
    app: A2aApp = served_state(request).part((await _protocol("a2a")).A2aApp)
    return app


async def send_a2a_pushes(runtime: Runtime) -> None:
    """Send the push notifications that are due, if the operator allows any; raises NotInstalled or StoreError."""
    if runtime.settings.server.a2a_push_hosts:
        await (await _protocol("a2a")).send_pushes(runtime)


documented = [
    *(runs_api.routes, approvals_api.routes, callbacks_api.login_routes, replay_api.routes, conversations_api.routes),
    *(operations_api.usage_routes, operations_api.routes, agents_api.routes, files_api.routes, files_api.file_routes),
    *(callbacks_api.trigger_routes, protocols),
]
openapi_routes = api_router("configuration")
_COMMON_ERRORS = (400, 401, 403, 429, 500)
"""HTTP statuses of errors that every route can have."""
_EXAMPLES = Path(__file__).with_name("examples.yaml")
_DESCRIPTION = (
    "Runs of agents that are defined in files. Errors have the same form on every route; `default` stands for statuses"
    " that are not listed."
)
_KEY = {"type": "http", "scheme": "bearer", "description": "A key of `server.api_keys`, if any are set."}
_TAGS = {
    "configuration": "The project's files, generations and agents, and the processes that serve them.",
    "protocols": "Protocols of other programs. Those with specifications of their own are not described: `/v1`"
    " (OpenAI's chat completions and Responses), `/mcp` (MCP) and `/a2a/{agent}` (A2A).",
    "runs": "Runs, their conversations, decisions and figures.",
}
_JSON, _STREAM = "application/json", "text/event-stream"


@openapi_routes.get("/openapi.json", include_in_schema=False, dependencies=[requires(*ROLES)])
async def openapi(request: Request) -> JSONResponse:
    """Return the OpenAPI document of the routes."""
    base = request.url.path.removesuffix("/agent/openapi.json")
    document = await asyncio.to_thread(build_document)  # the first time takes long
    return JSONResponse({**document, "servers": [{"url": base or "/"}]})


@cache
def build_document() -> dict[str, Any]:
    """Return the OpenAPI document of routes, with the docstrings of fields as descriptions, and examples."""
    routes = [route for part in documented for route in part.routes]
    document = get_openapi(title="agentsd", version=installed_version(), description=_DESCRIPTION, routes=routes)
    document["info"] |= {"license": {"name": "MIT", "identifier": "MIT"}, "contact": {"name": "agentsd"}}
    document["tags"] = [{"name": tag, "description": text} for tag, text in _TAGS.items()]
    document["components"]["securitySchemes"] = {"key": _KEY}
    document["security"] = [{"key": []}, {}]
    schemas = document["components"]["schemas"]
    # Without it, the kind of a decision or of a part is unknown.
    for kind in ("Approve", "Edit", "Reject", "Respond", "TextPart", "MediaPart"):
        schemas[kind]["required"] = [*dict.fromkeys([*schemas[kind].get("required", ()), "type"])]
    _describe_fields(schemas)
    _remove_null_parameters(document["paths"])
    _add_common_errors(document["paths"])
    _add_examples(document["paths"])
    return document


def _describe_fields(schemas: dict[str, Any]) -> None:
    models = {model.__name__: model for model in _models(BaseModel)}
    for name, schema in schemas.items():
        model = models.get(name.removesuffix("-Input").removesuffix("-Output"))
        for field, text in field_docs(model).items() if model else ():
            if (node := schema.get("properties", {}).get(field)) is not None:
                node.setdefault("description", text)


def _models(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models of this package. Their names are unique."""
    for model in kind.__subclasses__():
        if model.__module__.partition(".")[0] == __name__.partition(".")[0]:
            yield model
        yield from _models(model)


def _remove_null_parameters(paths: dict[str, Any]) -> None:
    """Let no parameter be null: a query and a header have only texts, and one that is not set is left out."""
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
            if len(kinds) == 1:
                del schema["anyOf"]
                parameter["schema"] = {**kinds[0], **schema}


def _add_common_errors(paths: dict[str, Any]) -> None:
    """Add the errors of every route. As `responses` of the routers, they would take a third of the time to build."""
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        responses = operation["responses"]
        for status in _COMMON_ERRORS:
            common = {**responses["default"], "description": HTTPStatus(status).phrase}
            responses.setdefault(str(status), common)


def _add_examples(paths: dict[str, Any]) -> None:
    """Add the examples, and the bodies of requests that no model describes."""
    examples = yaml.safe_load(_EXAMPLES.read_text("utf-8"))
    for path, operations in paths.items():
        for method, operation in operations.items():
            found = examples.get(f"{method.upper()} {path}", {})
            if "body" in found:  # of a protocol whose package checks it
                operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": found["body"]}}}
            if "requests" in found:
                named = {name: {"value": value} for name, value in found["requests"].items()}
                operation["requestBody"]["content"][_JSON]["examples"] = named
            success = next(response for status, response in operation["responses"].items() if status.startswith("2"))
            for kind, media_type in (("response", _JSON), ("stream", _STREAM)):
                if kind in found:
                    success["content"][media_type]["example"] = found[kind]


def router(runtime: Runtime, *, guarded: bool = True, identify: Identify | None = None) -> APIRouter:
    """Return all routes but those of probes and the console, for `app.include_router`.

    Args:
        runtime: the runtime to serve. It must stay open as long as the app runs.
        guarded: require one of `server.api_keys` or, if there are none, a client on this machine. If False, the app
            must check access itself; every request that reaches the routes has full access.
        identify: the app's own access check, in place of `guarded`: returns the `Identity` of a request, or raises
            AccessDenied or Unauthenticated. It is called for each request, and again while a stream is open.
    """
    state = server_state(runtime, identify or (runtime_access_check(runtime) if guarded else lambda _: FULL_ACCESS))
    runtime.catalog.subscribe(state.feed.add)
    return served_routes(state)


def server_state(
    runtime: Runtime, identify: Identify, streams: OpenStreams | None = None, **options: Any
) -> ServerState:
    """Return the state of the routes for one app.

    The caller closes the streams to end the open ones. Options are other fields of the state.
    """
    limits = KeyLimits(runtime.store, runtime.settings.server)
    return ServerState(RunService(runtime, limits, streams or OpenStreams()), identify, **options)


def served_routes(state: ServerState, *, with_probes: bool = False) -> APIRouter:
    """Return the routes for an app with this state, with `/health`, `/ready` and `/metrics` if they are asked for."""
    served = APIRouter()
    parts = [callbacks_api.callback_route, callbacks_api.webhook_routes, *documented, openapi_routes, openai_api.routes]
    for part in [*parts, operations_api.probes, operations_api.metrics_route] if with_probes else parts:
        served.routes.extend(route.serving(state) for route in part.routes if isinstance(route, ServerRoute))
    return served


def runtime_access_check(runtime: Runtime) -> Identify:
    """Return an access check that uses the live `server.api_keys` at each request.

    Raises:
        ConfigError: a variable of `server.api_keys` is not set.
    """
    current = runtime.catalog.current
    if problems := unset_key_problems(current.settings, settings_source(current.files)):
        raise ConfigError(f"{problems[0].path} is invalid", problems)
    return access_check(lambda: runtime.settings.server.api_keys, lambda: runtime.settings.server.cors_origins)
