"""The number of runs that wait in a store."""

from __future__ import annotations

import pytest

from framework.store.store import Store
from framework.store.types import Blueprint
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
