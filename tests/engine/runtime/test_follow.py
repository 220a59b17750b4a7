"""Followers of a run get each numbered event once and the whole text, wherever the run is, and whenever they join."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from framework import Approve, Reject, RequestError, RunNotFound, RunSuspended, Runtime, StoreError, events, tool
from framework.llm.client import Delta, ModelRequest
from framework.store.memory import MemoryStore
from framework.store.types import RunRecord
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.messages import Message, Reasoning
from framework.types.state import RunState
from tests.support.cases import FACTOR
from tests.support.submitted_runs import PATIENCE, Gate, opened, project, shown_text

TEXT = "a b c d e f"


@tool(risk="low")
async def look() -> str:
    """Look around."""
    return "nothing"


def script(request: ModelRequest) -> Turn:
    """Look around twice, then answer."""
    done = sum(message.role == "assistant" for message in request.messages)
    if done < 2:
        thought = Reasoning(text="what to do")
        return Message(
            role="assistant",
            content="let me look",
            reasoning=thought,
            tool_calls=calls(("look", {}), prefix=f"c{done}"),
        )
    return Message(role="assistant", content=TEXT, reasoning=Reasoning(text="that is all"))


async def numbered(runtime: Runtime, run_id: str) -> list[events.Event]:
    """Return all stored events of a run that has ended."""
    return [events.read_event(event) for event in await runtime.store.events(run_id)]


def test_events_of_a_run_are_followed_from_its_beginning(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), local_url, ScriptedModel(TEXT)) as runtime:
            submitted = await runtime.submit("hi", user="ann")
            seen = [event async for event in runtime.follow(submitted.run_id, user="ann")]
            assert [event for event in seen if event.seq] == await numbered(runtime, submitted.run_id)
            assert isinstance(seen[-1], events.RunFinished)
            *deltas, whole = [event.text for event in seen if isinstance(event, events.ContentReceived)]
            assert whole == TEXT
            assert TEXT.startswith("".join(deltas)), "how many deltas come before the whole text depends on the load"
            again = [event async for event in runtime.follow(submitted.run_id, user="ann")]
            assert again == await numbered(runtime, submitted.run_id)
            assert [event async for event in runtime.follow(submitted.run_id, again[-1].seq, user="ann")] == []

    asyncio.run(main())


@pytest.mark.parametrize(("user", "tenant"), [(None, None), ("bob", None), ("ann", "t")])
def test_only_the_owner_can_follow(tmp_path: Path, user: str | None, tenant: str | None) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), None, ScriptedModel(TEXT)) as runtime:
            submitted = await runtime.submit("hi", user="ann")
            for run_id in (submitted.run_id, "run_unheard_of"):
                with pytest.raises(RunNotFound):
                    await anext(runtime.follow(run_id, user=user, tenant=tenant))

    asyncio.run(main())


class Halting(ScriptedModel):
    """A model that stops in the middle of its texts until the test continues."""

    def __init__(self, *turns: Turn) -> None:
        super().__init__(*turns)
        self.half, self.rest = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in super().stream(request):
            yield delta
            if delta.text == " c":
                self.half.set()
                await self.rest.wait()


def test_a_late_follower_gets_the_text_so_far(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        model = Halting(TEXT)
        async with opened(project(tmp_path), local_url, model) as runtime:
            submitted = await runtime.submit("hi")
            await model.half.wait()
            async with aclosing(runtime.follow(submitted.run_id)) as following:
                seen = [await anext(following), await anext(following)]
                (delta,) = [event for event in seen if isinstance(event, events.ContentReceived)]
                assert (delta.seq, delta.text) == (0, "a b c")
                model.rest.set()
                seen += [event async for event in following]
            assert list(shown_text([seen]).values()) == [TEXT]

    asyncio.run(main())


async def read_with_breaks(
    runtime: Runtime, run_id: str, leaves: Sequence[int], turns: int
) -> list[list[events.Event]]:
    """Follow a run; leave after each number of events, and continue after the last numbered one."""
    segments: list[list[events.Event]] = []
    after = 0
    for count in (*leaves, 1_000_000):
        seen: list[events.Event] = []
        segments.append(seen)
        async with aclosing(runtime.follow(run_id, after)) as following:
            async for number, event in enumerated(following):
                seen.append(event)
                after = event.seq or after
                if number == count:
                    break
        for _ in range(turns):
            await asyncio.sleep(0)
    return segments


async def enumerated(following: AsyncIterator[events.Event]) -> AsyncIterator[tuple[int, events.Event]]:
    number = 0
    async for event in following:
        number += 1
        yield number, event


def test_a_reader_may_leave_at_any_event_and_continue(tmp_path: Path, local_url: str | None) -> None:
    """It gets each numbered event once and the whole text, and the run ends the same."""
    random = Random(7)

    async def one(runtime: Runtime, case: int) -> None:
        leaves = [1 + case % 40, *random.choices(range(1, 12), k=random.randrange(4))]
        submitted = await runtime.submit("go")
        segments = await read_with_breaks(runtime, submitted.run_id, leaves, random.randrange(6))
        seen = [event for segment in segments for event in segment if event.seq]
        assert seen == await numbered(runtime, submitted.run_id), leaves
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        assert list(shown_text(segments).values()) == [TEXT]
        result = await runtime.result(submitted.run_id)
        assert (result.status, result.output, len(result.tool_calls)) == ("completed", TEXT, 2)

    async def main() -> None:
        async with opened(project(tmp_path), local_url, ScriptedModel(script=script), tools=[look]) as runtime:
            for first in range(0, 40 * FACTOR, 10):
                async with asyncio.TaskGroup() as group:
                    for case in range(first, first + 10):
                        group.create_task(one(runtime, case))

    asyncio.run(main())


def test_ten_followers_see_the_same(tmp_path: Path, local_url: str | None) -> None:
    async def follow_all(runtime: Runtime, run_id: str, turns: int) -> list[events.Event]:
        seen = []
        async for event in runtime.follow(run_id):
            seen.append(event)
            for _ in range(turns):  # each at its own pace
                await asyncio.sleep(0)
        return seen

    async def main() -> None:
        async with opened(project(tmp_path), local_url, ScriptedModel(script=script), tools=[look]) as runtime:
            submitted = await runtime.submit("go")
            following = [asyncio.create_task(follow_all(runtime, submitted.run_id, turns)) for turns in range(10)]
            for one in following:
                seen = await one
                assert [event for event in seen if event.seq] == await numbered(runtime, submitted.run_id)
                assert list(shown_text([seen]).values()) == [TEXT]

    asyncio.run(main())


def test_a_follower_that_reads_nothing_does_not_hold_the_run(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        long = "word " * 5000
        async with opened(project(tmp_path), local_url, ScriptedModel(long)) as runtime:
            submitted = await runtime.submit("go")
            async with aclosing(runtime.follow(submitted.run_id)) as following:
                seen = [await anext(following)]
                assert (await runtime.result(submitted.run_id)).output == long
                seen += [event async for event in following]
            assert len(seen) < 20  # deltas that were not read are merged
            assert list(shown_text([seen]).values()) == [long]

    asyncio.run(main())


@pytest.mark.parametrize("listening", [True, False])
def test_runs_that_were_not_submitted_can_be_followed(
    tmp_path: Path, local_url: str | None, *, listening: bool
) -> None:
    async def main() -> None:
        gate, model = Gate(), ScriptedModel(calls(("hold", {})), TEXT)
        async with opened(project(tmp_path), local_url, model, tools=gate.tools()) as runtime:

            async def read() -> None:
                async with runtime.stream("go") as stream:
                    async for _ in stream:
                        pass

            running = asyncio.create_task(read() if listening else _drop(runtime.run("go")))
            await gate.began.wait()
            (info,) = await runtime.store.runs()
            following = asyncio.create_task(_collect(runtime.follow(info.run_id)))
            await asyncio.sleep(0)
            gate.opened.set()
            seen = await following
            await running
            assert list(shown_text([seen]).values()) == [TEXT]
            assert [type(event) for event in seen].count(events.RunFinished) == 1

    asyncio.run(main())


async def _drop(result: Awaitable[object]) -> None:
    await result


def test_a_follower_ends_at_a_pause_or_waits_through_it(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        model, gate = ScriptedModel(calls(("pay", {})), calls(("pay", {}), prefix="d"), "done"), Gate()
        async with opened(project(tmp_path), local_url, model, tools=gate.tools()) as runtime:
            submitted = await runtime.submit("pay twice")
            through = asyncio.create_task(_collect(runtime.follow(submitted.run_id, through_pauses=True)))
            after, segments = 0, []
            for _ in range(2):
                segment = await _collect(runtime.follow(submitted.run_id, after))
                segments.append(segment)
                assert isinstance(segment[-1], events.RunPaused)
                after = segment[-1].seq
                assert await _collect(runtime.follow(submitted.run_id, after)) == []
                result = await runtime.result(submitted.run_id)
                assert result.status == "paused"
                await runtime.decide(submitted.run_id, {result.pending[0].id: Approve()})
            segments.append(await _collect(runtime.follow(submitted.run_id, after)))
            assert (await runtime.result(submitted.run_id)).output == "done"
            everything = [event for segment in segments for event in segment if event.seq]
            assert everything == await numbered(runtime, submitted.run_id)
            assert [event for event in await through if event.seq] == everything
            assert gate.paid == 2

    asyncio.run(main())


async def _collect(following: AsyncIterator[events.Event]) -> list[events.Event]:
    return [event async for event in following]


def test_a_decision_takes_effect_even_if_its_caller_leaves(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        model, gate = ScriptedModel(calls(("pay", {})), "done"), Gate()
        async with opened(project(tmp_path), local_url, model, tools=gate.tools()) as runtime:
            paused = await runtime.run("pay")
            deciding = asyncio.create_task(runtime.decide(paused.run_id, {paused.pending[0].id: Approve()}))
            await asyncio.sleep(0)
            deciding.cancel()
            await asyncio.wait([deciding])
            seen = await _collect(runtime.follow(paused.run_id, through_pauses=True))
            assert isinstance(seen[-1], events.RunFinished)
            assert (seen[-1].status, gate.paid) == ("completed", 1)
            with pytest.raises(RequestError, match="no decision is pending"):
                await runtime.decide(paused.run_id, {paused.pending[0].id: Reject()})

    asyncio.run(main())


def test_a_run_whose_end_was_read_is_not_in_progress_any_more(tmp_path: Path, local_url: str | None) -> None:
    """Readers of the store may know of an end or a pause before the process that wrote it has noticed."""

    async def keep_busy() -> None:
        while True:
            time.sleep(0.001)  # noqa: ASYNC251 - a turn of the event loop takes longer than a read in a thread
            await asyncio.sleep(0)

    async def main() -> None:
        script: list[Turn] = [calls(("pay", {})), "done"]
        model, gate = ScriptedModel(*script * 5), Gate()
        async with opened(project(tmp_path), local_url, model, tools=gate.tools()) as runtime:
            busy = asyncio.create_task(keep_busy())
            for _ in range(5):
                submitted = await runtime.submit("pay")
                (*_, paused) = await _collect(runtime.follow(submitted.run_id))
                (question,) = await runtime.pending(submitted.run_id)
                await runtime.decide(submitted.run_id, {question.id: Approve()})
                (*_, ended) = await _collect(runtime.follow(submitted.run_id, paused.seq))
                assert isinstance(ended, events.RunFinished)
                with pytest.raises(RequestError, match="completed: no decision is pending"):
                    await runtime.decide(submitted.run_id, {question.id: Reject()})
            busy.cancel()

    asyncio.run(main())


def test_following_ends_when_the_runtime_closes(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        gate = Gate()
        root, model = project(tmp_path), ScriptedModel(script=lambda _: calls(("hold", {})))
        async with opened(root, local_url, model, tools=gate.tools(), grace=0) as runtime:
            running = await runtime.submit("hold", conversation="c")
            waiting = await runtime.submit("next", conversation="c", queue=True)
            await gate.began.wait()
            followers = [
                asyncio.create_task(_collect(runtime.follow(one.run_id, through_pauses=through)))
                for one in (running, waiting)
                for through in (False, True)
            ]
            results = [asyncio.create_task(runtime.result(one.run_id)) for one in (running, waiting)]
            await asyncio.sleep(0)
        seen = [await one for one in followers]
        ends = [[type(event).__name__ for event in one][-1:] for one in seen]
        await asyncio.wait(results)
        outcomes = [one.exception() for one in results]
        if local_url is None:  # runs in memory are cancelled, because they could not be resumed
            assert ends[:2] == [["RunFinished"]] * 2
        else:
            assert [type(event) for one in seen for event in one if isinstance(event, events.RunFinished)] == []
            assert isinstance(outcomes[0], RunSuspended)
        assert isinstance(outcomes[1], RunSuspended)

    asyncio.run(main())


def test_a_run_of_another_process_is_followed_by_polling(tmp_path: Path, file_url: str) -> None:
    """Another runtime stands for the process. The run goes back and forth between the two."""

    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        model = ScriptedModel(calls(("hold", {})), calls(("pay", {}), prefix="d"), TEXT)
        async with (
            opened(root, file_url, model, tools=gate.tools()) as here,
            opened(root, file_url, model, tools=gate.tools()) as there,
        ):
            submitted = await there.submit("go")
            await gate.began.wait()
            following = asyncio.create_task(_collect(here.follow(submitted.run_id, through_pauses=True)))
            gate.opened.set()
            result = await here.result(submitted.run_id)
            assert result.status == "paused"
            await here.decide(submitted.run_id, {result.pending[0].id: Approve()})
            seen = await following
            assert [event for event in seen if event.seq] == await numbered(here, submitted.run_id)
            assert (await there.result(submitted.run_id)).output == TEXT

    asyncio.run(main())


class Delayed(JsonStore):
    """A store that reads events late."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_read = asyncio.Event(), asyncio.Event()

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        self.asked.set()
        await self.may_read.wait()
        return await super().events(run_id, after)


