"""An ended run of a store in memory reads the same after it is packed, and needs less memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from framework import Runtime
from framework.store import memory_packing, memory_runs
from framework.store.conversation_lists import ConversationInfo
from framework.store.memory import MemoryStore
from framework.store.protocol import RunInfo, RunQuery
from framework.store.span_rows import encode_spans
from framework.types.errors import RunBusy
from framework.types.file import File
from framework.types.media import TextPart
from framework.types.messages import Message
from framework.types.state import EXPIRED, Approve, Decision, Edit, Reject, RunState
from tests.support.cases import cases
from tests.support.media import png
from tests.support.worlds import Turns, World, project, turns_of

PICTURE = File.from_bytes(png("picture"))
Events = Sequence[Mapping[str, Any]]
Read = tuple[str, Events, Events, str | None, Sequence[RunInfo], Sequence[ConversationInfo]]


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("trusting"), ask=False)


async def read(store: MemoryStore, run_id: str) -> Read:
    later = await store.events(run_id, after=2)
    listed = await store.runs(), await store.conversations()
    # The limits of a live state are those of its agent, which has more fields: compare what is stored of them.
    state = (await store.load_run(run_id)).model_dump_json()
    spans = encode_spans(await store.spans(run_id))
    return state, await store.events(run_id), later, spans, *listed


def said(text: str, **more: Any) -> RunState:
    return RunState(agent="one", messages=[Message(role="user", content=text)], **more)


async def ended(store: MemoryStore, state: RunState) -> RunState:
    """Store a run that completes at once."""
    named = state.conversation_id
    record = await store.begin(state, await store.conversation(named) if named else None, None)
    state.status, state.finish_reason = "completed", "final"
    await record.write(state, last=True)
    return state


async def streamed(root: Path, world: World, store: MemoryStore, conversation: str | None) -> str:
    options: dict[str, Any] = {"tools": world.tools(), "models": {"scripted": world.model()}, "watch": False}
    async with Runtime.open(root, store=store, **options) as runtime:
        for _ in range(2 if conversation else 1):
            async with runtime.stream("0", agent="root", conversation=conversation) as stream:
                assert [event async for event in stream]
        return stream.run_id


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("conversation", [None, "c"])
def test_packing_is_lossless(
    trusting: Path, monkeypatch: pytest.MonkeyPatch, conversation: str | None, compressed: bool
) -> None:
    @cases(8)
    @given(turns=turns_of(2))
    def one(turns: Turns) -> None:
        async def main() -> None:
            store = MemoryStore(keep_spans=True)
            with monkeypatch.context() as patched:
                patched.setattr(memory_runs, "compress_run", lambda *_, **__: None)
                run_id = await streamed(trusting, World(turns), store, conversation)
            record, before = store._runs[run_id], await read(store, run_id)
            assert record.live is not None
            with monkeypatch.context() as patched:
                patched.setattr(memory_packing, "MAX_PACKED_BYTES", 500_000 if compressed else 0)
                record.pack(record.live)
            assert record.packed is not None
            assert not (record.events)
            assert not (record.spans)
            assert await read(store, run_id) == before
            assert before[1][-1]["event"] == "done"
            assert before[3]

        asyncio.run(main())

    one()


def test_decisions_and_data_are_loaded_unchanged() -> None:
    async def main() -> None:
        store = MemoryStore()
        decisions: dict[str, Decision] = {
            "a": Approve(),
            "b": Edit(arguments={"n": 2**70}),
            "c": Reject(reason="no"),
            "d": EXPIRED,
        }
        parts = (TextPart(text="see"), PICTURE.part)
        state = RunState(agent="one", messages=[Message.of_parts("user", parts)], decisions=decisions, data=[1.5, None])
        assert await store.load_run((await ended(store, state)).run_id) == state

    asyncio.run(main())


def test_each_load_of_an_ended_run_returns_its_own_object() -> None:
    async def main() -> None:
        store = MemoryStore()
        state = await ended(store, said("go"))
        (await store.load_run(state.run_id)).output = "changed by its reader"
        assert (await store.load_run(state.run_id)).output == ""

    asyncio.run(main())


def test_turns_share_the_messages_of_their_conversation() -> None:
    async def main() -> None:
        store = MemoryStore()
        for number in range(3):
            history = list((await store.conversation("c")).messages)
            await ended(store, said(f"turn {number}", conversation_id="c", history=history))
        last = await store.load_run((await store.runs())[-1].run_id)
        kept = (await store.conversation("c")).messages
        assert [message.content for message in kept] == ["turn 0", "turn 1", "turn 2"]
        assert [id(message) for message in last.history] == [id(message) for message in kept[:2]]

    asyncio.run(main())


@pytest.mark.parametrize("value", [object(), "\ud800"], ids=["object", "surrogate"])
def test_a_run_that_is_no_json_is_kept_as_it_is(value: object) -> None:
    async def main() -> None:
        store = MemoryStore()
        state = await ended(store, said("go", metadata={"odd": value}))
        assert await store.load_run(state.run_id) is state
        assert [info.status for info in await store.runs()] == ["completed"]

    asyncio.run(main())


def test_a_paused_run_stays_live_and_an_ended_one_cannot_be_taken() -> None:
    async def main() -> None:
        store = MemoryStore()
        state = said("go")
        record = await store.begin(state, None, None)
        state.status = "paused"
        await record.write(state, last=True)
        assert await store.load_run(state.run_id) is state
        record = await store.take(state, {})
        state.status = "cancelled"
        await record.write(state, last=True)
        with pytest.raises(RunBusy, match="has ended: it is cancelled"):
            await store.take(state, {})
        assert await store.count_runs(RunQuery(statuses=["cancelled"])) == 1

    asyncio.run(main())


@pytest.mark.parametrize("words", [10, 5000])
def test_the_estimated_size_of_runs_is_close_to_their_memory(words: int) -> None:
    number = 300

    async def main() -> tuple[int, int]:
        store = MemoryStore()
        text = " ".join(str(n * 7919 % 100_003) for n in range(words))
        await ended(store, said(text))
        gc.collect()
        tracemalloc.start()
        try:
            before, estimated = tracemalloc.get_traced_memory()[0], store._ended.size
            for _ in range(number):
                await ended(store, said(text))
            gc.collect()
            return tracemalloc.get_traced_memory()[0] - before, store._ended.size - estimated
        finally:
            tracemalloc.stop()

    memory, estimated = asyncio.run(main())
    assert 0.5 < memory / estimated < 1.2, (memory / number, estimated / number)
