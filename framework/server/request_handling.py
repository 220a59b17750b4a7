"""Applies to every route, in any app: access check, size limit of request bodies, strict JSON, error responses."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from json import JSONDecodeError
from time import perf_counter
from typing import Annotated, Any, Self, TypeVar

from fastapi import APIRouter, Depends, Header, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import (
    BodyTooLarge,
    ErrorResponse,
    RateLimited,
    ServerBusy,
    Unauthenticated,
    error_body,
    internal_error_body,
    status_error_body,
    validation_error,
)
from framework.server.event_stream import ConfigFeed
from framework.server.identity import BodiesInFlight, Identify, check_access, identity_of
from framework.server.run_service import RunService
from framework.server.schemas import Printable, redacted_json
from framework.telemetry.metrics import ServerMetrics
from framework.telemetry.setup import Scrape
from framework.telemetry.spans import apply_inbound
from framework.types.errors import AgentsdError, IdempotencyConflict, QueueFull, RequestError, StoreError, TriggerPaused
from framework.types.events import dump_json
from framework.types.text import bytes_digest, check_json_size, content_digest, read_json

log = logging.getLogger("agentsd.requests")
_ERROR_CODE = "agentsd.error_code"
"""Key of the scope of a request that failed."""
_REJECTED = frozenset({401, 403, 408, 413, 429, 503})
"""Statuses of requests that were rejected because of their client or the load, not because of their content."""
_PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Routes whose successful requests are not logged: monitoring sends them every few seconds."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_RUN_ID_HEADER = b"x-agentsd-run-id"
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Ids that are logged. A client may put any text into a path."""


def note_error(request: Request, code: str) -> None:
    """Note the code of a request's error for its log line and for the metrics."""
    request.scope[_ERROR_CODE] = code


class RequestObserver:
    """ASGI middleware. Metrics and log lines contain the template of the route, never the path itself."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and record what became of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, streams = perf_counter(), ""
        started: Message = {"status": 499}  # of a client that left before the response started

        async def observe(message: Message) -> None:
            nonlocal started, streams
            if message["type"] == "http.response.start":
                started = message
                if _header(message, b"content-type").startswith(b"text/event-stream"):
                    streams = route_of(scope)
                    self._metrics.count_streams(1, streams)
            await send(message)

        try:
            await self._app(scope, receive, observe)
        except Exception:
            started = {"status": 500}
            raise
        finally:
            if streams:
                self._metrics.count_streams(-1, streams)
            self._record(scope, started, perf_counter() - began)

    def _record(self, scope: Scope, started: Message, seconds: float) -> None:
        status, code = started["status"], scope.get(_ERROR_CODE)
        if code == StoreError.code:
            self._metrics.count_store_error("request")
        elif code and status in _REJECTED:
            self._metrics.count_rejected(code)
        route = route_of(scope)
        if not log.isEnabledFor(logging.INFO) or (route in _PROBES and status < 400):
            return
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        fields: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000),
            "error": code,
            "key": _key_name(scope),
            "run_id": _run_id(scope, started),
        }
        present = {name: value for name, value in fields.items() if value is not None}
        log.info("%s %s %d", method, route, status, extra={"agentsd": present})


def route_of(scope: Scope) -> str:
    """Return the template of the route that a request matched, such as `/agent/runs/{run_id}`; else `unknown`."""
    path: str = getattr(scope.get("route"), "path", None) or "unknown"
    return path.replace("_id:path}", "_id}")  # an id that may contain slashes is named like any other


def _run_id(scope: Scope, started: Message) -> str | None:
    """Return the id of the run that a request is about, from the response's header or the path."""
    text = _header(started, _RUN_ID_HEADER).decode("latin-1") or (scope.get("path_params") or {}).get("run_id") or ""
    return text if _RUN_ID.fullmatch(text) else None


def _key_name(scope: Scope) -> str | None:
    """Return the name of the key that a request was sent with; None if it had no access or needed no key."""
    try:
        return identity_of(HTTPConnection(scope)).name
    except RequestError:
        return None


def _header(message: Message, name: bytes) -> bytes:
    return next((value for key, value in message.get("headers", ()) if key.lower() == name), b"")


T = TypeVar("T")
MAX_PAGE = 100
_CURSOR = "`next` of the previous page. Default: the first page."
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of entries.")]
OptionalSize = Annotated[int | None, Query(ge=1, description="Maximum number of entries. Default: all.")]
Cursor = Annotated[Printable | None, Query(max_length=1000, description=_CURSOR)]
OldCursor = Annotated[Printable | None, Query(max_length=1000, deprecated=True, description="The same as `cursor`.")]


