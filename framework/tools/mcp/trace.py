"""Traces of requests to an MCP server outside any run: connecting, and listing its tools.

A request that succeeds leaves no trace: each start would add two for each server. One that fails leaves one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from framework.tools.mcp.metrics import error_type_of, where
from framework.types.source import McpServer


@contextmanager
def outside_runs(span: str, name: str, server: McpServer) -> Iterator[None]:
    """Keep the SDK's own spans out of traces, and emit a root span if the request fails.

    Args:
        span: name of that root span.
        name: the server, as the file names it.
        server: where it is.
    """
    began = time.time_ns()
    unsampled = SpanContext(random.getrandbits(128), random.getrandbits(64), False, TraceFlags(TraceFlags.DEFAULT))
    token = attach(trace.set_span_in_context(NonRecordingSpan(unsampled), Context()))
    try:
        yield
    except asyncio.CancelledError as error:
        if (error_type := error_type_of(error)) == "timeout":  # any other cancellation is intended
            _emit(span, name, server, began, error_type)
        raise
    except BaseException as error:
        _emit(span, name, server, began, error_type_of(error))
        raise
    finally:
        detach(token)


def _emit(span: str, name: str, server: McpServer, began: int, error_type: str) -> None:
    attributes = {"openinference.span.kind": "CHAIN", "error.type": error_type, **where(name, server)}
    failed = trace.get_tracer("agentsd").start_span(span, context=Context(), attributes=attributes, start_time=began)
    failed.set_status(Status(StatusCode.ERROR, error_type))
    failed.end()
