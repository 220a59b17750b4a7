"""Applies to every route, in any app: access check, size limit of request bodies, error responses."""

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

from framework.server.errors import BodyTooLarge, Unauthenticated, error_body, status_error_body, validation_error
from framework.server.identity import Identify, check_access
from framework.server.request_observer import note_error
from framework.server.schemas import redacted_json
from framework.telemetry.inbound import apply_inbound
from framework.telemetry.redact import places
from framework.types.errors import AgentsdError
from framework.types.trace import Inbound

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 64 * 1024
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def guarded_route(identify: Identify, trace_context: Callable[[], Inbound]) -> type[APIRoute]:
    """Return a route class that checks access before each request, and sets its identity.

    Args:
        identify: the access check.
        trace_context: returns how a request's `traceparent` is used; called for each request.
    """

    class GuardedRoute(APIRoute):
        """A route that returns errors in the format of this API, in any app."""

        def get_route_handler(self) -> _Handler:
            handle = super().get_route_handler()

            async def handle_checked(request: Request) -> Response:
                try:
                    check_access(identify, request)
                    with apply_inbound(request.headers.getlist("traceparent"), trace_context()):
                        return with_security_headers(await handle(Request(request.scope, _limit_body(request))))
                except Exception as error:  # noqa: BLE001 - sent to the client; internal errors are also logged
                    return with_security_headers(error_response(error, request))

            return handle_checked

    return GuardedRoute


def json_response(body: BaseModel, status: int = 200) -> JSONResponse:
    """Return a JSON response with secrets redacted."""
    return JSONResponse(redacted_json(body), status)


def error_response(error: Exception, request: Request) -> Response:
    """Return the response to a request that failed."""
    if isinstance(error, RequestValidationError):
        error = validation_error(error.errors())
    if isinstance(error, HTTPException) and isinstance(error.__cause__, BodyTooLarge):
        error = error.__cause__
    if isinstance(error, AgentsdError):
        note_error(request, error.code)
        headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
        return JSONResponse(error_body(error), error.http_status, headers)
    if isinstance(error, HTTPException):
        return JSONResponse(status_error_body(error.status_code, str(error.detail)), error.status_code, error.headers)
    log.error("%s %s failed: %s", request.method, request.url.path, places(error))
    return JSONResponse(status_error_body(500, "internal error; see the log of the server"), 500)


def with_security_headers(response: Response) -> Response:
    """Forbid caching and content sniffing of a response, and return it."""
    response.headers["cache-control"] = "no-store"
    response.headers["x-content-type-options"] = "nosniff"
    return response


def _limit_body(request: Request) -> Receive:
    """Return a receive function that raises BodyTooLarge once a body exceeds the limit."""
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > _MAX_BODY_BYTES:
            raise BodyTooLarge(f"the request body exceeds {_MAX_BODY_BYTES} bytes")
        return message

    return receive
