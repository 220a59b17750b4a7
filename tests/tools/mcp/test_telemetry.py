"""Metrics of MCP clients, against real servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from framework.types.errors import ToolError
from framework.types.tool_servers import McpServer
from tests.support.mcp_worlds import opened, over_http, raw
from tests.support.telemetry import metric_points

STDIO = {"agentsd.tool.server": "docs", "network.transport": "pipe"}


def requests(reader: InMemoryMetricReader) -> dict[tuple[Any, Any], list[dict[str, Any]]]:
    """Return the attributes of the measured requests, by method and tool."""
    found: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for about, _ in metric_points(reader)["mcp.client.operation.duration"]:
        method, tool = about.pop("mcp.method.name"), about.pop("gen_ai.tool.name", None)
        found.setdefault((method, tool), []).append(about)
    return found


def test_requests_and_sessions_are_measured(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    async def main() -> None:
        async with opened(raw(tmp_path)) as world:
            await world.call("echo", n=1)
            try:
                await world.call("fail")
            except ToolError:
                return
            raise AssertionError("the tool reports an error")

    asyncio.run(main())
    called = {"gen_ai.operation.name": "execute_tool", **STDIO}
    found = requests(reader)
    assert found["initialize", None] == found["tools/list", None] == [STDIO]
    assert found["tools/call", "echo"] == [called]
    assert found["tools/call", "fail"] == [called | {"error.type": "tool_error"}]
    assert metric_points(reader)["mcp.client.session.duration"] == [(STDIO, 1)]


def test_a_timeout_is_distinguished_from_an_error_answer(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    async def main() -> None:
        async with opened(raw(tmp_path, timeout=0.05)) as world:
            try:
                await world.call("hang")
            except ToolError:
                return

    asyncio.run(main())
    (about,) = requests(reader)["tools/call", "hang"]
    assert about["error.type"] == "timeout"


def test_a_server_over_http_has_address_and_port(reader: InMemoryMetricReader) -> None:
    async def main() -> int:
        async with over_http() as (_, port), opened(McpServer(url=f"http://127.0.0.1:{port}/mcp")) as world:
            await world.call("add", a=1, b=2)
            return port

    port = asyncio.run(main())
    (about,) = requests(reader)["tools/call", "add"]
    assert (about["network.transport"], about["server.address"], about["server.port"]) == ("tcp", "127.0.0.1", port)
