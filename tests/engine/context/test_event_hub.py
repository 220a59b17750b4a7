"""Any number of readers get the events of a run, each at its own pace."""

from __future__ import annotations

import asyncio
import tracemalloc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from framework.engine.context.events import EventHub, EventReader, Path
from framework.types.events import ContentReceived, Event, Thought, ToolFinished, Warned
from tests.support.cases import cases

PATHS: Sequence[Path] = ((), ("one",), ("two",))
KINDS = (ContentReceived, Thought)


def text(hub: EventHub, piece: str, message_id: str = "m", path: Path = (), kind: type = ContentReceived) -> None:
    hub.add_text(kind, piece, generation=1, path=path, message_id=message_id)


def warning(seq: int, message_id: str | None = None, path: Path = ()) -> Warned:
    return Warned(run_id="r", seq=seq, generation=1, path=path, code="x", message="", message_id=message_id)


def content(seq: int, whole: str, message_id: str = "m", path: Path = ()) -> ContentReceived:
    return ContentReceived(run_id="r", seq=seq, generation=1, path=path, message_id=message_id, text=whole)


async def read(reader: EventReader) -> list[Event]:
    return [event async for event in reader]


def shown(events: Sequence[Event]) -> list[int | str]:
    """Return the events in short: the number of a numbered event, the text of a delta."""
    return [event.seq or getattr(event, "text", "") for event in events]


# --- any order of events, deltas and readers


@dataclass
class Watched:
    """A reader with what it read, and when it joined."""

    reader: EventReader
    after: int
    joined: int
    """Number of the last event before it joined."""
    begun: dict[tuple[Path, str, type], str]
    """Text so far of the messages that were in progress when it joined."""
    events: list[Event] = field(default_factory=list)


@dataclass
class Script:
    """A hub with a run that writes to it, and a simple account of what it wrote."""

    hub: EventHub = field(default_factory=lambda: EventHub("r"))
    seq: int = 0
    messages: int = 0
    open: dict[Path, dict[type, str]] = field(default_factory=dict)
    ids: dict[Path, str] = field(default_factory=dict)
    texts: dict[tuple[Path, str, type], str] = field(default_factory=dict)
    """All text that was written."""
    finished: dict[tuple[Path, str], int] = field(default_factory=dict)
    """Numbers of the events that ended messages."""
    numbered: list[Event] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)

    def put(self, event: Event, *, keep: bool) -> None:
        self.numbered.append(event)
        self.hub.put(event, keep=keep)

    def step(self, action: str, path: Path, piece: str, *, keep: bool) -> None:
        match action:
            case "content" | "thought":
                self._write(path, KINDS[action == "thought"], piece)
            case "finish" | "void" if path in self.ids:
                self.seq += 1
                message_id = self.ids.pop(path)
                self.finished[path, message_id] = self.seq
                whole = self.open.pop(path).get(ContentReceived, "")
                event = content(self.seq, whole, message_id, path)
                self.put(warning(self.seq, message_id, path) if action == "void" else event, keep=keep)
            case "event":
                self.seq += 1
                self.put(warning(self.seq, None, path), keep=keep)

    def _write(self, path: Path, kind: type, piece: str) -> None:
        if path not in self.ids:
            self.messages += 1
            self.ids[path] = f"m{self.messages}"
            self.open[path] = {}
        key = (path, self.ids[path], kind)
        self.texts[key] = self.texts.get(key, "") + piece
        self.open[path][kind] = self.open[path].get(kind, "") + piece
        text(self.hub, piece, self.ids[path], path, kind)

    def join(self, after: int) -> None:
        begun = {
            (path, self.ids[path], kind): so_far for path, texts in self.open.items() for kind, so_far in texts.items()
        }
        self.watched.append(Watched(self.hub.reader(after), after, self.seq, begun))


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["content", "content", "thought", "finish", "void", "event"]),
            st.sampled_from(PATHS),
            st.text("abc", min_size=1, max_size=3),
        ),
        st.tuples(st.just("join"), st.integers(0, 5)),
        st.tuples(st.just("read"), st.integers(0, 9), st.integers(1, 4)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
    ),
    max_size=60,
)


