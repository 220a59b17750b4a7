"""Runs delivered through Procrastinate: offered in the transactions of the store, executed by any process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.scale_demo.postgres import new_database
from framework.engine.procrastinate import MAX_QUEUE_BYTES, ProcrastinateSource, job_queue
from framework.engine.runtime.background import PeriodicJob
from framework.store.types import EVERYTHING, OfferedRun, WorkScope
from framework.testing import ScriptedModel
from framework.types.errors import StoreError
from tests.support.pgbouncer import pooled
from tests.support.submitted_runs import PATIENCE, opened, project
from tests.support.waiting import until

HERE = Path()


@pytest.fixture
def url(postgres: str) -> str:
    """URL of an empty PostgreSQL database."""
    return new_database(postgres)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def jobs(url: str) -> list[tuple[str, str]]:
    """Return queue and run of each job, oldest first."""
    return rows(url, "SELECT queue_name, args->>'run_id' FROM procrastinate_jobs ORDER BY id")


async def until_none(url: str, query: str) -> None:
    """Wait until a query returns no row."""
    await until(lambda: not rows(url, query), f"no rows of {query}")


class Executed:
    """A worker that notes what is delivered to it."""

    must_look = True

    def __init__(self) -> None:
        self.run_ids: list[str] = []
        self.changed = asyncio.Event()

    def claim_soon(self) -> None:
        """Not used by this source."""

    async def drive(self, run_id: str) -> None:
        """Note the run."""
        self.run_ids.append(run_id)
        self.changed.set()

    async def until(self, *run_ids: str) -> None:
        """Wait until these runs were delivered."""
        async with asyncio.timeout(PATIENCE):
            while not set(run_ids) <= set(self.run_ids):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def delivering(
    url: str, capacity: int = 10, scope: WorkScope = EVERYTHING
) -> AsyncIterator[tuple[ProcrastinateSource, Executed]]:
    async with ProcrastinateSource.open(url, HERE, capacity, scope) as source:
        worker = Executed()
        source.claim(worker)
        source.wake()
        yield source, worker


def offer(source: ProcrastinateSource, url: str, runs: Sequence[OfferedRun], *, commit: bool = True) -> None:
    with psycopg.connect(url) as connection:
        source.offer(connection, runs)
        if not commit:
            connection.rollback()


def run(number: int, agent: str = "a", queue: str | None = None, priority: int = 0) -> OfferedRun:
    return OfferedRun(f"run_{number}", queue, agent, priority)


def test_processes_that_start_at_once_create_the_tables_once(url: str) -> None:
    async def start() -> None:
        async with ProcrastinateSource.open(url, HERE, 0):
            pass

    async def main() -> None:
        async with asyncio.TaskGroup() as together:
            for _ in range(5):
                together.create_task(start())
        await start()

    asyncio.run(main())
    assert jobs(url) == []


def test_an_offer_is_a_job_of_the_transaction(url: str) -> None:
    async def main() -> None:
        async with ProcrastinateSource.open(url, HERE, 0) as source:
            offer(source, url, [run(1)], commit=False)
            assert jobs(url) == []
            offer(source, url, [run(1), run(2, "b"), run(3, "a", "slow"), run(4, ""), run(5)])
            assert sorted(jobs(url)) == [
                ("agent/", "run_4"),
                ("agent/a", "run_1"),
                ("agent/a", "run_5"),
                ("agent/b", "run_2"),
                ("slow", "run_3"),
            ]

    asyncio.run(main())


def test_names_of_queues_fit_into_a_channel(url: str) -> None:
    """PostgreSQL rejects a notification whose channel has a longer name, and the whole transaction with it."""
    long = ["agent" * 20, "agent" * 20 + "2", "ä" * 60, "x" * 34, "x" * 35]

    async def main() -> None:
        async with ProcrastinateSource.open(url, HERE, 0) as source:
            offer(source, url, [run(number, name) for number, name in enumerate(long)])

    asyncio.run(main())
    names = {queue for queue, _ in jobs(url)}
    assert names == {job_queue(None, name) for name in long}
    assert len(names) == len(long)
    assert all(len(name.encode()) <= MAX_QUEUE_BYTES for name in names)


def test_jobs_are_delivered_and_deleted(url: str) -> None:
    async def main() -> None:
        async with delivering(url) as (source, worker):
            offer(source, url, [run(number) for number in range(30)])
            await worker.until(*(f"run_{number}" for number in range(30)))
            await until_none(url, "SELECT 1 FROM procrastinate_jobs")
            assert len(worker.run_ids) == 30

    asyncio.run(main())
    assert rows(url, "SELECT count(*) FROM procrastinate_events") == [(0,)]


def test_a_worker_of_some_agents_and_queues_gets_only_their_jobs(url: str) -> None:
    async def main() -> None:
        scope = WorkScope(agents=frozenset({"a"}), queues=frozenset({"slow"}))
        async with delivering(url, scope=scope) as (source, worker):
            offer(source, url, [run(1, "b"), run(2, "a"), run(3, "b", "slow"), run(4, "a", "fast"), run(5, "")])
            await worker.until("run_2", "run_3")
            await until_none(url, "SELECT 1 FROM procrastinate_jobs WHERE status = 'doing'")
            assert sorted(run_id for _, run_id in jobs(url)) == ["run_1", "run_4", "run_5"]

    asyncio.run(main())


def test_each_periodic_job_is_done_by_one_process(url: str) -> None:
    async def main() -> None:
        done: list[str] = []
        happened = asyncio.Event()

        async def work() -> None:
            done.append("work")
            happened.set()

        job = PeriodicJob("tidy", "* * * * *", work)  # the last minute counts, too
        async with (
            ProcrastinateSource.open(url, HERE, 1) as first,
            ProcrastinateSource.open(url, HERE, 1) as second,
            asyncio.timeout(PATIENCE),
        ):
            for source in (first, second):
                assert source.repeat(job)
                source.claim(Executed())
                source.wake()
            await happened.wait()
            await until_none(url, "SELECT 1 FROM procrastinate_jobs")
        assert len(done) <= 2  # two if a minute began

    asyncio.run(main())


def test_a_stopped_source_leaves_jobs_to_others(url: str) -> None:
    async def main() -> None:
        async with delivering(url) as (source, worker):
            offer(source, url, [run(1)])
            await worker.until("run_1")
            source.release()
            offer(source, url, [run(2)])
            async with delivering(url) as (_, other):
                await other.until("run_2")
            assert worker.run_ids == ["run_1"]

    asyncio.run(main())


def test_jobs_are_delivered_after_all_connections_were_cut(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "procrastinate")
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    async def main() -> None:
        async with delivering(url) as (source, worker):
            for number in range(3):
                offer(source, url, [run(number)])
                await worker.until(f"run_{number}")
                rows(url, f"SELECT pg_terminate_backend(pid) {others}")

    asyncio.run(main())


def test_an_unreachable_database_is_an_error_that_says_so() -> None:
    async def main() -> None:
        with pytest.raises(StoreError, match="the tables of Procrastinate cannot be created: connection failed"):
            async with ProcrastinateSource.open("postgresql://ann@127.0.0.1:1/x", HERE, 1):
                pass

    asyncio.run(main())


def test_runs_of_one_process_are_executed_by_another(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        root, model = project(tmp_path), ScriptedModel(script=lambda _: "ok")
        async with (
            ProcrastinateSource.open(url, HERE, 0) as accepting,
            ProcrastinateSource.open(url, HERE, 5) as working,
            opened(root, url, ScriptedModel(), work=accepting) as api,
            opened(root, url, model, work=working) as worker,
        ):
            worker.work.wake()
            submitted = [await api.submit("m", conversation="c", queue=True) for _ in range(4)]
            assert {(await api.result(one.run_id)).output for one in submitted} == {"ok"}
            turns = [info.turn for info in await api.store.runs()]
            assert turns == [1, 2, 3, 4]

    asyncio.run(main())


def test_through_a_pooler_jobs_are_polled_for(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        try:
            with pooled(url) as pooler:
                async with delivering(pooler) as (source, worker):
                    for number in range(3):
                        offer(source, url, [run(number)])
                        await worker.until(f"run_{number}")
        except LookupError as missing:
            pytest.skip(str(missing))

    asyncio.run(main())
    (line,) = [record.message for record in caplog.records if "pooler" in record.message]
    assert "new runs are looked for every 0.5 s" in line
