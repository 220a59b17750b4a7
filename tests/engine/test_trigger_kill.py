"""Two processes start and execute the runs of triggers, and are killed again and again: each time makes one run."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from framework.store.store import Store
from framework.store.types import RunInfo
from tests.support import trigger_lives as lives
from tests.support.cases import FACTOR
from tests.support.workers import PATIENCE

KILLS = 3 * FACTOR
"""150 in `make test-long`."""
FORKS = multiprocessing.get_context("forkserver")


async def completed(store: Store, number: int) -> list[RunInfo]:
    """Return all runs, once this many are there and have ended."""
    async with asyncio.timeout(PATIENCE):
        while True:
            runs = [*await store.runs()]
            if len(runs) >= number and all(info.status == "completed" for info in runs):
                return runs
            await asyncio.sleep(0.02)


@pytest.mark.timeout(600)
def test_each_time_and_each_delivery_makes_one_run_under_kills(tmp_path: Path, new_store: Callable[[], str]) -> None:
    root, url, log, random = lives.project(tmp_path), new_store(), tmp_path / "log", Random(43)
    now = FORKS.Value("d", lives.BEGIN, lock=False)

    def start() -> multiprocessing.context.ForkServerProcess:
        process = FORKS.Process(target=lives.live, args=(url, root, now, log))
        process.start()
        return process

    async def main() -> list[RunInfo]:
        store = await Store.open(url, root)
        processes, runs, kills, minute = [start(), start()], list[RunInfo](), 0, 0
        async with asyncio.timeout(PATIENCE):
            while "each" not in await store.triggers():  # noqa: ASYNC110 - earlier times are not missed
                await asyncio.sleep(0.02)
        while kills < KILLS:
            minute += 1
            now.value = lives.BEGIN + 60 * minute + 0.5
            for _ in range(min(2, KILLS - kills)):
                await asyncio.sleep(random.random() * 0.15)
                victim = random.randrange(2)
                processes[victim].kill()
                processes[victim].join()
                processes[victim] = start()
                kills += 1
            runs = await completed(store, 2 * minute)
        for process in processes:
            process.kill()
            process.join()
        await store.close()
        assert len(runs) == 2 * minute
        return runs

    runs = asyncio.run(main())
    times = Counter(info.message for info in runs if info.user == "trigger:each")
    minutes = len(runs) // 2
    expected = [datetime.fromtimestamp(lives.BEGIN + 60 * (one + 1), UTC) for one in range(minutes)]
    assert times == Counter(str(time) for time in expected)
    assert Counter(info.user for info in runs) == {"trigger:each": minutes, "trigger:hook": minutes}
