"""MCP servers for tests, and a source that can be watched until a condition is true."""

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
from tests.support.waiting import until

PATIENCE = 30.0
"""Timeout of a wait, in seconds."""


class World:
    """A source, and the changes that it reports."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.source = McpSource(name, server, self._changed)
        self.changes = 0
        self._news = asyncio.Event()

    @property
    def tools(self) -> dict[str, Tool]:
        """Tools of the source by name, without prefix."""
        return {tool.name.removeprefix(self.source.name + "."): tool for tool in self.source.tools}

    async def call(self, name: str, /, progress: Progress | None = None, **arguments: Any) -> Any:
        """Call a tool as a run does."""
        tool = self.tools[name]
        context = ToolContext("run", "call", "agent", Path(), progress=progress)
        assert tool.context_parameter
        return await tool.function(**tool.bind(arguments), **{tool.context_parameter: context})

    async def until(self, holds: Callable[[McpSource], bool]) -> None:
        """Wait until the condition `holds` is true after a change."""
        async with asyncio.timeout(PATIENCE):
            while not holds(self.source):
                self._news.clear()
                await self._news.wait()

    async def connected(self) -> None:
        """Wait until the source has no faults."""
        await self.until(lambda source: not source.faults)

    def _changed(self) -> None:
        self.changes += 1
        self._news.set()


@asynccontextmanager
async def opened(server: McpServer, name: str = "docs") -> AsyncIterator[World]:
    """Start a source; on exit, check that none of its processes remains. One that was just killed may still end."""
    before = children()
    world = World(name, server)
    try:
        await world.source.start()
        yield world
    finally:
        await world.source.close()
    await until(lambda: children() <= before, "the server's processes have ended")


def children() -> set[int]:
    """Return the child processes of this process."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8").rpartition(")")[2].split()
        except OSError:  # ended in the meantime
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            pids.add(int(stat.parent.name))
    return pids


def raw(tmp_path: Path, config: dict[str, Any] | None = None, **settings: Any) -> McpServer:
    """Return the server without the SDK, configured by `config.json` in the folder."""
    configure(tmp_path, config or {})
    return McpServer(command=(sys.executable, str(SUPPORT / "mcp_raw.py"), str(tmp_path / "config.json")), **settings)


def configure(tmp_path: Path, config: dict[str, Any]) -> None:
    """Replace the configuration of that server."""
    (tmp_path / "config.new").write_text(json.dumps(config), "utf-8")
    (tmp_path / "config.new").replace(tmp_path / "config.json")


def listings(tmp_path: Path) -> int:
    """Return how often the tools of that server were listed."""
    return (tmp_path / "config.log").read_text("utf-8").count("\n")


MODERN = (sys.executable, str(SUPPORT / "mcp_modern.py"))


@asynccontextmanager
async def over_http(port: int = 0) -> AsyncIterator[tuple[Process, int]]:
    """Run the server for the newest protocol over HTTP; yield its process and port."""
    process = await asyncio.create_subprocess_exec(*MODERN, str(port), stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout
        yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
