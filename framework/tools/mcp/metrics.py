"""Metrics of MCP clients, by the OpenTelemetry conventions for MCP: how long requests and sessions last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import anyio
from mcp import MCPError
from opentelemetry import metrics

from framework.types.server_address import server_address
from framework.types.source import McpServer

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Seconds, as the conventions recommend."""


class McpMetrics:
    """Durations of one server's requests and sessions; without a MeterProvider they cost next to nothing."""

    def __init__(self, name: str, server: McpServer) -> None:
        meter = metrics.get_meter("agentsd")
        self._where = where(name, server)
        self._requests = meter.create_histogram(
            "mcp.client.operation.duration",
            unit="s",
            description="Duration of a request to an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._sessions = meter.create_histogram(
            "mcp.client.session.duration",
            unit="s",
            description="Duration of a session with an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    @contextmanager
    def request(self, method: str, *, tool: str = "", prompt: str = "") -> Iterator[dict[str, Any]]:
        """Measure a request. The attributes it yields may be added to: `error.type` for a result that is an error."""
        about: dict[str, Any] = {"mcp.method.name": method, **self._where}
        if tool:
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        if prompt:
            about["gen_ai.prompt.name"] = prompt
        began = perf_counter()
        try:
            yield about
        except BaseException as error:
            about["error.type"] = error_type_of(error)
            if isinstance(error, MCPError):
                about["rpc.response.status_code"] = str(error.code)
            raise
        finally:
            self._requests.record(perf_counter() - began, about)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Measure a session, from its connection to its end."""
        about, began = dict(self._where), perf_counter()
        try:
            yield
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                about["error.type"] = error_type_of(error)
            raise
        finally:
            self._sessions.record(perf_counter() - began, about)


def where(name: str, server: McpServer) -> dict[str, Any]:
    """Attributes of a server: its name in the file, the transport, and for HTTP its address and port."""
    about: dict[str, Any] = {"agentsd.tool.server": name, "network.transport": "pipe" if server.command else "tcp"}
    host, port = server_address(server.url)
    if host is not None and port is not None:
        about |= {"server.address": host, "server.port": port}
    return about


def error_type_of(error: BaseException) -> str:
    """`error.type` of a failed request: the JSON-RPC error's code, `timeout`, `cancelled`, or the exception's class."""
    if isinstance(error, BaseExceptionGroup):
        return error_type_of(error.exceptions[0])
    if isinstance(error, MCPError):
        return str(error.code)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, asyncio.CancelledError):
        return "timeout" if anyio.current_effective_deadline() <= anyio.current_time() else "cancelled"
    return type(error).__name__
