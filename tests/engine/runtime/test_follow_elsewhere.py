"""Runs of another process are followed like those of this one: their events at once, and their texts as deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.scale_demo.postgres import Server, new_database, server
from framework import Runtime, events
from framework.engine.runtime import follow
from framework.engine.runtime.background import EmbeddedSource
from framework.store import processes as signals
from framework.store.store import Store
from framework.store.types import MISSED, Signal
from framework.testing import ScriptedModel, calls
from tests.support.distant_runs import PATIENCE, Dictated, Worker, worker
from tests.support.pgbouncer import pooled
from tests.support.signals import cut_signals
from tests.support.submitted_runs import Gate, opened, project, shown_text
from tests.support.waiting import until, until_status

TEXT = "one two three four five six seven"


@pytest.fixture(scope="module")
def database(postgres: str) -> str:
    """URL of a database that the tests of this module share."""
    return new_database(postgres)


class Counting(Store):
    """A store that counts how often events are read."""

    reads = 0

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        self.reads += 1
        return await super().events(run_id, after)


class Silent(Store):
    """A store of a process that hears of no followers in time, and tells nobody of its runs."""

    def is_followed(self, run_id: str) -> bool:
        return False

    async def signal(self, *signals: Signal) -> None:
        """Send nothing."""


@asynccontextmanager
async def following(root: Path, url: str) -> AsyncIterator[tuple[Runtime, Counting]]:
    """Open a runtime that hears the signals of others, and executes no run."""
    store = await Counting.open(url, root)
    assert isinstance(store, Counting)
    try:
        async with (
            asyncio.timeout(PATIENCE),
            Runtime.open(
                root, models={"scripted": ScriptedModel("x")}, store=store, work=EmbeddedSource(0), watch=False
            ) as runtime,
        ):
            hearing = asyncio.Event()
            await store.listen(lambda signal: hearing.set() if signal == MISSED else None)
            await hearing.wait()
            yield runtime, store
    finally:
        await store.close()


async def read_until(following: AsyncIterator[events.Event], text: str) -> list[events.Event]:
    """Read events until the deltas of the answer are a text."""
    seen: list[events.Event] = []
    answer = ""
    while answer != text:
        event = await anext(following)
        seen.append(event)
        if isinstance(event, events.ContentReceived) and event.message_id == "msg.2":
            answer += event.text
    return seen


async def rest(following: AsyncIterator[events.Event]) -> list[events.Event]:
    return [event async for event in following]


def check(seen: Sequence[events.Event], text: str = TEXT) -> None:
    """Check that each event was delivered once, and the text as a client shows it."""
    numbers = [event.seq for event in seen if event.seq]
    assert numbers == list(range(1, len(numbers) + 1))
    assert isinstance(seen[-1], events.RunFinished)
    assert list(shown_text([seen]).values()) == [text]


def test_texts_arrive_while_they_are_written(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second follower of the process gets the text so far, and no follower reads the store for itself."""
    monkeypatch.setattr(follow, "LOOK_SECONDS", 20)
    root = project(tmp_path)

    async def main(elsewhere: Worker) -> None:
        async with following(root, database) as (runtime, store):
            run_id = await elsewhere.submit()
            result = asyncio.create_task(runtime.result(run_id))
            async with aclosing(runtime.follow(run_id)) as first:
                elsewhere.write(1)
                seen = await read_until(first, "one")
                elsewhere.write(2)
                seen += await read_until(first, " two three")
                others = [runtime.follow(run_id) for _ in range(20)]
                begun = [await read_until(one, "one two three") for one in others]
                assert all(isinstance(one[-1], events.ContentReceived) and not one[-1].seq for one in begun)
                before = store.reads
                elsewhere.write()
                check(seen + await rest(first))
                async with asyncio.TaskGroup() as group:
                    ends = [group.create_task(rest(one)) for one in others]
                for one, end in zip(begun, ends, strict=True):
                    check(one + end.result())
                new = seen[-1].seq or len(await store.events(run_id))
                assert store.reads - before <= new + 3, "one read per signal, not per follower"
            assert (await result).output == TEXT

    with worker(database, root, TEXT) as elsewhere:
        asyncio.run(main(elsewhere))


def test_nothing_is_sent_of_runs_that_nobody_follows(database: str, tmp_path: Path) -> None:
    root = project(tmp_path)

    async def main(elsewhere: Worker) -> None:
        async with following(root, database) as (runtime, store):
            heard: list[Signal] = []
            await store.listen(heard.append)
            run_id = await elsewhere.submit()
            elsewhere.write()
            await until_status(store, run_id, "completed")
            await store.signal(Signal("ready"))
            await until(lambda: any(signal.kind == "ready" and not signal.run_id for signal in heard), "it was heard")
            assert [signal for signal in heard if signal.run_id] == []
            check(await rest(runtime.follow(run_id)))

    with worker(database, root, TEXT) as elsewhere:
        asyncio.run(main(elsewhere))


