"""Delivers the events of one run to any number of readers, each at its own pace.

Writers never wait. The items form a linked list, and each reader holds the item that it has reached: an item is
released once every reader has passed it, and a hub without readers retains only the text of messages in progress.

Text arrives in deltas (`seq` is 0). Adjacent deltas of one message are one item, which grows, so a slow reader gets
them merged. A message in progress ends with its numbered event, with a `Warned` that voids it, or when another message
begins at the same path.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from framework.types.events import ContentReceived, Event, Thought, Warned
from framework.types.state import OutputT, RunResult

TextKind = type[ContentReceived] | type[Thought]
"""Kind of text that arrives in deltas."""
Path = tuple[str, ...]


class _Text:
    """Text of one kind in one message: the deltas received so far."""

    __slots__ = ("_head", "_kind", "pieces")

    def __init__(self, kind: TextKind, head: dict[str, Any]) -> None:
        self._kind, self._head = kind, head
        self.pieces: list[str] = []

    def delta(self, begin: int, end: int) -> Event:
        return self._kind(**self._head, seq=0, text="".join(self.pieces[begin:end]))


class _Message:
    """A message in progress."""

    __slots__ = ("message_id", "texts")

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.texts: dict[TextKind, _Text] = {}


class _Item:
    """A numbered event, a part of a text, or neither: the place where a reader joined."""

    __slots__ = ("_built", "begin", "end", "event", "next", "text")

    def __init__(self, event: Event | None = None, text: _Text | None = None, begin: int = 0, end: int = 0) -> None:
        self.event, self.text, self.begin, self.end = event, text, begin, end
        self.next: _Item | None = None
        self._built: tuple[int, int, Event] | None = None

    def delta(self, begin: int) -> Event:
        """Return the text from piece `begin` on. Readers at the same place share the event."""
        assert self.text is not None
        if self._built is None or self._built[:2] != (begin, self.end):
            self._built = begin, self.end, self.text.delta(begin, self.end)
        return self._built[2]


class EventHub:
    """The events of one run while it is in progress in this process."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.is_closed = False
        """Whether new events are ignored."""
        self._last = _Item()
        self._in_progress: dict[Path, _Message] = {}
        self._kept: list[Event] = []
        self._dropped = 0
        """Number of the last event that a later reader does not get."""
        self._number = 0
        """Number of the last event that was put."""
        self._readers = 0
        self._is_awaited = False
        self._waiting: list[asyncio.Future[None]] = []

    # --- for the run

    @property
    def has_readers(self) -> bool:
        """Whether someone reads the events, or is expected to."""
        return self._readers > 0 or self._is_awaited

    @property
    def kept(self) -> Sequence[Event]:
        """The numbered events that were put with `keep`."""
        return self._kept

    @property
    def number(self) -> int:
        """Number of the last event that was put."""
        return self._number

    def begin_after(self, number: int) -> None:
        """Begin with the event after this one: the run is resumed, and the store has the events up to it.

        Texts that another process left unfinished are void: the model writes them again.
        """
        self._dropped = self._number = number
        self.drop_texts()

    def drop_texts(self) -> None:
        """Leave out the texts in progress for later readers, because they are void."""
        self._in_progress.clear()

    def expect_readers(self) -> None:
        """Create events and stream text even while nobody reads, because readers may join at any time."""
        self._is_awaited = True

    def put(self, event: Event, *, keep: bool = False) -> None:
        """Add a numbered event. No-op after `close`.

        Args:
            event: the event.
            keep: retain it for later readers, because the store does not have it yet.
        """
        if self.is_closed:
            return
        if self._in_progress and isinstance(event, (ContentReceived, Thought, Warned)):
            message = self._in_progress.get(event.path)
            if message is not None and message.message_id == event.message_id:
                del self._in_progress[event.path]
        if keep:
            self._kept.append(event)
        else:
            self._dropped = event.seq
        self._number = event.seq
        if self._readers:  # a later reader does not need it, or finds it in what is kept
            self._append(_Item(event))
        self._wake()

    def add_text(self, kind: TextKind, text: str, *, generation: int, path: Path, message_id: str) -> None:
        """Add a piece of a message's text, as a delta. No-op after `close`."""
        if self.is_closed:
            return
        message = self._in_progress.get(path)
        if message is None or message.message_id != message_id:
            message = self._in_progress[path] = _Message(message_id)
        growing = message.texts.get(kind)
        if growing is None:
            head = {"run_id": self.run_id, "generation": generation, "path": path, "message_id": message_id}
            growing = message.texts[kind] = _Text(kind, head)
        growing.pieces.append(text)
        size = len(growing.pieces)
        if self._last.text is growing:
            self._last.end = size
        else:
            self._append(_Item(text=growing, begin=size - 1, end=size))
        self._wake()

    def close(self) -> None:
        """Accept no more events; readers still get the remaining ones."""
        self.is_closed = True
        self._wake()

    # --- for readers

    def serves(self, after: int) -> bool:
        """Return whether a reader that joins now gets every event after this number."""
        return after >= self._dropped

    async def wait_for(self, number: int) -> None:
        """Wait until the events up to a number were put, or until the hub is closed.

        A reader that has read an event from the store before it was put waits for it: until then, the text that ended
        with the event counts as unfinished.
        """
        while self._number < number and not self.is_closed:
            await self.wait()

    def reader(self, after: int = 0) -> EventReader:
        """Return a reader, which gets events from now on.

        It begins with the kept events, and with one delta of each message in progress that contains the text so far.

        Args:
            after: leave out events up to this number.
        """
        if self._last.event is not None or self._last.text is not None:
            self._append(_Item())  # later text begins a new item, because the reader's own items contain that so far
        first = item = _Item()
        for earlier in self._earlier_items():
            item.next = earlier
            item = earlier
        item.next = self._last
        return EventReader(self, first, after)

    def _earlier_items(self) -> Iterator[_Item]:
        for event in self._kept:
            yield _Item(event)
        for message in self._in_progress.values():
            for text in message.texts.values():
                yield _Item(text=text, end=len(text.pieces))

    def attach(self) -> None:
        """Count a reader."""
        self._readers += 1

    def detach(self) -> None:
        """Count a reader that has left; if it is waiting, it ends."""
        self._readers -= 1
        self._wake()

    async def wait(self) -> None:
        """Wait for the next change."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)
            raise

    def _append(self, item: _Item) -> None:
        self._last.next = item
        self._last = item

    def _wake(self) -> None:
        if not self._waiting:
            return
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()


class EventReader:
    """Reads the events of a hub; ends when the hub is closed, or the reader itself."""

    def __init__(self, hub: EventHub, item: _Item, after: int) -> None:
        self._hub, self._after = hub, after
        self._item: _Item | None = item
        self._position = item.end
        """Number of pieces read of the item's text, if it is one."""
        hub.attach()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while (event := self.take()) is None:
            if self._hub.is_closed or self._item is None:
                self.close()
                raise StopAsyncIteration
            await self._hub.wait()
        return event

    def take(self) -> Event | None:
        """Return the next event or text that has arrived; None if there is none."""
        item = self._item
        while item is not None:
            if self._position < item.end:
                begin, self._position = self._position, item.end
                return item.delta(begin)
            if item.next is None:
                break
            item = self._item = item.next
            self._position = item.begin
            if item.event is not None and item.event.seq > self._after:
                return item.event
        return None

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._item is not None:
            self._item = None
            self._hub.detach()


