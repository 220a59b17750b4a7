"""Jobs side by side: one that pauses or meets a limit makes itself felt only when all have finished."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from framework.types.errors import LimitExceeded, Paused
from framework.types.state import Confirmation

Confirmations = tuple[Confirmation, ...]


async def together(jobs: Iterable[Coroutine[Any, Any, Confirmations]]) -> None:
    """Run jobs side by side. All of them finish before one that pauses, or hits a limit, makes itself felt.

    Raises:
        Paused: with everything that the jobs ask.
        LimitExceeded: of the first job that met one.
    """
    limits: list[LimitExceeded] = []

    async def guarded(job: Coroutine[Any, Any, Confirmations]) -> Confirmations:
        try:
            return await job
        except LimitExceeded as limit:
            limits.append(limit)
            return ()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(guarded(job)) for job in jobs]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    if limits:
        raise limits[0]
    if asked := [confirmation for task in tasks for confirmation in task.result()]:
        raise Paused(asked)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
