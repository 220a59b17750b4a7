"""The errors of the API, and their JSON: `{"error": {"code": …, "type": …, "message": …, "param": …}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from framework.telemetry.redact import safe_traceback
from framework.types.errors import AgentsdError, ConfigError, ConversationBusy, RequestError, StoreError
from framework.types.problem import Problem
from framework.types.redact import redact, redact_problem
from framework.types.report import ErrorInfo

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger(__name__)
_NO_ROUTE = {
    404: "no such route; the routes are /health, /ready and those in GET /agent/openapi.json",
    405: "method not allowed for this route; see the header `Allow`",
}
_MAX_REPORTED = 5
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "rate_limit_error",
    "server_error",
]
"""The kinds of errors, as OpenAI's clients expect them."""
_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    412: "conflict_error",
    429: "rate_limit_error",
}
"""Kinds by HTTP status. Others are `invalid_request_error` below 500, and `server_error` from there."""


class Unauthenticated(RequestError):
    """The request has no key, or an invalid one. Send one of `server.api_keys` as `Authorization: Bearer KEY`."""

    code = "unauthenticated"
    http_status = 401


class InvalidSignature(RequestError):
    """The webhook is unknown, its signature does not match the body, or its time is too far from now."""

    code = "invalid_signature"
    http_status = 401


class AccessDenied(RequestError):
    """The client has no access, with or without a key. The message says what it needs, such as a role."""

    code = "access_denied"
    http_status = 403


class BodyTooLarge(RequestError):
    """The request body exceeds the size limit. Send less."""

    code = "body_too_large"
    http_status = 413


class ServerBusy(RequestError):
    """The bodies of the requests in progress take as much memory as they may. Try again, or send less at once."""

    code = "server_busy"
    http_status = 503


class TooManyStreams(RequestError):
    """The limit of event streams is reached. Close one, or set a higher `server.max_streams`."""

    code = "too_many_streams"
    http_status = 503


class MetricsUnavailable(RequestError):
    """This process collects no metrics for Prometheus. The message has the command that changes this."""

    code = "metrics_unavailable"
    http_status = 404


class NotInstalled(RequestError):
    """The server lacks the packages of this route. The message has the command that installs them."""

    code = "not_installed"
    http_status = 501


class RateLimited(RequestError):
    """The key has sent as many requests as it may in a period, or has as many streams open as it may have. Wait."""

    code = "rate_limited"
    http_status = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which a request may succeed."""


class TooManyRuns(RateLimited):
    """As many runs of the key as it may have are queued or in progress. Wait until one of them ends."""

    code = "too_many_runs"


class TooManyReplays(RateLimited):
    """The server replays as many runs as it may at a time. Try again later."""

    code = "too_many_replays"


class ReplayTimeout(RequestError):
    """The replay of a run took too long. Replay it with `agentsd runs replay`."""

    code = "replay_timeout"
    http_status = 503


class NotUsable(ConfigError):
    """The requested resource exists, but is not usable now. The message says why."""

    code = "not_usable"
    http_status = 409


class ServerNotFound(RequestError):
    """There is no tool server of this name with a login."""

    code = "server_not_found"
    http_status = 404


class GrantNotFound(RequestError):
    """No approval that is remembered has this id. `GET /agent/grants` and `agentsd grants list` list them."""

    code = "grant_not_found"
    http_status = 404


class NoteNotFound(RequestError):
    """There is no such note, or it belongs to someone else."""

    code = "note_not_found"
    http_status = 404


class FileNotFound(RequestError):
    """The project has no such file. `GET /agent/config/files` lists them."""

    code = "file_not_found"
    http_status = 404


class EditDisabled(RequestError):
    """Editing over HTTP is turned off. `server.allow_edit: true` turns it on."""

    code = "edit_disabled"
    http_status = 403


class EditRefused(RequestError):
    """This file is not edited over HTTP: it is code, or contains settings or secrets, or is no file of the project."""

    code = "edit_refused"
    http_status = 403


class EditConflict(RequestError):
    """The file to edit is not the version that the edit started from. Load it again, and repeat the edit."""

    code = "edit_conflict"
    http_status = 412

    def __init__(self, path: str, expected: str | None, found: str | None) -> None:
        state = f"its digest is {found}" if found else "it does not exist"
        begun = f"the edit began from {expected}" if expected else "the edit would create it"
        super().__init__(f"{path} has changed: {state}, and {begun}; read the file again", param="if-match")
        self.expected, self.found = expected, found


class EditRejected(ConfigError):
    """The edit would not go live, or adds an error. Nothing was written. Correct the places in `problems`."""

    code = "edit_rejected"
    http_status = 409


class PreconditionRequired(RequestError):
    """An edit does not say which version it replaces. Send `If-Match` with the version that it started from."""

    code = "precondition_required"
    http_status = 428


class ErrorDetail(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    code: str
    """Short, stable name of the error, such as `agent_not_found`."""
    type: ErrorType
    """Kind of the error, which follows from the HTTP status."""
    message: str
    """The cause, and what to do."""
    param: str | None
    """The field of the request that is at fault, if it is only one."""
    problems: tuple[Problem, ...] = ()
    """Problems of files, if they are the cause."""
    expected: str | None = None
    """Of an edit conflict: digest of the version that the edit started from; None for a new file."""
    found: str | None = None
    """Of an edit conflict: digest of the file on the disk; None if there is none."""


class ErrorResponse(BaseModel):
    """The body of every response that reports an error."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    error: ErrorDetail
    run_id: str | None = None
    """Id of the run that failed, or that keeps the conversation busy."""


