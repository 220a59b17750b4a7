"""The app that `agentsd serve` serves: the routes of a runtime, and what load balancers ask."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from framework.engine.runtime.runtime import Runtime
from framework.server.access import Admit
from framework.server.endpoint import admit_request, answer, private, told
from framework.server.feed import ConfigFeed
from framework.server.replies import Health, Readiness, masked_problems
from framework.server.routes import admission_of, routes
from framework.types.errors import RequestError


def app_of(runtime: Runtime, feed: ConfigFeed) -> FastAPI:
    """The app; it has no pages of its own, for these would load what others wrote."""
    admit = admission_of(runtime)
    app = FastAPI(
        title="agentsd",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Its spans would be one for each health check, below whatever trace the client names; its logs quote requests.
        telemetry={"tracing": False, "logs": False},
    )
    app.include_router(routes(runtime, feed, admit))

    @app.api_route("/health", methods=["GET", "HEAD"], response_model=Health)
    async def health() -> object:
        """The process answers."""
        return private(answer(Health()))

    @app.api_route("/ready", methods=["GET", "HEAD"], response_model=Readiness)
    async def ready(request: Request) -> object:
        """200 if some agent can be served, else 503 and, for those who may ask, why."""
        current = runtime.catalog.current
        problems = masked_problems(runtime.catalog.problems) if _may_ask(admit, request) else ()
        found = Readiness(
            ready=bool(current.agents), generation=current.number, agents=len(current.agents), problems=problems
        )
        return private(answer(found, 200 if found.ready else 503))

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        return private(told(error, request))

    return app


def _may_ask(admit: Admit, request: Request) -> bool:
    try:
        admit_request(admit, request)
    except RequestError:
        return False
    return True
