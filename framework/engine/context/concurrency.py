"""Runs tool calls or plan steps concurrently.

If a job of a group pauses or exceeds a limit, the others finish before the group raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from framework.types.errors import LimitExceeded, Paused
from framework.types.state import Confirmation

Confirmations = tuple[Confirmation, ...]
Job = Coroutine[Any, Any, Confirmations]


async def gather_calls(calls: Sequence[Callable[[], Job]], *, limit: int) -> None:
    """Run calls concurrently until all have finished, at most `limit` at a time.

    Raises:
        Paused: calls need confirmations; the exception carries those of all calls.
        LimitExceeded: raised by the first call that exceeded a limit.
    """
    if len(calls) == 1:  # needs no separate task
        if confirmations := await calls[0]():
            raise Paused(confirmations)
        return
    gate = asyncio.Semaphore(limit)

    async def run_one(call: Callable[[], Job]) -> Confirmations:
        async with gate:
            return await call()

    group = _Group()
    try:
        async with asyncio.TaskGroup() as tasks:
            for call in calls:
                group.add(tasks, run_one(call))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    group.raise_deferred()


async def run_as_ready(next_job: Callable[[], Job | None], *, limit: int) -> None:
    """Run jobs concurrently; start each job when it is ready and fewer than `limit` are running.

    Once a job has exceeded a limit of the run, no further job starts.

    Args:
        next_job: returns a job that can start now, or None; called at first, and whenever a job has ended.
        limit: the number of jobs that may run at the same time.

    Raises:
        Paused: jobs need confirmations; the exception carries those of all jobs, in the order in which they started.
        LimitExceeded: raised by the first job that exceeded a limit.
    """
    group = _Group()
    running: set[asyncio.Task[Confirmations]] = set()
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                while not group.limits and len(running) < limit and (job := next_job()) is not None:
                    running.add(group.add(tasks, job))
                if not running:
                    break
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    group.raise_deferred()


class _Group:
    """The jobs of a group; collects the limits that they exceeded."""

    def __init__(self) -> None:
        self.limits: list[LimitExceeded] = []
        self._tasks: list[asyncio.Task[Confirmations]] = []

    def add(self, tasks: asyncio.TaskGroup, job: Job) -> asyncio.Task[Confirmations]:
        self._tasks.append(tasks.create_task(self._guarded(job)))
        return self._tasks[-1]

    def raise_deferred(self) -> None:
        """Raise the first exceeded limit, or else Paused, after all jobs have finished."""
        if self.limits:
            raise self.limits[0]
        if confirmations := [confirmation for task in self._tasks for confirmation in task.result()]:
            raise Paused(confirmations)

    async def _guarded(self, job: Job) -> Confirmations:
        try:
            return await job
        except LimitExceeded as limit:
            self.limits.append(limit)
            return ()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
