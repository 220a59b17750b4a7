"""Signals reach the other processes of a PostgreSQL database, and a process that cannot hear them knows it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.scale_demo.postgres import FAST, Server, new_database, server
from framework import Runtime
from framework.store import processes as signals
from framework.store.store import Store
from framework.store.types import MISSED, RunQuery, Signal
from framework.testing import ScriptedModel, calls
from tests.support.pgbouncer import pooled
from tests.support.signals import PATIENCE, cut_signals, wait_until_none_receives
from tests.support.submitted_runs import Gate, project
from tests.support.waiting import until


@pytest.fixture(scope="module")
def database(postgres: str) -> str:
    """URL of a database that the tests of this module share."""
    return new_database(postgres)


class Ear:
    """What one process hears."""

    def __init__(self) -> None:
        self.heard: list[Signal] = []
        self._changed = asyncio.Event()

    def hear(self, signal: Signal) -> None:
        self.heard.append(signal)
        self._changed.set()

    async def until(self, signal: Signal) -> list[Signal]:
        """Wait for a signal, and return all before it."""
        async with asyncio.timeout(PATIENCE):
            while signal not in self.heard:
                self._changed.clear()
                await self._changed.wait()
        index = self.heard.index(signal)
        before, self.heard = self.heard[:index], self.heard[index + 1 :]
        return before


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url, Path("/"))
    try:
        yield store
    finally:
        await store.close()


def test_signals_reach_other_processes_in_order_and_whole(database: str) -> None:
    many = [Signal("deltas", f"run_{number}", number, 'é"\\\n\x00' * (number * 7)) for number in range(60)]
    too_large = Signal("deltas", "run", body="x" * 8000)

    async def main() -> None:
        async with opened(database) as sender, opened(database) as receiver:
            ear = Ear()
            stop = await receiver.listen(ear.hear)
            assert await ear.until(MISSED) == [], "the first signal says that signals begin to arrive"
            assert (receiver.hears, sender.hears) == (True, False)
            await sender.signal(*many, too_large, Signal("ready"))
            assert await ear.until(Signal("ready")) == many
            with psycopg.connect(database, autocommit=True) as other:
                for junk in ("junk", "{}", "[1]", '[["events", "run", 1, "", "more"]]', "null"):
                    other.execute("SELECT pg_notify('agentsd', %s)", (junk,))
            late = Ear()
            await receiver.listen(late.hear)
            assert await late.until(MISSED) == [], "it may have missed some"
            stop()
            stop()
            await sender.signal(Signal("cancel", "run_1"))
            assert await late.until(Signal("cancel", "run_1")) == []
            assert ear.heard == []

    asyncio.run(main())


def test_a_cut_connection_is_opened_again(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with opened(database) as sender, opened(database) as receiver:
            ear = Ear()
            await receiver.listen(ear.hear)
            await ear.until(MISSED)
            for _ in range(3):
                caplog.clear()
                cut_signals(database)
                await ear.until(MISSED)
                assert receiver.hears
                (lost, again) = [
                    record.message for record in caplog.records if "signals of other processes" in record.message
                ]
                assert "do not arrive: store postgresql://" in lost
                assert "polls the store" in lost
                assert again == "signals of other processes arrive again"
                await sender.signal(Signal("ready"))
                assert await ear.until(Signal("ready")) == []

    with caplog.at_level("INFO"):
        asyncio.run(main())


def test_a_store_may_close_at_any_moment_after_it_began_to_listen(database: str) -> None:
    """No error is left, and no connection, although the store is not freed."""
    failed: list[dict[str, Any]] = []
    closed: list[Store] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        for turns in range(0, 60, 2):
            async with opened(database) as store:
                closed.append(store)
                await store.listen(lambda _: None)
                for _ in range(turns):
                    await asyncio.sleep(0)
                    await asyncio.to_thread(int)
        gc.collect()  # reports errors of tasks that nobody awaited

    asyncio.run(main())
    assert failed == []
    wait_until_none_receives(database)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server used by one test."""
    try:
        with server(FAST) as running:
            yield running
    except LookupError as missing:
        pytest.skip(str(missing))


def test_signals_arrive_again_after_a_restart_of_the_server(own_server: Server) -> None:
    async def main() -> None:
        async with opened(own_server.url) as store:
            ear = Ear()
            await store.listen(ear.hear)
            await ear.until(MISSED)
            await asyncio.to_thread(own_server.stop)
            await until(lambda: not store.hears, "the store has lost its connection")
            await asyncio.to_thread(own_server.start)
            await ear.until(MISSED)
            await store.signal(Signal("ready"))
            await ear.until(Signal("ready"))

    asyncio.run(main())


