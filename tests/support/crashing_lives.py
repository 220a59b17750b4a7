"""Processes that resume interrupted runs, one of which ends each of them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from framework import Runtime, Tool, tool
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.store.types import OPEN_STATUSES, RunQuery
from framework.testing import ScriptedModel, Turn, calls
from tests.support.projects import agent, write
from tests.support.waiting import until

INNOCENT = 4
"""Number of runs beside the one that ends its processes."""
LEASE = 0.4


def project(root: Path) -> Path:
    """Return a project with one agent that may call every tool."""
    return write(root, {"agents.d/a.yaml": agent("a", skill_policy='{allow: ["*"]}')})


def live(url: str, root: Path, log: Path, is_first: bool) -> None:
    """Execute runs until none is open, or one of them ends this process."""
    asyncio.run(_live(url, root, log, is_first))


def ends(log: Path) -> int:
    """Return how many processes have ended."""
    return log.read_text("utf-8").count("end") if log.exists() else 0


def _tools(log: Path) -> list[Tool]:
    begun: list[str] = []

    @tool(risk="low", idempotent=True)
    async def work() -> str:
        """Take so long that the first processes end meanwhile."""
        begun.append("work")
        await until(lambda: ends(log) >= 3, "three processes have ended")
        return "done"

    @tool(risk="low", idempotent=True)
    async def crash() -> str:
        """End the process: at first beside all other runs."""
        await until(lambda: ends(log) >= 2 or len(begun) >= INNOCENT, "all other runs have begun")
        with log.open("a", encoding="utf-8") as file:
            file.write("end\n")
        os._exit(1)

    return [work, crash]


def _script(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    return calls((last.content, {})) if last.role == "user" else "answered"


async def _live(url: str, root: Path, log: Path, is_first: bool) -> None:
    store = await Store.open(url, root, lease_seconds=LEASE)
    model = ScriptedModel(script=_script)
    async with Runtime.open(root, store=store, tools=_tools(log), models={"scripted": model}, watch=False) as runtime:
        for message in ["crash", *["work"] * INNOCENT] if is_first else ():
            await runtime.submit(message)
        while await store.runs(RunQuery(statuses=OPEN_STATUSES)):
            await runtime.sweep()
            await asyncio.sleep(0.01)  # between two sweeps, the runs go on
    await store.close()
