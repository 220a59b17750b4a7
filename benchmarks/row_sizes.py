"""Size of a run in PostgreSQL, and the transactions and write-ahead log that it needs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import psycopg

from benchmarks.harness import NotMeasured, Row, Table
from examples.scale_demo.postgres import programs, server
from framework import Runtime, tool
from framework.engine.procrastinate import ProcrastinateSource
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn
from framework.types.messages import ToolCall

RUNS = 2000
CONCURRENT = 50
CALLS = 2
RESULT_CHARS, ANSWER_CHARS = 400, 300
AGENT = """\
version: 1
name: support
description: Looks up two orders.
model: scripted
instructions: Look up the customer's orders, then answer in two sentences.
skill_policy: {allow: [look_up]}
"""
DAY_SECONDS = 86_400
GOAL = 100_000_000
"""Runs a day for which totals are computed."""
_SERVER = ("fsync=off", "shared_buffers=128MB", "max_connections=50", "autovacuum=off")
"""Full pages are written to the log, as in production; without fsync, the log has the same bytes."""

_COUNTERS = """
SELECT xact_commit + xact_rollback, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint
FROM pg_stat_database WHERE datname = current_database()
"""


@dataclass(frozen=True)
class Counters:
    """What a database has done since its creation, and the size of its tables."""

    transactions: int
    wal_bytes: int
    used: Mapping[str, int]
    """Bytes of each table with its indexes, free space included."""
    needed: Mapping[str, int]
    """The same without free space."""


@tool(risk="low")
async def look_up(order: str) -> str:
    """Look up an order."""
    return _words(order, RESULT_CHARS)


def _words(seed: str, length: int) -> str:
    """Return text that compresses as prose does."""
    words = ("order", "parcel", "Tuesday", "refund", "warehouse", "label", "street", "was", "sent", "and", "the", "to")
    chosen = random.Random(seed)
    text = " ".join(f"{chosen.choice(words)} {chosen.randrange(10_000)}" for _ in range(length // 8))
    return text[:length]


def script(request: ModelRequest) -> Turn:
    """Look up one order a turn, then answer."""
    done = sum(message.role == "assistant" for message in request.messages)
    message = next(message.content for message in request.messages if message.role == "user")
    if done < CALLS:
        return (ToolCall(id=f"c{done}", tool="look_up", arguments={"order": f"{message[:12]}-{done}"}),)
    return _words(message, ANSWER_CHARS)


async def execute(url: str, runs: int) -> None:
    """Submit runs in a new project, each in a conversation of its own, and execute them as one worker does."""
    with TemporaryDirectory(prefix="agentsd-bench-") as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/support.yaml").write_text(AGENT, "utf-8")
        models = {"scripted": ScriptedModel(script=script)}
        async with (
            ProcrastinateSource.open(url, root, CONCURRENT) as work,
            Runtime.open(root, store=url, work=work, models=models, tools=[look_up], watch=False) as runtime,
        ):
            work.wake()
            free = asyncio.Semaphore(CONCURRENT)

            async def one(number: int) -> None:
                async with free:
                    submitted = await runtime.submit(f"order {number:06}: where is my parcel?", tenant="acme")
                    result = await runtime.result(submitted.run_id, tenant="acme")
                    assert result.status == "completed", result

            async with asyncio.TaskGroup() as group:
                for number in range(runs):
                    group.create_task(one(number))


def counters(url: str) -> Counters:
    """Read the counters of a database, then compact its tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(_COUNTERS).fetchone()
        assert row is not None
        transactions, wal_bytes = row
        used = _sizes(connection)
        connection.execute("VACUUM FULL")
        return Counters(transactions, wal_bytes, used, _sizes(connection))


def _sizes(connection: psycopg.Connection) -> dict[str, int]:
    tables = connection.execute(
        "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    return dict(tables.fetchall())


def measure(url: str, runs: int) -> Table:
    """Execute runs, and measure what each needs."""
    asyncio.run(execute(url, CONCURRENT))  # creates the tables, and fills the caches
    before = counters(url)
    started = process_time()
    asyncio.run(execute(url, runs))
    cpu_ms = (process_time() - started) * 1000 / runs
    after = counters(url)
    sizes = {name: (size - before.needed.get(name, 0)) / runs for name, size in after.needed.items()}
    used = {name: (size - before.needed.get(name, 0)) / runs for name, size in after.used.items()}
    total = sum(sizes.values())
    notes = {name: f"{size:,.0f} with free space" for name, size in used.items()}
    rows = [Row("all tables", total, 1, f"{sum(used.values()):,.0f} with free space")]
    largest = sorted(sizes.items(), key=lambda one: -one[1])
    rows += [Row(name, size, size / total, notes[name]) for name, size in largest if size > 0]
    wal = (after.wal_bytes - before.wal_bytes) / runs
    transactions = (after.transactions - before.transactions) / runs
    needed = (
        f"{transactions:.1f} transactions, {wal:,.0f} bytes of write-ahead log and {cpu_ms:.1f} ms CPU of the worker "
        f"per run, over {runs:,} runs"
    )
    rate = GOAL / DAY_SECONDS
    computed = (
        f"computed for {GOAL:,} runs a day: {rate:,.0f} runs/s, {rate * transactions:,.0f} transactions/s, "
        f"{rate * wal / 1e6:,.1f} MB/s of log, {GOAL * total / 1e12:.2f} TB a day, "
        f"{rate * cpu_ms / 1000:.0f} busy cores of workers"
    )
    return Table(f"A run of {CALLS} tool calls in PostgreSQL, with indexes", "bytes", rows, f"{needed}\n{computed}")


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure runs on a temporary PostgreSQL. Raises NotMeasured without one."""
    if programs() is None:
        raise NotMeasured("there is no PostgreSQL")
    with server(_SERVER) as running:
        yield measure(running.url, CONCURRENT if quick else RUNS)
