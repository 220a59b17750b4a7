"""Work of every store: in which order runs are claimed and by whom, and how they change hands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.store.store import Store
from framework.store.types import RunQuery, WorkScope
from framework.types.errors import DecisionRefused, RunBusy, StoreError
from framework.types.messages import Message
from framework.types.state import Approve, Confirmation, Reject, RunRequest, RunState
from tests.support import queues
from tests.support.cases import cases
from tests.support.queues import begin, end, request
from tests.support.stores import with_store

ASKED = Confirmation(id="c1", kind="tool", agent="one", tool="t", hash="h")


async def paused(store: Store, **more: object) -> RunState:
    """Begin a run that pauses for a confirmation, and return its loaded state."""
    state = RunState.model_validate({"agent": "one", "messages": [Message(role="user", content="go")], **more})
    record = await store.start(state, None, None)
    state.status, state.finish_reason, state.pending = "paused", "confirmation", [ASKED]
    await record.write(state, last=True)
    return await store.load_run(state.run_id)


# --- order and scope


@settings(cases(4), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(priorities=st.lists(st.integers(-2, 2), max_size=12), limit=st.integers(1, 5))
def test_runs_with_a_higher_priority_come_first_and_then_older_ones(
    any_url: str | None, priorities: list[int], limit: int
) -> None:
    async def body(store: Store) -> None:
        if isinstance(store, Store):
            await queues.clear(store)  # of the example before
        waiting = [request(str(n), priority=priority) for n, priority in enumerate(priorities)]
        for one in waiting:
            await store.enqueue(one)
        claimed: list[RunRequest] = []
        while some := await store.claim(limit):
            claimed += some
        assert claimed == sorted(waiting, key=lambda one: -one.priority)

    with_store(body, any_url)


AGENTS, QUEUES = ("", "a", "b"), (None, "p", "q")


def test_a_run_is_claimed_by_workers_of_its_queue_or_else_of_its_agent(any_url: str | None) -> None:
    runs = [(agent, queue) for agent in AGENTS for queue in QUEUES]
    scopes = {
        WorkScope(): runs,
        WorkScope(agents=frozenset({"a", ""})): [("", None), ("a", None)],
        WorkScope(queues=frozenset({"p"})): [(agent, "p") for agent in AGENTS],
        WorkScope(frozenset({"b"}), frozenset({"p", "q"})): [one for one in runs if one[1] or one[0] == "b"],
        WorkScope(agents=frozenset()): [],
    }

    async def body(store: Store) -> None:
        for agent, queue in runs:
            await store.enqueue(request(queue_name=queue, options={"agent": agent} if agent else {}))
        for scope, expected in scopes.items():
            claimed = await store.claim(20, scope=scope)
            assert [(one.options.get("agent", ""), one.queue_name) for one in claimed] == expected
            assert [one for one in runs if scope.includes(one[1], one[0])] == expected
            await store.unclaim([one.run_id for one in claimed])

    with_store(body, any_url)


# --- hand over


def test_a_paused_run_is_handed_over_to_any_process_with_its_decisions(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        seen = await paused(store)
        await store.save_decisions(seen, {"c1": Approve()}, {"c1": "ann"})
        (info,) = await store.runs(RunQuery(orphaned=True))
        assert (info.status, info.held, info.attempts) == ("running", False, 0)
        state = await store.load_run(seen.run_id)
        assert (state.status, state.pending, state.decisions) == ("running", [], {"c1": Approve()})
        assert [(made.confirmation_id, made.by) for made in await store.decisions(seen.run_id)] == [("c1", "ann")]
        await end(state, await store.acquire(state, {}))
        (info,) = await store.runs()
        assert info.status == "completed"

    with_store(body, any_url)


def test_only_one_of_two_processes_hands_a_run_over(store_url: str) -> None:
    async def body(store: Store) -> None:
        seen = await paused(store)
        late = await store.load_run(seen.run_id)
        await store.save_decisions(seen, {"c1": Approve()})
        with pytest.raises(RunBusy):
            await store.save_decisions(late, {"c1": Reject()})
        with pytest.raises(DecisionRefused, match="already decided: c1"):
            await store.save_decisions(await store.load_run(seen.run_id), {"c1": Reject()})
        record = await store.acquire(await store.load_run(seen.run_id), {})
        with pytest.raises(RunBusy):
            await store.save_decisions(await store.load_run(seen.run_id), {})
        await record.release()

    with_store(body, store_url)


def test_a_queued_run_cannot_be_handed_over(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        one = request()
        await store.enqueue(one)
        with pytest.raises(RunBusy):
            await store.save_decisions(await store.load_run(one.run_id), {})
        assert await store.claim(1) == [one]

    with_store(body, any_url)


# --- hand on


def test_a_claim_that_is_handed_on_is_ready_again_after_the_delay(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        one, another = request("1"), request("2")
        await store.enqueue(one)
        await store.claim(1)
        await store.release_for_others(one.run_id, "no agent a here", 3600)
        await store.release_for_others("run_unknown", "why", 0)
        await store.enqueue(another)
        await store.sweep(10)
        assert await store.claim(2) == [another], "the other run has to wait"
        await store.release_for_others(another.run_id, "no agent b here", 0)
        await store.sweep(10)
        assert await store.claim(2) == [another], "its attempts are those of processes that ended"

    with_store(body, any_url)


def test_a_claim_that_could_not_be_handed_on_is_no_longer_held(
    any_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise StoreError("the store is unreachable")

    async def body(store: Store) -> None:
        one = request()
        await store.enqueue(one)
        await store.claim(1)
        with monkeypatch.context() as outage:
            outage.setattr(store._database, "write", fail)
            with pytest.raises(StoreError):
                await store.release_for_others(one.run_id, "no agent a here", 0)
        assert await store.renew([one.run_id]) == {}
        assert [claimed.run_id for claimed in await store.claim(1)] == [one.run_id]

    with_store(body, any_url)


def test_a_run_that_is_handed_on_counts_no_attempt(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await store.enqueue(request())
        state, record = await begin(store, (await store.claim(1))[0])
        await record.release()
        for _ in range(4):
            await store.acquire(await store.load_run(state.run_id), {})
            await store.release_for_others(state.run_id, "no tool t here", 0)
            (info,) = await store.runs(RunQuery(orphaned=True))
            assert (info.status, info.held, info.attempts) == ("running", False, 0)
        assert await store.renew([state.run_id]) == {}

    with_store(body, any_url)


# --- processes


def test_a_process_reports_itself_and_what_it_holds(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await store.enqueue(request("claimed"))
        await store.keep_alive("worker-1", {"version": "1.0", "note": "ü\x00"})
        await store.claim(1)
        await store.start(RunState(agent="one", messages=[Message(role="user", content="go")]), None, None)
        (process,) = await store.processes()
        assert (process.name, process.info) == ("worker-1", {"version": "1.0", "note": "ü\x00"})
        assert (process.is_alive, process.holds) == (True, 2)
        await store.keep_alive("worker-1", {"version": "1.1"})
        (again,) = await store.processes()
        assert (again.id, again.started_at, again.info) == (process.id, process.started_at, {"version": "1.1"})
        assert again.seen_at >= process.seen_at >= process.started_at

    with_store(body, any_url)


def test_a_process_that_closes_its_store_is_no_longer_listed(store_url: str) -> None:
    async def main() -> None:
        store, other = await Store.open(store_url, Path("/")), await Store.open(store_url, Path("/"))
        await store.keep_alive("worker-1", {})
        await other.keep_alive("worker-2", {})
        await store.close()
        assert [process.name for process in await other.processes()] == ["worker-2"]
        await other.close()

    asyncio.run(main())
