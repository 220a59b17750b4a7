"""A reader that does not read: the run waits for it, but its end does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import RunSuspended, Runtime, ToolContext, tool
from framework.engine.context.stream import CHANNEL_CAPACITY
from framework.store.memory import MemoryStore
from framework.testing import JsonStore, ScriptedModel, calls
from framework.types.events import RunFinished
from framework.types.state import RunState
from tests.support.projects import agent, write


class Ending(MemoryStore):
    """A store that signals when a run has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = asyncio.Event()

    def record_end(self, state: RunState) -> None:
        super().record_end(state)
        self.has_ended.set()


def talking(root: Path, times: int) -> tuple[dict[str, Any], asyncio.Event]:
    """Return options for an agent whose tool reports progress `times` times, and an event set when it has finished."""
    finished = asyncio.Event()

    @tool(risk="low")
    async def talk(context: ToolContext) -> str:
        """Talk."""
        assert context.progress is not None
        for _ in range(times):
            await context.progress(0.5, "still")
        finished.set()
        return "said"

    write(root, {"agents.d/a.yaml": agent("a")})
    return {
        "tools": [talk],
        "models": {"scripted": ScriptedModel(calls(("talk", {})), "done")},
        "watch": False,
    }, finished


def test_a_run_cancelled_under_a_slow_reader_still_ends(tmp_path: Path) -> None:
    """The reader has read nothing, and the channel is full when the run is cancelled."""
    others = 4  # route, the call's beginning and end, a piece of the answer

    async def main() -> None:
        store = Ending()
        options, _ = talking(tmp_path, CHANNEL_CAPACITY - others)
        async with Runtime.open(tmp_path, store=store, **options) as runtime, runtime.stream("go") as stream:
            await store.has_ended.wait()
            stream.cancel()
            received = [event async for event in stream]
            assert len(received) == CHANNEL_CAPACITY + 1, "it was full"
            assert [isinstance(event, RunFinished) for event in received[-2:]] == [False, True]
            assert (await stream.result()).status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("durable", [False, True])
def test_a_runtime_closes_even_if_a_reader_stops_reading(tmp_path: Path, durable: bool) -> None:
    async def main() -> None:
        options, finished = talking(tmp_path, CHANNEL_CAPACITY + 100)
        store = JsonStore() if durable else None
        options["store"], options["grace"] = store, 0
        async with Runtime.open(tmp_path, **options) as runtime, runtime.stream("go") as stream:
            if durable:
                await finished.wait()  # its events are persisted first, and then wait for the reader
            else:
                while len(stream._channel._events) < CHANNEL_CAPACITY:  # noqa: ASYNC110 - nothing signals it
                    await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await runtime._close(0)
            if durable:
                with pytest.raises(RunSuspended):
                    await stream.result()
            else:
                assert (await stream.result()).status == "cancelled"

    asyncio.run(main())
