"""A started MCP server: it ends with its parent, may have many tools, and the reason of its end is reported."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framework.tools.mcp.transports import stdio_transport
from framework.types.tool_servers import McpServer
from tests.support.mcp_definitions import tool_definition
from tests.support.mcp_worlds import PATIENCE, opened, raw
from tests.support.paths import ROOT

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "w") as pid_file:
    pid_file.write(str(os.getpid()))
while True:
    time.sleep(60)
"""
"""Ignores SIGTERM, and the end of its input."""
HOST = """
import asyncio, sys
from framework.tools.mcp.transports import stdio_transport
from framework.types.tool_servers import McpServer

async def main():
    async with stdio_transport(McpServer(command=tuple(sys.argv[1:])), print):
        await asyncio.Event().wait()

asyncio.run(main())
"""


SPY = """
import os, sys
found = ""
for name in ("environ", "maps", "mem"):
    try:
        open(f"/proc/{os.getppid()}/{name}", "rb").read(1)
        found += f" {name}"
    except PermissionError:
        pass
    except OSError:  # address 0 of the memory
        found += f" {name}"
with open(sys.argv[1], "w") as report:
    report.write(f"read:{found}")
"""
"""Tries to read its parent's environment and memory."""
WITHOUT_RIGHTS = """
import ctypes, os, sys
for capability in (19, 21, 38):
    ctypes.CDLL(None).prctl(24, capability)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""
"""Executes a script. Without SYS_PTRACE, SYS_ADMIN and PERFMON (PR_CAPBSET_DROP), root reads what a common user may."""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a part of Linux")
def test_a_server_cannot_read_the_keys_of_its_parent(tmp_path: Path) -> None:
    report = tmp_path / "report"
    os.mkfifo(report)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "not for servers"}
    spy = [sys.executable, "-c", SPY, str(report)]
    with subprocess.Popen([sys.executable, "-c", WITHOUT_RIGHTS, HOST, *spy], env=environment) as host:
        try:
            assert report.read_text("utf-8") == "read:"
        finally:
            host.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_a_server_that_ignores_everything_dies_with_a_killed_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    os.mkfifo(pid_file)
    stubborn = [sys.executable, "-c", STUBBORN, str(pid_file)]
    with subprocess.Popen([sys.executable, "-c", HOST, *stubborn], env={**os.environ, "PYTHONPATH": str(ROOT)}) as host:
        server = int(pid_file.read_text("utf-8"))  # waits until it is written
        watched = os.pidfd_open(server)
        host.kill()
        try:
            assert select.select([watched], [], [], PATIENCE)[0], "the server is still there"
        finally:
            if not select.select([watched], [], [], 0)[0]:
                os.kill(server, signal.SIGKILL)
            os.close(watched)


def test_the_last_line_of_a_killed_server_is_not_reported_as_the_cause() -> None:
    ends: list[str] = []

    async def main(script: str) -> str:
        over = asyncio.Event()

        def gone(why: str) -> None:
            ends.append(why)
            over.set()

        async with stdio_transport(McpServer(command=("sh", "-c", script)), gone), asyncio.timeout(PATIENCE):
            await over.wait()
        return ends.pop()

    reason = asyncio.run(main("echo For further information, see the docs >&2; kill -KILL $$"))
    assert reason == (
        "it was killed by signal 9 (SIGKILL); the last line of its standard error: "
        "For further information, see the docs"
    )
    assert asyncio.run(main("kill -SEGV $$")) == "it was killed by signal 11 (SIGSEGV)"
    assert asyncio.run(main("echo no token >&2; exit 3")) == "it ended with exit code 3: no token"


def test_a_server_with_hundreds_of_tools_loses_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(raw(tmp_path, {"tools": [tool_definition(f"t{n}") for n in range(400)]})) as world:
            assert (len(world.source.tools), world.source.faults) == (400, ())

    asyncio.run(main())


def test_only_the_tools_that_the_file_selects_are_used(tmp_path: Path) -> None:
    async def main() -> None:
        tools = [tool_definition(name) for name in ("search_a", "search_b", "get", "delete")]
        async with opened(raw(tmp_path, {"tools": tools}, tools=("search_*", "get", "serach"))) as world:
            assert set(world.tools) == {"search_a", "search_b", "get"}
            assert world.source.faults == ("mcp.docs has no tool that matches 'serach' (`tools` of the server)",)

    asyncio.run(main())