def test_deltas_do_not_follow_the_whole_text(tmp_path: Path) -> None:
    """A message ends between the moment in which the reader joins, and the one in which it has read the store."""

    async def main() -> None:
        call = Message(role="assistant", content="x b c d", tool_calls=calls(("hold", {})))
        gate, store, model = Gate(), Delayed(), Halting(call, TEXT)
        options: dict[str, Any] = {"models": {"scripted": model}, "tools": gate.tools(), "store": store}
        async with asyncio.timeout(PATIENCE), Runtime.open(project(tmp_path), watch=False, **options) as runtime:
            submitted = await runtime.submit("hi")
            await model.half.wait()
            while (await store.load_run(submitted.run_id)).seq < 1:  # noqa: ASYNC110 - only the store shows it
                await asyncio.sleep(0)
            following = asyncio.create_task(_collect(runtime.follow(submitted.run_id)))
            await store.asked.wait()
            model.rest.set()
            await gate.began.wait()
            store.may_read.set()
            gate.opened.set()
            seen = await following
        texts = [event for event in seen if isinstance(event, events.ContentReceived | events.Thought)]
        assert (texts[0].seq > 0, texts[0].text) == (True, "x b c d")
        assert all(event.message_id != texts[0].message_id for event in texts[1:])

    asyncio.run(main())


