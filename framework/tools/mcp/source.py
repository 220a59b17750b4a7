"""MCP servers as tool sources: their tools are `mcp.<server>.<tool>`."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from framework.tools.tool import Tool, ToolContext
from framework.tools.tool_source import OnChange, RemoteCall, external_tool
from framework.types.errors import ConfigError, ToolError
from framework.types.spec import Risk
from framework.types.text import shorten
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from mcp import types as wire
    from mcp.shared.dispatcher import ProgressFnT

    from framework.tools.mcp.client import McpClient
    from framework.tools.mcp.connection import ConnectionCallbacks

MAX_TOOLS = 1000
"""Of a server's list. What agents are offered of it, their `skill_policy` says."""
_LIST_INTERVAL = 0.5
"""Seconds between two looks at a server's tools, however often it says that they changed."""
_PROGRESS_INTERVAL = 0.1
"""Seconds between two words about the progress of a call."""


@dataclass(frozen=True, slots=True)
class _ListedTool:
    """A tool as the server lists it: its digest, and what was made of it."""

    told: str
    tool: Tool | None
    fault: str = ""


class McpSource:
    """One MCP server as a source of tools, resources and prompts."""

    def __init__(self, name: str, server: McpServer, changed: OnChange) -> None:
        """Connect with `start`.

        Args:
            name: the server's name in the file.
            server: where it is, and how to speak to it.
            changed: called whenever `tools` or `faults` are not what they were.
        """
        self.name = f"mcp.{name}"
        self._server, self._changed = server, changed
        self._listed: dict[str, _ListedTool] = {}
        self._list_fault = self._connection_fault = ""
        self._client: McpClient | None = None
        self._looking: asyncio.Task[None] | None = None
        self._settled, self._stale = asyncio.Event(), asyncio.Event()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools known now, also while there is no connection; the same objects while nothing about them changes."""
        return tuple(listed.tool for listed in self._listed.values() if listed.tool)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the server, or some of its tools, cannot be used now."""
        refused = (listed.fault for listed in self._listed.values())
        return tuple(fault for fault in (self._connection_fault, self._list_fault, *refused) if fault)

    async def start(self) -> None:
        """Connect. Returns when the tools are known or the connection failed; trying goes on behind it."""
        try:
            client_type, callbacks_type = await asyncio.to_thread(_import_client)  # more than a second, the first time
        except ImportError as error:
            self._connection_fault = f"{self.name} needs the MCP SDK ({error}): pip install 'agentsd[mcp]'"
            self._changed()
            return
        callbacks = callbacks_type(on_tools_changed=self._stale.set, on_disconnect=self._on_disconnect)
        self._client = client_type(self.name, self._server, callbacks)
        self._looking = asyncio.create_task(self._look(), context=contextvars.Context())  # belongs to no run's trace
        self._client.start()
        await self._settled.wait()

    async def close(self) -> None:
        """Disconnect; a server that was started here is gone afterwards."""
        self._settled.set()
        if self._looking:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        if self._client:
            await self._client.close()

    async def resource(self, uri: str) -> str:
        """The text of a resource of the server. Raises ToolError."""
        return await self._connected().resource(uri)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """The text of a prompt of the server: data, never a template. Raises ToolError."""
        return await self._connected().prompt(name, arguments)

    def _on_disconnect(self, reason: str) -> None:
        fault = f"{self.name} is not connected: {reason}"
        news = fault != self._connection_fault
        self._connection_fault = fault
        self._settled.set()
        if news:
            self._changed()

    def _connected(self) -> McpClient:
        if self._client is None:
            raise ToolError(self._connection_fault or f"{self.name} was not started")
        return self._client

    async def _look(self) -> None:
        """Look at the tools whenever they may have changed; many notices are one look."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            with suppress(ToolError):  # they are asked for again, on a new connection
                self._take(await self._connected().tools(MAX_TOOLS))
                self._settled.set()
            await asyncio.sleep(_LIST_INTERVAL)

    def _take(self, listed: list[wire.Tool]) -> None:
        before = self.tools, self.faults
        fresh: dict[str, _ListedTool] = {}
        twice = []
        wanted = [tool for tool in listed[:MAX_TOOLS] if self._wants(tool.name)]
        for tool in wanted:
            if tool.name in fresh:
                twice.append(tool.name)
            else:
                fresh[tool.name] = self._made(tool)
        self._listed, self._connection_fault = fresh, ""
        idle = [glob for glob in self._server.tools if not any(fnmatchcase(tool.name, glob) for tool in wanted)]
        self._list_fault = "; ".join(_list_faults(self.name, len(listed), twice, idle))
        tools, faults = before
        same = len(tools) == len(self.tools) and all(a is b for a, b in zip(tools, self.tools, strict=True))
        if not same or faults != self.faults:
            self._changed()

    def _wants(self, tool: str) -> bool:
        return not self._server.tools or any(fnmatchcase(tool, glob) for glob in self._server.tools)

    def _made(self, tool: wire.Tool) -> _ListedTool:
        told = json.dumps(tool.model_dump(include={"name", "title", "description", "input_schema", "annotations"}))
        known = self._listed.get(tool.name)
        if known and known.told == told:
            return known
        hints = tool.annotations
        idempotent = bool(hints and (hints.idempotent_hint or hints.read_only_hint))
        try:
            made = external_tool(
                f"{self.name}.{tool.name}",
                tool.description or tool.title or tool.name,
                tool.input_schema,
                self._call(tool.name, idempotent),
                source="mcp",
                risk=self._server.risk or _risk_from_hints(hints),
                idempotent=idempotent,
                timeout=self._server.timeout,
                paths=_declared(self._server.paths, tool.name),
                urls=_declared(self._server.urls, tool.name),
            )
        except ConfigError as error:
            return _ListedTool(
                told, None, f"{self.name}: its tool {_quoted(tool.name)} cannot be used: {error.message}"
            )
        return _ListedTool(told, made)

    def _call(self, tool: str, idempotent: bool) -> RemoteCall:
        async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
            client = self._connected()
            return await client.call(tool, arguments, _progress(context), repeatable=idempotent)

        return call


def _declared(arguments: Mapping[str, Iterable[str]], tool: str) -> Iterator[str]:
    """The arguments of one tool that the server's entry in the project's file declares."""
    for pattern, names in arguments.items():
        if fnmatchcase(tool, pattern):
            yield from names


def _risk_from_hints(hints: wire.ToolAnnotations | None) -> Risk:
    """The risk of a tool by what its server says of it."""
    if hints and hints.destructive_hint:
        return "high"
    return "low" if hints and hints.read_only_hint else "medium"


def _progress(context: ToolContext) -> ProgressFnT | None:
    """Tells the run of the progress that a server reports: not more often than somebody can read."""
    tell = context.progress
    if tell is None:
        return None
    last = -_PROGRESS_INTERVAL

    async def told(progress: float, total: float | None, message: str | None) -> None:
        nonlocal last
        now = asyncio.get_running_loop().time()
        fraction = min(max(progress / total, 0.0), 1.0) if total and total > 0 else 0.0
        if now - last >= _PROGRESS_INTERVAL:
            last = now
            await tell(fraction, (message or "")[:200])

    return told


def _list_faults(source: str, count: int, twice: Iterable[str], idle: Iterable[str]) -> Iterable[str]:
    if count > MAX_TOOLS:
        yield f"{source} has more than {MAX_TOOLS} tools: the others are left out"
    if twice:
        yield f"{source} lists more than once, of which only the first counts: {', '.join(map(_quoted, twice))}"
    if idle:
        yield f"{source} has no tool for {', '.join(map(_quoted, idle))} (`tools` of the server)"


def _quoted(name: str) -> str:
    return repr(shorten(name, 80))


def _import_client() -> tuple[type[McpClient], type[ConnectionCallbacks]]:
    from framework.tools.mcp.client import McpClient
    from framework.tools.mcp.connection import ConnectionCallbacks

    return McpClient, ConnectionCallbacks
