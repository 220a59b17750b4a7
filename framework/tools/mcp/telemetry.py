"""Metrics of requests to MCP servers, by the OpenTelemetry conventions, and spans of failures outside runs.

Connecting and listing tools happen outside runs. If they succeed, they leave no trace, because each start would add two
traces per server; if they fail, they leave one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from mcp import MCPError
from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from framework.types.http import server_address
from framework.types.tool_servers import McpServer

_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Histogram boundaries in seconds, as the conventions recommend."""


class McpMetrics:
    """Durations of the requests and sessions of one server. Without a MeterProvider, the cost is negligible."""

    def __init__(self, name: str, server: McpServer) -> None:
        meter = metrics.get_meter("agentsd")
        self._where = server_attributes(name, server)
        self._requests = meter.create_histogram(
            "mcp.client.operation.duration",
            unit="s",
            description="Duration of a request to an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._sessions = meter.create_histogram(
            "mcp.client.session.duration",
            unit="s",
            description="Duration of a session with an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )

    @contextmanager
    def request(self, method: str, *, tool: str = "", prompt: str = "") -> Iterator[dict[str, Any]]:
        """Measure a request. Yields its attributes, to which `error.type` can be added for a result with an error."""
        about: dict[str, Any] = {"mcp.method.name": method, **self._where}
        if tool:
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        if prompt:
            about["gen_ai.prompt.name"] = prompt
        began = time.perf_counter()
        try:
            yield about
        except BaseException as error:
            about["error.type"] = request_error_type(error)
            if isinstance(error, MCPError):
                about["rpc.response.status_code"] = str(error.code)
            raise
        finally:
            self._requests.record(time.perf_counter() - began, about)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Measure a session, from connecting to its end."""
        about, began = dict(self._where), time.perf_counter()
        try:
            yield
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                about["error.type"] = request_error_type(error)
            raise
        finally:
            self._sessions.record(time.perf_counter() - began, about)


def server_attributes(name: str, server: McpServer) -> dict[str, Any]:
    """Return the attributes of a server: its name in the file, the transport, and for HTTP its address and port."""
    about: dict[str, Any] = {"agentsd.tool.server": name, "network.transport": "pipe" if server.command else "tcp"}
    host, port = server_address(server.url)
    if host is not None and port is not None:
        about |= {"server.address": host, "server.port": port}
    return about


def request_error_type(error: BaseException) -> str:
    """Return `error.type` of a failed request: JSON-RPC error code, `timeout`, `cancelled`, or exception class."""
    if isinstance(error, BaseExceptionGroup):
        return request_error_type(error.exceptions[0])
    if isinstance(error, MCPError):
        return str(error.code)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, asyncio.CancelledError):
        return "timeout" if anyio.current_effective_deadline() <= anyio.current_time() else "cancelled"
    return type(error).__name__


@contextmanager
def trace_failure(span: str, name: str, server: McpServer) -> Iterator[None]:
    """Suppress the SDK's spans for a request outside runs, and emit a root span if the request fails.

    Args:
        span: name of the root span.
        name: name of the server in its file.
        server: configuration of the server.
    """
    began = time.time_ns()
    unsampled = SpanContext(random.getrandbits(128), random.getrandbits(64), False, TraceFlags(TraceFlags.DEFAULT))
    token = attach(trace.set_span_in_context(NonRecordingSpan(unsampled), Context()))
    try:
        yield
    except asyncio.CancelledError as error:
        if (error_type := request_error_type(error)) == "timeout":  # other cancellations are intended
            _emit_failure_span(span, name, server, began, error_type)
        raise
    except BaseException as error:
        _emit_failure_span(span, name, server, began, request_error_type(error))
        raise
    finally:
        detach(token)


def _emit_failure_span(span: str, name: str, server: McpServer, began: int, error_type: str) -> None:
    attributes = {"openinference.span.kind": "CHAIN", "error.type": error_type, **server_attributes(name, server)}
    failed = trace.get_tracer("agentsd").start_span(span, context=Context(), attributes=attributes, start_time=began)
    failed.set_status(Status(StatusCode.ERROR, error_type))
    failed.end()
