"""A run is offered in the transaction that makes it ready or releases it, and again by the sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from framework.store.store import Store
from framework.store.types import OfferedRun
from framework.types.errors import StoreError
from framework.types.messages import Message
from framework.types.state import Approve, Confirmation, RunState
from tests.support.offers import OfferTable
from tests.support.queues import begin, cancel, end, request

Body = Callable[[Store, OfferTable], Awaitable[None]]


def with_offers(url: str, body: Body, *, lease_seconds: float = 6.0) -> None:
    async def main() -> None:
        store = await Store.open(url, Path("/"), lease_seconds=lease_seconds)
        await body(store, await OfferTable.of(store))
        await store.close()

    asyncio.run(main())


async def execute(store: Store, statement: str) -> None:
    await store._database.write(lambda connection: connection.exec_driver_sql(statement))


async def later(store: Store) -> None:
    """Let the last offers be old."""
    await execute(store, "UPDATE agentsd_runs SET offered_at = offered_at - 5")


# --- in the transaction


def test_a_run_is_offered_when_it_can_begin(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        free = request(queue_name="slow", priority=3, options={"agent": "a"})
        one, two, three = (request(text, "c") for text in "123")
        for each in (free, one, two, three):
            await store.enqueue(each)
        expected = [OfferedRun(free.run_id, "slow", "a", 3), OfferedRun(one.run_id, None, "", 0)]
        assert await offers.take() == sorted(expected, key=lambda run: run.run_id)
        (claimed,) = await store.claim(1, run_id=one.run_id)
        state, record = await begin(store, claimed)
        assert await offers.ids() == []
        await end(state, record)
        assert await offers.ids() == [two.run_id], "the end of a run makes the next of its conversation ready"
        await cancel(store, two.run_id)
        assert await offers.ids() == [three.run_id]
        await store.claim(2)
        await store.unclaim([three.run_id])
        assert await offers.ids() == [three.run_id]

    with_offers(store_url, body)


def test_a_run_is_offered_when_it_is_released(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        state = RunState(agent="a", messages=[Message(role="user", content="go")])
        record = await store.start(state, None, None)
        await record.release()
        released = [OfferedRun(state.run_id, None, "a", 0)]
        assert await offers.take() == released
        record = await store.acquire(state, {})
        asked = Confirmation(id="c1", kind="tool", agent="a", tool="t", hash="h")
        state.status, state.pending = "paused", [asked]
        await record.write(state, last=True)
        assert await offers.take() == []
        await store.save_decisions(await store.load_run(state.run_id), {"c1": Approve()})
        assert await offers.take() == released

    with_offers(store_url, body)


def test_an_offer_that_fails_fails_the_transaction(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        offers.fails = True
        with pytest.raises(StoreError, match="missing"):
            await store.enqueue(request())
        offers.fails = False
        assert await store.runs() == []
        assert await offers.ids() == []

    with_offers(store_url, body)


# --- the sweep


def test_a_run_that_still_needs_a_process_is_offered_again_after_5_seconds(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        ready, behind, taken = request("1", "c"), request("2", "c"), request("3")
        for one in (ready, behind, taken):
            await store.enqueue(one)
        await store.claim(1, run_id=taken.run_id)
        state = RunState(agent="a", messages=[Message(role="user", content="go")])
        await (await store.start(state, None, None)).release()
        await offers.take()
        assert await store.sweep(10) == [], "they were offered just now"
        await later(store)
        swept = await store.sweep(10)
        assert sorted(run.run_id for run in swept) == sorted([ready.run_id, state.run_id])
        assert await offers.take() == sorted(swept, key=lambda run: run.run_id)
        assert await store.sweep(10) == []
        await later(store)
        assert len(await store.sweep(1)) == 1
        assert len(await store.sweep(10)) == 1

    with_offers(store_url, body)


def test_runs_that_were_saved_without_offers_are_offered_by_the_first_sweep(store_url: str) -> None:
    async def main() -> None:
        plain, store = await Store.open(store_url, Path("/")), await Store.open(store_url, Path("/"))
        offers, one = await OfferTable.of(store), request()
        await plain.enqueue(one)
        assert [run.run_id for run in await store.sweep(10)] == await offers.ids() == [one.run_id]
        assert await store.sweep(10) == []
        await plain.close()
        await store.close()

    asyncio.run(main())


def test_the_sweep_corrects_which_runs_are_ready(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        waiting = [request(str(number), conversation) for conversation in "cd" for number in range(3)]
        for one in waiting:
            await store.enqueue(one)
        await execute(store, "UPDATE agentsd_runs SET ready = (id <> '" + waiting[0].run_id + "')")
        await later(store)
        await store.sweep(10)
        expected = [waiting[0].run_id, waiting[3].run_id]
        assert (
            await store._database.read(
                lambda connection: list(
                    connection.exec_driver_sql("SELECT id FROM agentsd_runs WHERE ready ORDER BY no").scalars()
                )
            )
            == expected
        )
        assert [one.run_id for one in await store.claim(10)] == expected

    with_offers(store_url, body)


def test_a_run_that_is_wrongly_ready_is_not_claimed_and_corrected(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        one, two = request("1", "c"), request("2", "c")
        await store.enqueue(one)
        state, record = await begin(store, (await store.claim(1))[0])
        await store.enqueue(two)
        await execute(store, "UPDATE agentsd_runs SET ready = true")
        assert await store.claim(2) == [], "a run of its conversation is open"
        await offers.take()
        assert await store.sweep(10) == []
        (ready,) = await store._database.read(
            lambda connection: connection.exec_driver_sql(
                "SELECT ready FROM agentsd_runs WHERE status = 'queued'"
            ).one()
        )
        assert not ready
        await end(state, record)
        assert await offers.ids() == [two.run_id]
        assert await store.claim(2) == [two]

    with_offers(store_url, body)


def test_the_sweep_reaches_every_run_that_waits(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        waiting = [request(str(number)) for number in range(350)]
        for one in waiting:
            await store.enqueue(one)
        await execute(store, "UPDATE agentsd_runs SET ready = (no <= 120), offered_at = 0 WHERE status = 'queued'")
        swept = {run.run_id for _ in range(4) for run in await store.sweep(1000)}
        assert swept == {one.run_id for one in waiting}

    with_offers(store_url, body)


def test_the_runs_of_a_dead_process_are_released_and_offered(store_url: str) -> None:
    async def main() -> None:
        store = await Store.open(store_url, Path("/"))
        dead = await Store.open(store_url, Path("/"), lease_seconds=0.0)
        offers, claimed = await OfferTable.of(store), request()
        await store.enqueue(claimed)
        await dead.claim(1)
        state = RunState(agent="a", messages=[Message(role="user", content="go")])
        await dead.start(state, None, None)
        await offers.take()
        assert await dead.renew([state.run_id, claimed.run_id]) == {state.run_id: False, claimed.run_id: False}
        expected = sorted([state.run_id, claimed.run_id])
        assert sorted(run.run_id for run in await store.sweep(10)) == await offers.ids() == expected
        assert await store.sweep(10) == []
        assert await dead.renew(expected) == {}
        assert [one.attempts for one in await store.claim(1)] == [1]
        await store.acquire(await store.load_run(state.run_id), {})
        await dead.close()
        await store.close()

    asyncio.run(main())


def test_a_paused_run_whose_confirmation_expired_is_offered(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        state = RunState(agent="a", messages=[Message(role="user", content="go")])
        record = await store.start(state, None, None)
        state.status = "paused"
        await record.write(state, last=True)
        assert await store.sweep(10) == []
        await execute(store, "UPDATE agentsd_runs SET expires_at = 1")
        assert [run.run_id for run in await store.sweep(10)] == await offers.ids() == [state.run_id]
        assert await store.sweep(10) == []
        assert (await store.load_run(state.run_id)).status == "paused"

    with_offers(store_url, body)


# --- runs that their process has left


def test_a_run_whose_write_failed_is_released_by_the_next_renewal(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        state, other = (RunState(agent="a", messages=[Message(role="user", content="go")]) for _ in range(2))
        record = await store.start(state, None, None)
        await store.start(other, None, None)
        state.session = {"value": {1, 2}}  # which JSON cannot contain
        with pytest.raises(StoreError):
            await record.write(state)
        assert await offers.ids() == []
        assert await store.renew([state.run_id, other.run_id]) == {other.run_id: False}
        assert await offers.ids() == [state.run_id]
        elsewhere = await Store.open(store_url, Path("/"))
        await elsewhere.acquire(await elsewhere.load_run(state.run_id), {})
        await elsewhere.close()

    with_offers(store_url, body)


def test_a_heartbeat_releases_runs_too(store_url: str) -> None:
    async def body(store: Store, offers: OfferTable) -> None:
        state = RunState(agent="a", messages=[Message(role="user", content="go")])
        record = await store.start(state, None, None)
        state.session = {"value": {1, 2}}
        with pytest.raises(StoreError):
            await record.write(state)
        await store.keep_alive("worker", {})
        assert await offers.ids() == [state.run_id]

    with_offers(store_url, body)