def either(cursor: str | None, old: str | None, name: str) -> str | None:
    """Return the cursor of a request, which may have the older name; raises RequestError for two different ones."""
    if cursor and old and cursor != old:
        raise RequestError(f"cursor and {name} are the same: send one of them", param=name)
    return cursor or old or None


def page_of(
    items: Sequence[T], cursor: str | None, limit: int | None, key: Callable[[T], str], name: str = "cursor"
) -> tuple[Sequence[T], str | None]:
    """Return a page of a list that is in memory, and the cursor of the next one.

    The cursor is the key of the last entry of the previous page; keys are unique in the list.

    Raises:
        RequestError: no entry has that key.
    """
    if cursor:
        place = next((number for number, item in enumerate(items) if key(item) == cursor), None)
        if place is None:
            raise RequestError(f"{name} is no entry of this list: {cursor[:40]!r}", param=name)
        items = items[place + 1 :]
    page = items if limit is None else items[:limit]
    return page, key(page[-1]) if len(page) < len(items) else None


CONFIG_BODY_BYTES = 64 * 1024
"""Size limit of the request bodies of configuration routes."""
CHAT_BODY_BYTES = 4 * 1024 * 1024
"""Size limit of the request bodies of routes that take messages."""
_THREAD_BYTES = 32 * 1024
"""Size of a body from which it is parsed in a thread, because the event loop would wait for it."""
_RETRY_SECONDS = 5
"""`Retry-After` of errors that name no time."""
_LEAST_COMPRESSED, _COMPRESSION = 16 * 1024, 3
"""Bytes of a body from which compression pays, and the level of gzip: higher ones take longer than the network."""
_NOT_JSON = "invalid request: the body is not JSON"
_LANGUAGE, _MAX_LANGUAGES_CHARS = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}"), 500
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def accepted_locale(headers: Mapping[str, str]) -> str | None:
    """Return the language that `Accept-Language` prefers, or None if it names none."""
    ranked = []
    for number, entry in enumerate(headers.get("accept-language", "")[:_MAX_LANGUAGES_CHARS].split(",")):
        tag, _, weight = entry.strip().partition(";")
        try:
            rank = float(weight.strip().removeprefix("q=") or 1)
        except ValueError:
            continue
        if _LANGUAGE.fullmatch(tag.strip()) and 0 < rank <= 1:
            ranked.append((-rank, number, tag.strip()))
    return min(ranked)[2] if ranked else None


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
    """What the routes of one app share."""

    service: RunService
    identify: Identify
    feed: ConfigFeed = field(default_factory=ConfigFeed)
    """The configuration events. Once it is closed, the server is stopping."""
    scrape: Scrape | None = None
    """Returns the metrics of this process; None if they are not collected."""
    parts: dict[Callable[[ServerState], Any], Any] = field(default_factory=dict)
    """Values of `shared` dependencies, by the functions that made them."""

    @property
    def runtime(self) -> Runtime:
        """The runtime that the app serves."""
        return self.service.runtime

    def part(self, make: Callable[[ServerState], T]) -> T:
        """Return what `make` returns for this app; it is called once."""
        if make not in self.parts:
            self.parts[make] = make(self)
        found: T = self.parts[make]
        return found


class ServerRoute(APIRoute):
    """A route that is built once, although building it takes a millisecond, and serves any number of apps."""

    state: ServerState

    def serving(self, state: ServerState) -> Self:
        """Return a copy of the route for an app with this state."""
        route = copy(self)
        route.state = state
        return route


def served_state(request: Request) -> ServerState:
    """Return what the routes of a request's app share."""
    state: ServerState = request.scope["route"].state
    return state


def shared(make: Callable[[ServerState], Any]) -> Any:
    """Return a dependency whose value `make` returns when it is first needed: one for each app."""

    async def value(request: Request) -> Any:
        return served_state(request).part(make)

    return Depends(value)


ServedRuntime = Annotated[Runtime, shared(lambda state: state.runtime)]
ServedRuns = Annotated[RunService, shared(lambda state: state.service)]


class GuardedRoute(ServerRoute):
    """A route that checks access, limits bodies, and returns errors in the format of this API, in any app."""

    max_body_bytes = CONFIG_BODY_BYTES

    def check_access(self, request: Request) -> None:
        """Find the identity of a request; raises Unauthenticated or AccessDenied."""
        check_access(served_state(request).identify, request)

    def get_route_handler(self) -> _Handler:
        """Return the handler with the checks before it."""
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            try:
                self.check_access(request)
                service = served_state(request).service
                telemetry = service.runtime.settings.telemetry
                inbound = apply_inbound(request.headers.getlist("traceparent"), telemetry.inbound)
                body = _LimitedBody(request, self.max_body_bytes, service.limits.bodies)
                with inbound, closing(body):
                    return with_security_headers(await handle(_StrictRequest(request, body)))
            except Exception as error:  # noqa: BLE001 - sent to the client; internal errors are also logged
                return with_security_headers(error_response(error, request))

        return handle_checked


