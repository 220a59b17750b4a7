"""Limits on runs in progress: slots, the runs that wait for one, and who is woken."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.store.schema import runs
from framework.store.store import Store
from framework.store.types import RunQuery, RunRecord
from framework.types.errors import DecisionRefused, RunBlocked
from framework.types.report import Status
from framework.types.state import Approve, RunRequest, RunState
from tests.support import queues
from tests.support.cases import cases
from tests.support.queues import begin, cancel, end, request
from tests.support.stores import with_store

ONE = {"agent:one": 1}
Opened = tuple[RunState, RunRecord]


async def waits_for(store: Store) -> dict[str, str | None]:
    """What each run that is not finished waits for, by its message."""
    return {info.message: info.waits_for for info in await store.runs(RunQuery(statuses=("queued", "running")))}


async def try_begin(store: Store, one: RunRequest, limits: dict[str, int]) -> Opened | None:
    try:
        return await begin(store, one, limits)
    except RunBlocked:
        return None


async def begin_all(store: Store, limits: dict[str, int]) -> dict[str, Opened]:
    """Begin the runs that can begin, by their messages."""
    begun = {}
    while claimed := await store.claim(100):
        for one in claimed:
            if opened := await try_begin(store, one, limits):
                begun[one.message.content] = opened
    return begun


async def enqueue(store: Store, *texts: str, **more: Any) -> None:
    for text in texts:
        await store.enqueue(request(text, **more))


def test_a_run_beyond_the_limit_waits_visibly_until_another_ends(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "1", "2", "3")
        assert await waits_for(store) == dict.fromkeys("123", "capacity")
        (first,) = await store.claim(1)
        opened = await begin(store, first, ONE)
        (second,) = await store.claim(1)
        with pytest.raises(RunBlocked, match=f"run {second.run_id} waits: 1 runs of agent:one are in progress"):
            await begin(store, second, ONE)
        assert await waits_for(store) == {"1": None, "2": "agent:one", "3": "capacity"}
        assert (await store.load_run(second.run_id)).status == "queued"
        assert await begin_all(store, ONE) == {}
        assert await waits_for(store) == {"1": None, "2": "agent:one", "3": "agent:one"}
        await end(*opened)
        assert await waits_for(store) == {"2": "capacity", "3": "agent:one"}, "one slot wakes one run"
        assert [*await begin_all(store, ONE)] == ["2"]

    with_store(body, any_url)


def test_runs_without_limits_and_of_other_limits_begin(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "1", "2", "3", "4")
        (one, two, three, four) = await store.claim(4)
        await begin(store, one, ONE)
        assert await try_begin(store, two, ONE) is None
        assert await try_begin(store, three, {"agent:two": 1})
        assert await try_begin(store, four, {})

    with_store(body, any_url)


def test_the_first_waiting_run_by_priority_and_turn_is_woken(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "first")
        (opened,) = (await begin_all(store, ONE)).values()
        await enqueue(store, "a1", "a2", "a3", tenant="a")
        assert await begin_all(store, ONE) == {}
        await enqueue(store, "b1", tenant="b")
        await enqueue(store, "urgent", tenant="a", priority=1)
        assert await begin_all(store, ONE) == {}
        order = []
        for _ in range(5):
            await end(*opened)
            ((text, opened),) = (await begin_all(store, ONE)).items()
            order.append(text)
        assert order == ["urgent", "a1", "b1", "a2", "a3"]

    with_store(body, any_url)


def test_a_tenant_that_waits_for_its_own_limit_does_not_change_the_turns_of_others(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, *(f"a{n}" for n in range(10)), tenant="a")
        assert len(await begin_all(store, {"tenant:a": 1})) == 1
        await enqueue(store, *(f"b{n}" for n in range(10)), tenant="b")
        await begin_all(store, {"tenant:b": 3})
        await enqueue(store, "c", tenant="c")
        assert [*await begin_all(store, {"tenant:c": 1})] == ["c"]

    with_store(body, any_url)


@pytest.mark.parametrize("status", ["completed", "paused", "cancelled"])
def test_each_way_in_which_a_run_stops_frees_its_slots(any_url: str | None, status: Status) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "1", "2")
        begun = await begin_all(store, {**ONE, "tenant:": 1})
        state, record = begun["1"]
        state.status = status
        await record.write(state, last=True)
        assert [*await begin_all(store, {**ONE, "tenant:": 1})] == ["2"]

    with_store(body, any_url)


def test_a_released_run_takes_its_slot_again_before_one_that_waits(store_url: str) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "1", "2")
        state, record = (await begin_all(store, ONE))["1"]
        await record.release()
        assert (await waits_for(store))["2"] == "agent:one", "the slot is not for it"
        record = await store.acquire(await store.load_run(state.run_id), {}, limits=ONE)
        assert await begin_all(store, ONE) == {}
        await end(await store.load_run(state.run_id), record)
        assert [*await begin_all(store, ONE)] == ["2"]

    with_store(body, store_url)


def test_a_run_that_continues_after_a_pause_waits_for_a_slot_and_goes_first(store_url: str) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "paused", "next", "last")
        state, record = (await begin_all(store, ONE))["paused"]
        state.status = "paused"
        await record.write(state, last=True)
        other = (await begin_all(store, ONE))["next"]
        with pytest.raises(RunBlocked):
            await store.acquire(await store.load_run(state.run_id), {}, limits=ONE)
        assert await waits_for(store) == {"paused": "agent:one", "next": None, "last": "agent:one"}
        assert await store.runs(RunQuery(orphaned=True)) == [], "nothing is wrong with it"
        (info,) = await store.runs(RunQuery(run_id=state.run_id))
        assert (info.status, info.held, info.attempts) == ("running", False, 0)
        await end(*other)
        assert await waits_for(store) == {"paused": None, "last": "agent:one"}
        (info,) = await store.runs(RunQuery(orphaned=True))
        assert info.run_id == state.run_id, "now any process may continue it"
        loaded = await store.load_run(state.run_id)
        await end(loaded, await store.acquire(loaded, {}, limits=ONE))
        assert [*await begin_all(store, ONE)] == ["last"]

    with_store(body, store_url)


def test_decisions_about_a_run_that_waits_for_a_slot_are_saved_once(store_url: str) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "paused", "next")
        state, record = (await begin_all(store, ONE))["paused"]
        state.status = "paused"
        await record.write(state, last=True)
        await begin_all(store, ONE)
        decisions = {"call_1": Approve()}
        with pytest.raises(RunBlocked):
            await store.acquire(await store.load_run(state.run_id), decisions, {"call_1": "ann"}, limits=ONE)
        loaded = await store.load_run(state.run_id)
        assert loaded.decisions == {"call_1": Approve()}
        (made,) = await store.decisions(state.run_id)
        assert made.by == "ann"
        with pytest.raises(DecisionRefused):
            await store.acquire(loaded, {"call_1": Approve()}, limits={})

    with_store(body, store_url)


def test_a_raised_limit_lets_all_begin_that_it_allows(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, *"12345")
        begun = await begin_all(store, ONE)
        await end(*begun.pop("1"))
        assert [*await begin_all(store, {"agent:one": 3})] == ["2", "3", "4"]

    with_store(body, any_url)


def test_a_lowered_limit_lets_runs_in_progress_continue(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, *"1234")
        begun = await begin_all(store, {"agent:one": 3})
        assert [*begun] == ["1", "2", "3"]
        await end(*begun["1"])
        await end(*begun["2"])
        assert await begin_all(store, ONE) == {}
        await end(*begun["3"])
        assert [*await begin_all(store, ONE)] == ["4"]

    with_store(body, any_url)


def test_a_run_that_waits_can_be_cancelled_and_its_conversation_continues(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, "busy")
        (opened,) = (await begin_all(store, ONE)).values()
        first, second = request("1", "c"), request("2", "c")
        await store.enqueue(first)
        await store.enqueue(second)
        assert await begin_all(store, ONE) == {}
        assert await waits_for(store) == {"busy": None, "1": "agent:one", "2": "conversation"}
        await cancel(store, first.run_id)
        assert (await begin_all(store, {})).keys() == {"2"}
        await end(*opened)

    with_store(body, any_url)


async def wait_longer(store: Store) -> None:
    """Let the runs that wait have waited for ten seconds more."""
    if isinstance(store, Store):
        earlier = sa.update(runs).values(offered_at=runs.c.offered_at - 10)
        await store._database.write(lambda connection: connection.execute(earlier))


@pytest.mark.parametrize("allowed", [3, None])
def test_a_sweep_wakes_runs_whose_limit_was_raised_or_removed(any_url: str | None, allowed: int | None) -> None:
    async def body(store: Store) -> None:
        await enqueue(store, *"1234")
        assert [*await begin_all(store, ONE)] == ["1"]
        for limits in ({"agent:one": 1}, {"agent:one": 0}):
            await wait_longer(store)
            await store.sweep(10, limits.get)
            assert await begin_all(store, ONE) == {}, "it is not raised"
        await wait_longer(store)
        await store.sweep(10)
        assert await begin_all(store, ONE) == {}, "it is not known"
        await store.sweep(10, lambda key: allowed)
        limits = {} if allowed is None else {"agent:one": allowed}
        begun = [*await begin_all(store, limits)]
        assert begun == (["2", "3"] if allowed else ["2"]), "each that begins under a limit wakes the next"

    with_store(body, any_url)


def test_the_first_of_each_limit_is_woken_if_many_are_waited_for(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for number in range(120):
            await enqueue(store, str(number))
            for one in await store.claim(1):
                await try_begin(store, one, {f"tenant:{number}": 0})
        await wait_longer(store)
        for _ in range(3):
            await store.sweep(1000, lambda key: 1)
        assert len(await store.claim(1000)) == 120

    with_store(body, any_url)


def test_slots_of_processes_that_ended_are_free(store_url: str) -> None:
    async def body(store: Store) -> None:
        mortal = await Store.open(store_url, Path("/"), lease_seconds=0.0)
        await enqueue(mortal, "1", "2")
        (one,) = await mortal.claim(1)
        await begin(mortal, one, ONE)
        await store.sweep(100)
        assert [*await begin_all(store, ONE)] == ["2"], "the run that was interrupted no longer counts"
        with pytest.raises(RunBlocked):
            await store.acquire(await store.load_run(one.run_id), {}, limits=ONE)
        await mortal.close()

    with_store(body, store_url)


# --- generated

LIMITS = {"agent:x": 1, "agent:y": 2, "model:m": 2, "tenant:t": 3}


@dataclass
class World:
    """Runs with limits, and those in progress."""

    data: st.DataObject
    of_run: dict[str, dict[str, int]] = field(default_factory=dict)
    running: dict[str, Opened] = field(default_factory=dict)

    async def add(self, store: Store) -> None:
        keys = self.data.draw(st.sets(st.sampled_from(sorted(LIMITS)), max_size=3))
        one = request(priority=self.data.draw(st.integers(-1, 1)))
        self.of_run[one.run_id] = {key: LIMITS[key] for key in keys}
        await store.enqueue(one)

    async def begin(self, store: Store) -> None:
        for one in await store.claim(self.data.draw(st.integers(1, 4))):
            if opened := await try_begin(store, one, self.of_run[one.run_id]):
                self.running[one.run_id] = opened
            used = Counter(key for run_id in self.running for key in self.of_run[run_id])
            assert all(used[key] <= allowed for key, allowed in LIMITS.items())

    async def end(self) -> None:
        if self.running:
            await end(*self.running.pop(self.data.draw(st.sampled_from(list(self.running)))))


async def check_limits(data: st.DataObject, *stores: Store) -> None:
    """Whatever happens, no limit is exceeded, and no run waits for a slot that is free."""
    world = World(data)
    for _ in range(data.draw(st.integers(3, 12))):
        for _ in range(data.draw(st.integers(0, 4))):
            await world.add(stores[0])
        await world.begin(data.draw(st.sampled_from(stores)))
        if data.draw(st.booleans()):
            await world.end()
    for _ in range(10 * len(world.of_run) + 10):
        if not await stores[0].runs(RunQuery(statuses=("queued", "running"))):
            break
        await world.begin(stores[0])
        await world.end()
    assert {info.status for info in await stores[0].runs()} <= {"completed"}, "some runs never begin"


@cases(8)
@given(data=st.data())
def test_no_limit_is_exceeded_and_nothing_is_lost_in_memory(data: st.DataObject) -> None:
    with_store(lambda store: check_limits(data, store), None)


@settings(cases(3), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_limit_is_exceeded_and_nothing_is_lost_in_a_database(store_url: str, data: st.DataObject) -> None:
    async def main() -> None:
        stores = [await Store.open(store_url, Path("/")) for _ in range(2)]
        await queues.clear(stores[0])
        await check_limits(data, *stores)
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_a_run_that_is_claimed_again_as_soon_as_it_is_released_stays_claimed(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot becomes free between the attempt to begin and the release, so that the run can be claimed at once."""

    async def main() -> None:
        store = await Store.open(store_url, Path("/"))
        write, calls, again = store._database.write, count(), list[RunRequest]()
        await enqueue(store, "first", "second")
        first, second = await store.claim(2)
        running = await begin(store, first, ONE)

        async def releasing(*arguments: Any, **options: Any) -> Any:
            if next(calls) == 0:  # the attempt
                return await write(*arguments, **options)
            monkeypatch.undo()
            await end(*running)
            result = await write(*arguments, **options)
            again.extend(await store.claim(1))
            return result

        monkeypatch.setattr(store._database, "write", releasing)
        assert await try_begin(store, second, ONE) is None
        assert [one.run_id for one in again] == [second.run_id]
        state, record = await begin(store, again[0], ONE)
        assert await store.renew([state.run_id]) == {state.run_id: False}, "it is not released as one that was left"
        await end(state, record)
        await store.close()

    asyncio.run(main())


def test_concurrent_processes_do_not_exceed_a_limit_and_wake_each_other(store_url: str) -> None:
    """Two stores, each with several connections: the runs begin and end at the same time."""
    limits, most, current, reached = {"agent:x": 3, "tenant:t": 5}, 0, 0, asyncio.Event()

    async def work(store: Store) -> None:
        nonlocal most, current
        while await store.count_runs(RunQuery(statuses=("queued", "running"))):
            for one in await store.claim(2):
                if opened := await try_begin(store, one, limits):
                    current += 1
                    most = max(most, current)
                    if current == 3:
                        reached.set()
                    await reached.wait()
                    current -= 1
                    await end(*opened)

    async def main() -> None:
        stores = [await Store.open(store_url, Path("/")) for _ in range(2)]
        for number in range(24):
            await stores[0].enqueue(request(str(number)))
        async with asyncio.timeout(60):
            async with asyncio.TaskGroup() as group:
                for store in stores * 4:
                    group.create_task(work(store))
        assert {info.status for info in await stores[0].runs()} == {"completed"}
        for store in stores:
            await store.close()

    asyncio.run(main())
    assert most == 3
