"""Queued runs for tests: requests, the runs they become, and processes that work through a queue."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType

import sqlalchemy as sa

from framework.store.schema import metadata
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.types.errors import ConversationBusy
from framework.types.messages import Message
from framework.types.report import Status
from framework.types.state import IdempotencyKey, RunRequest, RunState


def request(text: str = "hello", conversation: str | None = None, **more: object) -> RunRequest:
    """Return a request that may wait."""
    message = {"role": "user", "content": text}
    values = {"message": message, "conversation_id": conversation, "queue": True, **more}
    return RunRequest.model_validate(values)


async def begin(
    store: Store, one: RunRequest, limits: Mapping[str, int] = MappingProxyType({})
) -> tuple[RunState, RunRecord]:
    """Begin a claimed run as the next turn of its conversation; raises RunBlocked."""
    conversation = None
    if one.conversation_id is not None:
        conversation = await store.conversation(one.conversation_id, one.tenant, one.user)
    state = one.queued_state()
    state.status, state.agent = "running", "one"
    return state, await store.start(state, conversation, None, limits)


async def end(state: RunState, record: RunRecord, status: Status = "completed") -> None:
    """Answer a run, and end it."""
    state.messages.append(Message(role="assistant", content=f"answer to {state.messages[0].content}"))
    state.status, state.finish_reason = status, "final"
    await record.write(state, last=True)


async def cancel(store: Store, run_id: str) -> None:
    """End a queued run, as `Runtime.cancel` does."""
    state = await store.load_run(run_id)
    record = await store.acquire(state, {})
    state.status, state.finish_reason = "cancelled", "cancelled"
    await record.write(state, last=True)


async def clear(store: Store) -> None:
    """Delete all rows of a database."""
    tables = [table for table in metadata.sorted_tables if table.name != "agentsd_versions"]
    await store._database.write(lambda connection: [connection.execute(sa.delete(table)) for table in tables])


def work_through(url: str, begun: Connection) -> None:
    """Claim, begin and end queued runs until none is left, and send the text of each run that begins."""
    asyncio.run(_work_through(url, begun))


async def _work_through(url: str, begun: Connection) -> None:
    store = await Store.open(url, Path("/"))
    while any(info.status in ("queued", "running") for info in await store.runs()):
        for one in await store.claim(3):
            try:
                state, record = await begin(store, one)
            except ConversationBusy:
                await store.unclaim([one.run_id])
                continue
            begun.send((one.conversation_id, one.message.content))
            await end(state, record)
    await store.close()


def claim_and_die(url: str) -> None:
    """Claim all queued runs, and kill this process."""

    async def main() -> None:
        store = await Store.open(url, Path("/"), lease_seconds=0.2)
        assert await store.claim(10)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


def enqueue_with_keys(url: str, keys: int, ids: Connection) -> None:
    """Enqueue one request per idempotency key, and send the ids of their runs."""

    async def main() -> None:
        store = await Store.open(url, Path("/"))
        for key in range(keys):
            idempotency = IdempotencyKey("ann", str(key), "digest")
            ids.send((key, await store.enqueue(request(str(key), "c"), idempotency=idempotency)))
        await store.close()

    asyncio.run(main())