class MessageRoute(GuardedRoute):
    """A guarded route that takes messages or files."""

    max_body_bytes = CHAT_BODY_BYTES


def api_router(tag: str, route_class: type[ServerRoute] = GuardedRoute, prefix: str = "/agent") -> APIRouter:
    """Return the router of a resource, whose routes have this tag in the OpenAPI document."""
    return APIRouter(
        prefix=prefix,
        route_class=route_class,
        tags=[tag],
        responses={"default": {"model": ErrorResponse, "description": "Any other error"}},
        generate_unique_id_function=lambda added: added.name,
    )


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for errors with these HTTP statuses."""
    return {status: {"model": ErrorResponse, "description": HTTPStatus(status).phrase} for status in sorted(statuses)}


STREAM_RESPONSE: dict[str, Any] = {
    "content": {
        "text/event-stream": {
            "x-item-schema": {  # `itemSchema` of OpenAPI 3.2; in 3.1, a schema would describe the whole stream
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "event": {"type": "string"},
                    "data": {"type": "string", "contentMediaType": "application/json"},
                    "retry": {"type": "integer", "minimum": 0},
                },
            }
        }
    }
}
"""Description of a response of server-sent events."""


def json_response(body: BaseModel, status: int = 200) -> JSONResponse:
    """Return a JSON response with secrets redacted. For configuration; see `verbatim_response`."""
    return JSONResponse(redacted_json(body), status)


def verbatim_response(body: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response without redaction: for messages, arguments and decisions, which are the caller's own."""
    return Response(dump_json(body), status, headers, "application/json")


def compressed_response(body: BaseModel, request: Request, headers: Mapping[str, str]) -> Response:
    """Return a verbatim response, compressed if the client accepts gzip. For large bodies; call it in a thread."""
    response = verbatim_response(body, headers=headers)
    response.headers["vary"] = "accept-encoding"
    accepted = [name.partition(";")[0].strip() for name in request.headers.get("accept-encoding", "").split(",")]
    if "gzip" not in accepted or len(response.body) < _LEAST_COMPRESSED:
        return response
    response.body = gzip.compress(bytes(response.body), _COMPRESSION)
    response.headers["content-length"] = str(len(response.body))
    response.headers["content-encoding"] = "gzip"
    return response


def error_response(error: Exception, request: Request) -> Response:
    """Return the response to a request that failed."""
    error = _cause_of(error)
    if isinstance(error, AgentsdError):
        note_error(request, error.code)
        return JSONResponse(error_body(error), error.http_status, _error_headers(error))
    if isinstance(error, HTTPException):
        return JSONResponse(status_error_body(error.status_code, str(error.detail)), error.status_code, error.headers)
    return JSONResponse(internal_error_body(error, request), 500)


def _cause_of(error: Exception) -> Exception:
    """Return the error of this API that FastAPI's error stands for, or the error itself."""
    if isinstance(error, RequestValidationError):
        return validation_error(error.errors())
    if isinstance(error, HTTPException) and isinstance(error.__cause__, RequestError):
        return error.__cause__
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return ServerBusy("the server has no memory for this request: try again in a few seconds")
    return error


