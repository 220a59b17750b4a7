"""The FastAPI app of `agentsd serve`: the routes of a runtime, `/health` and `/ready`."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from framework.engine.runtime.runtime import Runtime
from framework.server.event_feed import ConfigFeed
from framework.server.identity import Identify, check_access
from framework.server.request_handling import error_response, json_response, with_security_headers
from framework.server.routes import build_routes, runtime_access_check
from framework.server.schemas import HealthResponse, ReadinessResponse, redact_problems
from framework.types.errors import RequestError


def create_app(runtime: Runtime, feed: ConfigFeed) -> FastAPI:
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
    app.include_router(build_routes(runtime, feed, identify))

    @app.api_route("/health", methods=["GET", "HEAD"], response_model=HealthResponse)
    async def health() -> object:
        """Return 200 while the process is responsive."""
        return with_security_headers(json_response(HealthResponse()))

    @app.api_route("/ready", methods=["GET", "HEAD"], response_model=ReadinessResponse)
    async def ready(request: Request) -> object:
        """Return 200 if at least one agent is available, else 503. Clients with access also get the problems."""
        current = runtime.catalog.current
        problems = redact_problems(runtime.catalog.problems) if _has_access(identify, request) else ()
        readiness = ReadinessResponse(
            ready=bool(current.agents), generation=current.number, agents=len(current.agents), problems=problems
        )
        return with_security_headers(json_response(readiness, 200 if readiness.ready else 503))

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        return with_security_headers(error_response(error, request))

    return app


def _has_access(identify: Identify, request: Request) -> bool:
    try:
        check_access(identify, request)
    except RequestError:
        return False
    return True
