"""Traces of what is asked of an MCP server outside any run: connecting, and listing its tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context

from framework.types.source import McpServer


@contextmanager
def outside_runs(name: str, server: McpServer) -> Iterator[None]:
    """A root span around it, so that the SDK's own spans do not stand alone; only where the host has a provider."""
    attributes = {
        "openinference.span.kind": "CHAIN",
        "network.transport": "pipe" if server.command else "tcp",
    }
    with trace.get_tracer("agentsd").start_as_current_span(
        name, context=Context(), attributes=attributes, record_exception=False, set_status_on_exception=False
    ):
        yield