PIECE_CHARS = 1000
"""Maximum length of a piece, which fits a signal even if each character is escaped twice."""
MessageKey = tuple[Path, str]
"""Path and id of a message."""
_KINDS: dict[str, TextKind] = {"content": ContentReceived, "thought": Thought}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the text of one kind in a message."""

    source: str
    """The execution of the run that the text belongs to: another one writes the text anew."""
    kind: TextKind
    generation: int
    path: Path
    message_id: str
    begin: int
    """Number of characters of the text before the piece."""
    text: str

    @property
    def message(self) -> MessageKey:
        """The message that the text belongs to."""
        return self.path, self.message_id

    def encode(self) -> str:
        """Return the piece as JSON."""
        name = _NAMES[self.kind]
        fields = (self.source, name, self.generation, self.path, self.message_id, self.begin, self.text)
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def read_piece(body: str) -> TextDelta | None:
    """Return the piece that `encode` converted to JSON; None if it is none."""
    try:
        source, name, generation, path, message_id, begin, text = json.loads(body)
        return TextDelta(source, _KINDS[name], generation, tuple(path), message_id, begin, text)
    except (ValueError, KeyError, TypeError):
        return None


def split(delta: ContentReceived | Thought, source: str, begin: int) -> Iterator[TextDelta]:
    """Yield the pieces of a delta that begins at a character of its text."""
    for at in range(0, len(delta.text), PIECE_CHARS):
        text = delta.text[at : at + PIECE_CHARS]
        yield TextDelta(source, type(delta), delta.generation, delta.path, delta.message_id, begin + at, text)


class RunStream(Generic[OutputT]):
    """A run in progress: iterate over its events, then await its `result()`."""

    def __init__(self, run_id: str, task: asyncio.Task[RunResult[OutputT]], reader: EventReader | None = None) -> None:
        self.run_id = run_id
        self._task, self._reader = task, reader
        self._once = TextOnce()
        self._is_awaited = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        if self._reader is not None:
            async for event in self._reader:
                if (unseen := self._once.unseen(event)) is not None:
                    yield unseen
        self._is_awaited = True  # read to the end, so leaving does not cancel the run

    async def result(self) -> RunResult[OutputT]:
        """Wait for the run to end, and return its result. Unread events are discarded.

        Raises:
            AgentsdError: the run could not be recorded.
        """
        self._is_awaited = True
        self._close_reader()
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:  # the caller no longer waits, so `leave` cancels the run
            self._is_awaited = False
            raise

    def cancel(self) -> None:
        """Cancel the run; its result has the status `cancelled`."""
        coroutine = self._task.get_coro()
        if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            asyncio.get_running_loop().call_soon(self._task.cancel)  # a task that has not begun cannot record its end
        else:
            self._task.cancel()

    def end(self) -> asyncio.Task[RunResult[OutputT]]:
        """Return the task that ends when the run's end or pause is persisted."""
        return self._task

    async def leave(self) -> None:
        """Stop reading. Cancel the run unless its end was awaited; return when its end is persisted."""
        self._close_reader()
        if not self._is_awaited:
            self.cancel()
        await asyncio.wait([self._task])

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()


