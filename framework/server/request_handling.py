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

from framework.server.access import AccessCheck
from framework.server.errors import BodyTooLarge, Unauthenticated, error_body, status_error_body, validation_error
from framework.server.schemas import redacted_json
from framework.telemetry.inbound import apply_inbound
from framework.telemetry.redact import places
from framework.types.errors import AgentsdError
from framework.types.trace import Inbound

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 64 * 1024
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def guarded_route(admit: AccessCheck, trace_context: Callable[[], Inbound]) -> type[APIRoute]:
    """The class of routes that only those reach who are admitted.

    Args:
        admit: who may ask.
        trace_context: how a request's `traceparent` is used; called for each request.
    """

    class Endpoint(APIRoute):
        """A route whose failures are told in our form, whatever app it is part of."""

        def get_route_handler(self) -> _Handler:
            handle = super().get_route_handler()

            async def handle_admitted(request: Request) -> Response:
                try:
                    check_access(admit, request)
                    with apply_inbound(request.headers.getlist("traceparent"), trace_context()):
                        return with_security_headers(await handle(Request(request.scope, _limit_body(request))))
                except Exception as error:  # noqa: BLE001 - told to the client, and a fault of ours to the log
                    return with_security_headers(error_response(error, request))

            return handle_admitted

    return Endpoint


def check_access(admit: AccessCheck, request: Request) -> None:
    """Raise AccessDenied or Unauthenticated unless this client may ask."""
    admit(request.headers, request.client.host if request.client else None)


def json_response(reply: BaseModel, status: int = 200) -> JSONResponse:
    """A reply without secrets."""
    return JSONResponse(redacted_json(reply), status)


def error_response(error: Exception, request: Request) -> Response:
    """The answer to a request that failed."""
    if isinstance(error, RequestValidationError):
        error = validation_error(error.errors())
    if isinstance(error, HTTPException) and isinstance(error.__cause__, BodyTooLarge):
        error = error.__cause__
    if isinstance(error, AgentsdError):
        headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
        return JSONResponse(error_body(error), error.http_status, headers)
    if isinstance(error, HTTPException):
        return JSONResponse(status_error_body(error.status_code, str(error.detail)), error.status_code, error.headers)
    log.error("%s %s failed: %s", request.method, request.url.path, places(error))
    return JSONResponse(status_error_body(500, "the server has a fault; its log says where"), 500)


def with_security_headers(response: Response) -> Response:
    """Nothing on the way may keep an answer, or take it for something else."""
    response.headers["cache-control"] = "no-store"
    response.headers["x-content-type-options"] = "nosniff"
    return response


def _limit_body(request: Request) -> Receive:
    """The request's body, as long as it is no longer than may be."""
    read = 0

    async def receive() -> Message:
        nonlocal read
        message = await request.receive()
        read += len(message.get("body", b""))
        if read > _MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body has more than {_MAX_BODY_BYTES} bytes")
        return message

    return receive
