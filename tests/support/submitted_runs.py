"""Runtimes on every store, for tests of submitted and followed runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework import Runtime, Tool, events, tool
from framework.llm.client import ModelClient
from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.store.types import DEFAULT_LEASE_SECONDS, RunQuery
from tests.support.projects import agent, write
from tests.support.waiting import until

PATIENCE = 50
"""Timeout in seconds, for waits that should be short."""


@dataclass
class Gate:
    """A tool that waits until the test opens the gate, and one that needs approval."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    paid: int = 0

    def tools(self) -> list[Tool]:
        @tool(risk="low", idempotent=True)
        async def hold() -> str:
            """Wait for the gate."""
            self.began.set()
            await self.opened.wait()
            return "held"

        @tool(risk="low")
        async def pay() -> str:
            """Pay."""
            self.paid += 1
            return "paid"

        return [hold, pay]


def project(root: Path, **keys: str) -> Path:
    """Return a project with one agent, whose calls of `pay` need approval."""
    return write(
        root, {"agents.d/a.yaml": agent("a", skill_policy='{allow: ["*"], ask: [{tool: pay, optional: true}]}', **keys)}
    )


@asynccontextmanager
async def opened(
    root: Path,
    url: str | None,
    model: ModelClient,
    *,
    tools: Sequence[Tool] = (),
    lease: float = DEFAULT_LEASE_SECONDS,
    **options: Any,
) -> AsyncIterator[Runtime]:
    """Open a runtime on a database, or on a store in memory if there is no URL."""
    store: Store = MemoryStore() if url is None else await Store.open(url, root, lease_seconds=lease)
    try:
        async with asyncio.timeout(PATIENCE):
            async with Runtime.open(
                root, store=store, models={"scripted": model}, tools=tools, watch=False, **options
            ) as runtime:
                yield runtime
    finally:
        await store.close()


def within(work: Callable[[], Awaitable[None]]) -> None:
    """Run the body of a test."""

    async def main() -> None:
        await work()

    asyncio.run(main())


async def statuses(runtime: Runtime) -> list[str]:
    """Return the statuses of all runs, oldest first."""
    return [info.status for info in await runtime.store.runs(RunQuery())]


async def until_statuses(runtime: Runtime, *expected: str) -> None:
    """Wait until all runs, oldest first, have these statuses."""

    async def look() -> bool:
        return await statuses(runtime) == [*expected]

    await until(look, f"the runs are {expected}")


def shown_text(segments: Sequence[Sequence[events.Event]]) -> dict[str, str]:
    """Return the texts by message id as a client shows them at the end.

    A finished text replaces its deltas. The client drops unfinished texts when it connects again, because the new
    connection begins with the text so far.
    """
    whole: dict[str, str] = {}
    for segment in segments:
        partial: dict[str, str] = {}
        for event in segment:
            match event:
                case events.ContentReceived(seq=0, message_id=message, text=text):
                    partial[message] = partial.get(message, "") + text
                case events.ContentReceived(message_id=message, text=text):
                    assert text.startswith(partial.pop(message, ""))
                    whole[message] = text
                case events.Thought(message_id=message) if event.seq:
                    partial.pop(message, None)  # the text was followed by tool calls
                case events.Warned(message_id=str(message)):
                    partial.pop(message, None)
        whole |= partial if segment is segments[-1] else {}
    return whole
