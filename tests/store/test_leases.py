"""Whether a run is held depends on its process, not on the time of day of the observer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, ConversationBusy, Reject, RunBusy
from framework.store.database import Database, Work
from framework.store.processes import RunLeases
from framework.store.store import Store
from framework.store.types import DEFAULT_LEASE_SECONDS, RunQuery
from framework.types.errors import RunTaken
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.cases import cases
from tests.support.stored_runs import STORE, start_slow_run, start_slow_turn
from tests.support.waiting import until

HOUR = 3600
LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="start times and boots are read from /proc")


class Ahead(Database):
    """The database of a process whose clock is an hour ahead."""

    @property
    def now(self) -> sa.ColumnElement[float]:
        return super().now + HOUR


class Behind(Database):
    """The database of a process whose clock is an hour behind."""

    @property
    def now(self) -> sa.ColumnElement[float]:
        return super().now - HOUR


async def observer(clock: type[Database], root: Path) -> Store:
    return Store(await clock.open(STORE, root), DEFAULT_LEASE_SECONDS)


@pytest.mark.parametrize("clock", [Ahead, Behind, Database])
def test_a_live_process_keeps_its_run_at_any_time_of_day(tmp_path: Path, clock: type[Database]) -> None:
    async def main() -> None:
        with start_slow_turn(tmp_path) as process:
            store = await observer(clock, tmp_path)
            (info,) = await store.runs()
            assert (info.held, info.orphaned) == (True, False)
            with pytest.raises(RunBusy):
                await store.acquire(await store.load_run(info.run_id), {})
            with pytest.raises(ConversationBusy):
                await store.delete_conversation("c1")
            assert await store.request_cancel(info.run_id), "its process is asked to end it"
            assert await asyncio.to_thread(process.wait, 20) == 130
            assert (await store.load_run(info.run_id)).status == "cancelled"
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("clock", [Ahead, Behind, Database])
def test_the_run_of_a_killed_process_is_released_immediately(tmp_path: Path, clock: type[Database]) -> None:
    async def main() -> None:
        with start_slow_run(tmp_path) as process:
            store = await observer(clock, tmp_path)
            process.kill()
            process.wait()
            (info,) = await store.runs(RunQuery(orphaned=True))
            assert not await store.request_cancel(info.run_id)
            await (await store.acquire(await store.load_run(info.run_id), {})).release()
            await store.close()

    asyncio.run(main())


@LINUX
def test_zombies_and_processes_whose_id_was_reused_are_dead() -> None:
    ours = RunLeases(local=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        where, _, rest = RunLeases(local=True).new().rsplit("/", 2)
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        name = f"{where}/{child.pid}:{started}/{rest}"
        assert not ours.is_abandoned(name)
        assert ours.is_abandoned(f"{where}/{child.pid}:{int(started) - 1}/{rest}"), "another process had this number"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ours.is_abandoned(name), "a zombie works on nothing"


@LINUX
@cases(200)
@given(
    where=st.sampled_from(["ours", "old", "elsewhere"]),
    leased=st.booleans(),
    left=st.floats(-100, 100).filter(lambda left: abs(left) > 1),
)
def test_the_time_of_day_is_used_only_for_unknown_processes(where: str, leased: bool, left: float) -> None:
    ours, other = RunLeases(local=True), RunLeases(local=True).new()
    until = ours.boot_lease(0)
    assert until is not None
    names = {
        "ours": (other, until + left),
        "old": ("host pid:[4026531836]/1/0123456789abcdef.1", None),
        "elsewhere": (f"host pid:[4026531836] {'0' * 8}/1:1/0123456789abcdef.1", until + left),
    }
    name, boot_lease = names[where]
    assert ours.is_held(name, boot_lease, leased=leased) is (left > 0 if where == "ours" else leased)


def test_a_live_process_without_heartbeat_eventually_loses_its_runs(tmp_path: Path) -> None:
    async def main() -> None:
        silent = await Store.open(STORE, tmp_path, lease_seconds=0.2)
        other = await Store.open(STORE, tmp_path)
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        await silent.start(state, None, None)
        await until(partial(other.runs, RunQuery(orphaned=True)), "the run is orphaned")
        await other.acquire(await other.load_run(state.run_id), {})
        await silent.close()
        await other.close()

    asyncio.run(main())


@pytest.mark.parametrize("last", [False, True])
def test_a_write_that_was_lost_is_not_taken_for_that_of_a_process_that_came_between(
    file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    async def main() -> None:
        mine, other = [await Store.open(file_url, tmp_path, lease_seconds=0) for _ in range(2)]
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record, write = await mine.start(state, None, None), mine._database.write

        async def interrupted(work: Work[bool], committed: Work[bool | None]) -> bool:
            await (await other.acquire(await other.load_run(state.run_id), {})).release()
            return await write(lambda c: work(c) if (found := committed(c)) is None else found)

        monkeypatch.setattr(mine._database, "write", interrupted)
        state.messages.append(Message(role="assistant", content="done"))
        state.status = "completed" if last else "running"
        with pytest.raises(RunTaken):
            await record.write(state, last=last)
        assert len((await other.load_run(state.run_id)).messages) == 1
        for store in (mine, other):
            await store.close()

    asyncio.run(main())


def test_a_decision_that_was_lost_is_not_taken_for_that_of_another_person(
    file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store, other = [await Store.open(file_url, tmp_path) for _ in range(2)]
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record = await store.start(state, None, None)
        state.status = "paused"
        await record.write(state, last=True)
        paused, write = await store.load_run(state.run_id), store._database.write

        async def interrupted(work: Work[bool], committed: Work[bool | None], **_: object) -> bool:
            await other.save_decisions(await other.load_run(state.run_id), {"a": Approve()}, {"a": "ann"})
            return await write(lambda c: work(c) if (found := committed(c)) is None else found)

        monkeypatch.setattr(store._database, "write", interrupted)
        with pytest.raises(RunBusy):
            await store.save_decisions(paused, {"a": Reject()}, {"a": "ben"})
        for one in (store, other):
            await one.close()

    asyncio.run(main())
