"""What tests of MCP servers share: servers to start, and a source that is watched until something holds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from framework.tools.mcp.source import McpSource
from framework.tools.tool import Progress, Tool, ToolContext
from framework.types.tool_servers import McpServer
from tests.support.paths import SUPPORT

PATIENCE = 30.0
"""Seconds until something that does not happen is a failure."""


class World:
    """A source, and what it tells."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.source = McpSource(name, server, self._changed)
        self.changes = 0
        self._news = asyncio.Event()

    @property
    def tools(self) -> dict[str, Tool]:
        """The source's tools by their own names."""
        return {tool.name.removeprefix(self.source.name + "."): tool for tool in self.source.tools}

    async def call(self, name: str, /, progress: Progress | None = None, **arguments: Any) -> Any:
        """Call a tool as a run does."""
        tool = self.tools[name]
        context = ToolContext("run", "call", "agent", Path(), progress=progress)
        assert tool.context_parameter
        return await tool.function(**tool.bind(arguments), **{tool.context_parameter: context})

    async def until(self, holds: Callable[[McpSource], bool]) -> None:
        """Wait for news after which it holds."""
        async with asyncio.timeout(PATIENCE):
            while not holds(self.source):
                self._news.clear()
                await self._news.wait()

    async def connected(self) -> None:
        """Wait until nothing is wrong with it."""
        await self.until(lambda source: not source.faults)

    def _changed(self) -> None:
        self.changes += 1
        self._news.set()


@asynccontextmanager
async def opened(server: McpServer, name: str = "docs") -> AsyncIterator[World]:
    """A started source; afterwards no process of it is left."""
    before = children()
    world = World(name, server)
    try:
        await world.source.start()
        yield world
    finally:
        await world.source.close()
    assert children() <= before


def children() -> set[int]:
    """The processes that this one has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8").rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def raw(tmp_path: Path, config: dict[str, Any] | None = None, **settings: Any) -> McpServer:
    """The server written by hand, configured by `config.json` in the folder."""
    configure(tmp_path, config or {})
    return McpServer(command=(sys.executable, str(SUPPORT / "mcp_raw.py"), str(tmp_path / "config.json")), **settings)


def configure(tmp_path: Path, config: dict[str, Any]) -> None:
    """Tell that server something else."""
    (tmp_path / "config.new").write_text(json.dumps(config), "utf-8")
    (tmp_path / "config.new").replace(tmp_path / "config.json")


def listings(tmp_path: Path) -> int:
    """How often that server was asked for its tools."""
    return (tmp_path / "config.log").read_text("utf-8").count("\n")


MODERN = (sys.executable, str(SUPPORT / "mcp_modern.py"))


@asynccontextmanager
async def over_http(port: int = 0) -> AsyncIterator[tuple[Process, int]]:
    """The server of the newest protocol over HTTP: its process, and the port it listens on."""
    process = await asyncio.create_subprocess_exec(*MODERN, str(port), stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout
        yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
