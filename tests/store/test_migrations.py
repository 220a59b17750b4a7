"""A store of an earlier version is migrated when it is opened: all its data is read, and its runs are resumed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from framework import Approve, ConfigError, Runtime, Tool, tool
from framework.store.database import StoreClock, create_engine, parse_store_url
from framework.store.schema import (
    SCHEMA_VERSION,
    call_counts,
    case_results,
    conversations,
    grants,
    metadata,
    notes,
    pushes,
    runs,
    triggers,
    versions,
)
from framework.store.store import Store
from framework.store.types import Pruned, RunQuery
from framework.store.usage import GROUPINGS, Period
from framework.testing import ScriptedModel
from framework.types.state import Rating
from tests.support.paths import TESTS
from tests.support.projects import agent, write
from tests.support.queues import begin, end

DUMP = TESTS / "store/stores/version-1.sql"
"""SQLite dump of a store of version 1. It has a completed run in conversation c1 of tenant a and user ann, a paused one
in c2 of tenant b, and one of no conversation whose process was killed. Four are queued: "1", of no conversation, which
the killed process had claimed; "2" and "3" in the new conversation c3; "4" in c2."""
ADDED = (*(runs.c[name] for name in ("copied_from", "rating", "rating_comment", "rated_by", "rated_at")),)
ADDED_LATER = (*ADDED, conversations.c.forked_from, conversations.c.handed_to)
"""Columns that versions above 1 have added."""
LATER_TABLES = (notes, grants, call_counts, triggers, pushes, case_results)
"""Tables that versions above 2 have added."""


def without_version_2(connection: sa.Connection) -> None:
    for table in LATER_TABLES:
        table.drop(connection)
    for column in ADDED_LATER:
        connection.exec_driver_sql(f"ALTER TABLE {column.table.name} DROP COLUMN {column.name}")
    connection.execute(sa.delete(versions).where(versions.c.version > 1))


async def create_version_1(url: str, root: Path) -> None:
    """Create the store of the dump: as it is in a SQLite file, or its rows in the tables of PostgreSQL."""
    file = parse_store_url(url, root).database if url.startswith("sqlite") else ":memory:"
    Path(file or "").parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file or "")) as dump:
        dump.executescript(DUMP.read_text("utf-8"))
        if url.startswith("sqlite"):
            return
        tables = [table for table in metadata.sorted_tables if table not in (versions, *LATER_TABLES)]
        rows = {table: [*dump.execute(f"SELECT * FROM {table.name}")] for table in tables}

    def fill(connection: sa.Connection) -> None:
        without_version_2(connection)
        for table, found in rows.items():
            columns = [column for column in table.c if column not in ADDED_LATER]
            for row in found:
                values = zip(columns, row, strict=True)
                typed = {c.name: bool(v) if isinstance(c.type, sa.Boolean) else v for c, v in values}
                connection.execute(sa.insert(table).values(typed))
        connection.execute(sa.select(sa.func.setval("agentsd_runs_no_seq", len(rows[runs]))))

    store = await Store.open(url, root)
    await store._database.write(fill)
    await store.close()


def project(root: Path) -> Path:
    budgets = "version: 1\nbudgets:\n  talk: {max_total_tokens: 100000, per: conversation}\n"
    one = agent("one", skill_policy="{ask: [pay], allow: [pay, look, hang]}", budgets="[talk]")
    return write(root, {"agents.d/one.yaml": one, "agentsd.yaml": budgets})


def tools() -> list[Tool]:
    @tool(risk="low")
    async def pay() -> str:
        """Pay."""
        return "paid"

    @tool(risk="low", idempotent=True)
    async def look(n: int) -> str:
        """Look around."""
        raise AssertionError(f"look {n} finished before")

    @tool(risk="low", idempotent=True)
    async def hang() -> str:
        """Wait."""
        return "waited"

    return [pay, look, hang]


async def check_data(store: Store) -> None:
    """Check what each run, conversation and budget of the dump contains."""
    ended, paused, *queued, left = await store.runs()
    assert [info.status for info in (ended, paused, left)] == ["completed", "paused", "running"]
    assert (left.orphaned, [info.message for info in queued]) == (True, ["1", "2", "3", "4"])
    state = await store.load_run(ended.run_id)
    assert [record.result and record.result.output for record in state.calls.values()] == ["saw 1"]
    events = await store.events(ended.run_id)
    assert [event["event"] for event in events][-2:] == ["content", "done"]
    assert await store.events(ended.run_id, after=3) == events[3:]
    assert {"chat scripted", "execute_tool look"} <= {span.name for span in await store.spans(ended.run_id)}
    assert [m.content for m in (await store.conversation("c1", "a", "ann")).messages][-1] == "first answer"
    turns = {(info.id, info.tenant, info.user): info.turns for info in await store.conversations()}
    assert turns == {("c1", "a", "ann"): 1, ("c2", "b", None): 1, ("c3", None, None): 0}
    scopes = [json.loads(use.scope) for use in await store.budget_uses() if use.tokens]
    assert {"conversation": "c1", "tenant": "a", "user": "ann"} in scopes
    period = Period.of(ended.created_at - 1, left.created_at + 1, "1d", UTC)
    for by in GROUPINGS:
        counts = (await store.usage(RunQuery(), by, period)).total.counts
        assert (counts.runs, counts.tokens) == (7, 40)


def test_a_store_of_version_1_is_migrated_with_all_its_data(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        await create_version_1(store_url, tmp_path)
        for _ in range(2):
            store = await Store.open(store_url, tmp_path)
            await check_data(store)
            assert await saved_versions(store) == [1, 2, *range(3, SCHEMA_VERSION + 1)]
            (ended, *_) = await store.runs()
            rating = Rating(value="up", at=datetime.now(UTC))
            await store.rate(ended.run_id, rating)
            assert (await store.runs())[0].rating == rating
            await store.close()

    asyncio.run(main())


def test_the_runs_of_an_earlier_version_are_resumed_executed_and_pruned(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        await create_version_1(store_url, project(tmp_path))
        model = ScriptedModel("done", "done")
        async with Runtime.open(tmp_path, tools=tools(), models={"scripted": model}, store=store_url, watch=False) as r:
            _, paused, *_, left = await r.store.runs()
            (asked,) = (await r.store.load_run(paused.run_id)).pending
            results = [
                await r.resume(paused.run_id, {asked.id: Approve()}, tenant="b"),
                await r.resume(left.run_id, {}),
            ]
            assert [result.status for result in results] == ["completed", "completed"]
            assert [call.result for result in results for call in result.tool_calls] == ["paid", "waited"]
            for result in results:
                events = await r.store.events(result.run_id)
                assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), "old events and new ones"
            store = await Store.open(store_url, tmp_path)
            await store.sweep(10)
            began = []
            while claimed := await store.claim(10):
                for one in claimed:
                    began.append(one.message.content)
                    await end(*await begin(store, one))
            assert began == ["1", "4", "2", "3"], "in the order of their ranks"
            await store.close()
            used = {use.scope: use.tokens for use in await r.store.budget_uses()}
            assert used['{"conversation": "c2", "tenant": "b"}'] == 20
            pruned = await r.store.prune(time.time() + 1, time.time(), trust_clock=True)
            assert pruned == Pruned(4, 0, versions=pruned.versions), "those that have parts or no turn"
            assert [info.message for info in await r.store.runs()] == ["look", "pay", "2", "3", "4"], "turns"

    asyncio.run(main())


@pytest.mark.parametrize("version", [10, 11])
def test_a_store_of_the_last_development_versions_is_migrated(tmp_path: Path, store_url: str, version: int) -> None:
    async def main() -> None:
        await create_version_1(store_url, tmp_path)
        if version == 11:
            await (await Store.open(store_url, tmp_path)).close()
        await change(store_url, tmp_path, *as_development_version(version))
        store = await Store.open(store_url, tmp_path)
        await check_data(store)
        assert await saved_versions(store) == [1, 2, *range(3, SCHEMA_VERSION + 1)]
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 2, 9, 12])
def test_a_store_of_another_development_version_is_refused(tmp_path: Path, store_url: str, version: int) -> None:
    async def main() -> None:
        await (await Store.open(store_url, tmp_path)).close()
        await change(store_url, tmp_path, *as_development_version(version))
        for _ in range(2):
            with pytest.raises(ConfigError) as refused:
                await Store.open(store_url, tmp_path)
            assert refused.value.message == (
                f"store.url: a development version of agentsd wrote this store, with schema {version}, which cannot be "
                "migrated: move the store away, or set store.url to another one"
            )

    asyncio.run(main())


def as_development_version(number: int) -> Iterator[str]:
    yield "CREATE TABLE agentsd_schema (version INTEGER NOT NULL PRIMARY KEY, min_version INTEGER)"
    for version in range(1, number + 1):
        yield f"INSERT INTO agentsd_schema VALUES ({version}, 1)"
    yield "DROP TABLE agentsd_versions"
    for table in LATER_TABLES:
        yield f"DROP TABLE IF EXISTS {table.name}"
    if number == 11:  # its other tables are those of version 2
        yield "ALTER TABLE agentsd_conversations DROP COLUMN handed_to"


async def change(url: str, root: Path, *statements: str) -> None:
    """Execute statements in a store without opening it."""
    engine = create_engine(parse_store_url(url, root), begin="BEGIN", idle_seconds=60, clock=StoreClock())
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


async def saved_versions(store: Store) -> list[int]:
    select = sa.select(versions.c.version).order_by(versions.c.version)
    return await store._database.read(lambda connection: [*connection.execute(select).scalars()])
