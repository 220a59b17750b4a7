"""The journal persists each step of a run with its events; the hub delivers them to any number of readers.

With a durable store, every step is one write that contains the changes of the state and the events since the last
write. Concurrent requests share a write: requests of one turn of the event loop are written together, and a request
made during a write waits for the next one, which includes it. A task writes, which the cancellation of a caller does
not affect.

Writers never wait. Each reader has a queue of what it has not taken yet; a hub without readers retains only the text of
messages in progress.

Text arrives in deltas (`seq` is 0). A slow reader gets adjacent deltas of one message merged. A message in progress
ends with its numbered event, with a `Warned` that voids it, or when another message starts at the same path.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic
from weakref import WeakSet

from framework.store.types import CancelAccepted, RunRecord
from framework.types.budget import BudgetUse
from framework.types.events import ContentReceived, Event, RunEvent, Thought, Warned
from framework.types.report import SpanRecord
from framework.types.state import OutputT, RunResult, RunState
from framework.types.text import fix_surrogates

TextKind = type[ContentReceived] | type[Thought]
"""Kind of text that arrives in deltas."""
Path = tuple[str, ...]


@dataclass(slots=True)
class _Message:
    """A message in progress: what its deltas have in common, and its texts so far, in pieces."""

    message_id: str
    head: Mapping[str, Any]
    texts: dict[TextKind, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Text:
    """Text of a message that a reader has not taken, one delta: pieces of a list that the readers share."""

    message: _Message
    kind: TextKind
    start: int
    end: int


class EventHub:
    """The events of one run while it is in progress in this process."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.is_closed = False
        """Whether new events are ignored."""
        self.kept: list[Event] = []
        """The numbered events that were put with `keep`."""
        self.number = 0
        """Number of the last event that was put."""
        self._in_progress: dict[Path, _Message] = {}
        self._dropped = 0
        """Number of the last event that a later reader does not get."""
        self._readers = WeakSet[EventReader]()  # one that its owner drops without closing it collects nothing more
        self._is_awaited = False
        self._waiting: list[asyncio.Future[None]] = []

    # --- for the run

    @property
    def has_readers(self) -> bool:
        """Whether someone reads the events, or is expected to."""
        return bool(self._readers) or self._is_awaited

    def start_after(self, number: int) -> None:
        """Start with the event after this one: the run is resumed, and the store has the events up to it.

        Texts that another process left unfinished are void: the model writes them again.
        """
        self._dropped = self.number = number
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
            self.kept.append(event)
        else:
            self._dropped = event.seq
        self.number = event.seq
        for reader in self._readers:
            reader.add(event)
        self._wake()

    def add_text(self, kind: TextKind, text: str, *, generation: int, path: Path, message_id: str) -> None:
        """Add a piece of a message's text, as a delta. No-op after `close`."""
        if self.is_closed:
            return
        message = self._in_progress.get(path)
        if message is None or message.message_id != message_id:
            head = {"run_id": self.run_id, "generation": generation, "path": path, "message_id": message_id}
            message = self._in_progress[path] = _Message(message_id, head)
        pieces = message.texts.setdefault(kind, [])
        pieces.append(text)
        for reader in self._readers:
            reader.add_text(message, kind, len(pieces) - 1)
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
        while self.number < number and not self.is_closed:
            await self.wait()

    def reader(self, after: int = 0) -> EventReader:
        """Return a reader, which gets events from now on.

        It starts with the kept events, and with one delta of each message in progress that contains the text so far.

        Args:
            after: leave out events up to this number.
        """
        reader = EventReader(self, after)
        for event in self.kept:
            reader.add(event)
        for message in self._in_progress.values():
            for kind in message.texts:
                reader.add_text(message, kind, 0)
        self._readers.add(reader)
        return reader

    def detach(self, reader: EventReader) -> None:
        """Forget a reader that has left; if it is waiting, it ends."""
        self._readers.discard(reader)
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

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()


