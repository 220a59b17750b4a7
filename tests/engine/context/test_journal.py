"""Order of persisted and delivered events while writes are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from framework.engine.context.events import EventHub, Journal, next_event
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.types.budget import BudgetUse
from framework.types.events import Event, Warned
from framework.types.messages import Message
from framework.types.report import SpanRecord
from framework.types.state import RunState
from tests.support.waiting import until

PATIENCE = 20
"""Timeout in seconds of operations that should complete immediately."""


class Slow:
    """A record whose first write waits."""

    cancel_requested = False

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        self.reached.set()
        await self._record.write(state, events, spans, last=last)
        await self.go.wait()

    async def release(self) -> None:
        await self._record.release()


def test_a_scheduled_flush_is_written_even_during_another_write(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record = Slow(await store.start(state, None, None))
        journal = Journal(state, record, EventHub("r"), durable=True)
        saving = asyncio.create_task(journal.save())
        await record.reached.wait()
        state.messages.append(Message(role="assistant", content="paid for"))
        journal.schedule_flush()
        record.go.set()
        await saving

        async def is_flushed() -> bool:
            return len((await store.load_run(state.run_id)).messages) == 2

        await until(is_flushed, "the second message is written")
        await store.close()

    asyncio.run(main())


class Gate:
    """A run's record whose writes wait until `go` is set."""

    cancel_requested = False

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.begun = 0

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        self.begun += 1
        self.reached.set()
        await self.go.wait()

    async def release(self) -> None:
        """Do nothing: no run is held."""


def test_events_are_emitted_after_they_are_persisted() -> None:
    async def main() -> None:
        state, gate, hub = RunState(agent="one"), Gate(), EventHub("r")
        journal = Journal(state, gate, hub, durable=True)
        reading = asyncio.ensure_future(anext(hub.reader()))
        event = next_event(state, Warned, code="x", message="")
        journal.append(event)
        saving = asyncio.create_task(journal.save())
        await gate.reached.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not reading.done()
        gate.go.set()
        await saving
        assert await reading == event

    asyncio.run(main())


def test_a_flush_that_is_due_during_a_write_waits_for_it() -> None:
    async def main() -> None:
        gate = Gate()
        journal = Journal(RunState(agent="one"), gate, EventHub("r"), durable=True)
        journal.schedule_flush()
        saving = asyncio.create_task(journal.save())
        await gate.reached.wait()
        await asyncio.wait([saving], timeout=0.1)
        assert gate.begun == 1, "writes of a run follow each other"
        gate.go.set()
        await saving

    asyncio.run(main())


def test_events_are_numbered_from_one() -> None:
    state = RunState(agent="one")
    assert [next_event(state, Warned, code="x", message="").seq for _ in range(3)] == [1, 2, 3]


def test_a_run_stops_at_its_next_step_when_the_runtime_closes() -> None:
    async def main() -> None:
        journal = Journal(RunState(agent="one"), Gate(), EventHub("r"), durable=True)
        journal.check()
        journal.close()
        with pytest.raises(asyncio.CancelledError):
            journal.check()

    asyncio.run(main())


def test_a_run_whose_last_write_has_begun_does_not_lose_its_lease() -> None:
    async def main() -> None:
        gate = Gate()
        journal = Journal(RunState(agent="one"), gate, EventHub("r"), durable=True)
        ending = asyncio.create_task(journal.end(()))
        await gate.reached.wait()
        journal.mark_lease_lost()
        assert not journal.lease_lost
        gate.go.set()
        await ending

    asyncio.run(main())
