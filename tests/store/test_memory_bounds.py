"""A store in memory drops the runs that ended first once ended runs need too much memory, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.engine.context.events import next_event
from framework.store.memory import MemoryStore, ended_bytes
from framework.store.types import OPEN_STATUSES, RunRecord
from framework.types.errors import RunNotFound
from framework.types.events import Warned
from framework.types.messages import Message
from framework.types.report import Status
from framework.types.state import RunRequest, RunState
from tests.support.cases import cases
from tests.support.queues import request

FILES = {"a": b"a" * 30_000, "b": b"b" * 7_000, "c": b"c" * 500}


@dataclass(frozen=True)
class Begun:
    """A run, and what becomes of it."""

    chars: int = 10
    status: Status = "completed"
    """Its last status; `running` never ends."""
    conversation: bool = False
    files: frozenset[str] = frozenset()
    ends_at_once: bool = True
    """Whether it ends before the next one begins; otherwise after all others have begun."""


BEGUN = st.builds(
    Begun,
    chars=st.sampled_from([1, 100, 4_000, 40_000]),
    status=st.sampled_from(["completed", "failed", "cancelled", "stopped", "paused", "running"]),
    conversation=st.booleans(),
    files=st.frozensets(st.sampled_from(sorted(FILES)), max_size=2),
    ends_at_once=st.booleans(),
)


def text(number: int, chars: int) -> str:
    """Return a text that cannot be compressed well."""
    return "".join(chr(33 + (number * 31 + n * n * 7919 + n // 7) % 90) for n in range(chars))


class Bounded:
    """A store with a bound, the runs that ended in it, in order, and those that did not."""

    def __init__(self, keep_bytes: int) -> None:
        self.store, self.keep_bytes = MemoryStore(keep_bytes=keep_bytes), keep_bytes
        self.records: dict[str, RunRecord] = {}
        self.ended: list[str] = []
        self.open: set[str] = set()
        self.turns: set[str] = set()
        self.said: set[str] = set()

    async def begin(self, number: int, run: Begun) -> RunState:
        conversation = f"c{number}" if run.conversation else None
        message = Message(role="user", content=text(number, run.chars))
        state = RunState(agent="one", conversation_id=conversation, messages=[message])
        await self.store.save_media(state.run_id, {name: FILES[name] for name in run.files})
        loaded = await self.store.conversation(conversation) if conversation else None
        self.records[state.run_id] = await self.store.start(state, loaded, None)
        self.open.add(state.run_id)
        if conversation:
            self.turns.add(state.run_id)
        return state

    async def end(self, state: RunState, status: Status) -> None:
        state.status = status
        await self.records[state.run_id].write(state, [next_event(state, Warned, code="x", message="")], last=True)
        if status not in OPEN_STATUSES:
            self.open.discard(state.run_id)
            self.ended.append(state.run_id)
            if state.conversation_id and status in ("completed", "stopped"):
                self.said.add(state.conversation_id)
        await self.check()

    async def check(self) -> None:
        infos = {info.run_id for info in await self.store.runs()}
        stripped = {run_id for run_id in infos & self.turns - self.open if not await self.store.events(run_id)}
        stored = infos - stripped  # a turn's messages stay in its conversation
        kept = [run_id for run_id in self.ended if run_id in stored]
        assert kept == self.ended[len(self.ended) - len(kept) :], "the newest are kept"
        assert stored == {*kept, *self.open}, "open runs are kept"
        assert await self.store._database.read(ended_bytes) <= self.keep_bytes or len(kept) == 1
        assert kept or not self.ended
        for conversation in self.said:
            assert len((await self.store.conversation(conversation)).messages) == 1, "conversations keep their messages"
        for run_id in kept:
            assert (await self.store.load_run(run_id)).status not in OPEN_STATUSES
            assert len(await self.store.events(run_id)) == 1


@cases(20)
@given(runs=st.lists(BEGUN, max_size=20), keep_bytes=st.sampled_from([0, 4_000, 30_000, 100_000, 10**9]))
def test_ended_runs_stay_below_the_bound_and_the_newest_are_kept(runs: list[Begun], keep_bytes: int) -> None:
    async def main() -> None:
        bounded, later = Bounded(keep_bytes), list[tuple[RunState, Begun]]()
        for number, run in enumerate(runs):
            state = await bounded.begin(number, run)
            if not run.ends_at_once:
                later.append((state, run))
            elif run.status != "running":
                await bounded.end(state, run.status)
        for state, run in later:
            if run.status != "running":
                await bounded.end(state, run.status)
        if keep_bytes == 10**9:
            assert len(await bounded.store.runs()) == len(runs)

    asyncio.run(main())


def test_a_dropped_run_is_not_found_and_the_first_drop_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bounded = Bounded(6_000)
        for number in range(6):
            await bounded.end(await bounded.begin(number, Begun(chars=1)), "completed")
        with pytest.raises(RunNotFound):
            await bounded.store.load_run(bounded.ended[0])

    with caplog.at_level(logging.WARNING, "framework.store.memory"):
        asyncio.run(main())
    (warning,) = caplog.messages
    assert warning.startswith("the runs that have ended need more than 0.006 MB: the oldest ones are dropped")


def test_the_files_of_dropped_runs_are_deleted_and_those_of_conversations_are_kept() -> None:
    async def main() -> None:
        bounded = Bounded(20_000)
        await bounded.end(await bounded.begin(0, Begun(files=frozenset("a"))), "completed")
        await bounded.end(await bounded.begin(1, Begun(files=frozenset("c"), conversation=True)), "completed")
        await bounded.end(await bounded.begin(2, Begun(files=frozenset("b"))), "completed")
        assert set(await bounded.store.load_media(FILES)) == {"b", "c"}

    asyncio.run(main())


def test_queued_runs_are_kept_until_they_have_ended() -> None:
    async def main() -> None:
        bounded = Bounded(0)
        waiting: RunRequest = request("0")
        await bounded.store.enqueue(waiting)
        bounded.open.add(waiting.run_id)
        for number in range(3):
            await bounded.end(await bounded.begin(number, Begun()), "completed")

    asyncio.run(main())
