"""Rolling upgrades: a store that a newer version of agentsd has migrated, while processes of this version use it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from framework import Approve, Runtime, StoreError
from framework.engine.runtime.background import EmbeddedSource
from framework.store.database import StoreClock, create_engine, parse_store_url
from framework.store.schema import SCHEMA_VERSION
from framework.store.store import Store
from framework.testing import ScriptedModel, calls
from framework.types.errors import StoreTooNew
from tests.support.submitted_runs import Gate, project

NEXT = SCHEMA_VERSION + 1
ADDITIONS = (
    "ALTER TABLE agentsd_runs ADD COLUMN weight INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE agentsd_processes ADD COLUMN zone TEXT",
    "ALTER TABLE agentsd_conversations ADD COLUMN topic TEXT",
    "CREATE TABLE agentsd_topics (id TEXT PRIMARY KEY)",
)
"""What a next version might add: nothing that this version would have to write."""


def migrate(url: str, root: Path, version: int, min_version: int | None, additions: Sequence[str] = ADDITIONS) -> None:
    """Migrate a store as a newer version does."""
    engine = create_engine(parse_store_url(url, root), begin="BEGIN", idle_seconds=60, clock=StoreClock())
    with engine.begin() as connection:
        for addition in additions:
            connection.exec_driver_sql(addition)
        row = {"version": version, "at": 0.0, "oldest": min_version}
        insert = "INSERT INTO agentsd_versions (version, applied_at, min_version) VALUES (:version, :at, :oldest)"
        connection.execute(sa.text(insert), row)
    engine.dispose()


async def create(url: str, root: Path) -> None:
    await (await Store.open(url, root)).close()


def test_runs_continue_while_a_newer_process_migrates_the_store(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        store = await Store.open(store_url, root)
        model = ScriptedModel(calls(("hold", {})), calls(("pay", {})), "done", "again")
        options = {"models": {"scripted": model}, "tools": gate.tools(), "watch": False}
        async with Runtime.open(root, store=store, work=EmbeddedSource(5), **options) as runtime:  # type: ignore[arg-type]
            await runtime.presence.announce("worker", "old")
            submitted = await runtime.submit("go", conversation="c")
            await gate.began.wait()
            await asyncio.to_thread(migrate, store_url, root, NEXT, SCHEMA_VERSION)
            waiting = await runtime.submit("next", conversation="c", queue=True)
            gate.opened.set()
            paused = await runtime.result(submitted.run_id)
            result = await runtime.resume(submitted.run_id, {paused.pending[0].id: Approve()})
            assert (result.status, (await runtime.result(waiting.run_id)).output) == ("completed", "again")
            assert [one.name for one in (await store.fleet()).processes] == ["old"]
            assert await store.sweep(10) == []
        await store.close()

    asyncio.run(main())


def test_a_process_opens_a_newer_store_that_allows_it_and_changes_nothing(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        await create(store_url, tmp_path)
        migrate(store_url, tmp_path, NEXT, SCHEMA_VERSION)
        migrate(store_url, tmp_path, NEXT + 1, SCHEMA_VERSION - 1, ())
        for _ in range(2):
            store = await Store.open(store_url, tmp_path)
            async with Runtime.open(
                project(tmp_path), store=store, models={"scripted": ScriptedModel("hi")}
            ) as runtime:
                assert (await runtime.run("hello")).output == "hi"
            await store.close()
        engine = create_engine(parse_store_url(store_url, tmp_path), begin="BEGIN", idle_seconds=60, clock=StoreClock())
        with engine.begin() as connection:
            versions = (
                connection.exec_driver_sql("SELECT version FROM agentsd_versions ORDER BY version").scalars().all()
            )
        engine.dispose()
        assert versions[-2:] == [NEXT, NEXT + 1]
        assert len(versions) == len(set(versions))

    asyncio.run(main())


@pytest.mark.parametrize(
    "rows",
    [
        [(NEXT, NEXT)],
        [(NEXT, None)],
        [(NEXT, NEXT), (NEXT + 1, SCHEMA_VERSION)],
    ],
    ids=["needs newer code", "says nothing", "an earlier migration needs newer code"],
)
def test_a_store_that_needs_newer_code_is_refused_with_both_versions(
    tmp_path: Path, store_url: str, rows: list[tuple[int, int | None]]
) -> None:
    async def main() -> None:
        await create(store_url, tmp_path)
        for number, (version, min_version) in enumerate(rows):
            migrate(store_url, tmp_path, version, min_version, () if number else ADDITIONS)
        with pytest.raises(StoreTooNew) as refused:
            await Store.open(store_url, tmp_path)
        assert isinstance(refused.value, StoreError)
        newest, oldest = rows[-1][0], max(min_version or version for version, min_version in rows)
        assert refused.value.message == (
            f"the store has schema version {newest}; this version of agentsd supports up to {SCHEMA_VERSION}, and "
            f"the store requires at least {oldest}: upgrade agentsd"
        )

    asyncio.run(main())