def test_a_pooler_in_transaction_mode_is_noticed(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It delivers no notifications. Runs work, although its sessions change between transactions."""
    monkeypatch.setattr(signals, "TEST_SECONDS", 0.3)

    async def main(url: str) -> None:
        async with opened(url) as store, opened(database) as direct:
            ear = Ear()
            await store.listen(ear.hear)
            model = ScriptedModel(script=lambda request: "done" if len(request.messages) > 9 else calls(("hold", {})))
            gate = Gate()
            gate.opened.set()
            options: dict[str, Any] = {"models": {"scripted": model}, "tools": gate.tools(), "watch": False}
            root = project(tmp_path, runtime_policy=POLICY)
            async with Runtime.open(root, store=store, **options) as runtime, asyncio.TaskGroup() as group:
                running = [group.create_task(runtime.run("go")) for _ in range(8)]
            assert {run.result().status for run in running} == {"completed"}
            await until(lambda: caplog.records, "the log mentions the pooler")
            assert (store.hears, ear.heard) == (False, [])
            distant = Ear()
            await direct.listen(distant.hear)
            await distant.until(MISSED)
            await store.signal(Signal("ready"))
            await distant.until(Signal("ready"))

    try:
        with pooled(database) as url, caplog.at_level("WARNING", signals.__name__):
            asyncio.run(main(url))
    except LookupError as missing:
        pytest.skip(str(missing))
    (record,) = [record for record in caplog.records if record.name == signals.__name__]
    assert "pooler in transaction mode" in record.message
    assert "set store.url to the server itself" in record.message


POLICY = "{max_steps: null, max_repeated_calls: null, max_tool_calls: null, max_total_tokens: null, timeout: null}"


def test_only_runs_that_are_followed_send_signals(database: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(database) as store, opened(database) as other:
            ear, own = Ear(), Ear()
            await other.listen(ear.hear)
            await ear.until(MISSED)
            await store.listen(own.hear)
            await own.until(MISSED)
            model, gate = ScriptedModel(calls(("hold", {})), "done"), Gate()
            options: dict[str, Any] = {"models": {"scripted": model}, "tools": gate.tools(), "watch": False}
            async with Runtime.open(project(tmp_path), store=store, **options) as runtime:
                running = asyncio.create_task(runtime.run("go"))
                await gate.began.wait()
                (info,) = await store.runs(RunQuery(statuses={"running"}))
                await other.signal(Signal("listen", info.run_id))
                assert await ear.until(Signal("listen", info.run_id)) == [], "nobody follows it"
                await own.until(Signal("listen", info.run_id))
                assert store.is_followed(info.run_id)
                assert await other.request_cancel(info.run_id)
                await own.until(Signal("cancel", info.run_id))
                await running
            stored = await store.events(info.run_id)
            await store.signal(Signal("ready"))
            numbers = [one.seq for one in await ear.until(Signal("ready")) if one.kind == "events"]
            assert numbers == sorted(numbers)
            assert numbers[-1] == stored[-1]["seq"]

    asyncio.run(main())


def test_a_run_is_followed_until_its_followers_are_silent(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a process cannot hear them, their silence says nothing."""
    monkeypatch.setattr(signals, "FOLLOWED_SECONDS", 0.05)

    async def main() -> None:
        async with opened(database) as store:
            ear = Ear()
            await store.listen(ear.hear)
            await ear.until(MISSED)
            for number in range(3):
                await store.signal(Signal("listen", f"run_{number}"))
            await ear.until(Signal("listen", "run_2"))
            assert not store.is_followed("run_3")
            names = [f"run_{number}" for number in range(3)]
            await until(lambda: not any(map(store.is_followed, names)), "nobody follows the runs")
            monkeypatch.setattr(signals, "FOLLOWED_SECONDS", -1)  # silent for too long already
            await store.signal(Signal("listen", "run_4"))
            await ear.until(Signal("listen", "run_4"))
            monkeypatch.setattr(signals, "_RETRY_SECONDS", 60)
            cut_signals(database)
            await until(lambda: not store.hears, "the store has lost its connection")
            assert store.is_followed("run_4")

    asyncio.run(main())


def test_a_sqlite_file_has_no_signals(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(f"sqlite:///{tmp_path}/state.db") as store:
            ear = Ear()
            stop = await store.listen(ear.hear)
            await store.signal(Signal("listen", "run"))
            stop()
            assert (store.hears, store.is_followed("run"), ear.heard) == (False, False, [])

    asyncio.run(main())