def _error_headers(error: AgentsdError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if error.http_status == HTTPStatus.TOO_MANY_REQUESTS or isinstance(error, StoreError | ServerBusy | TriggerPaused):
        named = error.retry_after if isinstance(error, RateLimited | QueueFull) else None
        return {"retry-after": str(named or _RETRY_SECONDS)}
    return {}


def with_security_headers(response: Response) -> Response:
    """Forbid caching and content sniffing of a response, and return it."""
    response.headers["cache-control"] = "no-store"
    response.headers["x-content-type-options"] = "nosniff"
    return response


class _StrictRequest(Request):
    """A request whose body has a size limit, and is parsed as strict JSON without delaying other requests."""

    def __init__(self, request: Request, body: _LimitedBody) -> None:
        super().__init__(request.scope, body.receive)
        self._limited = body

    async def json(self) -> Any:
        """Return the body as JSON data; raises RequestError if it is not strict JSON in UTF-8."""
        data = await _parsed(await self.body(), read_json)
        self._limited.close()  # the response may take as long as a run
        return data


async def json_body(body: bytes) -> Any:
    """Return a body as JSON data; raises RequestError if it is not strict JSON in UTF-8."""
    return await _parsed(body, read_json)


async def counted_body(request: Request, max_values: int) -> bytes:
    """Return the body of a request that a library parses; raises RequestError if it has more values, or 100 levels.

    Zero bytes, which JSON in UTF-8 never contains, are refused: they would let the library guess another encoding.
    """
    body = await request.body()
    if b"\0" in body:
        raise RequestError("invalid request: the body is not UTF-8, or contains a zero byte")
    await _parsed(body, partial(check_json_size, max_values=max_values))
    return body


async def _parsed(body: bytes, parse: Callable[[str], T]) -> T:
    """Return what `parse` returns for a body, without delaying other requests; raises RequestError."""
    return await asyncio.to_thread(_parse, body, parse) if len(body) > _THREAD_BYTES else _parse(body, parse)


def _parse(body: bytes, parse: Callable[[str], T]) -> T:
    try:
        return parse(body.decode())
    except UnicodeDecodeError as error:
        raise RequestError(f"invalid request: the body is not UTF-8, at byte {error.start}") from None
    except UnicodeEncodeError:
        raise RequestError("invalid request: the body contains half of a surrogate pair (\\ud800 to \\udfff)") from None
    except JSONDecodeError as error:
        raise RequestError(f"{_NOT_JSON}: {error.msg}, at character {error.pos}") from None
    except ValueError as error:
        raise RequestError(f"{_NOT_JSON}: {error}") from None


class _LimitedBody:
    """The body of one request while it is received and parsed."""

    def __init__(self, request: Request, max_bytes: int, in_flight: BodiesInFlight) -> None:
        self._request, self._max_bytes, self._in_flight = request, max_bytes, in_flight
        self._size = 0
        self._is_closed = False

    async def receive(self) -> Message:
        """Receive the next part; raise BodyTooLarge or ServerBusy once the body, or all together, exceed the limit."""
        message = await self._request.receive()
        size = self._size + len(message.get("body", b""))
        if size > self._max_bytes:
            raise BodyTooLarge(f"the request body exceeds {self._max_bytes} bytes")
        if not self._is_closed:
            self._in_flight.grow(self._size, size)
            self._size = size
        return message

    def close(self) -> None:
        """Stop counting."""
        if not self._is_closed:
            self._is_closed = True
            self._in_flight.end(self._size)


IdempotencyHeader = Annotated[
    Printable | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A repetition within 24 hours returns the same run, or the same response.",
    ),
]
_KEPT_SECONDS = 24 * 60 * 60.0
_MAX_KEPT = 1000
_MAX_KEPT_BYTES = 256 * 1024
"""Size of a response from which it is not kept: the request is then handled again."""


@dataclass(frozen=True, slots=True)
class _Kept:
    digest: str
    at: float
    response: asyncio.Future[Response]


class KeyedResponses:
    """The responses of the latest requests with a key."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: dict[tuple[object, ...], _Kept] = {}

    async def once(self, request: Request, key: str | None, handle: Callable[[], Awaitable[Response]]) -> Response:
        """Return the response of `handle`, or that of an earlier request with the same key, body and path.

        Raises:
            IdempotencyConflict: the client used the key for a different request.
        """
        if key is None:
            return await handle()
        place = (*identity_of(request).owner, key)
        digest = content_digest(f"{request.method} {request.url.path} {bytes_digest(await request.body())}")
        earlier = self._kept.get(place)
        if earlier is not None and earlier.at > self._now() - _KEPT_SECONDS:
            if earlier.digest != digest:
                raise IdempotencyConflict(
                    f"Idempotency-Key {key[:40]!r} was used for a different request: send a new key"
                )
            return _copied(await asyncio.shield(earlier.response))
        kept = _Kept(digest, self._now(), asyncio.get_running_loop().create_future())
        self._remember(place, kept)
        try:
            response = await handle()
        except BaseException as error:
            self._forget(place, kept)
            kept.response.set_exception(error if isinstance(error, Exception) else RuntimeError("the client left"))
            kept.response.exception()  # read, because usually nobody waits for it
            raise
        if response.status_code >= 400 or len(bytes(response.body)) > _MAX_KEPT_BYTES:
            self._forget(place, kept)
        kept.response.set_result(response)
        return _copied(response)

    def _remember(self, place: tuple[object, ...], kept: _Kept) -> None:
        self._kept.pop(place, None)
        self._kept[place] = kept
        if len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def _forget(self, place: tuple[object, ...], kept: _Kept) -> None:
        if self._kept.get(place) is kept:
            del self._kept[place]


def _copied(response: Response) -> Response:
    """Return a response with the same content: the layers around a route change the headers of theirs."""
    copied = Response(response.body, response.status_code)
    copied.raw_headers = [*response.raw_headers]
    return copied


Keyed = Annotated[KeyedResponses, shared(lambda _: KeyedResponses())]