class EventReader:
    """Reads the events of a hub; ends when the hub is closed, or the reader itself."""

    def __init__(self, hub: EventHub, after: int) -> None:
        self._hub, self._after = hub, after
        self._items: deque[Event | _Text] = deque()
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while (event := self.take()) is None:
            if self._hub.is_closed or self._is_closed:
                self.close()
                raise StopAsyncIteration
            await self._hub.wait()
        return event

    def add(self, event: Event) -> None:
        """Add a numbered event, which the hub has got."""
        if event.seq > self._after:
            self._items.append(event)

    def add_text(self, message: _Message, kind: TextKind, start: int) -> None:
        """Add the text of a message from a piece on, to the last item if that is text of the same kind and message."""
        last, end = self._items[-1] if self._items else None, len(message.texts[kind])
        if isinstance(last, _Text) and last.message is message and last.kind is kind:
            last.end = end
        else:
            self._items.append(_Text(message, kind, start, end))

    def take(self) -> Event | None:
        """Return the next event or text that has arrived; None if there is none."""
        if not self._items:
            return None
        item = self._items.popleft()
        if not isinstance(item, _Text):
            return item
        pieces = item.message.texts[item.kind][item.start : item.end]
        return item.kind(**item.message.head, seq=0, text="".join(pieces))

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._items.clear()
            self._hub.detach(self)


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
    """Yield the pieces of a delta that starts at a character of its text."""
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
            asyncio.get_running_loop().call_soon(self._task.cancel)  # a task that has not started cannot record its end
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
        chars = len(delivered) if event.text.startswith(delivered) else 0
        update: dict[str, Any] = {"text": event.text[chars:]}
        if isinstance(event, Thought) and event.reasoning_chars is not None:
            update["reasoning_chars"] = max(event.reasoning_chars - chars, 0)
        return event.model_copy(update=update)


_FLUSH_DELAY = 0.002
"""Seconds to wait for the step's own write, which then includes the events appended so far."""
_SPAN_BATCH = 32
"""Number of finished spans that are written before the run ends."""


