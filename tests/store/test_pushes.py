"""Receivers of push notifications in a store that processes share."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from framework.store.store import Store
from framework.store.types import Conversation
from framework.types.messages import Message
from framework.types.state import RunState

RUNS = 12


def test_each_state_is_claimed_by_one_process_and_leaves_with_its_run(store_url: str) -> None:
    told: Counter[str] = Counter()

    async def send(store: Store) -> None:
        for push in await store.pushes.claim(RUNS):
            told[push.body] += 1
            await store.pushes.settle(push, None)

    async def main() -> None:
        stores = [await Store.open(store_url, Path("/")) for _ in range(3)]
        store, running = stores[0], []
        for number in range(RUNS):
            name = f"c{number}"
            state = RunState(agent="one", messages=[Message(role="user", content="go")], conversation_id=name)
            running.append((await store.start(state, Conversation(name), None), state))
            await store.pushes.save(state.run_id, "an\x00id", name)
        assert await store.pushes.claim(RUNS) == (), "none has paused or ended"
        for record, state in running:
            state.messages.append(Message(role="assistant", content="done"))
            state.status, state.finish_reason, state.output = "completed", "final", "done"
            await record.write(state, last=True)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                for one in stores:
                    group.create_task(send(one))
        assert told == Counter(f"c{number}" for number in range(RUNS))
        assert await store.pushes.list(running[1][1].run_id) == {"an\ufffdid": "c1"}
        await store.delete_conversation("c1")
        assert await store.pushes.list(running[1][1].run_id) == {}
        for one in stores:
            await one.close()

    asyncio.run(main())
