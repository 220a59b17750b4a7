"""Runs that are followed here while other processes execute them: their events and texts, as signals announce them.

All followers of a run in this process share its hub, and one read of the store per signal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import Context

from framework.engine.context.event_hub import TextKind
from framework.engine.context.text_piece import MessageKey, TextPiece, read_piece
from framework.engine.runtime.launcher import Launcher
from framework.store.signals import MISSED, NEW, Signal
from framework.types.errors import StoreError
from framework.types.events import ContentReceived, Thought, Warned, read_event

LISTEN_SECONDS = 2.0
"""Interval at which other processes are told that a run is followed here."""
_BATCH = 100
"""Number of events after which the event loop may do other work."""


class RunsElsewhere:
    """The followed runs of one process."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher, self._store = launcher, launcher.store
        self._runs: dict[str, RunElsewhere] = {}
        self._followers = Counter[str]()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        launcher.signals.add(self._receive)

    def find(self, run_id: str) -> RunElsewhere | None:
        """Return a run that is followed; None if it is not."""
        return self._runs.get(run_id)

    @contextmanager
    def follow(self, run_id: str, number: int) -> Iterator[RunElsewhere]:
        """Put the events after this number into the hub of a run, until each context of the run is closed."""
        followed = self._runs.get(run_id)
        if followed is None:
            followed = self._runs[run_id] = RunElsewhere(self._launcher, run_id, number)
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


class RunElsewhere:
    """One run that is followed here. While this process executes it, nothing is read: the run fills the hub itself."""

    def __init__(self, launcher: Launcher, run_id: str, number: int) -> None:
        self.is_answered = False
        """Whether the process that executes the run sends signals, as far as is known."""
        self._launcher, self._store, self._run_id = launcher, launcher.store, run_id
        self._begin = self._number = number
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
        if signal.seq >= self._begin and (piece := read_piece(signal.body)) is not None:
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

    def _add(self, piece: TextPiece) -> None:
        """Add what is new of a piece. One after a gap is left out, until the text so far was sent again."""
        if piece.source in self._earlier_sources:
            return
        hub = self._launcher.hub(self._run_id)
        if piece.source != self._source:
            self._begin_source(piece.source)
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

    def _begin_source(self, source: str) -> None:
        """Leave out the rest of the texts of the earlier source: a text cannot continue with another's."""
        if self._source:
            self._earlier_sources.add(self._source)
        self._source = source
        for message in list(self._lengths):
            self._end(message)
