"""The writes of a run: shared, repeated after a lock, finished after a cancellation, and rejected after a takeover."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from framework import Runtime, tool
from framework.engine.context.events import EventHub, Journal, next_event
from framework.llm.client import ModelRequest, Turn
from framework.store.record import SqlRecord
from framework.store.store import Store
from framework.testing import ScriptedModel, calls
from framework.types.errors import RunTaken, StoreError
from framework.types.events import Warned
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.projects import agent, write
from tests.support.waiting import until

PATIENCE = 20
"""Timeout in seconds of operations that should complete immediately."""


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def with_run(tmp_path: Path, main: Callable[[Store, SqlRecord, RunState], Awaitable[None]]) -> None:
    """Begin a run in a new SQLite file, and call `main` with it."""

    async def opened() -> None:
        store = await Store.open("sqlite:///state.db", tmp_path)
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record = await store.start(state, None, None)
        assert isinstance(record, SqlRecord)
        try:
            await main(store, record, state)
        finally:
            await store.close()

    asyncio.run(opened())


async def texts(store: Store, state: RunState) -> list[str]:
    return [message.content for message in (await store.load_run(state.run_id)).messages]


async def until_written(store: Store, state: RunState, *expected: str) -> None:
    async def look() -> bool:
        return await texts(store, state) == [*expected]

    await until(look, f"the messages are {expected}")


def test_a_write_waits_for_a_locked_file(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        event = next_event(state, Warned, code="x", message="")
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            state.messages.append(said("one"))
            writing = asyncio.create_task(record.write(state, [event]))
            await asyncio.wait([writing], timeout=0.1)
            assert not writing.done(), "it waits for the lock"
            other.execute("ROLLBACK")
            await writing
        assert await texts(store, state) == ["go", "one"]
        assert [event["seq"] for event in await store.events(state.run_id)] == [1]
        state.messages.append(said("two"))
        await record.write(state)
        assert await texts(store, state) == ["go", "one", "two"]

    with_run(tmp_path, main)


def test_a_journal_emits_events_once_also_if_the_file_was_locked(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
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


def test_concurrent_saves_share_a_write(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        journal = Journal(state, record, EventHub(state.run_id), durable=True)
        await journal.save()
        before = state.version
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(journal.save())
        assert state.version == before + 1

    with_run(tmp_path, main)


def test_a_flush_that_is_requested_after_a_write_is_written_too(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        journal = Journal(state, record, EventHub(state.run_id), durable=True)
        journal.schedule_flush()
        await journal.save()
        state.messages.append(said("later"))
        journal.schedule_flush()
        await until_written(store, state, "go", "later")

    with_run(tmp_path, main)


def test_a_save_that_is_cancelled_is_written_all_the_same(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        journal = Journal(state, record, EventHub(state.run_id), durable=True)
        await journal.save()
        state.messages.append(said("paid for"))
        saving = asyncio.create_task(journal.save())
        await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        await until_written(store, state, "go", "paid for")

    with_run(tmp_path, main)


def test_a_write_is_rejected_after_a_takeover(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("UPDATE agentsd_runs SET version = version + 1, owner = 'other'")
        state.messages.append(said("too late"))
        with pytest.raises(RunTaken):
            await record.write(state)
        with closing(sqlite3.connect(tmp_path / "state.db")) as other:
            assert other.execute("SELECT count(*) FROM agentsd_messages").fetchone() == (1,)

    with_run(tmp_path, main)


def test_the_end_of_a_run_is_stored_packed_and_its_lease_released(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        state.messages.append(said("done"))
        state.status = "completed"
        await record.write(state, [next_event(state, Warned, code="x", message="")], last=True)
        assert (await store.load_run(state.run_id)).messages == state.messages
        with closing(sqlite3.connect(tmp_path / "state.db")) as other:
            assert other.execute("SELECT status, owner FROM agentsd_runs").fetchone() == ("completed", None)
            assert other.execute("SELECT count(*) FROM agentsd_packed").fetchone() == (1,)
        assert not store._leases.alive()

    with_run(tmp_path, main)


def test_a_cancellation_that_a_write_finds_ends_the_run_before_its_tool(tmp_path: Path) -> None:
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


def test_a_deleted_file_is_an_error(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        (tmp_path / "state.db").unlink()
        with pytest.raises(StoreError, match="deleted or replaced while in use"):
            await record.write(state)

    with_run(tmp_path, main)


def test_a_closed_store_rejects_writes(tmp_path: Path) -> None:
    async def main(store: Store, record: SqlRecord, state: RunState) -> None:
        await store.close()
        with pytest.raises(StoreError, match="the store is closed"):
            await record.write(state)

    with_run(tmp_path, main)
