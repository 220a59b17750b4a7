"""`/runs`: starts, lists, shows, follows, decides and cancels runs."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from framework.engine.runtime.runtime import Runtime
from framework.server.chat_api import IdempotencyHeader, submit_body
from framework.server.identity import identity_of
from framework.server.openapi import STREAM_RESPONSE, error_responses
from framework.server.owned import list_runs_for, load_run_info_for
from framework.server.request_handling import compressed_response, verbatim_response
from framework.server.roles import requires
from framework.server.run_requests import DecisionsBody, Id, RunBody, RunFilters
from framework.server.run_schemas import RunDetail, RunList, RunReference, RunSummary, StoredTrace
from framework.server.run_service import OwnedRun, RunService
from framework.server.run_stream import last_event, run_stream
from framework.store.protocol import OPEN_STATUSES
from framework.types.errors import RequestError

MAX_PAGE = 100
"""Number of entries in one page of a list."""
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of entries.")]
_LAST_EVENT = Annotated[
    str | None, Header(alias="Last-Event-ID", description="Id of the last event received; takes precedence over after.")
]


def add_run_routes(routes: APIRouter, service: RunService) -> None:
    """Add the routes below `/runs`."""
    _add_submit_route(routes, service)
    _add_list_route(routes, service.runtime)
    _add_read_routes(routes, service)
    _add_events_route(routes, service)
    _add_control_routes(routes, service)


def _add_submit_route(routes: APIRouter, service: RunService) -> None:
    @routes.post(
        "/runs",
        status_code=202,
        response_model=RunReference,
        dependencies=[requires("chat")],
        responses=error_responses(404, 409, 413),
    )
    async def submit(request: Request, body: RunBody, idempotency_key: IdempotencyHeader = None) -> Response:
        """Start a run in the background. It continues if the server restarts."""
        run = await submit_body(service, request, body, idempotency_key)
        location = f"{request.url.path}/{run.run_id}"
        return verbatim_response(await _reference(service, run), 202, {**run.headers, "location": location})


def _add_list_route(routes: APIRouter, runtime: Runtime) -> None:
    @routes.get("/runs", response_model=RunList, dependencies=[requires("read")])
    async def list_runs(
        request: Request,
        filters: Annotated[RunFilters, Query()],
        before: Annotated[Id | None, Query(description="Only runs older than this one: `next` of a page.")] = None,
        limit: PageSize = 20,
    ) -> Response:
        """List runs, the newest first."""
        query = filters.query(before, limit)
        found, following = await list_runs_for(runtime, identity_of(request), query)
        return verbatim_response(RunList(runs=tuple(map(RunSummary.of, found)), next=following))


def _add_read_routes(routes: APIRouter, service: RunService) -> None:
    @routes.get(
        "/runs/{run_id}",
        response_model=RunDetail,
        dependencies=[requires("read", "chat")],
        responses=error_responses(404),
    )
    async def show_run(request: Request, run_id: str) -> Response:
        """Return a run with its messages, its steps, and what it waits for."""
        identity, runtime = identity_of(request), service.runtime
        run, state = await service.load(identity, run_id)
        info = await load_run_info_for(runtime, identity, run_id)
        decisions = await runtime.store.decisions(run_id) if state.decisions else ()
        detail = RunDetail.of(state, info, runtime.catalog.current, decisions)
        return verbatim_response(detail, headers=run.headers)

    @routes.get(
        "/runs/{run_id}/trace",
        response_model=StoredTrace,
        dependencies=[requires("read")],
        responses=error_responses(404),
    )
    async def show_trace(
        request: Request,
        run_id: str,
        after: Annotated[str | None, Query(description="Only spans after this one: `next` of a page.")] = None,
        limit: Annotated[int | None, Query(ge=1, description="Number of spans. Default: all.")] = None,
    ) -> Response:
        """Return the stored spans of a run, in the order they began; compressed if the client accepts gzip."""
        run, state = await service.load(identity_of(request), run_id)
        spans = tuple(await service.runtime.store.spans(run_id))
        if after is not None:
            place = next((number for number, span in enumerate(spans) if span.span_id == after), None)
            if place is None:
                raise RequestError(f"after is no span of this run: {after[:40]!r}", param="after")
            spans = spans[place + 1 :]
        page = spans if limit is None else spans[:limit]
        following = page[-1].span_id if len(page) < len(spans) else None
        trace = StoredTrace.model_construct(run_id=run_id, trace_id=state.trace_id, spans=page, next=following)
        return await asyncio.to_thread(compressed_response, trace, request, run.headers)


def _add_events_route(routes: APIRouter, service: RunService) -> None:
    @routes.get(
        "/runs/{run_id}/events",
        response_class=StreamingResponse,
        dependencies=[requires("read", "chat")],
        responses={
            200: STREAM_RESPONSE,
            204: {"description": "No event follows: the run has ended, or is paused"},
            **error_responses(404, 503),
        },
    )
    async def follow(
        request: Request,
        run_id: str,
        after: Annotated[int, Query(ge=0, le=2**53, description="Number of the last event received.")] = 0,
        wait: Annotated[bool, Query(description="Continue after a pause, until the run ends.")] = False,
        last_event_id: _LAST_EVENT = None,
    ) -> Response:
        """Stream the events of a run, stored and live, until it ends or pauses.

        A client that reconnects with `Last-Event-ID` gets every later numbered event once. If none can follow, the
        status is 204, which keeps browsers from reconnecting.
        """
        identity = identity_of(request)
        run, state = await service.load(identity, run_id)
        after = last_event(after, last_event_id)
        is_over = state.status not in OPEN_STATUSES or (state.status == "paused" and not wait)
        if is_over and 0 < state.seq <= after:
            return Response(status_code=204, headers=run.headers)
        with service.limits.admit_stream(identity) as admitted:
            return run_stream(request, service, run, admitted, after, wait=wait)


def _add_control_routes(routes: APIRouter, service: RunService) -> None:
    @routes.post(
        "/runs/{run_id}/decisions",
        status_code=202,
        response_model=RunReference,
        dependencies=[requires("decide")],
        responses=error_responses(404, 409, 413),
    )
    async def decide(request: Request, run_id: str, body: DecisionsBody) -> Response:
        """Decide what a run waits for, and continue it in the background. Undecided confirmations stay open."""
        identity = identity_of(request)
        run, _ = await service.load(identity, run_id)
        await service.decide(identity, run, body.decisions)
        return verbatim_response(await _reference(service, run), 202, run.headers)

    @routes.post(
        "/runs/{run_id}/cancel",
        status_code=202,
        response_model=RunReference,
        dependencies=[requires("chat")],
        responses={
            200: {"model": RunReference, "description": "Not cancelled: the run had ended before"},
            **error_responses(404),
        },
    )
    async def cancel(request: Request, run_id: str) -> Response:
        """Cancel a run. The status is 202 if it is cancelled or will be, and 200 if it had ended before."""
        run, _ = await service.load(identity_of(request), run_id)
        has_ended = await service.cancel(run) not in (*OPEN_STATUSES, "cancelled")
        return verbatim_response(await _reference(service, run), 200 if has_ended else 202, run.headers)


async def _reference(service: RunService, run: OwnedRun) -> RunReference:
    """Return a run with its current status."""
    state = await service.runtime.store.load_run(run.run_id)
    return RunReference(run_id=run.run_id, conversation_id=run.conversation_id, status=state.status)