def client_message(error: AgentsdError) -> str:
    """Return the message of an error for clients, with secrets redacted.

    A failure of the store names its host and database, so it is only logged, and clients get a general message.
    """
    if isinstance(error, StoreError):
        log.error("%s", redact(error.message))
        return "the store of the server cannot read or save now; try again later"
    return redact(error.message)


def error_body(error: AgentsdError) -> dict[str, Any]:
    """Return the response body for an error, with secrets redacted."""
    param = error.param if isinstance(error, RequestError) else None
    body = _body(error.http_status, error.code, client_message(error), param)
    if isinstance(error, ConfigError):
        problems = [redact_problem(problem).model_dump(exclude_none=True) for problem in error.problems]
        body["error"]["problems"] = problems
    if isinstance(error, EditConflict):
        body["error"] |= {"expected": error.expected, "found": error.found}
    if isinstance(error, ConversationBusy) and error.run_id:
        body["run_id"] = error.run_id
    return body


def run_error_body(error: ErrorInfo, run_id: str) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the response body for the error that a run failed with."""
    status = _status_of(error.code)
    return status, {**_body(status, error.code, redact(error.message), None), "run_id": run_id}


def status_error_body(status: int, message: str) -> dict[str, Any]:
    """Return the response body for an HTTP status. A message that only names the status is replaced."""
    if status in _NO_ROUTE and message == HTTPStatus(status).phrase:
        message = _NO_ROUTE[status]
    codes = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}
    return _body(status, codes.get(status, "error"), message, None)


def internal_error_body(error: Exception, request: Request) -> dict[str, Any]:
    """Log an unexpected error, and return the response body for it."""
    log.error("%s %s failed: %s", request.method, request.url.path, safe_traceback(error))
    return status_error_body(500, "internal error; see the log of the server")


def _body(status: int, code: str, message: str, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"code": code, "type": kind, "message": message, "param": param}}


def validation_error(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """Return the error for an invalid request. `errors` are those of Pydantic."""
    messages = []
    for error in errors[:_MAX_REPORTED]:
        place = _field_of(error)
        if error["type"] == "json_invalid":
            messages.append(f"the body is not JSON: {error['ctx']['error']}, at character {error['loc'][-1]}")
        elif error["type"] == "union_tag_not_found":
            messages.append(f"{place}: {error['ctx']['discriminator']} is missing")
        elif error["type"] == "extra_forbidden":
            messages.append(f"unknown field {place!r}")
        else:
            text = error["msg"].removeprefix("Value error, ")
            messages.append(f"{place}: {text}" if place else "the body must be a JSON object (application/json)")
    if len(errors) > _MAX_REPORTED:
        messages.append(f"and {len(errors) - _MAX_REPORTED} more")
    fields = {_field_of(error) for error in errors}
    return RequestError("invalid request: " + "; ".join(messages), param=fields.pop() if len(fields) == 1 else None)


def _status_of(code: str) -> int:
    """Return the HTTP status of the error class with a code; 500 if there is none."""
    kinds: list[type[AgentsdError]] = [AgentsdError]
    while kinds:
        kind = kinds.pop(0)
        if kind.code == code:
            return kind.http_status
        kinds += kind.__subclasses__()
    return AgentsdError.http_status


def _field_of(error: Mapping[str, Any]) -> str | None:
    """Return the path of a field of the body, the query or the headers, or None for the body as a whole."""
    if error["type"] == "json_invalid":
        return None
    return ".".join(str(part) for part in error["loc"][1:]) or None
