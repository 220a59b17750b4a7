"""`/health`, `/ready` and `/metrics`: for load balancers, orchestrators and Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import MetricsUnavailable
from framework.server.identity import Identify, check_access, require, requires
from framework.server.request_handling import guarded_route, json_response, with_security_headers
from framework.server.schemas import HealthResponse, ReadinessResponse, redact_problems
from framework.server.store_check import StoreCheck
from framework.telemetry.prometheus import Scrape
from framework.types.errors import RequestError


def operation_routes(
    runtime: Runtime, identify: Identify, scrape: Scrape | None, is_stopping: Callable[[], bool]
) -> APIRouter:
    """Return the routes.

    Args:
        runtime: the runtime of the server.
        identify: the access check. `/health` and `/ready` need none, but only clients with the role `read` see the
            problems.
        scrape: returns the metrics; None if they are not collected.
        is_stopping: returns whether the server accepts no more work.
    """
    routes = APIRouter()
    store = StoreCheck(runtime.store)

    @routes.api_route("/health", methods=["GET", "HEAD"], response_model=HealthResponse)
    async def health() -> object:
        """Return 200 while the process is responsive."""
        return with_security_headers(json_response(HealthResponse()))

    @routes.api_route("/ready", methods=["GET", "HEAD"], response_model=ReadinessResponse)
    async def ready(request: Request) -> object:
        """Return 200 if an agent is available, the store can save and the server is not stopping; else 503."""
        current = runtime.catalog.current
        parts = {"agents": bool(current.agents), "store": await store.can_save(), "server": not is_stopping()}
        failing = tuple(name for name, is_ready in parts.items() if not is_ready)
        readiness = ReadinessResponse(
            ready=not failing,
            not_ready=failing,
            generation=current.number,
            agents=len(current.agents),
            problems=redact_problems(runtime.catalog.problems) if _may_read(identify, request) else (),
        )
        return with_security_headers(json_response(readiness, 503 if failing else 200))

    _add_metrics(routes, scrape, guarded_route(identify, lambda: "ignore"))
    return routes


def _add_metrics(routes: APIRouter, scrape: Scrape | None, route_class: type) -> None:
    guarded = APIRouter(route_class=route_class)

    @guarded.get("/metrics", response_class=Response, dependencies=[requires("read", all_agents=True)])
    async def metrics(request: Request) -> Response:
        """Return the metrics of this process in the format of Prometheus."""
        if scrape is None:
            raise MetricsUnavailable(
                "metrics are not collected: install agentsd with the extra `serve`, and restart the server"
            )
        text, content_type = await asyncio.to_thread(scrape, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    routes.include_router(guarded)


def _may_read(identify: Identify, request: Request) -> bool:
    try:
        require(check_access(identify, request), "read", all_agents=True)
    except RequestError:
        return False
    return True