@cases(100)
@given(STEPS, st.booleans())
def test_each_reader_gets_each_numbered_event_once_and_the_whole_text(steps: list[tuple], keep: bool) -> None:  # type: ignore[type-arg]  # steps of four forms
    async def main() -> None:
        script = Script()
        script.join(0)
        for step in steps:
            match step:
                case ("join", after):
                    script.join(min(after, script.seq))
                case ("read", index, count) if script.watched:
                    watched = script.watched[index % len(script.watched)]
                    for _ in range(count):
                        if (event := watched.reader.take()) is not None:
                            watched.events.append(event)
                case ("leave", index) if len(script.watched) > 1:
                    script.watched.pop(1 + index % (len(script.watched) - 1)).reader.close()
                case (action, path, piece) if action not in ("read", "leave"):
                    script.step(action, path, piece, keep=keep)
        script.hub.close()
        for watched in script.watched:
            watched.events += await read(watched.reader)
            check(script, watched, keep=keep)
        assert not script.hub.has_readers

    asyncio.run(main())


def check(script: Script, watched: Watched, *, keep: bool) -> None:
    numbers = [event.seq for event in watched.events if event.seq]
    after = watched.after if keep else max(watched.after, watched.joined)
    assert numbers == [event.seq for event in script.numbered if event.seq > after]
    received: dict[tuple[Path, str, type], str] = {}
    ended: set[tuple[Path, str]] = set()
    for event in watched.events:
        if isinstance(event, KINDS) and not event.seq:
            assert (event.path, event.message_id) not in ended, "no delta follows the end of its message"
            key = (event.path, event.message_id, type(event))
            received[key] = received.get(key, "") + event.text
        elif isinstance(event, (*KINDS, Warned)) and event.message_id:
            ended.add((event.path, event.message_id))
    assert all(received[key] == script.texts[key] for key in received), "never only the rest of a text"
    assert watched.begun.keys() <= received.keys()
    ended_before = {message for message, seq in script.finished.items() if seq <= watched.joined}
    assert not any((path, message_id) in ended_before for path, message_id, _ in received)
    if watched is script.watched[0]:
        assert received == script.texts


# --- examples


def test_ten_readers_get_the_same_events() -> None:
    async def main() -> None:
        hub = EventHub("r")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(hub.reader())) for _ in range(10)]
            await write(hub)
        received = [task.result() for task in tasks]
        assert shown(received[0]) == [1, "a", "b", 2]
        assert all(events == received[0] for events in received)

    async def write(hub: EventHub) -> None:
        await asyncio.sleep(0)
        hub.put(warning(1))
        for piece in ("a", "b"):
            text(hub, piece)
            await asyncio.sleep(0)
        hub.put(content(2, "ab"))
        hub.close()

    asyncio.run(main())


def test_a_slow_reader_gets_merged_text_and_every_numbered_event() -> None:
    async def main() -> None:
        hub = EventHub("r")
        reader = hub.reader()
        for piece in "abc":
            text(hub, piece)
        hub.put(warning(1))
        text(hub, "d")
        text(hub, "?", path=("one",), message_id="n")
        text(hub, "e")
        hub.put(content(2, "abcde"))
        hub.close()
        assert shown(await read(reader)) == ["abc", 1, "d", "?", "e", 2]

    asyncio.run(main())


def test_readers_at_different_places_of_a_text_get_the_whole_of_it() -> None:
    async def main() -> None:
        hub = EventHub("r")
        one, two = hub.reader(), hub.reader()
        text(hub, "a")
        first = await anext(one)
        text(hub, "b")
        assert shown([first, await anext(two), await anext(one)]) == ["a", "ab", "b"]

    asyncio.run(main())


