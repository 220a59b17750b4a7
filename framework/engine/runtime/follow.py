"""Follows a run: its stored events, then live ones, whether it waits, or is in progress here or in another process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from contextvars import Context
from typing import Any
from weakref import WeakValueDictionary

from framework.engine.context.events import EventHub, EventReader, MessageKey, TextDelta, TextKind, read_piece
from framework.engine.run_report import build_result
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.request import Caller
from framework.engine.runtime.resume import RunResumer
from framework.store.types import MISSED, NEW, OPEN_STATUSES, Signal
from framework.types.errors import RunSuspended, StoreError
from framework.types.events import ContentReceived, Event, RunPaused, StreamEnd, Thought, Warned, read_event
from framework.types.report import Status
from framework.types.state import RunResult

LISTEN_SECONDS = 2.0
"""Interval at which other processes are told that a run is followed here."""
_BATCH = 100
"""Number of events after which the event loop may do other work."""


class RemoteRuns:
    """The followed runs of one process."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher, self._store = launcher, launcher.store
        self._runs: dict[str, RemoteRun] = {}
        self._followers = Counter[str]()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        launcher.signals.add(self._receive)

    def find(self, run_id: str) -> RemoteRun | None:
        """Return a run that is followed; None if it is not."""
        return self._runs.get(run_id)

    @contextmanager
    def follow(self, run_id: str, number: int) -> Iterator[RemoteRun]:
        """Put the events after this number into the hub of a run, until each context of the run is closed."""
        followed = self._runs.get(run_id)
        if followed is None:
            followed = self._runs[run_id] = RemoteRun(self._launcher, run_id, number)
            self._announce_soon()
        self._followers[run_id] += 1
        try:
            yield followed
        finally:
            self._followers[run_id] -= 1
            if not self._followers[run_id]:
                del self._runs[run_id], self._followers[run_id]
                self._woken.set()

    async def close(self) -> None:
        """Tell other processes nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _receive(self, signal: Signal) -> None:
        if signal == MISSED:
            for run in self._runs.values():
                run.expect_answer()
            self._announce_soon()
        elif (followed := self._runs.get(signal.run_id)) is not None:
            followed.receive(signal)

    def _announce_soon(self) -> None:
        self._woken.set()
        if self._task is None and self._store.durable:
            self._task = asyncio.get_running_loop().create_task(
                self._announce(), name="followed runs", context=Context()
            )

    async def _announce(self) -> None:
        """Tell the other processes which runs are followed, while there are any."""
        try:
            await self._launcher.signals.open()
            while self._runs:
                self._woken.clear()
                if due := self._due():
                    with suppress(StoreError):  # repeated, and the store is read from time to time
                        await self._store.signal(*due)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LISTEN_SECONDS if self._store.hears else None):
                        await self._woken.wait()
        finally:
            self._task = None

    def _due(self) -> list[Signal]:
        if not self._store.hears:
            return []
        now = asyncio.get_running_loop().time()
        return [signal for run in self._runs.values() if (signal := run.announcement(now)) is not None]


class RemoteRun:
    """One run that is followed here. While this process executes it, nothing is read: the run fills the hub itself."""

    def __init__(self, launcher: Launcher, run_id: str, number: int) -> None:
        self.is_answered = False
        """Whether the process that executes the run sends signals, as far as is known."""
        self._launcher, self._store, self._run_id = launcher, launcher.store, run_id
        self._first = self._number = number
        """Number of the last event that the followers had, and that was put into the hub."""
        self._announce_at = 0.0
        self._is_due = False
        self._reading: asyncio.Task[None] | None = None
        self._source = ""
        self._earlier_sources: set[str] = set()
        self._lengths: dict[MessageKey, dict[TextKind, int]] = {}
        """Number of characters in the hub of each text in progress."""
        self._ended: set[MessageKey] = set()
        """Messages whose further pieces are left out: their text is complete, or its source has gone."""

    def announcement(self, now: float) -> Signal | None:
        """Return the signal that says that the run is followed; None if it is not due."""
        if now < self._announce_at or self._launcher.is_running(self._run_id):
            return None
        self._announce_at = now + LISTEN_SECONDS * 0.9  # the clock of a timer may be early
        return Signal("listen", self._run_id, body="" if self.is_answered else NEW)

    def expect_answer(self) -> None:
        """Ask for an answer and for the texts so far, because signals were missed, and look at the store."""
        self.is_answered, self._announce_at = False, 0.0
        self._look_soon()

    def receive(self, signal: Signal) -> None:
        """Look at the store if it has new events, or add a piece of a text."""
        if signal.kind not in ("events", "deltas") or self._launcher.is_running(self._run_id):
            return
        self.is_answered = True
        if signal.seq > self._number:
            self._look_soon()
        if signal.seq >= self._first and (piece := read_piece(signal.body)) is not None:
            self._add(piece)

    async def look(self) -> None:
        """Put the new events of the store into the hub; raises StoreError, RunNotFound."""
        self._look_soon()
        if self._reading is not None:
            await asyncio.shield(self._reading)

    async def catch_up(self, number: int) -> None:
        """Put the events up to this number, which are in the store, into the hub."""
        if self._number < number:
            await self.look()

    def _look_soon(self) -> None:
        self._is_due = True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_while_due(), context=Context())
            self._reading.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # the next look repeats it

    async def _read_while_due(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                await self._read()
        finally:
            self._reading = None

    async def _read(self) -> None:
        hub = self._launcher.hub(self._run_id)
        for count, row in enumerate(await self._store.events(self._run_id, self._number), 1):
            if self._launcher.is_running(self._run_id):
                return
            event = read_event(row)
            if isinstance(event, (ContentReceived, Thought, Warned)) and event.message_id is not None:
                self._end((event.path, event.message_id))
            hub.put(event)
            self._number = event.seq
            if count % _BATCH == 0:
                await asyncio.sleep(0)

    def _end(self, message: MessageKey) -> None:
        self._ended.add(message)
        self._lengths.pop(message, None)

    def _add(self, piece: TextDelta) -> None:
        """Add what is new of a piece. One after a gap is left out, until the text so far was sent again."""
        if piece.source in self._earlier_sources:
            return
        hub = self._launcher.hub(self._run_id)
        if piece.source != self._source:
            self._start_source(piece.source)
            hub.drop_texts()
        if piece.message in self._ended:
            return
        lengths = self._lengths.setdefault(piece.message, {})
        length = lengths.get(piece.kind, 0)
        if piece.begin > length:
            self.is_answered = False
            return
        if text := piece.text[length - piece.begin :]:
            lengths[piece.kind] = length + len(text)
            hub.add_text(piece.kind, text, generation=piece.generation, path=piece.path, message_id=piece.message_id)

    def _start_source(self, source: str) -> None:
        """Leave out the rest of the texts of the earlier source: a text cannot continue with another's."""
        if self._source:
            self._earlier_sources.add(self._source)
        self._source = source
        for message in list(self._lengths):
            self._end(message)


