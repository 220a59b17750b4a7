"""What the processes of a store report, and which runs wait where and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.store.types import Blueprint, Conversation, RunQuery
from framework.types.messages import Message
from framework.types.report import Fleet, ProcessDetails
from framework.types.state import RunState
from tests.support.queues import request
from tests.support.stores import with_store

WORKER: dict[str, Any] = {"kind": "worker", "works": True, "capacity": 5, "agents": {"a": "d1"}}


def groups(fleet: Fleet) -> set[tuple[str | None, str | None, int, str]]:
    return {(one.queue, one.agent, one.count, one.reason) for one in fleet.waiting}


async def begin(store: Store, agent: str = "a", conversation: Conversation | None = None, **more: Any) -> RunState:
    state = RunState(agent=agent, blueprint="b1", messages=[Message(role="user", content="hello")], **more)
    await store.start(state, conversation, Blueprint("b1", {}))
    return state


async def pause(store: Store) -> None:
    state = RunState(agent="a", blueprint="b1", messages=[Message(role="user", content="hello")])
    record = await store.start(state, None, Blueprint("b1", {}))
    state.status = "paused"
    await record.write(state, last=True)


def named(agent: str, **more: Any) -> Any:
    return request(options={"agent": agent}, **more)


def test_runs_are_counted_by_where_and_why_they_wait(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await store.keep_alive("w", WORKER)
        for conversation in ("c", "c", "c", None):
            await store.enqueue(named("a", conversation=conversation))
        await store.enqueue(named("a", queue_name="night"))
        await store.enqueue(request())
        (claimed,) = await store.claim(1)
        await begin(store)
        await pause(store)
        fleet = await store.fleet()
        assert claimed.conversation_id == "c"
        assert groups(fleet) == {
            (None, "a", 2, "conversation"),
            (None, "a", 1, "capacity"),
            ("night", "a", 1, "capacity"),
            (None, None, 1, "capacity"),
        }
        assert (fleet.running, fleet.paused, fleet.handed_on) == (2, 1, ())
        assert all(0 <= one.oldest_seconds < 60 for one in fleet.waiting)
        counts = [one.count for one in fleet.waiting]
        assert counts == sorted(counts, reverse=True)

    with_store(body, any_url)


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (WORKER, {"night": "capacity", "a": "capacity", None: "capacity"}),
        ({**WORKER, "works": False}, {"night": "no_worker", "a": "no_worker", None: "no_worker"}),
        ({**WORKER, "only_agents": ["a"]}, {"night": "no_worker", "a": "capacity", None: "no_worker"}),
        ({**WORKER, "queues": ["night"]}, {"night": "capacity", "a": "no_worker", None: "no_worker"}),
        ({**WORKER, "only_agents": ["b"], "queues": []}, {"night": "no_worker", "a": "no_worker", None: "no_worker"}),
    ],
)
def test_runs_that_no_live_process_executes_are_named(worker: dict[str, Any], expected: dict[str | None, str]) -> None:
    async def body(store: Store) -> None:
        await store.enqueue(named("a", queue_name="night"))
        await store.enqueue(named("a"))
        await store.enqueue(request())
        await store.keep_alive("w", worker)
        fleet = await store.fleet()
        assert {one.queue or one.agent: one.reason for one in fleet.waiting} == expected

    with_store(body, None)


def test_a_run_that_is_handed_on_is_listed_with_the_reasons_until_it_begins(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await store.keep_alive("worker-1", WORKER)
        run_id = await store.enqueue(named("b"))
        await store.claim(1)
        await store.release_for_others(run_id, "has no agent 'b'", 0)
        fleet = await store.fleet()
        assert groups(fleet) == {(None, "b", 1, "handed_on")}
        assert [(one.run_id, one.reasons) for one in fleet.handed_on] == [(run_id, {"worker-1": "has no agent 'b'"})]

    with_store(body, any_url)


def test_a_run_without_its_process_is_released(new_store: Callable[[], str]) -> None:
    async def main() -> None:
        url = new_store()
        first, second = [await Store.open(url, Path("/")) for _ in range(2)]
        await first.keep_alive("gone", WORKER)
        state = RunState(agent="a", blueprint="b1", messages=[Message(role="user", content="hello")])
        record = await first.start(state, None, Blueprint("b1", {}))
        assert groups(await second.fleet()) == set()
        await record.release()
        assert groups(await second.fleet()) == {(None, "a", 1, "released")}
        await first.close()
        assert (await second.fleet()).processes == ()
        await second.close()

    asyncio.run(main())


def test_the_processes_of_a_store_see_each_other_and_their_different_agents(new_store: Callable[[], str]) -> None:
    async def main() -> None:
        url = new_store()
        stores = [await Store.open(url, Path("/")) for _ in range(3)]
        for number, (store, digest) in enumerate(zip(stores, ("d1", "d2", "d1"), strict=True)):
            details = ProcessDetails(**{**WORKER, "agents": {"a": digest, "same": "s"}, "version": "1.0"})
            await store.keep_alive(f"w{number}", details.model_dump(mode="json"))
        await begin(stores[0])
        fleet = await stores[1].fleet()
        assert [(one.name, one.alive, one.running, one.kind) for one in fleet.processes] == [
            ("w0", True, 1, "worker"),
            ("w1", True, 0, "worker"),
            ("w2", True, 0, "worker"),
        ]
        assert fleet.digests == {"a": {"d1": 2, "d2": 1}, "same": {"s": 3}}
        limited = await stores[1].fleet(RunQuery(agents=("same",)))
        assert limited.digests == {"same": {"s": 3}}
        assert all(one.agents == {"same": "s"} for one in limited.processes)
        for store in stores:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("scope", "counts"),
    [
        (RunQuery(), (6, 2)),
        (RunQuery(tenant="acme"), (2, 1)),
        (RunQuery(without_tenant=True), (1, 0)),
        (RunQuery(tenant="other", agents=("b",)), (2, 0)),
        (RunQuery(tenant="other", user="ann"), (1, 0)),
    ],
)
def test_only_runs_in_scope_are_reported(any_url: str | None, scope: RunQuery, counts: tuple[int, int]) -> None:
    async def body(store: Store) -> None:
        for agent, owner in [
            ("a", {"tenant": "acme"}),
            ("b", {"tenant": "acme"}),
            ("a", {}),
            ("a", {"tenant": "other", "user": "ann"}),
            ("b", {"tenant": "other", "user": "bob"}),
            ("b", {"tenant": "other"}),
        ]:
            await store.enqueue(named(agent, **owner))
        await begin(store, tenant="acme")
        await begin(store, agent="c", tenant="third")
        fleet = await store.fleet(scope)
        assert (sum(one.count for one in fleet.waiting), fleet.running) == counts

    with_store(body, any_url)


def test_what_a_newer_version_reports_is_read_as_far_as_possible() -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.keep_alive("new", {**WORKER, "capacity": {"cpu": 4}, "agents": {"a": "d1"}, "moons": 3})
        (process,) = (await store.fleet()).processes
        assert (process.name, process.capacity, process.agents) == ("new", 0, {"a": "d1"})

    asyncio.run(main())
