"""The errors of the API, and their JSON: `{"error": {"code": …, "message": …}}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from framework.types.errors import AgentsdError, ConfigError, RequestError
from framework.types.redact import redact, redact_problem

_NO_ROUTE = {
    404: "no such route; the routes are /health, /ready, /agent/agents, /agent/config and /agent/events",
    405: "method not allowed for this route; see the header `Allow`",
}


class Unauthenticated(RequestError):
    """The request has no key, or an invalid one."""

    code = "unauthenticated"
    http_status = 401


class AccessDenied(RequestError):
    """The client has no access, with or without a key."""

    code = "access_denied"
    http_status = 403


class BodyTooLarge(RequestError):
    """The request body exceeds the size limit."""

    code = "body_too_large"
    http_status = 413


class TooManyStreams(RequestError):
    """The limit of event streams is reached."""

    code = "too_many_streams"
    http_status = 503


class MetricsUnavailable(RequestError):
    """This process collects no metrics for Prometheus."""

    code = "metrics_unavailable"
    http_status = 404


class NotUsable(ConfigError):
    """The requested resource exists, but is not usable now."""

    code = "not_usable"
    http_status = 409


def error_body(error: AgentsdError) -> dict[str, Any]:
    """Return the response body for an error, with secrets redacted."""
    body: dict[str, Any] = {"code": error.code, "message": redact(error.message)}
    if isinstance(error, ConfigError):
        body["problems"] = [redact_problem(problem).model_dump(exclude_none=True) for problem in error.problems]
    return {"error": body}


def status_error_body(status: int, message: str) -> dict[str, Any]:
    """Return the response body for an HTTP status. A message that only names the status is replaced."""
    if status in _NO_ROUTE and message == HTTPStatus(status).phrase:
        message = _NO_ROUTE[status]
    codes = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}
    return {"error": {"code": codes.get(status, "error"), "message": message}}


def validation_error(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """Return the error for an invalid request. `errors` are those of Pydantic."""
    messages = []
    for error in errors:
        if error["type"] == "json_invalid":
            messages.append(f"the body is not JSON: {error['ctx']['error']}, at character {error['loc'][-1]}")
            continue
        place = ".".join(str(part) for part in error["loc"] if part != "body")
        messages.append(f"{place}: {error['msg']}" if place else "the body must be a JSON object (application/json)")
    return RequestError("invalid request: " + "; ".join(messages))
