"""Readers that do not read: the run neither waits for them nor drops what they will read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from framework import RunSuspended, Runtime, ToolContext, tool
from framework.engine.context.events import RunStream, TextKind, TextOnce
from framework.llm.client import Delta, ModelRequest
from framework.store.memory import MemoryStore
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.events import ContentReceived, Event, RunFinished, Thought, Warned
from framework.types.messages import Message, Reasoning
from framework.types.state import RunState
from tests.support.projects import agent, write

REPORTS = 1000
"""Number of progress reports, each an event."""


class Ending(MemoryStore):
    """A store that signals when a run has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = asyncio.Event()

    def _run_ended(self, connection: sa.Connection, state: RunState) -> None:
        super()._run_ended(connection, state)
        self.has_ended.set()


def talking(root: Path, *, stays: bool = False) -> tuple[dict[str, Any], asyncio.Event]:
    """Return options for an agent whose tool reports progress, and an event set when it has reported."""
    reported = asyncio.Event()

    @tool(risk="low")
    async def talk(context: ToolContext) -> str:
        """Talk."""
        assert context.progress is not None
        for _ in range(REPORTS):
            await context.progress(0.5, "still")
        reported.set()
        if stays:
            await asyncio.Event().wait()
        return "said"

    write(root, {"agents.d/a.yaml": agent("a")})
    return {
        "tools": [talk],
        "models": {"scripted": ScriptedModel(calls(("talk", {})), "done")},
        "watch": False,
    }, reported


def test_a_run_ends_while_its_reader_has_read_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        store = Ending()
        options, _ = talking(tmp_path)
        async with Runtime.open(tmp_path, store=store, **options) as runtime, runtime.stream("go") as stream:
            await store.has_ended.wait()
            stream.cancel()
            received = [event async for event in stream]
            numbers = [event.seq for event in received if event.seq]
            assert len(numbers) > REPORTS
            assert numbers == sorted(set(numbers))
            assert [isinstance(event, RunFinished) for event in received[-2:]] == [False, True]
            assert (await stream.result()).status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("durable", [False, True])
def test_a_runtime_closes_even_if_a_reader_stops_reading(tmp_path: Path, durable: bool) -> None:
    async def main() -> None:
        options, reported = talking(tmp_path, stays=True)
        options["store"] = JsonStore() if durable else None
        async with Runtime.open(tmp_path, grace=0, **options) as runtime, runtime.stream("go") as stream:
            await reported.wait()
            async with asyncio.timeout(20):
                await runtime._close(0)
            if durable:
                with pytest.raises(RunSuspended):
                    await stream.result()
            else:
                assert (await stream.result()).status == "cancelled"

    asyncio.run(main())


# --- one numbered event of each message, and its text once


@pytest.mark.parametrize("reads", [False, True], ids=["late", "at once"])
def test_the_stored_events_contain_the_whole_text_that_was_streamed(tmp_path: Path, reads: bool) -> None:
    async def main() -> None:
        store = JsonStore()
        write(tmp_path, {"agents.d/a.yaml": agent("a")})
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel("all done now")}, "watch": False}
        async with Runtime.open(tmp_path, store=store, **options) as runtime, runtime.stream("go") as stream:
            if not reads:
                await asyncio.wait([stream.end()])
            received = [event async for event in stream]
            pieces = [event for event in received if isinstance(event, ContentReceived)]
            stored = [event for event in await store.events(stream.run_id) if event["event"] == "content"]
        assert "".join(piece.text for piece in pieces) == "all done now"
        assert [piece.seq for piece in pieces] == [0] * len(pieces)
        assert (len(pieces) == 3) == reads, "late, they are merged"
        assert [event["text"] for event in stored] == ["all done now"]
        assert {event["message_id"] for event in stored} == {piece.message_id for piece in pieces}

    asyncio.run(main())


def content(text: str, seq: int = 0, message: str = "m", kind: TextKind = ContentReceived) -> Event:
    return kind(run_id="r", seq=seq, generation=1, message_id=message, text=text)


def void(message: str) -> Warned:
    return Warned(run_id="r", seq=9, generation=1, code="model_retry", message="", message_id=message)