class Journal:
    """Persists one root run while this process works on it."""

    def __init__(
        self,
        state: RunState,
        record: RunRecord,
        hub: EventHub,
        *,
        durable: bool,
        take_spans: Callable[[int], Sequence[SpanRecord]] = lambda _: (),
    ) -> None:
        """Create the journal of a run.

        Args:
            state: the root run's state.
            record: writes the run to the store; holds its lease.
            hub: receives events once they are persisted.
            durable: whether the store outlives this process.
            take_spans: returns the ended spans, each once, if there are at least as many as its argument says.
        """
        self.is_closing = False
        """Whether the runtime is closing: the run stops at its next step."""
        self.cancel_requested = False
        """Whether a cancellation was requested, in the store or in this process."""
        self.lease_lost = False
        """Whether the lease could not be renewed: another process may hold the run."""
        self.is_scarce = False
        """Whether this process lacks open files or memory for the run: it stops, to be resumed later."""
        self._state, self._record, self._hub, self._durable = state, record, hub, durable
        self._take_spans = take_spans
        self._on_cancel: Callable[[], object] = lambda: None
        self._outbox: list[Event] = []
        self._spans: Sequence[SpanRecord] = ()
        """Spans of a last write that was not done."""
        self._requested = self._written = 0
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Starts the next write, unless another one starts before."""
        self._failure: BaseException | None = None
        self._is_ending = self._is_releasing = False
        self._end_is_refused = False
        """Whether the last write was not done, because a cancel request was accepted before it."""

    @property
    def is_suspended(self) -> bool:
        """Whether the run stops without ending, to be resumed: see `is_closing`, `lease_lost` and `is_scarce`."""
        return (self.is_closing or self.lease_lost or self.is_scarce) and self._durable and not self.cancel_requested

    @property
    def has_no_readers(self) -> bool:
        """Whether events are neither persisted nor delivered."""
        return not (self._durable or self._hub.has_readers)

    def check(self) -> None:
        """Raise CancelledError before a step if the run is suspended, or StoreError if a write has failed."""
        if self.is_closing or self.lease_lost or self.is_scarce:
            raise asyncio.CancelledError
        self._raise_failure()

    def call_on_cancel(self, callback: Callable[[], object]) -> None:
        """Set the callback that cancels the run; it is called once, because tools may still be cleaning up."""
        self._on_cancel = callback

    def close(self) -> None:
        """Stop the run at its next step, because the runtime is closing."""
        self.is_closing = True

    def mark_scarce(self) -> bool:
        """Suspend the run for lack of open files or memory; return False if it cannot be resumed."""
        self.is_scarce = self._durable
        return self.is_suspended

    def mark_cancelled(self) -> None:
        """Record that the run was cancelled in this process, so that it ends instead of being suspended."""
        self.cancel_requested = True

    def request_cancel(self) -> None:
        """Request cancellation of the run. Idempotent."""
        if not self.cancel_requested:
            self.cancel_requested = True
            self._on_cancel()

    def mark_lease_lost(self) -> None:
        """Stop working on the run, because this process no longer holds its lease. The stored state is not changed.

        Does nothing once the last write has started, since that write releases the lease.
        """
        if not (self._is_ending or self._is_releasing or self.lease_lost):
            self.lease_lost = True
            self._on_cancel()

    def append(self, event: Event) -> None:
        """Queue an event to be persisted with the next write and then delivered.

        If the store does not outlive this process, deliver it now, and keep it until the last write.
        """
        if not self._durable:
            self._hub.put(event, keep=True)
            return
        self._outbox.append(event)
        self.schedule_flush()

    def schedule_flush(self) -> None:
        """Persist the state soon, in the background; a failure is raised by the next `save` or `check`."""
        if self._durable and self._failure is None:
            self._requested += 1
            self._write_soon()

    async def save(self) -> None:
        """Persist the current state, and deliver the queued events.

        Raises:
            StoreError: this write or an earlier one failed; after a failure nothing more is written.
        """
        if self._durable:
            self._requested += 1
            await self._wait_until_written(self._requested)
        elif self._state.uncounted:
            await self._record.write(self._state, uses=self._take_uses())

    @property
    def is_ending(self) -> bool:
        """Whether the run's end or pause is being written, or was."""
        return self._is_ending

    async def end(self, events: Sequence[Event]) -> bool:
        """Persist the final state with the last events, even if the task is cancelled during the write.

        Returns:
            False if nothing was written, because a cancel request was accepted before: end the run as cancelled.
        """
        self._is_ending, self._end_is_refused = True, False
        if not self._durable:
            _, _, spans, uses = self._take()
            try:
                await self._record.write(self._state, (*self._hub.kept, *events), spans, last=True, uses=uses)
            except CancelAccepted:
                self._refuse_end([], spans, uses)
                return False
            for event in events:
                self._hub.put(event)
            return True
        self._outbox.extend(events)
        self._requested += 1  # before any await: a write that starts now includes the end, and must be the last one
        await _wait_shielded(asyncio.ensure_future(self._wait_until_written(self._requested)))
        if self._end_is_refused:
            self._outbox = [event for event in self._outbox if event.seq < events[0].seq]
        return not self._end_is_refused

    async def release(self) -> None:
        """Persist the state and release the lease, so that any process can resume the run."""
        await _wait_shielded(asyncio.ensure_future(self._release()))

    async def _release(self) -> None:
        self._is_releasing = True
        await self.save()
        await self._record.release()

    def _take_uses(self) -> Sequence[BudgetUse]:
        """Return what the counters of shared budgets do not contain; the write of the state without it adds it."""
        if not self._state.uncounted:
            return ()  # not the list itself, which may grow while the write is in progress
        uses, self._state.uncounted = self._state.uncounted, []
        return uses

    async def _wait_until_written(self, target: int) -> None:
        """Wait until the write with this number is done."""
        while self._written < target and not self._end_is_refused:
            self._raise_failure()
            await asyncio.shield(self._writing or self._start_write())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write_soon(self) -> None:
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_DELAY, self._start_write)

    def _start_write(self) -> asyncio.Task[None]:
        """Return the task that writes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writing = asyncio.ensure_future(self._write())
        return self._writing

    def _refuse_end(self, events: list[Event], spans: Sequence[SpanRecord], uses: Sequence[BudgetUse]) -> None:
        """Keep what the last write contained: the next one is that of a cancelled run."""
        self._outbox, self._spans, self._state.uncounted = events, spans, [*uses]
        self._end_is_refused = self.cancel_requested = True

    def _take(self) -> tuple[int, list[Event], Sequence[SpanRecord], Sequence[BudgetUse]]:
        """Return what the next write contains: the number of the last request, events, spans, and uses of budgets."""
        least = 1 if self._is_ending or self._is_releasing else _SPAN_BATCH
        events, self._outbox = self._outbox, []
        left, self._spans = self._spans, ()
        return self._requested, events, (*left, *self._take_spans(least)), self._take_uses()

    async def _write(self) -> None:
        if self._failure is not None:  # the failure has been raised to the run: write nothing after it
            self._writing = None
            return
        covered, events, spans, uses = self._take()
        try:
            await self._record.write(self._state, events, spans, last=self._is_ending, uses=uses)
            self._written = covered
            for event in events:
                self._hub.put(event)
        except CancelAccepted:
            self._refuse_end(events, spans, uses)
            return
        except BaseException as failure:  # noqa: BLE001 - the next save raises it; no step runs unrecorded
            self._failure = failure
        finally:
            self._writing = None
        if self._record.cancel_requested:
            self.request_cancel()
        if self._failure is None:
            if self._outbox:
                self._start_write()
            elif self._requested > covered:
                self._write_soon()


async def _wait_shielded(task: asyncio.Future[None]) -> None:
    """Wait for a task, ignoring cancellation, and raise its error."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    task.result()


def next_event(root: RunState, event: type[RunEvent], **payload: Any) -> Event:
    """Return the next event of a root run or one of its sub-runs, with its sequence number."""
    root.seq += 1
    payload = {key: fix_surrogates(value) if isinstance(value, str) else value for key, value in payload.items()}
    return event(run_id=root.run_id, seq=root.seq, generation=root.generation, **payload)  # type: ignore[return-value]  # every RunEvent is an Event