POLL_SECONDS = 0.25
"""Interval at which the store is read while a process executes the run of which no signals arrive."""
LOOK_SECONDS = 5.0
"""Interval at which the store is read although signals arrive, because one may have been lost."""
MAX_POLL_SECONDS = 2.0
"""Longest interval while the run waits. Each poll without events doubles the interval: thousands of runs may wait."""
_FIRST_POLL_SECONDS = 0.05
"""First interval while the run waits: it may end before the process that executes it has heard of this follower."""
_IN_MEMORY_POLL_SECONDS = 5.0
"""Interval for a store of this process, in which nothing happens without the hub, except that a run is deleted."""
_TEXTS = (ContentReceived, Thought)
"""Number of stored events after which the event loop may do other work."""


class _Rows(list[Mapping[str, Any]]):
    """The stored events of a run that has ended, which its readers share while they read them."""


Shared = WeakValueDictionary[tuple[str, int], _Rows]
"""What readers have in hand, by run and number of the event before: clients that stall take no memory each."""


class RunFollowers:
    """Follows the runs of a store for the callers of one runtime."""

    def __init__(self, launcher: Launcher, resumer: RunResumer) -> None:
        self._launcher, self._resumer = launcher, resumer
        self._remote_runs, self._shared = RemoteRuns(launcher), Shared()

    def follow(
        self, run_id: str, after: int, caller: Caller, *, through_pauses: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a run after a number; see `Runtime.follow`."""
        follower = _Follower(self._launcher, self._resumer, self._remote_runs, self._shared, run_id, caller)
        return follower.events(after, through_pauses=through_pauses)

    async def result(self, run_id: str, caller: Caller) -> RunResult:
        """Wait until a run has ended or is paused, and return its result; see `Runtime.result`."""
        launcher, state = self._launcher, await self._resumer.load(run_id, caller)
        while True:
            if (run := launcher.task(run_id)) is not None:
                return await asyncio.shield(run)
            if state.status not in ("queued", "running"):
                return build_result(state)
            if launcher.is_closed:
                raise RunSuspended(
                    f"run {run_id} is {state.status}, and the runtime was closed; its result comes later"
                )
            async with aclosing(self.follow(run_id, state.seq, caller)) as events:
                async for _ in events:
                    if launcher.is_running(run_id):
                        break
            if launcher.is_closed:  # the store may be closed as well
                raise RunSuspended(f"run {run_id} has not ended, and the runtime was closed; its result comes later")
            if not launcher.is_running(run_id):
                state = await self._resumer.load(run_id, caller)

    async def close(self) -> None:
        """Stop telling other processes which runs are followed."""
        await self._remote_runs.close()


class _Follower:
    """One reader of a run's events."""

    def __init__(
        self,
        launcher: Launcher,
        resumer: RunResumer,
        remote_runs: RemoteRuns,
        shared: Shared,
        run_id: str,
        caller: Caller,
    ) -> None:
        self._launcher, self._resumer, self._store = launcher, resumer, launcher.store
        self._remote_runs, self._shared = remote_runs, shared
        self._run: RemoteRun | None = None
        """The run as other processes report it, once this reader waits for events."""
        self._run_id, self._caller = run_id, caller
        self._last = 0
        """Number of the last event that the caller has."""
        self._status: Status = "queued"
        """Status of the run after that event."""
        self._interval = _FIRST_POLL_SECONDS
        self._is_live = False
        """Whether every event since the last one came, or will come, from the hub."""
        self._complete: set[tuple[tuple[str, ...], str | None]] = set()
        """Path and message id of the texts read from the store. Their deltas, which the hub may have, are left out."""

    async def events(self, after: int, *, through_pauses: bool) -> AsyncGenerator[Event, None]:
        """Yield the events after a number; see `Runtime.follow`."""
        hub = self._launcher.hub(self._run_id)
        state = await self._resumer.load(self._run_id, self._caller)
        self._last, self._status = min(after, state.seq), state.status
        reader = await self._join(hub)
        is_behind = state.seq > self._last or not hub.serves(self._last)
        del state  # with all messages, while a reader may take long
        waiting = ExitStack()
        try:
            while True:
                if is_behind:
                    async for event in self._stored():
                        yield event
                if await self._is_over(through_pauses=through_pauses) or self._launcher.is_closed:
                    return
                if self._run is None:
                    self._run = waiting.enter_context(self._remote_runs.follow(self._run_id, self._last))
                while (live := await self._next(reader)) is not None:
                    async for event in self._in_order(live):
                        yield event
                    if isinstance(live, StreamEnd) and not (through_pauses and isinstance(live, RunPaused)):
                        return
                is_behind, self._is_live = True, False
                if hub.is_closed:
                    reader.close()
                    hub = self._launcher.hub(self._run_id)
                    reader = await self._join(hub)
        finally:
            waiting.close()
            reader.close()

    async def _join(self, hub: EventHub) -> EventReader:
        """Return a reader of the events that the caller does not have."""
        if self._launcher.is_running(self._run_id):
            await hub.wait_for(self._last)
        elif (run := self._remote_runs.find(self._run_id)) is not None:
            await run.catch_up(self._last)
        return hub.reader(self._last)

    async def _next(self, reader: EventReader) -> Event | None:
        """Wait for the next live event; None if the hub is closed, or if it is time to read the store."""
        while True:
            try:
                async with asyncio.timeout(self._next_interval()):
                    return await anext(reader)
            except StopAsyncIteration:
                return None
            except TimeoutError:
                if self._run is None or not self._is_heard(self._run):
                    return None
                await self._look(self._run)

    async def _look(self, run: RemoteRun) -> None:
        """Read the store, with all followers of the run."""
        try:
            await run.look()
        except StoreError:
            if not self._launcher.is_closed:  # else the store may be closed as well
                raise

    def _is_heard(self, run: RemoteRun) -> bool:
        """Return whether signals announce new events of the run, as far as is known."""
        return self._store.hears and (run.is_answered or self._status != "running")

    def _next_interval(self) -> float | None:
        """Return how long to wait for the hub before the store is read; None if the run is in progress here."""
        if self._launcher.is_running(self._run_id):
            return None
        if not self._store.durable:
            return _IN_MEMORY_POLL_SECONDS
        if self._run is not None and self._run.is_answered and self._store.hears:
            return LOOK_SECONDS
        interval = POLL_SECONDS if self._status == "running" else self._interval
        self._interval = min(2 * interval, LOOK_SECONDS if self._store.hears else MAX_POLL_SECONDS)
        return interval

    async def _in_order(self, live: Event) -> AsyncGenerator[Event, None]:
        """Yield a live event, after those in the store that precede it; nothing if the caller has it already."""
        if live.seq > self._last + 1 or not (live.seq or self._is_live):
            async for event in self._stored():  # from another process, or from before this reader joined
                yield event
        self._is_live = True
        if live.seq > self._last:
            yield self._passed(live)
        elif not live.seq and not (isinstance(live, _TEXTS) and (live.path, live.message_id) in self._complete):
            yield live

    async def _stored(self) -> AsyncGenerator[Event, None]:
        """Yield the stored events that the caller does not have."""
        try:
            rows = await self._rows()
        except StoreError:
            if self._launcher.is_closed:
                return  # the store may be closed as well
            raise
        for number, row in enumerate(rows, 1):
            event = read_event(row)
            if isinstance(event, (*_TEXTS, Warned)):
                self._complete.add((event.path, event.message_id))
            yield self._passed(event)
            if number % _BATCH == 0:
                await asyncio.sleep(0)

    async def _rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the stored events that the caller does not have; the same list for all readers of an ended run."""
        key = (self._run_id, self._last)
        if self._status in OPEN_STATUSES:
            return await self._store.events(*key)
        if (rows := self._shared.get(key)) is None:
            rows = self._shared.setdefault(key, _Rows(await self._store.events(*key)))
        return rows

    def _passed(self, event: Event) -> Event:
        """Return a numbered event, which the caller now has."""
        self._last = event.seq
        self._status = event.status if isinstance(event, StreamEnd) else "running"
        return event

    async def _is_over(self, *, through_pauses: bool) -> bool:
        """Return whether the run has ended or waits for a decision, so that no event follows."""
        if self._status != "paused":
            return self._status not in OPEN_STATUSES
        if through_pauses or self._launcher.is_running(self._run_id):
            return False
        return (await self._store.load_run(self._run_id)).status == "paused"  # it may have been resumed since
