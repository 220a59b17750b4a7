"""Renewing leases: only a cancel request in the store cancels a run, a missing lease never does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, RunBusy, RunResult, RunSuspended, Runtime, Tool, tool
from framework.engine.runtime import launcher
from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.testing import JsonStore, ScriptedModel, calls
from framework.types.budget import BudgetUse
from framework.types.errors import RunTaken
from framework.types.events import Event
from framework.types.messages import Message
from framework.types.report import SpanRecord
from framework.types.state import RunState
from tests.support.cases import FACTOR
from tests.support.projects import agent, write

RUNS = 20 * FACTOR
"""Number of runs that pause, per database: 400 in `make test-long`."""
MAX_CONCURRENT = 20
PATIENCE = 20
"""Timeout in seconds, for waits that are short on an idle machine."""
ASK = calls(("pay", {}))
BUSY = "import sys\nprint(flush=True)\nfor _ in range(10**9):\n    sum(range(10**4))\n"


def project(root: Path) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy="{ask: [pay], allow: [pay, hang]}")})


def tools(hangs: asyncio.Event | None = None) -> list[Tool]:
    @tool(risk="low")
    async def pay() -> str:
        """Pay."""
        return "paid"

    @tool(risk="low", idempotent=True)
    async def hang() -> str:
        """Wait forever."""
        if hangs is not None:
            hangs.set()
        await asyncio.Event().wait()
        return ""

    return [pay, hang]


def options(*turns: Any, hangs: asyncio.Event | None = None) -> dict[str, Any]:
    return {"tools": tools(hangs), "models": {"scripted": ScriptedModel(*turns)}, "watch": False}


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one processor busy; the process ends with the context."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline()
            yield
        finally:
            busy.kill()


class Noticed:
    """A record that lets the heartbeat run between its last commit and the end of its task."""

    def __init__(self, record: RunRecord, store: Noticing) -> None:
        self._record, self._store = record, store

    @property
    def cancel_requested(self) -> bool:
        return self._record.cancel_requested

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        await self._record.write(state, events, spans, last=last, uses=uses)
        if last:
            self._store.renewed.clear()
            async with asyncio.timeout(PATIENCE):
                await self._store.renewed.wait()

    async def release(self) -> None:
        await self._record.release()


class Noticing(Store):
    """A store whose last write returns after two more lease renewals."""

    renewed: asyncio.Event
    looks = 0

    async def start(self, *begun: Any) -> RunRecord:
        self.renewed = asyncio.Event()
        return Noticed(await super().start(*begun), self)  # type: ignore[return-value]  # it is only read

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        found = await super().renew(run_ids)
        self.looks += 1
        if self.looks % 2 == 0:
            self.renewed.set()
        return found


def test_a_heartbeat_during_a_pause_does_not_cancel_the_run(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RENEWAL_SECONDS", 0.001)

    async def main() -> RunResult:
        store = await Noticing.open(file_url, tmp_path)
        async with Runtime.open(project(tmp_path), store=store, **options(ASK, "done")) as runtime:
            paused = await runtime.run("go")
            result = await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})
        await store.close()
        return result

    result = asyncio.run(main())
    assert (result.status, result.tool_calls[0].result) == ("completed", "paid")


@pytest.mark.timeout(600)
def test_runs_that_pause_next_to_a_busy_process_stay_paused(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RENEWAL_SECONDS", 0.001)

    async def main() -> None:
        gate = asyncio.Semaphore(MAX_CONCURRENT)

        async def one(runtime: Runtime) -> RunResult:
            async with gate:
                return await runtime.run("go")

        model = ScriptedModel(script=lambda _: ASK)
        given = {**options(), "models": {"scripted": model}}
        async with Runtime.open(project(tmp_path), store=file_url, **given) as runtime:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(one(runtime)) for _ in range(RUNS)]
            assert {task.result().status for task in running} == {"paused"}
        store = await Store.open(file_url, tmp_path)  # the background tasks have ended
        assert [info.status for info in await store.runs()] == ["paused"] * RUNS
        await store.close()

    with busy_process():
        asyncio.run(main())


def test_a_run_taken_over_by_another_process_stops_here_and_is_not_cancelled(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RENEWAL_SECONDS", 0.001)

    async def main() -> None:
        mine = await Store.open(file_url, tmp_path, lease_seconds=0)
        other = await Store.open(file_url, tmp_path)
        hangs = asyncio.Event()
        async with Runtime.open(project(tmp_path), store=mine, **options(calls(("hang", {})), hangs=hangs)) as runtime:
            running = asyncio.create_task(runtime.run("go"))
            await hangs.wait()
            (info,) = await other.runs()
            record = await take_over(other, info.run_id)
            with pytest.raises(RunTaken):
                async with asyncio.timeout(PATIENCE):
                    await running
            state = await other.load_run(info.run_id)
            assert (state.status, record.cancel_requested) == ("running", False)
            await record.write(state)  # the new owner can still write
        await other.close()
        await mine.close()

    asyncio.run(main())


def test_a_cancel_request_reaches_the_process_that_took_over_the_run(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RENEWAL_SECONDS", 0.001)
    began, stopping, may_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(risk="low", idempotent=True)
    async def hang() -> str:
        """Wait for ever, and stop late."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await may_stop.wait()
        return ""

    async def main() -> None:
        mine = await Store.open(file_url, tmp_path, lease_seconds=0)
        other = await Store.open(file_url, tmp_path)
        given = {**options(calls(("hang", {}))), "tools": [hang, *tools()[:1]]}
        async with Runtime.open(project(tmp_path), store=mine, **given) as runtime:
            async with runtime.stream("go") as stream:
                running = asyncio.create_task(stream.result())
                await began.wait()
                record = await take_over(other, stream.run_id)
                await stopping.wait()
                await runtime.cancel(stream.run_id)
                may_stop.set()
                with pytest.raises(RunTaken):
                    await running
            await record.write(await other.load_run(stream.run_id))
            assert record.cancel_requested
        await other.close()
        await mine.close()

    asyncio.run(main())


