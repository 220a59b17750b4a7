"""Concurrent work: groups of tool calls or plan steps, and the rate limits of tools.

If a job of a group pauses or exceeds a limit, the others finish before the group raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from aiolimiter import AsyncLimiter

from framework.tools.tool import Tool
from framework.types.errors import LimitExceeded, Paused
from framework.types.state import Confirmation

Confirmations = tuple[Confirmation, ...]
Job = Coroutine[Any, Any, Confirmations]


async def gather_calls(jobs: Iterable[Job]) -> None:
    """Run jobs concurrently until all have finished.

    Raises:
        Paused: jobs need confirmations; the exception carries those of all jobs.
        LimitExceeded: raised by the first job that exceeded a limit.
    """
    jobs = list(jobs)
    if len(jobs) == 1:  # needs no separate task
        if confirmations := await jobs[0]:
            raise Paused(confirmations)
        return
    group = _Group()
    try:
        async with asyncio.TaskGroup() as tasks:
            for job in jobs:
                group.add(tasks, job)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    group.raise_deferred()


async def run_as_ready(next_job: Callable[[], Job | None], *, limit: int) -> None:
    """Run jobs concurrently; start the next one as soon as it is ready and fewer than `limit` are running.

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


class RateLimiter:
    """Keeps the calls of each tool below the rate it declares, over all runs of the process."""

    def __init__(self) -> None:
        self._limiters: dict[tuple[str, float, float], AsyncLimiter] = {}

    async def wait(self, tool: Tool) -> bool:
        """Wait until the tool may be called; return whether the call had to wait. Without a rate it never waits."""
        if tool.rate is None:
            return False
        calls, seconds = tool.rate  # a tool whose rate has changed gets a new limiter
        limiter = self._limiters.setdefault((tool.name, calls, seconds), AsyncLimiter(calls, seconds))
        has_capacity = limiter.has_capacity()
        await limiter.acquire()
        return not has_capacity
