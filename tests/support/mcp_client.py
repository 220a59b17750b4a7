"""The MCP SDK's client, as agents of other programs use it: it answers forms, and notes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, ToolListChangedNotification

from tests.support.loopback import LOOPBACK

Era = Literal["legacy", "auto"]
"""The handshake up to 2025-11-25, or the protocol of 2026-07-28."""
ERAS: tuple[Era, ...] = ("legacy", "auto")
Answer = Callable[[ElicitRequestParams], ElicitResult]


@dataclass
class McpUser:
    """A connected client, and the person in front of it."""

    client: Client
    forms: list[ElicitRequestParams]
    """Forms that were shown."""
    told_of_changes: asyncio.Event
    """Set by a notification that the list of tools has changed."""
    progress: list[str] = field(default_factory=list)

    async def call(self, agent: str, message: str, **inputs: Any) -> CallToolResult:
        """Call an agent's tool."""
        result = await self.client.call_tool(
            agent, {"message": message, **inputs}, progress_callback=self._note_progress
        )
        assert isinstance(result, CallToolResult)
        return result

    async def _note_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message or "")


def text_of(result: CallToolResult) -> str:
    """Return the text of a result."""
    (content,) = result.content
    assert content.type == "text"
    return content.text


def accept(**content: Any) -> Answer:
    """Fill in and send every form."""
    return lambda _: ElicitResult(action="accept", content=content)


@asynccontextmanager
async def _connected(server: Any, era: Era, answer: Answer | None) -> AsyncIterator[McpUser]:
    forms: list[ElicitRequestParams] = []
    told_of_changes = asyncio.Event()

    async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        forms.append(params)
        assert answer is not None
        return answer(params)

    async def note(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            told_of_changes.set()

    options = {"elicitation_callback": elicit} if answer else {}
    async with Client(server, mode=era, message_handler=note, **options) as client:  # type: ignore[arg-type]  # a mapping of one callback
        yield McpUser(client, forms, told_of_changes)


@asynccontextmanager
async def http_user(
    url: str, era: Era, answer: Answer | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[McpUser]:
    """Connect to `/mcp` of a server. Without `answer`, the client shows no forms."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, **LOOPBACK) as http,
        _connected(streamable_http_client(f"{url}/mcp", http_client=http), era, answer) as user,
    ):
        yield user


@asynccontextmanager
async def stdio_user(
    parameters: StdioServerParameters, era: Era, answer: Answer | None = None, errors: Any = None
) -> AsyncIterator[McpUser]:
    """Start a server, and connect over its standard input and output; `errors` is a file for its standard error."""
    transport = stdio_client(parameters) if errors is None else stdio_client(parameters, errlog=errors)
    async with _connected(transport, era, answer) as user:
        yield user