class Lagging(JsonStore):
    """A store whose write of a thought returns late, so that its events are stored before they are emitted."""

    def __init__(self) -> None:
        super().__init__()
        self.stored, self.may_return = asyncio.Event(), asyncio.Event()

    async def start(self, *arguments: Any) -> RunRecord:
        return LaggingRecord(await super().start(*arguments), self)


class LaggingRecord:
    cancel_requested = False

    def __init__(self, record: RunRecord, store: Lagging) -> None:
        self._record, self._store = record, store

    async def write(self, *arguments: Any, **options: Any) -> None:
        await self._record.write(*arguments, **options)
        if any(isinstance(event, events.Thought) for event in arguments[1]):
            self._store.stored.set()
        if self._store.stored.is_set():
            await self._store.may_return.wait()

    async def release(self) -> None:
        await self._record.release()


def test_a_reader_that_is_ahead_of_the_run_gets_no_deltas_of_texts_that_it_has(tmp_path: Path) -> None:
    """It has read the whole text from the store, and returns before the run has emitted it."""

    async def main() -> None:
        call = Message(role="assistant", content="x b c d", tool_calls=calls(("hold", {})))
        gate, store, model = Gate(), Lagging(), ScriptedModel(call, TEXT)
        options: dict[str, Any] = {"models": {"scripted": model}, "tools": gate.tools(), "store": store}
        async with asyncio.timeout(PATIENCE), Runtime.open(project(tmp_path), watch=False, **options) as runtime:
            submitted = await runtime.submit("hi")
            await store.stored.wait()
            (thought,) = [one for one in await numbered(runtime, submitted.run_id) if isinstance(one, events.Thought)]
            following = asyncio.create_task(_collect(runtime.follow(submitted.run_id, thought.seq)))
            for _ in range(10):
                await asyncio.sleep(0)
            store.may_return.set()
            gate.opened.set()
            seen = await following
        texts = [event for event in seen if isinstance(event, events.ContentReceived | events.Thought)]
        assert texts
        assert all(event.message_id != thought.message_id for event in texts)

    asyncio.run(main())


