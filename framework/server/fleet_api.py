"""`/fleet`: the processes that share the store, and what waits where and why."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from framework.engine.runtime.runtime import Runtime
from framework.server.identity import identity_of, requires
from framework.server.owned import read_fleet_for
from framework.server.request_handling import verbatim_response
from framework.types.fleet import Fleet


def add_fleet_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add `/fleet`."""

    @routes.get("/fleet", response_model=Fleet, dependencies=[requires("read")])
    async def show_fleet(request: Request) -> Response:
        """Return the processes that share the store, with their agents, and the runs that have not ended."""
        return verbatim_response(await read_fleet_for(runtime, identity_of(request)))
