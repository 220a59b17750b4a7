"""What holds for every route, wherever it is mounted: who may ask, how much is read, how a failure is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from framework.server.access import Admit
from framework.server.failures import BodyTooLarge, Unauthenticated, failure, failure_of_status, misfits
from framework.server.replies import masked
from framework.telemetry.inbound import inbound
from framework.telemetry.redact import places
from framework.types.errors import AgentsdError
from framework.types.trace import Inbound

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def endpoint(admit: Admit, trace_context: Callable[[], Inbound]) -> type[APIRoute]:
    """The class of routes that only those reach who are admitted.

    Args:
        admit: who may ask.
        trace_context: how a request's `traceparent` is used; called for each request.
    """

    class Endpoint(APIRoute):
        """A route whose failures are told in our form, whatever app it is part of."""

        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def handle_admitted(request: Request) -> Response:
                try:
                    admit_request(admit, request)
                    with inbound(request.headers.getlist("traceparent"), trace_context()):
                        return private(await handle(Request(request.scope, _limited(request))))
                except Exception as error:  # noqa: BLE001 - told to the client, and a fault of ours to the log
                    return private(told(error, request))

            return handle_admitted

    return Endpoint


def admit_request(admit: Admit, request: Request) -> None:
    """Raise AccessDenied or Unauthenticated unless this client may ask."""
    admit(request.headers, request.client.host if request.client else None)


def answer(reply: BaseModel, status: int = 200) -> JSONResponse:
    """A reply without secrets."""
    return JSONResponse(masked(reply), status)


def told(error: Exception, request: Request) -> Response:
    """The answer to a request that failed."""
    if isinstance(error, RequestValidationError):
        error = misfits(error.errors())
    if isinstance(error, HTTPException) and isinstance(error.__cause__, BodyTooLarge):
        error = error.__cause__
    if isinstance(error, AgentsdError):
        headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
        return JSONResponse(failure(error), error.http_status, headers)
    if isinstance(error, HTTPException):
        return JSONResponse(failure_of_status(error.status_code, str(error.detail)), error.status_code, error.headers)
    log.error("%s %s failed: %s", request.method, request.url.path, places(error))
    return JSONResponse(failure_of_status(500, "the server has a fault; its log says where"), 500)


def private(response: Response) -> Response:
    """Nothing on the way may keep an answer, or take it for something else."""
    response.headers["cache-control"] = "no-store"
    response.headers["x-content-type-options"] = "nosniff"
    return response


def _limited(request: Request) -> Receive:
    """The request's body, as long as it is no longer than may be."""
    read = 0

    async def receive() -> Message:
        nonlocal read
        message = await request.receive()
        read += len(message.get("body", b""))
        if read > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
        return message

    return receive