class TextOnce:
    """Leaves out of numbered events the text that has already been delivered in deltas."""

    def __init__(self) -> None:
        self._messages: dict[Path, tuple[str, dict[TextKind, list[str]]]] = {}
        """Id and delivered deltas of the last message at each path."""

    def unseen(self, event: Event) -> Event | None:
        """Return the event without text that was delivered before; None if nothing remains of it."""
        if isinstance(event, (ContentReceived, Thought)):
            if event.seq:
                return self._rest(event)
            self._pieces(event).append(event.text)
        elif isinstance(event, Warned) and event.message_id is not None:
            self._messages.pop(event.path, None)
        return event

    def _pieces(self, event: ContentReceived | Thought) -> list[str]:
        message_id, texts = self._messages.get(event.path, ("", {}))
        if message_id != event.message_id:
            texts = {}
            self._messages[event.path] = event.message_id, texts
        return texts.setdefault(type(event), [])

    def _rest(self, event: ContentReceived | Thought) -> Event | None:
        pieces = self._pieces(event)
        delivered = "".join(pieces)
        pieces.clear()
        if not delivered:
            return event
        if delivered.startswith(event.text):
            return None
        return _without_prefix(event, len(delivered) if event.text.startswith(delivered) else 0)


def _without_prefix(event: ContentReceived | Thought, chars: int) -> Event:
    """Return the event without the first characters of its text."""
    update: dict[str, Any] = {"text": event.text[chars:]}
    if isinstance(event, Thought) and event.reasoning_chars is not None:
        update["reasoning_chars"] = max(event.reasoning_chars - chars, 0)
    return event.model_copy(update=update)
