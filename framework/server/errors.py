"""What goes wrong with a request, as an answer: `{"error": {"code": …, "message": …}}` and a status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from framework.types.errors import AgentsdError, ConfigError, RequestError
from framework.types.redact import redact, redact_problem

_NO_ROUTE = {
    404: "there is nothing here; there are /health, /ready, and below /agent: agents, config, events",
    405: "this method is not for this path; the header `Allow` names those that are",
}


class Unauthenticated(RequestError):
    """The request has no key, or a wrong one."""

    code = "unauthenticated"
    http_status = 401


class AccessDenied(RequestError):
    """Whoever asks may not, with or without a key."""

    code = "access_denied"
    http_status = 403


class BodyTooLarge(RequestError):
    """The request's body has more bytes than are read."""

    code = "body_too_large"
    http_status = 413


class TooManyStreams(RequestError):
    """As many clients listen as may."""

    code = "too_many_streams"
    http_status = 503


class NotUsable(ConfigError):
    """What is asked for exists, but cannot be used now."""

    code = "not_usable"
    http_status = 409


def error_body(error: AgentsdError) -> dict[str, Any]:
    """The body that tells of an error; secrets in it are masked."""
    told: dict[str, Any] = {"code": error.code, "message": redact(error.message)}
    if isinstance(error, ConfigError):
        told["problems"] = [redact_problem(problem).model_dump(exclude_none=True) for problem in error.problems]
    return {"error": told}


def status_error_body(status: int, message: str) -> dict[str, Any]:
    """The body for a status that no error of ours stands behind; a message that only names it is made to help."""
    if status in _NO_ROUTE and message == HTTPStatus(status).phrase:
        message = _NO_ROUTE[status]
    codes = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}
    return {"error": {"code": codes.get(status, "error"), "message": message}}


def validation_error(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """The error of a request that does not fit its route; `errors` as pydantic lists them."""
    told = []
    for error in errors:
        if error["type"] == "json_invalid":
            told.append(f"the body is not JSON: {error['ctx']['error']}, at character {error['loc'][-1]}")
            continue
        place = ".".join(str(part) for part in error["loc"] if part != "body")
        told.append(f"{place}: {error['msg']}" if place else "the body must be an object of JSON (application/json)")
    return RequestError("the request does not fit: " + "; ".join(told))