@pytest.mark.parametrize(
    ("received", "delivered"),
    [
        ([content("ab", 1)], ["ab"]),
        ([content("", 1)], [""]),
        ([content("a"), content("b"), content("ab", 1)], ["a", "b"]),
        ([content("a"), content("ab", 1)], ["a", "b"]),
        ([content("abc"), content("ab", 1)], ["abc"]),
        ([content("a"), content("*b", 1)], ["a", "*b"]),
        ([content("a"), content("b", message="n"), content("ab", 1)], ["a", "b", "ab"]),
        ([content("a"), void("m"), content("ab", 1)], ["a", "ab"]),
        ([content("a", kind=Thought), content("a", 1)], ["a", "a"]),
        ([content("a", kind=Thought), content("b"), content("a\nb", 1, kind=Thought)], ["a", "b", "\nb"]),
    ],
)
def test_text_is_delivered_once(received: list[Event], delivered: list[str]) -> None:
    once = TextOnce()
    unseen = [event for each in received if (event := once.unseen(each)) is not None]
    assert [event.text for event in unseen if isinstance(event, (ContentReceived, Thought))] == delivered


def test_thoughts_of_a_streamed_message_arrive_in_deltas_and_once(tmp_path: Path) -> None:
    reasoning = Reasoning(text="let me think")
    asked = Message(role="assistant", content="first", reasoning=reasoning, tool_calls=calls(("echo", {"text": "x"})))
    said = Message(role="assistant", content="done", reasoning=reasoning)

    async def main() -> None:
        store = JsonStore()
        write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy="{allow: [echo]}")})
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(asked, said)}, "watch": False}
        async with Runtime.open(tmp_path, store=store, **options) as runtime, runtime.stream("go") as stream:
            received = [event async for event in stream]
            thoughts = [event for event in received if isinstance(event, Thought)]
            stored = [event for event in await store.events(stream.run_id) if event["event"] == "thinking"]
        assert "".join(event.text for event in thoughts) == "let me think\nfirstlet me think"
        assert [(event.text, event.reasoning_chars) for event in thoughts if event.seq] == [("\nfirst", 1)]
        whole = [(event["text"], event["reasoning_chars"]) for event in stored]
        assert whole == [("let me think\nfirst", 13), ("let me think", 12)]

    asyncio.run(main())


# --- readers other than the caller


class Halting(ScriptedModel):
    """A scripted model that waits in the middle of its answer."""

    def __init__(self, *turns: Turn) -> None:
        super().__init__(*turns)
        self.half, self.go = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in super().stream(request):
            yield delta
            if delta.text == "half":
                self.half.set()
                await self.go.wait()


def test_a_late_reader_gets_the_text_so_far_and_the_events_that_are_not_stored_yet(tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path, {"agents.d/a.yaml": agent("a")})
        model = Halting("half of it")
        async with (
            Runtime.open(tmp_path, models={"scripted": model}, watch=False) as runtime,
            runtime.stream("go") as stream,
        ):
            first = asyncio.create_task(_all(stream))
            await model.half.wait()
            hub = runtime._launcher.hub(stream.run_id)
            late, unread = hub.reader(), hub.reader()
            seen = [await anext(late) for _ in range(2)]
            model.go.set()
            seen += [event async for event in late]
            await first
            assert [event.seq for event in seen] == [1, 0, 0, 0, 2, 3]
            texts = [event.text for event in seen if isinstance(event, ContentReceived)]
            assert texts == ["half", " of", " it", "half of it"]
            assert [event.seq async for event in unread] == [1, 0, 2, 3]
            stored = await runtime.store.events(stream.run_id)
            assert [event["seq"] for event in stored] == [1, 2, 3]

    asyncio.run(main())


def test_a_run_in_memory_without_readers_creates_its_last_event_only(tmp_path: Path) -> None:
    async def main() -> None:
        options, _ = talking(tmp_path)
        async with Runtime.open(tmp_path, **options) as runtime:
            result = await runtime.run("go")
            stored = await runtime.store.events(result.run_id)
        assert [event["event"] for event in stored] == ["done"]
        assert stored[0]["seq"] > REPORTS, "those that were not created are counted"
        assert stored[0]["digest"] == result.digest

    asyncio.run(main())


def test_a_reader_may_wait_for_a_run_and_ends_when_the_runtime_closes(tmp_path: Path) -> None:
    async def main() -> None:
        options, _ = talking(tmp_path)
        async with Runtime.open(tmp_path, **options) as runtime:
            reading = asyncio.ensure_future(anext(runtime._launcher.hub("run_later").reader()))
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await reading
        assert runtime._launcher.hub("run_later").is_closed

    asyncio.run(main())


async def _all(stream: RunStream) -> list[Event]:
    return [event async for event in stream]
