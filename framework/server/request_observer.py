"""Observes each request: counts event streams and rejected requests, and logs requests if that is enabled."""

from __future__ import annotations

import logging
import re
from time import perf_counter
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framework.server.identity import identity_of
from framework.telemetry.server_metrics import ServerMetrics
from framework.types.errors import RequestError, StoreError

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
        started: Message = {"status": 499}  # of a client that left before the response began

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
    return getattr(scope.get("route"), "path", None) or "unknown"


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
