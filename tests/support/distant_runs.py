"""Runs in another process: a test follows them, and decides when their model continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from framework import Runtime
from framework.engine.runtime import launcher
from framework.llm.client import Delta, ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, calls
from framework.types.messages import Message
from tests.support.forks import FORKS
from tests.support.submitted_runs import Gate

PATIENCE = 50
"""Timeout in seconds, for waits that should be short."""


class Dictated(ScriptedModel):
    """A model that writes a word each time it is told to, after the first word of the first request."""

    def __init__(self, text: str) -> None:
        calling = Message(role="assistant", content="let me see", tool_calls=calls(("hold", {})))
        super().__init__(script=lambda request: text if len(request.messages) > 2 else calling)
        self.allowed = asyncio.Semaphore(0)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the words, each when it is allowed."""
        async for delta in super().stream(request):
            if len(request.messages) > 2 and delta.text:
                await self.allowed.acquire()
            yield delta


class Worker:
    """A process that executes the queued runs of a store."""

    def __init__(self, *setup: Any) -> None:
        self._ours, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=_work, args=(*setup, theirs))
        self.process.start()
        theirs.close()

    async def submit(self, message: str = "go") -> str:
        """Have the process submit a run, and return its id."""
        self._ours.send(message)
        run_id: str = await asyncio.to_thread(self._ours.recv)
        return run_id

    def resume(self) -> None:
        """Have the process resume interrupted runs from now on."""
        self._ours.send(None)

    def write(self, words: int = 1000) -> None:
        """Let the model write words of its second message."""
        self._ours.send(words)

    def stop(self) -> None:
        """End the process, unless it was killed."""
        self._ours.close()
        self.process.join(PATIENCE)


@contextmanager
def worker(url: str, root: Path, text: str, *, lease: float = 10, renewal: float = 0.1) -> Iterator[Worker]:
    """Run a process that executes the runs it submits or resumes.

    Args:
        url: the URL of its store.
        root: its project.
        text: what its model answers.
        lease: duration of its leases in seconds.
        renewal: interval at which it renews them.
    """
    running = Worker(url, root, text, lease, renewal)
    try:
        yield running
    finally:
        running.stop()


def _work(url: str, root: Path, text: str, lease: float, renewal: float, orders: Connection) -> None:
    asyncio.run(_execute(url, root, text, lease, renewal, orders))


async def _execute(url: str, root: Path, text: str, lease: float, renewal: float, orders: Connection) -> None:
    model, gate = Dictated(text), Gate()
    gate.opened.set()
    launcher.RENEWAL_SECONDS = renewal
    store = await Store.open(url, root, lease_seconds=lease)
    options: dict[str, Any] = {"models": {"scripted": model}, "tools": gate.tools(), "store": store}
    async with Runtime.open(root, watch=False, grace=0, **options) as runtime:
        await runtime.start_queued()  # from now on, signals arrive
        resuming: asyncio.Task[None] | None = None
        while True:
            try:
                order = await asyncio.to_thread(orders.recv)
            except EOFError:
                break
            if order is None:
                resuming = asyncio.create_task(_resume(runtime))
            elif isinstance(order, int):
                for _ in range(order):
                    model.allowed.release()
            else:
                orders.send((await runtime.submit(order)).run_id)
        if resuming is not None:
            resuming.cancel()
    await store.close()


async def _resume(runtime: Runtime) -> None:
    while True:
        await runtime.resume_orphans()
        await asyncio.sleep(0.05)  # as a server, which looks for them now and then
