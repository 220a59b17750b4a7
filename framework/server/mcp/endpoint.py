"""`/mcp`: agents as MCP tools, over streamable HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from framework.server.errors import NotInstalled
from framework.server.identity import identity_of, requires
from framework.server.request_handling import counted_body
from framework.server.run_service import RunService

if TYPE_CHECKING:
    from framework.server.mcp.http import McpEndpoint

_MAX_VALUES = 10_000
"""Limit of JSON values in a body: the SDK parses it in the event loop, at 5 microseconds a value."""


def add_mcp_routes(routes: APIRouter, service: RunService) -> None:
    """Add `/mcp`. It is not part of the OpenAPI document: its bodies are JSON-RPC."""
    endpoints: list[McpEndpoint] = []

    @routes.api_route(
        "/mcp", methods=["GET", "POST", "DELETE"], dependencies=[requires("chat")], include_in_schema=False
    )
    async def mcp(request: Request) -> Response:
        """Answer a message of an MCP client, or open or end its session."""
        create = await asyncio.to_thread(_load)  # the first import takes a second
        if not endpoints:
            endpoints.append(create(service))
        return await endpoints[0].response(identity_of(request), await counted_body(request, _MAX_VALUES))


def _load() -> type[McpEndpoint]:
    """Import the MCP SDK, which not every server has; raises NotInstalled."""
    try:
        from framework.server.mcp.http import McpEndpoint
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise NotInstalled("the MCP server needs the MCP SDK: install agentsd with the extra `mcp`") from None
    return McpEndpoint
