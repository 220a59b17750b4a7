"""Concurrent jobs: once one exceeds a limit, no further job starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from framework.engine.context.run_context import Confirmations
from framework.engine.run import Job, run_as_ready
from framework.types.errors import LimitExceeded


def test_no_job_starts_after_one_exceeded_a_limit_and_running_jobs_finish() -> None:
    log: list[str] = []

    async def main() -> None:
        met = asyncio.Event()

        async def limited() -> Confirmations:
            met.set()
            raise LimitExceeded("max_repeated_calls", used=3, allowed=3)

        async def slow() -> Confirmations:
            await met.wait()
            log.append("slow finished")
            return ()

        async def late() -> Confirmations:
            log.append("late started")
            return ()

        jobs: Iterator[Job] = iter([slow(), limited()])
        more = [late]  # created on demand: an unused coroutine would warn

        def next_job() -> Job | None:
            return next(jobs, None) or (more.pop()() if more else None)

        with pytest.raises(LimitExceeded, match="max_repeated_calls"):
            await run_as_ready(next_job, limit=2)

    asyncio.run(main())

    assert log == ["slow finished"]
