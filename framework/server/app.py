"""The app that `agentsd serve` serves: the routes of a runtime, and what load balancers ask."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from framework.engine.runtime.runtime import Runtime
from framework.server.access import AccessCheck
from framework.server.event_feed import ConfigFeed
from framework.server.request_handling import check_access, error_response, json_response, with_security_headers
from framework.server.routes import build_routes, runtime_access_check
from framework.server.schemas import HealthResponse, ReadinessResponse, redact_problems
from framework.types.errors import RequestError


def create_app(runtime: Runtime, feed: ConfigFeed) -> FastAPI:
    """The app; it has no pages of its own, for these would load what others wrote."""
    admit = runtime_access_check(runtime)
    app = FastAPI(
        title="agentsd",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Its spans would be one for each health check, below whatever trace the client names; its logs quote requests.
        telemetry={"tracing": False, "logs": False},
    )
    app.include_router(build_routes(runtime, feed, admit))

    @app.api_route("/health", methods=["GET", "HEAD"], response_model=HealthResponse)
    async def health() -> object:
        """The process answers."""
        return with_security_headers(json_response(HealthResponse()))

    @app.api_route("/ready", methods=["GET", "HEAD"], response_model=ReadinessResponse)
    async def ready(request: Request) -> object:
        """200 if some agent can be served, else 503 and, for those who may ask, why."""
        current = runtime.catalog.current
        problems = redact_problems(runtime.catalog.problems) if _may_ask(admit, request) else ()
        found = ReadinessResponse(
            ready=bool(current.agents), generation=current.number, agents=len(current.agents), problems=problems
        )
        return with_security_headers(json_response(found, 200 if found.ready else 503))

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        return with_security_headers(error_response(error, request))

    return app


def _may_ask(admit: AccessCheck, request: Request) -> bool:
    try:
        check_access(admit, request)
    except RequestError:
        return False
    return True
