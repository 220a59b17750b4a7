"""Figures of runs that have not ended."""

from __future__ import annotations

from datetime import UTC

import pytest

from framework.store.store import Store
from framework.store.types import Blueprint, RunQuery
from framework.store.usage import GROUPINGS, Period
from framework.types.messages import Message
from framework.types.state import RunRequest, RunState
from tests.support.stores import with_store

SAID = Message(role="user", content="hello")


@pytest.mark.parametrize("claimed", [False, True])
def test_queued_and_paused_runs_are_counted_until_they_continue(any_url: str | None, claimed: bool) -> None:
    async def body(store: Store) -> None:
        assert await store.count_waiting() == {"queued": 0, "paused": 0}
        for _ in range(2):
            await store.enqueue(RunRequest(message=SAID))
        if claimed:
            await store.claim(1)
        state = RunState(agent="one", blueprint="b1", messages=[SAID])
        record = await store.start(state, None, Blueprint("b1", {}))
        assert await store.count_waiting() == {"queued": 2, "paused": 0}
        state.status = "paused"
        await record.write(state, last=True)
        assert await store.count_waiting() == {"queued": 2, "paused": 1}
        resumed = await store.acquire(await store.load_run(state.run_id), {})
        state.status = "running"
        await resumed.write(state)
        assert await store.count_waiting() == {"queued": 2, "paused": 0}

    with_store(body, any_url)


def test_a_run_in_progress_whose_state_contains_any_character_hides_no_others(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        state = RunState(agent="one", blueprint="b1", messages=[SAID], background=["a\x00b \\u0000 \x1f\ufffe"])
        await store.start(state, None, Blueprint("b1", {}))
        assert [info.run_id for info in await store.runs()] == [state.run_id]
        period = Period.of(store.now() - 60, store.now() + 60, "1h", UTC)
        for by in GROUPINGS:
            assert (await store.usage(RunQuery(), by, period)).total.counts.runs == 1

    with_store(body, any_url)
