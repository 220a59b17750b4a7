"""Chats over HTTP: CPU of a chat, 500 streams at once, and the first event while 100 chats are under way."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import aiohttp

from benchmarks.harness import Row, Table

STREAMS = 500
UNDER_WAY = 100
ARRIVALS_PER_SECOND = 10
WARM_UP = 20
LIMIT_MS = 50
AGENT = """\
version: 1
name: helper
description: Calculates and waits.
model: offline
instructions: Calculate and wait.
skill_policy: {allow: [calculator, wait.wait]}
runtime_policy: {timeout: 10m, tool_timeout: 5m}
"""
PLUGIN = '''\
import asyncio
from framework import tool

@tool(risk="low")
async def wait(seconds: float) -> str:
    """Wait some seconds."""
    await asyncio.sleep(seconds)
    return "waited"
'''
SUM = {"message": "what is 17 * 23", "agent": "helper"}


@dataclass(frozen=True)
class Server:
    """A server in its own process."""

    url: str
    process_id: int

    def cpu_ms(self) -> float:
        """Return the CPU time that the server has used, in milliseconds."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text("ascii").rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) * 1000 / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(store: str) -> Iterator[Server]:
    """Serve a project with one agent, with a store of this URL."""
    with TemporaryDirectory(prefix="agentsd-bench-") as folder:
        root = Path(folder)
        for name, text in {"agents.d/helper.yaml": AGENT, "plugins/wait.py": PLUGIN}.items():
            (root / name).parent.mkdir()
            (root / name).write_text(text, "utf-8")
        (root / "agentsd.yaml").write_text(f"server: {{port: 0}}\nstore: {{url: '{store}'}}\n", "utf-8")
        with served(root) as server:
            yield server


@contextmanager
def served(root: Path) -> Iterator[Server]:
    """Serve a project, whose settings choose any free port."""
    command = [sys.executable, "-m", "framework.cli.main", "serve", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            found = next(match for line in process.stdout if (match := re.search(r"http://\S+:\d+", line)))
            yield Server(found[0], process.pid)
        finally:
            process.terminate()


@asynccontextmanager
async def connected() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a client without a limit of connections."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        yield session


async def chat(session: aiohttp.ClientSession, server: Server) -> bool:
    """Chat once, with one JSON response; return whether it succeeded."""
    async with session.post(f"{server.url}/agent/chat", json=SUM) as response:
        return response.status == 200 and (await response.json())["success"]


async def stream(session: aiohttp.ClientSession, server: Server, message: str = SUM["message"]) -> tuple[bool, float]:
    """Chat once as a stream; return whether it ended with `done`, and the seconds until the first event."""
    started, first, last = perf_counter(), 0.0, b""
    try:
        async with open_stream(session, server, message) as response:
            async for line in response.content:
                if line.startswith(b"event:"):
                    first = first or perf_counter() - started
                    last = line
    except aiohttp.ClientError:
        return False, first
    return last.strip() == b"event: done", first


def open_stream(session: aiohttp.ClientSession, server: Server, message: str) -> Any:
    """Return the request of a chat that is streamed, as a context manager."""
    return session.post(f"{server.url}/agent/chat", json={**SUM, "message": message, "stream": True})


async def cpu_of_chats(server: Server, chats: int) -> float:
    """Return the CPU time of one chat in milliseconds, after some to warm up."""
    async with connected() as session:
        for _ in range(WARM_UP):
            await chat(session, server)
        before = server.cpu_ms()
        for _ in range(chats):
            assert await chat(session, server), "a chat failed"
        return (server.cpu_ms() - before) / chats


async def streams_at_once(server: Server, number: int) -> tuple[int, float]:
    """Return how many of the streams failed, and the CPU time of one in milliseconds."""
    before = server.cpu_ms()
    async with connected() as session, asyncio.TaskGroup() as group:
        streams = [group.create_task(stream(session, server)) for _ in range(number)]
    return sum(not one.result()[0] for one in streams), (server.cpu_ms() - before) / number


async def first_events(server: Server, seconds: float) -> list[float]:
    """Return the seconds until the first event of chats that arrive while others are under way."""
    async with connected() as session, AsyncExitStack() as under_way:
        for _ in range(UNDER_WAY):
            response = await under_way.enter_async_context(open_stream(session, server, "wait 300 seconds"))
            while not (await response.content.readline()).startswith(b"event: tool_call"):
                pass
        async with asyncio.TaskGroup() as group:
            arrivals = []
            for _ in range(int(seconds * ARRIVALS_PER_SECOND)):
                arrivals.append(group.create_task(stream(session, server)))
                await asyncio.sleep(1 / ARRIVALS_PER_SECOND)
    assert all(one.result()[0] for one in arrivals), "a chat failed"
    return [one.result()[1] for one in arrivals]


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure the CPU of a chat, streams at once, and first events."""
    chats, streams, seconds = (50, 100, 2.0) if quick else (80, STREAMS, 4.0)
    with serving("memory:") as server, serving("sqlite:///state.db") as on_sqlite:
        base, cpu = asyncio.run(cpu_of_chats(server, chats)), asyncio.run(cpu_of_chats(on_sqlite, chats))
        rows = [Row("memory", base, 1), Row("SQLite", cpu, cpu / base)]
        yield Table("CPU of a chat over HTTP (one tool call, offline model)", "ms", rows)
        errors, cpu = asyncio.run(streams_at_once(server, streams))
        yield Table(f"{streams} streams at once", "ms", [Row("CPU of each", cpu, cpu / base, f"{errors} errors")])
    with serving("memory:") as server:
        firsts = [1000 * one for one in asyncio.run(first_events(server, seconds))]
    middle, p95 = median(firsts), quantiles(firsts, n=20)[-1]
    arrivals = f"{UNDER_WAY} chats under way, {ARRIVALS_PER_SECOND} new a second"
    yield Table(
        f"First event with {arrivals}", "ms", [Row("median", middle), Row.limited("95th percentile", p95, LIMIT_MS)]
    )