async def take_over(store: Store, run_id: str) -> RunRecord:
    """Take over a run from a process that keeps writing."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(RunBusy):  # another write came first
                return await store.acquire(await store.load_run(run_id), {})


class Forgetful(JsonStore):
    """A store that has lost its leases."""

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        await super().renew(run_ids)
        return {}


def test_losing_all_leases_suspends_runs_and_ends_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "RENEWAL_SECONDS", 0.001)

    async def main() -> None:
        store, hangs = Forgetful(), asyncio.Event()
        async with Runtime.open(project(tmp_path), store=store, **options(calls(("hang", {})), hangs=hangs)) as runtime:
            with pytest.raises(RunSuspended, match="was suspended because its lease was lost; resume it with"):
                await runtime.run("go")
        (info,) = await store.runs()
        assert (info.status, info.orphaned) == ("running", True)

    asyncio.run(main())


StoreOf = Callable[[Path], Store]


@pytest.mark.parametrize("store_of", [lambda _: MemoryStore(), lambda _: JsonStore()], ids=["memory", "json"])
def test_renew_returns_only_held_runs(tmp_path: Path, store_of: StoreOf) -> None:
    asyncio.run(_renewing(store_of(tmp_path)))


def test_renew_in_a_database_returns_only_held_runs(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        await _renewing(await Store.open(store_url, tmp_path))

    asyncio.run(main())


async def _renewing(store: Store) -> None:
    states = [RunState(agent="one", messages=[Message(role="user", content="go")]) for _ in range(4)]
    held, wanted, paused, ended = [await store.start(state, None, None) for state in states]
    await store.request_cancel(states[1].run_id)
    states[2].status, states[3].status = "paused", "completed"
    await paused.write(states[2], last=True)
    await ended.write(states[3], last=True)
    found = await store.renew([state.run_id for state in states] + ["run_unknown"])
    assert found == {states[0].run_id: False, states[1].run_id: True}
    await held.release()
    await wanted.release()
    assert not await store.renew([state.run_id for state in states])
    await store.close()


def test_a_run_that_was_taken_over_and_released_rejects_the_previous_owners_last_write(
    tmp_path: Path, file_url: str
) -> None:
    async def main() -> None:
        mine = await Store.open(file_url, tmp_path, lease_seconds=0)
        other = await Store.open(file_url, tmp_path)
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record = await mine.start(state, None, None)
        await (await other.acquire(await other.load_run(state.run_id), {})).release()
        state.status = "completed"
        with pytest.raises(RunTaken):
            await record.write(state, last=True)
        assert (await other.load_run(state.run_id)).status == "running"
        await mine.close()
        await other.close()

    asyncio.run(main())
