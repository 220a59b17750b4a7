"""The order in which queued runs begin: conversations, priorities and tenants, with claims of several processes."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.store.store import Store
from framework.store.types import RunQuery, RunRecord
from framework.types.state import RunRequest, RunState
from tests.support import queues
from tests.support.cases import cases
from tests.support.queues import begin, cancel, end, request
from tests.support.stores import with_store

CONVERSATIONS = (None, None, "c", "d")
TENANTS = (None, "a", "b")
PRIORITIES = (-1, 0, 0, 7)


@dataclass
class World:
    """Processes that work through one queue, and what they did."""

    data: st.DataObject
    live: Store
    mortal: Store | None
    """The store of processes that end with all they hold: its leases last no time."""
    waiting: dict[str, RunRequest] = field(default_factory=dict)
    """Queued runs in the order in which they were added, claimed or not."""
    claimed: dict[str, Store] = field(default_factory=dict)
    open: dict[str, tuple[RunState, RunRecord]] = field(default_factory=dict)
    begun: dict[object, list[str]] = field(default_factory=lambda: defaultdict(list))
    added: dict[object, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Runs of each conversation, in order."""

    async def add(self) -> None:
        place = {"tenant": self.data.draw(st.sampled_from(TENANTS)), "priority": self.draw_priority()}
        one = request("x", self.data.draw(st.sampled_from(CONVERSATIONS)), **place)
        await self.live.enqueue(one)
        self.waiting[one.run_id] = one
        self.added[self.key(one)].append(one.run_id)

    def draw_priority(self) -> int:
        return self.data.draw(st.sampled_from(PRIORITIES))

    def key(self, one: RunRequest) -> object:
        return (one.tenant, one.conversation_id) if one.conversation_id else one.run_id

    def ready(self) -> list[RunRequest]:
        """The runs that can begin."""
        seen = {self.key(one) for one, _ in self.open_requests()}
        able = []
        for one in self.waiting.values():
            if (key := self.key(one)) not in seen:
                seen.add(key)
                if one.run_id not in self.claimed:
                    able.append(one)
        return able

    def open_requests(self) -> list[tuple[RunRequest, RunRecord]]:
        return [(request_of(state), record) for state, record in self.open.values()]

    async def claim(self) -> None:
        await self._claim(self.live)

    async def claim_and_die(self) -> None:
        if self.mortal is not None:
            for run_id in await self._claim(self.mortal):
                del self.claimed[run_id]

    async def _claim(self, store: Store) -> list[str]:
        limit, ready = self.data.draw(st.integers(1, 3)), self.ready()
        claimed = await store.claim(limit)
        assert len(claimed) == min(limit, len(ready))
        assert {one.run_id for one in claimed} <= {one.run_id for one in ready}
        priorities = [one.priority for one in claimed]
        assert priorities == sorted((one.priority for one in ready), reverse=True)[:limit], "higher priorities first"
        for place in {(one.tenant, one.priority) for one in claimed}:
            mine = [[one.run_id for one in each if (one.tenant, one.priority) == place] for each in (claimed, ready)]
            assert mine[0] == mine[1][: len(mine[0])], "of one tenant and priority, the oldest first"
        self.claimed.update(dict.fromkeys((one.run_id for one in claimed), store))
        return [one.run_id for one in claimed]

    async def begin(self) -> None:
        if self.claimed:
            run_id = self.data.draw(st.sampled_from(list(self.claimed)))
            await self._begin(self.waiting[run_id])

    async def _begin(self, one: RunRequest) -> None:
        opened = await begin(self.claimed.pop(one.run_id), one)
        del self.waiting[one.run_id]
        assert self.key(one) not in {self.key(other) for other, _ in self.open_requests()}, "one at a time"
        self.begun[self.key(one)].append(one.run_id)
        self.open[one.run_id] = opened

    async def end(self) -> None:
        if self.open:
            await end(*self.open.pop(self.data.draw(st.sampled_from(list(self.open)))))

    async def unclaim(self) -> None:
        if self.claimed:
            run_id = self.data.draw(st.sampled_from(list(self.claimed)))
            await self.claimed.pop(run_id).unclaim([run_id])

    async def cancel(self) -> None:
        if free := [one for one in self.waiting.values() if one.run_id not in self.claimed]:
            one = self.data.draw(st.sampled_from(free))
            await cancel(self.live, one.run_id)
            del self.waiting[one.run_id]
            self.added[self.key(one)].remove(one.run_id)

    async def finish(self) -> None:
        """Let all runs begin and end."""
        while self.waiting or self.open:
            for run_id in list(self.claimed):
                await self._begin(self.waiting[run_id])
            for opened in list(self.open):
                await end(*self.open.pop(opened))
            await self.claim()
        added = {key: run_ids for key, run_ids in self.added.items() if run_ids}
        assert self.begun == added, "each run began once, in the order of its conversation"


def request_of(state: RunState) -> RunRequest:
    return request("x", state.conversation_id, tenant=state.tenant, run_id=state.run_id)


OPERATIONS = ("add", "add", "add", "claim", "claim", "claim_and_die", "begin", "begin", "end", "unclaim", "cancel")


async def check_order(data: st.DataObject, live: Store, mortal: Store | None) -> None:
    world = World(data, live, mortal)
    for _ in range(data.draw(st.integers(5, 30))):
        await getattr(world, data.draw(st.sampled_from(OPERATIONS)))()
    await world.finish()


