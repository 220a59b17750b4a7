"""Sends the texts that models write in runs of this process to the processes that follow them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from uuid import uuid4
from weakref import WeakKeyDictionary

from framework.engine.context.event_hub import EventHub, TextKind
from framework.engine.context.text_piece import MessageKey, TextPiece, split
from framework.engine.runtime.background import essential, is_passing
from framework.engine.runtime.receiver import SignalReceiver
from framework.store.signals import NEW, Signal, Signals
from framework.types.errors import StoreError
from framework.types.events import ContentReceived, Thought, Warned

BATCH_SECONDS = 0.1
"""Interval at which texts are sent."""


class TextSender:
    """The texts of one process. They are sent only while another process follows their run."""

    def __init__(self, store: Signals, signals: SignalReceiver, hub_of: Callable[[str], EventHub | None]) -> None:
        """Initialize. `hub_of` returns the hub of a run that is in progress in this process."""
        self._store, self._hub_of = store, hub_of
        self._runs: dict[str, _SentRun] = {}
        self._sources = WeakKeyDictionary[EventHub, str]()
        self._answers: list[Signal] = []
        """Tell new followers that this process executes their run, and how far it has come."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        signals.add(self._receive)

    def begin(self, run_id: str) -> None:
        """Send the texts of a run in progress in this process, and answer its followers."""
        hub = self._hub_of(run_id)
        if hub is None:
            return
        if run_id in self._runs:
            self._runs[run_id].close()
        self._runs[run_id] = _SentRun(hub, self._sources.setdefault(hub, uuid4().hex))
        self._answers.append(Signal("events", run_id, hub.number))
        self._woken.set()
        if self._task is None:
            sending, loop = self._send(), asyncio.get_running_loop()
            self._task = essential(loop.create_task(sending, name="texts for other processes", context=Context()))

    async def close(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _receive(self, signal: Signal) -> None:
        if signal.kind == "listen" and (signal.body == NEW or signal.run_id not in self._runs):
            self.begin(signal.run_id)

    async def _send(self) -> None:
        try:
            while self._runs:
                with suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_SECONDS):
                        await self._woken.wait()
                self._woken.clear()
                signals, self._answers = [*self._answers, *self._texts()], []
                if signals:
                    try:
                        await self._store.signal(*signals)
                    except (StoreError, OSError) as error:  # the followers get the whole texts from the store
                        if not is_passing(error):
                            raise
        finally:
            self._task = None
            for run in self._runs.values():
                run.close()
            self._runs.clear()

    def _texts(self) -> Iterator[Signal]:
        for run_id, run in list(self._runs.items()):
            if run.hub.is_closed or not self._store.is_followed(run_id):
                run.close()
                del self._runs[run_id]
                continue
            number = run.hub.number
            for piece in run.take():
                yield Signal("deltas", run_id, number, piece.encode())


class _SentRun:
    """One run, and what was sent of its texts since the last follower joined."""

    def __init__(self, hub: EventHub, source: str) -> None:
        self.hub, self._source = hub, source
        self._reader = hub.reader(hub.number)
        self._sent: dict[MessageKey, dict[TextKind, int]] = {}
        """Number of characters that were sent of each text in progress."""

    def take(self) -> Iterator[TextPiece]:
        """Yield the pieces that have arrived since the last call, of texts that are still in progress."""
        pieces: dict[MessageKey, list[TextPiece]] = {}
        while (event := self._reader.take()) is not None:
            if not isinstance(event, (ContentReceived, Thought, Warned)) or event.message_id is None:
                continue
            message = (event.path, event.message_id)
            if event.seq:
                self._sent.pop(message, None)
                pieces.pop(message, None)
            elif not isinstance(event, Warned):
                sent = self._sent.setdefault(message, {})
                begin = sent.get(type(event), 0)
                sent[type(event)] = begin + len(event.text)
                pieces.setdefault(message, []).extend(split(event, self._source, begin))
        for some in pieces.values():
            yield from some

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()