def test_texts_are_sent_as_long_as_somebody_listens(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "FOLLOWED_SECONDS", 0.5)
    root, gate, model = project(tmp_path), Gate(), Dictated(TEXT)
    gate.opened.set()

    async def main() -> None:
        heard: list[Signal] = []
        heard_there: list[Signal] = []
        async with (
            following(root, database) as (_, store),
            opened(root, database, model, tools=gate.tools()) as elsewhere,
        ):
            await store.listen(heard.append)
            await elsewhere.store.listen(heard_there.append)
            run_id = (await elsewhere.submit("go")).run_id
            model.allowed.release()
            while not any(signal.kind == "deltas" and "one" in signal.body for signal in heard):
                await store.signal(Signal("listen", run_id))
                await asyncio.sleep(0.05)
            await store.signal(Signal("ready", "last"))
            await until(lambda: Signal("ready", "last") in heard_there, "the last signal was heard")
            await until(lambda: not elsewhere.store.is_followed(run_id), "nobody follows the run")
            await store.signal(Signal("ready", "silence"))
            for _ in range(10):
                model.allowed.release()
            assert (await elsewhere.result(run_id)).output == TEXT
            await store.signal(Signal("ready", "end"))
            await until(lambda: Signal("ready", "end") in heard, "the end was heard")
            assert heard[-1].run_id == "end"
            assert heard[-2].run_id == "silence"

    asyncio.run(main())


def test_a_follower_whose_connection_is_cut_misses_nothing(database: str, tmp_path: Path) -> None:
    root = project(tmp_path)

    async def main(elsewhere: Worker) -> None:
        async with following(root, database) as (runtime, _):
            run_id = await elsewhere.submit()
            async with aclosing(runtime.follow(run_id)) as followed:
                elsewhere.write(2)
                seen = await read_until(followed, "one two")
                cut_signals(database, 2)
                elsewhere.write(3)
                seen += await read_until(followed, " three four five")
                elsewhere.write()
                check(seen + await rest(followed))

    with worker(database, root, TEXT) as elsewhere:
        asyncio.run(main(elsewhere))


def test_a_restart_of_the_server_delays_a_follower(tmp_path: Path) -> None:
    async def main(running: Server) -> None:
        root, gate = project(tmp_path), Gate()
        model = ScriptedModel(calls(("hold", {})), TEXT)
        async with (
            opened(root, running.url, model, tools=gate.tools(), lease=60) as elsewhere,
            following(root, running.url) as (runtime, store),
        ):
            run_id = (await elsewhere.submit("go")).run_id
            followed = asyncio.create_task(rest(runtime.follow(run_id)))
            await gate.began.wait()
            await asyncio.to_thread(running.stop)
            gate.opened.set()
            await asyncio.to_thread(running.start)
            check(await followed)
            await until(lambda: store.hears, "the store hears again")

    try:
        with server() as running:
            asyncio.run(main(running))
    except LookupError as missing:
        pytest.skip(str(missing))


def test_a_follower_behind_a_pooler_polls(database: str, tmp_path: Path) -> None:
    root = project(tmp_path)

    async def main(url: str, elsewhere: Worker) -> None:
        async with opened(root, url, ScriptedModel("x")) as runtime:
            run_id = await elsewhere.submit()
            followed = asyncio.create_task(rest(runtime.follow(run_id)))
            elsewhere.write()
            check(await followed)
            assert (await runtime.result(run_id)).output == TEXT

    try:
        with pooled(database) as url, worker(database, root, TEXT) as elsewhere:
            asyncio.run(main(url, elsewhere))
    except LookupError as missing:
        pytest.skip(str(missing))


def test_a_run_that_ends_before_its_process_hears_of_the_follower_is_found(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LOOK_SECONDS", 3600)
    root, gate = project(tmp_path), Gate()
    model = ScriptedModel(calls(("hold", {})), "first", TEXT)

    async def main() -> None:
        store = await Silent.open(database, root)
        models = {"scripted": model}
        async with (
            Runtime.open(root, store=store, models=models, tools=gate.tools(), watch=False) as elsewhere,
            following(root, database) as (runtime, _),
        ):
            await elsewhere.submit("go", conversation="c")
            await gate.began.wait()
            run_id = (await elsewhere.submit("go on", conversation="c", queue=True)).run_id
            result = asyncio.create_task(runtime.result(run_id))
            followed = asyncio.create_task(rest(runtime.follow(run_id)))
            await until(lambda: store.hears, "the store hears")
            gate.opened.set()
            check(await followed)
            assert (await result).output == TEXT
        await store.close()

    asyncio.run(main())


def test_a_text_of_a_killed_process_is_not_continued_with_another(database: str, tmp_path: Path) -> None:
    """The run is resumed in a third process, whose model writes another text under the same id."""
    root = project(tmp_path)

    async def main(killed: Worker) -> None:
        async with following(root, database) as (runtime, _):
            run_id = await killed.submit()
            async with aclosing(runtime.follow(run_id)) as followed:
                killed.write(3)
                seen = await read_until(followed, "one two three")
                killed.process.kill()
                with worker(database, root, "another text") as other:  # only now, else it may begin the run
                    other.write()
                    other.resume()
                    end = await rest(followed)
                assert [event.text for event in end if isinstance(event, events.ContentReceived)] == ["another text"]
                numbers = [event.seq for event in seen + end if event.seq]
                assert numbers == list(range(1, len(numbers) + 1))

    with worker(database, root, TEXT, lease=1.5) as killed:
        asyncio.run(main(killed))


def test_a_cancelled_run_ends_at_once(database: str, tmp_path: Path) -> None:
    """The other process renews its leases each minute in this test, so only a signal can tell it."""
    root = project(tmp_path)

    async def main(elsewhere: Worker) -> None:
        async with following(root, database) as (runtime, _):
            run_id = await elsewhere.submit()
            async with aclosing(runtime.follow(run_id)) as followed:
                elsewhere.write(1)
                seen = await read_until(followed, "one")
                await runtime.cancel(run_id)
                assert (await runtime.result(run_id)).status == "cancelled"
                seen += await rest(followed)
                assert isinstance(seen[-1], events.RunFinished)

    with worker(database, root, TEXT, renewal=60) as elsewhere:
        asyncio.run(main(elsewhere))
