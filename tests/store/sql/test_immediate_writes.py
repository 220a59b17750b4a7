"""Small writes of a step are done in the thread of the caller, unless they would have to wait."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime, tool
from framework.engine.context.event_hub import EventHub
from framework.engine.context.journal import Journal, next_event
from framework.llm.client import ModelRequest
from framework.llm.scripted import Turn
from framework.store.protocol import Blueprint
from framework.store.sql.record import SqlRecord
from framework.store.sql.store import SqlStore
from framework.testing import ScriptedModel, calls
from framework.types.errors import RunTaken, StoreError
from framework.types.events import Warned
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.projects import agent, write

PATIENCE = 20
"""Timeout in seconds of operations that should complete immediately."""
PAGES = 2000
"""Pages of the log from which on a commit checkpoints it."""


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def with_run(tmp_path: Path, main: Callable[[SqlStore, SqlRecord, RunState], Awaitable[None]]) -> None:
    """Begin a run in a new SQLite file, and call `main` with it."""

    async def opened() -> None:
        store = await SqlStore.open("sqlite:///state.db", tmp_path)
        store._database._writer.slow_seconds = math.inf  # a busy machine is not a slow disk
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record = await store.begin(state, None, None)
        assert isinstance(record, SqlRecord)
        try:
            await main(store, record, state)
        finally:
            await store.close()

    asyncio.run(opened())


async def texts(store: SqlStore, state: RunState) -> list[str]:
    return [message.content for message in (await store.load_run(state.run_id)).messages]


def test_an_immediate_write_is_stored_when_it_returns(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        state.messages.append(said("one"))
        assert record.write_now(state, [next_event(state, Warned, code="x", message="")])
        with closing(sqlite3.connect(tmp_path / "state.db")) as other:
            assert other.execute("SELECT count(*) FROM agentsd_messages").fetchone() == (2,)
            assert other.execute("SELECT count(*) FROM agentsd_events").fetchone() == (1,)
            assert other.execute("SELECT version FROM agentsd_runs").fetchone() == (state.version,)

    with_run(tmp_path, main)


def test_a_locked_file_is_left_to_the_thread_which_writes_everything(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        event = next_event(state, Warned, code="x", message="")
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            state.messages.append(said("one"))
            assert not record.write_now(state, [event])
            writing = asyncio.create_task(record.write(state, [event]))
            await asyncio.wait([writing], timeout=0.1)
            assert not writing.done(), "the thread waits for the lock"
            other.execute("ROLLBACK")
            await writing
        assert await texts(store, state) == ["go", "one"]
        assert [event["seq"] for event in await store.events(state.run_id)] == [1]
        state.messages.append(said("two"))
        assert record.write_now(state)
        assert await texts(store, state) == ["go", "one", "two"]

    with_run(tmp_path, main)


def test_only_immediate_writes_do_not_wait_for_locks(tmp_path: Path) -> None:
    def busy_ms(driver: Any) -> int:
        (found,) = driver.execute("PRAGMA busy_timeout").fetchone()
        return int(found)

    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        (holder,) = store._database._writer._holders
        assert holder.connection is not None
        driver = holder.connection.connection.dbapi_connection
        assert record.write_now(state)
        assert busy_ms(driver) == 0
        assert await store._database.maintain(busy_ms) == 10_000
        assert record.write_now(state)
        await record.write(state)
        assert busy_ms(driver) == 10_000

    with_run(tmp_path, main)


def test_a_journal_emits_events_once_also_if_the_file_was_locked(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        hub = EventHub(state.run_id)
        reader, journal = hub.reader(), Journal(state, record, hub, durable=True)
        await journal.save()
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            journal.append(next_event(state, Warned, code="a", message=""))
            saving = asyncio.create_task(journal.save())
            await asyncio.wait([saving], timeout=0.1)
            assert not saving.done()
            assert reader.take() is None, "an event is emitted after it is stored"
            journal.append(next_event(state, Warned, code="b", message=""))
            other.execute("ROLLBACK")
        await saving
        await journal.end(())
        emitted = [event.seq for event in iter(reader.take, None)]
        assert emitted == [1, 2] == [event["seq"] for event in await store.events(state.run_id)]

    with_run(tmp_path, main)


def test_concurrent_saves_share_an_immediate_write(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        journal = Journal(state, record, EventHub(state.run_id), durable=True)
        await journal.save()
        before = state.version
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(journal.save())
        assert state.version == before + 1

    with_run(tmp_path, main)


def test_a_flush_that_is_requested_after_a_write_is_written_too(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        journal = Journal(state, record, EventHub(state.run_id), durable=True)
        journal.schedule_flush()
        await journal.save()
        state.messages.append(said("later"))
        journal.schedule_flush()
        async with asyncio.timeout(PATIENCE):
            while len(await texts(store, state)) < 2:
                pass

    with_run(tmp_path, main)


def test_a_save_that_is_cancelled_is_written_all_the_same(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        journal = Journal(state, record, EventHub(state.run_id), durable=True)
        await journal.save()
        state.messages.append(said("paid for"))
        saving = asyncio.create_task(journal.save())
        await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert await texts(store, state) == ["go", "paid for"]

    with_run(tmp_path, main)


def test_an_immediate_write_is_rejected_after_a_takeover(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("UPDATE agentsd_runs SET version = version + 1, owner = 'other'")
        state.messages.append(said("too late"))
        with pytest.raises(RunTaken):
            record.write_now(state)
        with closing(sqlite3.connect(tmp_path / "state.db")) as other:
            assert other.execute("SELECT count(*) FROM agentsd_messages").fetchone() == (1,)

    with_run(tmp_path, main)


def test_a_large_write_is_left_to_the_thread(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        state.messages.append(said("x" * 100_000))
        assert not record.write_now(state)
        await record.write(state)
        assert [len(text) for text in await texts(store, state)] == [2, 100_000]

    with_run(tmp_path, main)


def test_a_run_with_large_inputs_or_new_large_files_begins_in_the_thread(tmp_path: Path) -> None:
    large = "x" * 100_000

    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        writer = store._database._writer

        async def lent_by(inputs: dict[str, str], files: dict[str, str]) -> int:
            before = writer._lent
            new = RunState(agent="one", inputs=inputs, messages=[Message(role="user", content="go")])
            await store.begin(new, None, Blueprint(f"{len(files)}{len(inputs)}", files))
            return writer._lent - before

        assert await lent_by({}, {"a.yaml": "small"}) == 1
        assert await lent_by({"text": large}, {"a.yaml": "small"}) <= 0
        assert await lent_by({}, {"a.yaml": large, "b.yaml": ""}) <= 0
        assert await lent_by({}, {"a.yaml": large, "b.yaml": ""}) == 1, "the files are stored already"

    with_run(tmp_path, main)


def test_the_end_of_a_small_run_is_stored_at_once(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        state.messages.append(said("done"))
        state.status = "completed"
        assert record.write_now(state, [next_event(state, Warned, code="x", message="")], last=True)
        assert (await store.load_run(state.run_id)).messages == state.messages
        with closing(sqlite3.connect(tmp_path / "state.db")) as other:
            assert other.execute("SELECT status, owner FROM agentsd_runs").fetchone() == ("completed", None)
            assert other.execute("SELECT count(*) FROM agentsd_packed").fetchone() == (1,)
        assert not store._leases.alive()

    with_run(tmp_path, main)


def test_the_end_of_a_large_run_is_left_to_the_thread_which_compresses_it(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        for _ in range(2):
            state.messages.append(said("x" * 40_000))
            assert record.write_now(state)
        state.status = "completed"
        assert not record.write_now(state, last=True)
        assert store._leases.alive(), "nothing was written, so the run is still held"
        await record.write(state, last=True)
        assert not store._leases.alive()
        assert (await store.load_run(state.run_id)).status == "completed"

    with_run(tmp_path, main)


def test_a_cancellation_that_an_immediate_write_finds_ends_the_run_before_its_tool(tmp_path: Path) -> None:
    paid: list[str] = []

    @tool(risk="low")
    async def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    def cancelled_elsewhere(request: ModelRequest) -> Turn:
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("UPDATE agentsd_runs SET cancel_requested = 1 WHERE status = 'running'")
        return calls(("pay", {}))

    async def main() -> None:
        root = write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy="{allow: [pay]}")})
        models = {"scripted": ScriptedModel(script=cancelled_elsewhere)}
        async with Runtime.open(root, tools=[pay], models=models, store="sqlite:///state.db", watch=False) as runtime:
            for _ in range(2):  # the first one also prepares the lease of the process
                assert (await runtime.run("go")).status == "cancelled"
        assert not paid

    asyncio.run(main())


def test_the_thread_checkpoints_and_begins_the_log_anew(tmp_path: Path) -> None:
    """Both wait for the disk, so an immediate write does neither."""

    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        file, log = tmp_path / "state.db", tmp_path / "state.db-wal"
        before, immediate = file.stat().st_mtime_ns, 0
        while file.stat().st_mtime_ns == before:
            state.messages.append(said("x" * 30_000))
            if record.write_now(state):
                immediate += 1
                assert file.stat().st_mtime_ns == before, "an immediate write has checkpointed the log"
            else:
                await record.write(state)
        assert immediate > PAGES / 10 / 4
        assert log.stat().st_size >= PAGES * 4096
        assert not record.write_now(state), "the first write after a checkpoint begins the log anew"
        await record.write(state)
        assert record.write_now(state)

    with_run(tmp_path, main)


def test_the_thread_writes_after_a_slow_write(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        store._database._writer.slow_seconds = 0
        assert record.write_now(state)
        assert not record.write_now(state)
        await record.write(state)

    with_run(tmp_path, main)


def test_a_deleted_file_is_an_error(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        (tmp_path / "state.db").unlink()
        with pytest.raises(StoreError, match="deleted or replaced while in use"):
            record.write_now(state)

    with_run(tmp_path, main)


def test_a_closed_store_rejects_immediate_writes(tmp_path: Path) -> None:
    async def main(store: SqlStore, record: SqlRecord, state: RunState) -> None:
        await store.close()
        assert not record.write_now(state)
        with pytest.raises(StoreError, match="the store is closed"):
            await record.write(state)

    with_run(tmp_path, main)
