"""`/chat`: sends a message to an agent, and returns its answer as JSON or its events as a stream."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from framework.server.errors import run_error_body
from framework.server.event_stream import until_client_leaves
from framework.server.identity import identity_of, requires
from framework.server.keyed_responses import IdempotencyHeader
from framework.server.openapi import STREAM_RESPONSE, error_responses
from framework.server.request_handling import accepted_locale, verbatim_response
from framework.server.run_requests import ChatBody, RunBody
from framework.server.run_schemas import ChatResponse
from framework.server.run_service import OwnedRun, RunService
from framework.server.run_stream import run_stream
from framework.types.errors import outcome_for
from framework.types.run_request import QueuePlace
from framework.types.state import RunResult

_FIELDS = {"history": "messages", "conversation": "conversation_id"}
"""Fields of a request body by the options that have other names."""


def add_chat_routes(routes: APIRouter, service: RunService) -> None:
    """Add the `/chat` route."""

    @routes.post(
        "/chat",
        response_model=ChatResponse,
        dependencies=[requires("chat")],
        responses={
            200: STREAM_RESPONSE,
            202: {"model": ChatResponse, "description": "The run waits for a decision: see `pending`"},
            **error_responses(404, 409, 413, 502, 503),
        },
    )
    async def send_message(request: Request, body: ChatBody, idempotency_key: IdempotencyHeader = None) -> Response:
        """Send a message, and wait until the run has ended or waits for a decision.

        A run that fails returns the error with the status of its cause, and `run_id`.
        """
        cancels, identity = body.on_disconnect == "cancel", identity_of(request)
        if body.stream:
            with service.limits.admit_stream(identity) as admitted:
                run = await submit_body(service, request, body, idempotency_key)
                return run_stream(request, service, run, admitted, cancel_on_leave=cancels)
        run = await submit_body(service, request, body, idempotency_key)
        result = await (_result_or_cancel(request, service, run) if cancels else service.result(run))
        return _response(run, result)


async def submit_body(service: RunService, request: Request, body: RunBody, idempotency_key: str | None) -> OwnedRun:
    """Start the run of a request body; raises the errors of `RunService.submit`."""
    body.check()
    repetition = (idempotency_key, body.digest) if idempotency_key else None
    place = QueuePlace(wait=body.queue, priority=body.priority, queue_name=body.queue_name)
    options = body.options
    if body.locale is None and (locale := accepted_locale(request.headers)):
        options["locale"] = locale
    return await service.submit(
        identity_of(request), body.message, options, place=place, repetition=repetition, fields=_FIELDS
    )


def _response(run: OwnedRun, result: RunResult) -> Response:
    if result.error is not None:
        error_status, body = run_error_body(result.error, run.run_id)
        return JSONResponse(body, error_status, run.headers)
    status = outcome_for(result.finish_reason).http_status
    return verbatim_response(ChatResponse.of(result), status, run.headers)


async def _result_or_cancel(request: Request, service: RunService, run: OwnedRun) -> RunResult:
    """Wait for the result of a run, and cancel the run if the client leaves."""
    result = asyncio.ensure_future(service.result(run))
    leaving = asyncio.ensure_future(until_client_leaves(request.receive))
    try:
        await asyncio.wait((result, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            await service.cancel(run)
        return await result
    finally:
        leaving.cancel()
        result.cancel()
