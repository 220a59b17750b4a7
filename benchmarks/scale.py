"""A fleet on one PostgreSQL: how soon runs start, move and are seen elsewhere, and what a second worker adds.

Every process is real: a temporary PostgreSQL, `agentsd serve --no-work` and `agentsd worker`. Times come from a log
that the model server and the tool of the runs write.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any

import aiohttp
import psycopg

from benchmarks.harness import NotMeasured, Row, Table
from examples.scale_demo.fleet import Fleet
from examples.scale_demo.load import Client, client_of, conversations
from examples.scale_demo.log import Log
from examples.scale_demo.model import Work, model_server
from examples.scale_demo.postgres import new_database, programs, server
from examples.scale_demo.results import percentile
from examples.scale_demo.scenario import end_one, start_seconds
from framework.store.schema import metadata
from framework.store.store import Store
from framework.types.messages import Message
from framework.types.state import RunRequest

CAPACITY = 10
"""Runs that a worker executes at once: so few that a run waits for the model, not for a processor."""
ROWS = 20_000
FOLLOWED, FOLLOWERS = 20, 5
"""Runs in other processes, and clients that follow each."""


@asynccontextmanager
async def fleet_of(url: str, workers: int, *options: str) -> AsyncIterator[tuple[Fleet, Client]]:
    """Run an API and some workers on a new database of a server."""
    with TemporaryDirectory(prefix="agentsd-bench-") as name:
        path = Path(name) / "log"
        log = Log(path)
        async with model_server(log) as model:
            fleet = Fleet(Path(name), url=new_database(url), model=model, log=path)
            try:
                fleet.add("api")
                for number in range(workers):
                    fleet.add(f"worker-{number + 1}", *options)
                await fleet.ready()
                async with client_of(fleet.api.url) as client:
                    yield fleet, client
            finally:
                await fleet.close()
                log.close()


async def capacity_bound(fleet: Fleet, client: Client, runs: int) -> float:
    """Return the runs per second of a load that is larger than the capacity of the workers."""
    load = conversations(runs, runs, name="load", steps=2, model_seconds=0.5, tool_seconds=0)
    await client.submit_all(load)
    await client.until_ended(300)
    times = [entry.at for entry in fleet.entries if entry.run.startswith("load")]
    return runs / (max(times) - min(times))


async def followed(fleet: Fleet, client: Client) -> list[float]:
    """Return the seconds from the end of tool calls in workers until each follower at the API has the event."""
    works = [Work(f"followed{number}.1", steps=6, model_seconds=0.2, tool_seconds=0.05) for number in range(FOLLOWED)]
    seen: list[tuple[str, int, float]] = []
    async with asyncio.TaskGroup() as group:
        for work in works:
            run_id = await client.submit(work)
            for _ in range(FOLLOWERS):
                group.create_task(_follow(f"{fleet.api.url}/agent/runs/{run_id}/events?wait=true", work.run, seen))
    ends = {(entry.run, entry.step): entry.at for entry in fleet.entries if entry.what == "end"}
    assert len(seen) == sum(work.steps for work in works) * FOLLOWERS, "a follower missed an event"
    return [at - ends[run, step] for run, step, at in seen]


async def _follow(url: str, run: str, seen: list[tuple[str, int, float]]) -> None:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        step = 0
        async for line in response.content:
            if line.startswith(b"data:") and b'"status":"success"' in line.replace(b" ", b""):
                seen.append((run, step, monotonic()))
                step += 1


async def idle_transactions(url: str, seconds: float) -> float:
    """Return the transactions per second in all databases of a server, this look at them excluded."""
    query = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def count() -> float:
            row = await (await connection.execute(query)).fetchone()
            assert row
            return float(row[0])

        before = await count()
        await asyncio.sleep(seconds)
        return (await count() - before - 1) / seconds


async def claims(url: str, rounds: int) -> list[float]:
    """Return the seconds of claims of a run among `ROWS` runs in progress and as many waiting ones."""
    store = await Store.open(url, Path())
    try:
        await store.enqueue(RunRequest(message=Message(role="user", content="go"), conversation_id="c"))
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await _multiply(connection)
        return [await _claim(store) for _ in range(rounds)]
    finally:
        await store.close()


async def _claim(store: Store) -> float:
    started = perf_counter()
    claimed = await store.claim(1)
    seconds = perf_counter() - started
    assert claimed, "no run is ready"
    await store.unclaim([request.run_id for request in claimed])
    return seconds


async def _multiply(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    """Copy the only run and its conversation, in which one of ten waiting runs is first."""
    process = "INSERT INTO agentsd_processes (id, name, started_at, seen_at, lease_until)"
    await connection.execute(f"{process} VALUES ('other', 'other', 0, 0, 9e9)")
    await _copy(connection, "agentsd_conversations", {"id": f"'w' || i % {ROWS // 10}"}, ROWS // 10)
    await _copy(connection, "agentsd_conversations", {"id": "'r' || i", "open_run": "'running' || i"}, ROWS)
    waiting = {"id": "'waiting' || i", "conversation_id": f"'w' || i % {ROWS // 10}", "ready": f"i <= {ROWS // 10}"}
    await _copy(connection, "agentsd_runs", waiting, ROWS)
    held = {"status": "'running'", "owner": "'other.' || i", "process": "'other'", "ready": "false"}
    await _copy(connection, "agentsd_runs", {"id": "'running' || i", "conversation_id": "'r' || i", **held}, ROWS)
    await connection.execute("ANALYZE")


async def _copy(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], table: str, changes: Mapping[str, str], rows: int
) -> None:
    """Insert copies of the first row of a table, with these expressions of the number `i` in place of its values."""
    columns = [column.name for column in metadata.tables[table].columns if column.name != "no"]
    values = ", ".join(changes.get(column, f"one.{column}") for column in columns)
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} "
        f"FROM (SELECT * FROM {table} LIMIT 1) one, generate_series(1, {rows}) i"
    )


async def measure(url: str, *, quick: bool) -> Table:
    """Measure fleets on a server."""
    lone, runs = (30, 40) if quick else (200, 120)
    async with fleet_of(url, 2) as (fleet, client):
        starts = await start_seconds(fleet, client, lone)
        idle = await idle_transactions(url, 5 if quick else 20)
        events = await followed(fleet, client)
        ended = await end_one(fleet, client, "term", signal.SIGTERM, CAPACITY)
        killed = await end_one(fleet, client, "kill", signal.SIGKILL, CAPACITY)
    claiming = await claims(new_database(url), 20 if quick else 200)
    rates = []
    for workers in (1, 2):
        async with fleet_of(url, workers, "--concurrency", str(CAPACITY)) as (fleet, client):
            rates.append(await capacity_bound(fleet, client, runs * workers))
    one, two = rates
    rates_of = f"{CAPACITY} runs a worker at once: {one:.1f} runs/s with one worker, {two:.1f} with two"
    return Table(
        f"A fleet on one PostgreSQL: an API and two workers ({len(starts)} lone runs, {len(events)} events)",
        "ms",
        [
            *_percentiles("from the acceptance of a run to its first model call", starts, "p50 < 25 ms, p99 < 100 ms"),
            *_percentiles(
                f"an event of a worker at {FOLLOWED * FOLLOWERS} followers of the API", events, "p95 < 100 ms"
            ),
            *_percentiles("from SIGTERM to the next step of a run elsewhere", ended, "< 1000 ms"),
            *_percentiles(f"a claim of a run, with {ROWS:,} running and as many waiting", claiming, "p50 < 5 ms"),
            *_percentiles("from kill -9 to the next step of a run elsewhere", killed, "< lease + 1000 ms"),
        ],
        f"{rates_of}, {two / one:.2f}x; idle: {idle:.1f} transactions/s of an API and two workers",
    )


def _percentiles(name: str, seconds: Sequence[float], promised: str) -> list[Row]:
    middle = percentile(seconds, 0.5)
    return [
        Row(f"{name}: p{100 * share:g}", 1000 * value, value / middle, promised)
        for share in (0.5, 0.95, 0.99)
        for value in [percentile(seconds, share)]
    ]


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure fleets on a temporary PostgreSQL. Raises NotMeasured without one."""
    if programs() is None:
        raise NotMeasured("there is no PostgreSQL")
    with server() as running:
        yield asyncio.run(measure(running.url, quick=quick))
