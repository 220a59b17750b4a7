"""The FastAPI app of `agentsd serve`: the routes of a runtime, those for operations, and the console."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from framework.engine.runtime.runtime import Runtime
from framework.server.console import console_routes
from framework.server.event_feed import ConfigFeed
from framework.server.open_streams import OpenStreams
from framework.server.operations_api import operation_routes
from framework.server.request_handling import error_response, with_security_headers
from framework.server.request_observer import RequestObserver
from framework.server.routes import build_routes, runtime_access_check
from framework.telemetry.prometheus import Scrape
from framework.telemetry.server_metrics import ServerMetrics

_READABLE = (
    "etag", "location", "mcp-session-id", "retry-after", "x-agentsd-conversation-id", "x-agentsd-ignored",
    "x-agentsd-run-id", "x-request-id",
)  # fmt: skip
"""Headers of responses that scripts of other origins may read."""


def create_app(
    runtime: Runtime,
    feed: ConfigFeed,
    metrics: ServerMetrics,
    scrape: Scrape | None = None,
    streams: OpenStreams | None = None,
) -> FastAPI:
    """Create the app. It has no documentation pages, because these would load scripts from other sites."""
    identify = runtime_access_check(runtime)
    app = FastAPI(
        title="agentsd",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Tracing would add a span to any trace that a client names, even for health checks. Logs would quote requests.
        telemetry={"tracing": False, "logs": False},
    )
    app.add_middleware(_LiveOrigins, runtime)
    app.add_middleware(RequestObserver, metrics)
    if runtime.settings.server.console:  # first, because a visit requests many files
        app.include_router(console_routes())
        app.state.serves_console = True
    app.include_router(build_routes(runtime, feed, identify, streams))
    app.include_router(operation_routes(runtime, identify, scrape, lambda: feed.closed))

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            error = HTTPException(error.status_code, headers={"allow": ", ".join(_methods_of_path(request))})
        return with_security_headers(error_response(error, request))

    return app


class _LiveOrigins(CORSMiddleware):
    """Lets scripts of pages of the origins in the live settings read responses."""

    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        methods = ("GET", "POST", "PUT", "DELETE")
        super().__init__(app, allow_methods=methods, allow_headers=("*",), expose_headers=_READABLE)
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = super().__call__ if self._runtime.settings.server.cors_origins else self.app
        await serve(scope, receive, send)

    def is_allowed_origin(self, origin: str) -> bool:
        return origin in self._runtime.settings.server.cors_origins


def _methods_of_path(request: Request) -> list[str]:
    """Return the methods of all routes with a request's path. Starlette's error names those of the first one only."""
    path = request.scope["path"]
    routes = iter_route_contexts(request.app.routes)
    return sorted({method for route in routes if route.path_regex.match(path) for method in route.methods or ()})