def test_a_late_reader_gets_the_text_so_far_of_messages_in_progress_only() -> None:
    async def main() -> None:
        hub = EventHub("r")
        for piece in "ab":
            text(hub, piece)
        hub.put(content(1, "ab"))
        text(hub, "void", "m2")
        hub.put(warning(2, "m2"))
        text(hub, "abandoned", "m3")
        text(hub, "think", "m4", kind=Thought)
        text(hub, "so ", "m4")
        text(hub, "far", "m4")
        reader = hub.reader(2)
        text(hub, ", so good", "m4")
        hub.put(content(3, "so far, so good", "m4"))
        hub.close()
        assert shown(await read(reader)) == ["think", "so far, so good", 3]

    asyncio.run(main())


def test_a_late_reader_gets_the_kept_events() -> None:
    async def main() -> None:
        hub = EventHub("r")
        for seq in (1, 2, 3):
            hub.put(warning(seq), keep=True)
        text(hub, "so far")
        readers = [hub.reader(after) for after in (0, 2)]
        hub.close()
        assert [shown(await read(reader)) for reader in readers] == [[1, 2, 3, "so far"], [3, "so far"]]

    asyncio.run(main())


def test_a_reader_that_waits_ends_when_it_is_closed() -> None:
    async def main() -> None:
        hub = EventHub("r")
        reader = hub.reader()
        waiting = asyncio.create_task(read(reader))
        await asyncio.sleep(0)
        assert hub.has_readers
        reader.close()
        reader.close()
        async with asyncio.timeout(30):
            assert await waiting == []
        assert not hub.has_readers

    asyncio.run(main())


def test_a_cancelled_wait_loses_no_event() -> None:
    async def main() -> None:
        hub = EventHub("r")
        reader = hub.reader()
        for _ in range(3):
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert not hub._waiting
        hub.put(warning(1))
        assert (await anext(reader)).seq == 1

    asyncio.run(main())


def test_items_are_released_once_every_reader_has_passed_them() -> None:
    async def main() -> None:
        hub = EventHub("r")
        fast, slow = hub.reader(), hub.reader()
        event = ToolFinished(
            run_id="r", seq=1, generation=1, id="c", tool="t", status="success", result="long", elapsed_ms=1
        )
        seen = weakref.ref(event)
        hub.put(event)
        del event
        text(hub, "tail")
        hub.put(content(2, "tail"))
        await anext(fast)
        await anext(fast)
        assert seen() is not None
        slow.close()
        assert seen() is None

    asyncio.run(main())


def test_a_long_unread_list_is_released_without_recursion() -> None:
    async def main() -> None:
        hub = EventHub("r")
        reader = hub.reader()
        for number in range(100_000):
            text(hub, "x", str(number % 2), (str(number % 2),))
        reader.close()
        hub.close()

    asyncio.run(main())


def test_an_unread_text_takes_little_more_memory_than_its_characters() -> None:
    async def main() -> None:
        hub = EventHub("r")
        reader = hub.reader()
        pieces = [f"{number:060}" for number in range(20_000)]
        tracemalloc.start()
        try:
            for piece in pieces:
                text(hub, piece)
            added, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert added < sum(map(len, pieces))
        whole = await anext(reader)
        assert isinstance(whole, ContentReceived)
        assert whole.text == "".join(pieces)

    asyncio.run(main())


def test_slow_readers_share_the_text_that_they_have_not_taken() -> None:
    async def main() -> None:
        hub = EventHub("r")
        readers = [hub.reader() for _ in range(100)]
        pieces = [f"{number:02}" for number in range(1000)]
        text(hub, "a")
        tracemalloc.start()
        try:
            for piece in pieces:
                text(hub, piece)
            added, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert added < 100_000, "a list of pieces for each reader takes 8 times as much"
        readers.append(hub.reader())
        assert {whole.text for reader in readers if isinstance(whole := await anext(reader), ContentReceived)} == {
            "a" + "".join(pieces)
        }

    asyncio.run(main())
