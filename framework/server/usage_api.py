"""`/usage`: runs, tokens, cost, latency and errors over time, by agent, model, generation, user or status."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from framework.engine.runtime.runtime import Runtime
from framework.server.identity import identity_of
from framework.server.owned import report_usage_for
from framework.server.request_handling import verbatim_response
from framework.server.roles import requires
from framework.server.usage_schemas import UsageFilters, UsageSummary


def add_usage_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add `/usage`."""

    @routes.get("/usage", response_model=UsageSummary, dependencies=[requires("read")])
    async def show_usage(request: Request, filters: Annotated[UsageFilters, Query()]) -> Response:
        """Return what the runs of a period have used, in total, over time and by group."""
        period, step = filters.period(runtime.store.now())
        report = await report_usage_for(runtime, identity_of(request), filters.query, filters.by, period)
        return verbatim_response(UsageSummary.of(report, period, filters.by, step))