class SlowLoads(JsonStore):
    """A store whose second load of a run returns late."""

    def __init__(self) -> None:
        super().__init__()
        self.loads, self.loaded, self.may_return = 0, asyncio.Event(), asyncio.Event()

    async def load_run(self, run_id: str) -> RunState:
        state = await super().load_run(run_id)
        self.loads += 1
        if self.loads == 2:
            self.loaded.set()
            await self.may_return.wait()
        return state


def test_events_emitted_while_the_reader_joins_are_not_missing(tmp_path: Path) -> None:
    """The run executes a long call afterwards, so that no later event shows the gap."""

    async def main() -> None:
        first, second, store = Gate(), Gate(), SlowLoads()
        model = ScriptedModel(calls(("hold", {})), calls(("pause", {}), prefix="d"), TEXT)

        @tool(risk="low")
        async def pause() -> str:
            """Wait for the second gate."""
            second.began.set()
            await second.opened.wait()
            return "held"

        options: dict[str, Any] = {"models": {"scripted": model}, "tools": [*first.tools(), pause], "store": store}
        async with asyncio.timeout(PATIENCE), Runtime.open(project(tmp_path), watch=False, **options) as runtime:
            submitted = await runtime.submit("hi")
            await first.began.wait()
            after = (await store.load_run(submitted.run_id)).seq
            async with aclosing(runtime.follow(submitted.run_id, after)) as following:
                earliest = asyncio.ensure_future(anext(following))
                await store.loaded.wait()
                first.opened.set()
                await second.began.wait()
                store.may_return.set()
                assert (await earliest).seq == after + 1
                second.opened.set()
                rest = await _collect(following)
            assert [event.seq for event in rest if event.seq] == list(range(after + 2, rest[-1].seq + 1))

    asyncio.run(main())


