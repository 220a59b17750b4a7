"""Jobs side by side: one that pauses or meets a limit makes itself felt only when all have finished."""

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
    """Run jobs side by side. All of them finish before one that pauses, or hits a limit, makes itself felt.

    Raises:
        Paused: with everything that the jobs ask.
        LimitExceeded: of the first job that met one.
    """
    jobs = list(jobs)
    if len(jobs) == 1:  # beside nothing: it needs no task of its own
        if asked := await jobs[0]:
            raise Paused(asked)
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
    """Run jobs side by side, each as soon as there is one and room for it; none waits for a slow neighbour.

    Args:
        next_job: a job that can begin now, if there is one; asked again whenever one has ended.
        limit: jobs that run concurrently. Once one has met a limit, none begins any more.

    Raises:
        Paused: with everything that the jobs ask, in the order in which they began.
        LimitExceeded: of the first job that met one.
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
    """What the jobs of one group ask, and the limits that they met."""

    def __init__(self) -> None:
        self.limits: list[LimitExceeded] = []
        self._tasks: list[asyncio.Task[Confirmations]] = []

    def add(self, tasks: asyncio.TaskGroup, job: Job) -> asyncio.Task[Confirmations]:
        self._tasks.append(tasks.create_task(self._guarded(job)))
        return self._tasks[-1]

    def raise_deferred(self) -> None:
        """Raise what was held back until all had finished."""
        if self.limits:
            raise self.limits[0]
        if asked := [confirmation for task in self._tasks for confirmation in task.result()]:
            raise Paused(asked)

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
        """Wait until the tool may be called. Return whether that took any time; it takes none without a rate."""
        if tool.rate is None:
            return False
        calls, seconds = tool.rate  # a tool whose rate has changed gets a new limiter
        limiter = self._limiters.setdefault((tool.name, calls, seconds), AsyncLimiter(calls, seconds))
        has_capacity = limiter.has_capacity()
        await limiter.acquire()
        return not has_capacity