@cases(8)
@given(data=st.data())
def test_runs_in_memory_begin_by_conversation_priority_and_age(data: st.DataObject) -> None:
    with_store(lambda store: check_order(data, store, None), None)


@settings(cases(3), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_runs_in_a_database_begin_by_conversation_priority_and_age(store_url: str, data: st.DataObject) -> None:
    async def body(store: Store) -> None:
        mortal = await Store.open(store_url, Path("/"), lease_seconds=0.0)
        await queues.clear(mortal)  # a failed example leaves its runs
        await check_order(data, store, mortal)
        await mortal.close()

    with_store(body, store_url)


# --- tenants


async def begin_next(store: Store) -> RunRequest:
    (one,) = await store.claim(1)
    await end(*await begin(store, one))
    return one


async def check_turns(data: st.DataObject, store: Store) -> None:
    """Tenants that always have runs waiting begin them in turn, however many runs each has."""
    tenants = data.draw(st.lists(st.sampled_from([None, *"abcd"]), min_size=2, unique=True))
    waiting, begun = Counter[str | None](), Counter[str | None]()

    async def add(tenant: str | None) -> None:
        for _ in range(data.draw(st.integers(1, 8))):
            await store.enqueue(request(tenant=tenant))
            waiting[tenant] += 1

    for tenant in tenants:
        await add(tenant)
    for _ in range(data.draw(st.integers(1, 30))):
        for tenant in tenants:
            if waiting[tenant] == 1 or data.draw(st.integers(0, 8)) == 0:
                await add(tenant)
        one = await begin_next(store)
        waiting[one.tenant] -= 1
        begun[one.tenant] += 1
        assert max(begun[tenant] for tenant in tenants) - min(begun[tenant] for tenant in tenants) <= 1
    while await store.claim(100):
        pass


@cases(6)
@given(data=st.data())
def test_tenants_take_turns_in_memory(data: st.DataObject) -> None:
    with_store(lambda store: check_turns(data, store), None)


@settings(cases(4), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_tenants_take_turns_in_a_database(store_url: str, data: st.DataObject) -> None:
    async def body(store: Store) -> None:
        await queues.clear(store)
        await check_turns(data, store)

    async def main() -> None:
        store = await Store.open(store_url, Path("/"))
        await body(store)
        await store.close()

    asyncio.run(main())


def test_many_runs_of_one_tenant_do_not_delay_the_first_of_another(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        number = count()
        for _ in range(60):
            await store.enqueue(request(str(next(number)), tenant="big"))
        for _ in range(20):
            await begin_next(store)
        for _ in range(3):
            await store.enqueue(request(str(next(number)), tenant="small"))
        begun = [(await begin_next(store)).tenant for _ in range(6)]
        assert Counter(begun) == Counter(big=3, small=3)
        assert begun[0:2].count("small") == 1

    with_store(body, any_url)


def test_a_tenant_with_one_run_at_a_time_does_not_delay_others(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for _ in range(20):
            await store.enqueue(request(tenant="many"))
        begun = Counter[str | None]()
        for _ in range(20):
            if "one" not in {info.tenant for info in await store.runs(RunQuery(statuses=["queued"]))}:
                await store.enqueue(request(tenant="one"))
            begun[(await begin_next(store)).tenant] += 1
        assert abs(begun["many"] - begun["one"]) <= 2

    with_store(body, any_url)


def test_a_tenant_that_was_idle_is_not_ahead_of_those_that_were_not(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for _ in range(30):
            await store.enqueue(request(tenant="early"))
        for _ in range(20):
            await begin_next(store)
        for _ in range(30):
            await store.enqueue(request(tenant="late"))
        begun = [(await begin_next(store)).tenant for _ in range(10)]
        assert Counter(begun) == {"early": 5, "late": 5}

    with_store(body, any_url)


def test_a_run_that_waits_for_its_conversation_does_not_give_its_tenant_earlier_turns(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await store.enqueue(request("1", "c", tenant="a"))
        (first,) = await store.claim(1)
        opened = await begin(store, first)
        await store.enqueue(request("2", "c", tenant="a"))
        for tenant in ("b", "a"):
            for _ in range(20):
                await store.enqueue(request(tenant=tenant))
            if tenant == "b":
                assert [(await begin_next(store)).tenant for _ in range(10)] == ["b"] * 10
        assert Counter([(await begin_next(store)).tenant for _ in range(6)]) == {"a": 3, "b": 3}
        await end(*opened)

    with_store(body, any_url)


def test_the_urgent_runs_of_a_busy_tenant_are_not_behind_those_of_others(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for _ in range(20):
            await store.enqueue(request(tenant="busy"))
        for _ in range(4):
            await store.enqueue(request(tenant="other", priority=5))
        await store.enqueue(request(tenant="busy", priority=5))
        begun = [(await begin_next(store)).tenant for _ in range(3)]
        assert begun == ["other", "busy", "other"]

    with_store(body, any_url)


def test_a_message_with_a_high_priority_waits_for_those_before_it(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        first, urgent = request("1", "c", priority=-5), request("2", "c", priority=100)
        elsewhere = request("3", "d")
        for one in (first, urgent, elsewhere):
            await store.enqueue(one)
        begun = [(await begin_next(store)).run_id for _ in range(3)]
        assert begun == [elsewhere.run_id, first.run_id, urgent.run_id]

    with_store(body, any_url)


@pytest.mark.parametrize("priority", [101, -101, 1.5, None, "high"])
def test_a_priority_has_bounds(priority: object) -> None:
    with pytest.raises(ValueError, match="priority"):
        request(priority=priority)