@pytest.mark.parametrize("after", [1, 10**9])
def test_a_number_beyond_the_last_event_is_the_last_one(tmp_path: Path, local_url: str | None, after: int) -> None:
    async def main() -> None:
        model = Halting(TEXT)
        async with opened(project(tmp_path), local_url, model) as runtime:
            submitted = await runtime.submit("hi")
            waiting = asyncio.create_task(_collect(runtime.follow(submitted.run_id, after)))
            await model.half.wait()
            async with aclosing(runtime.follow(submitted.run_id, after)) as running:
                await anext(running)  # it has joined, so that the run cannot end before
                model.rest.set()
                for seen in (await _collect(running), await waiting):
                    assert isinstance(seen[-1], events.RunFinished)

    asyncio.run(main())


class Failing(MemoryStore):
    """A store that becomes unreachable."""

    fails = False

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        if self.fails:
            raise StoreError("the database is unreachable")
        return await super().events(run_id, after)


def test_a_failing_store_ends_following_with_its_error(tmp_path: Path) -> None:
    async def main() -> None:
        model, gate, store = ScriptedModel(calls(("pay", {})), "done"), Gate(), Failing()
        options: dict[str, Any] = {"models": {"scripted": model}, "tools": gate.tools(), "store": store}
        async with Runtime.open(project(tmp_path), watch=False, **options) as runtime:
            paused = await runtime.run("pay")
            store.fails = True
            with pytest.raises(StoreError, match="unreachable"):
                await _collect(runtime.follow(paused.run_id, through_pauses=True))
            store.fails = False  # a reader that returns gets everything
            after = (await _collect(runtime.follow(paused.run_id)))[-1].seq
            await runtime.decide(paused.run_id, {paused.pending[0].id: Approve()})
            assert isinstance((await _collect(runtime.follow(paused.run_id, after)))[-1], events.RunFinished)

    asyncio.run(main())


def test_readers_that_stall_share_the_events_of_an_ended_run(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), file_url, ScriptedModel("long " * 40_000)) as runtime:
            run_id = (await runtime.run("go")).run_id
            readers = [runtime.follow(run_id) for _ in range(20)]
            await anext(readers[0])
            tracemalloc.start()
            try:
                for reader in readers[1:]:
                    await anext(reader)
                added, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert added < 3_000_000, "each reader would hold 400 kB"
            for reader in readers:
                await reader.aclose()

    asyncio.run(main())
