"""What a root run puts on record, and tells whoever listens: nothing is told before it is on record.

With a durable store every step is one write: the state's changes and the events since the last one, together. Writes of
parallel jobs join: whoever asks while one is under way waits for the next, which has it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from framework.engine.context.stream import Channel
from framework.store.protocol import RunRecord
from framework.types.events import Event, RunEvent
from framework.types.state import RunState
from framework.types.trace import SpanRecord

_FLUSH_DELAY = 0.002
"""Seconds that `tell` gives a step to come to its own write, which then has the event with it."""


_SPAN_BATCH = 32
"""So many of a trace are worth a row of their own before the run's end."""


class TakeSpans(Protocol):
    """Gives the spans that have ended, each once."""

    def __call__(self, least: int = 1) -> Sequence[SpanRecord]:
        """None while there are fewer than that."""
        ...


def _no_spans(least: int = 1) -> Sequence[SpanRecord]:  # noqa: ARG001 - the signature is TakeSpans'
    return ()


class Journal:
    """The record of one root run while this process works on it."""

    def __init__(
        self,
        state: RunState,
        record: RunRecord,
        channel: Channel,
        *,
        durable: bool,
        take_spans: TakeSpans = _no_spans,
    ) -> None:
        """Keep the record of a run.

        Args:
            state: the root run's state.
            record: the right to write it to the store.
            channel: receives events once they are persisted.
            durable: whether the store outlives this process.
            take_spans: returns finished spans to store: all at the end, and before that many at once.
        """
        self.is_closing = False
        """The runtime closes: the run stops at its next step."""
        self.cancel_requested = False
        """A cancel request was recorded, or made in this process."""
        self.lease_lost = False
        """The lease could not be renewed because this process no longer holds the run."""
        self._state, self._record, self._channel, self._durable = state, record, channel, durable
        self._take_spans = take_spans
        self._on_cancel: Callable[[], object] = lambda: None
        self._outbox: list[Event] = []
        self._requested = self._written = 0
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._is_ending = self._is_releasing = False

    @property
    def is_suspended(self) -> bool:
        """The run stops here without an end, to be resumed: the runtime closes, or the run is held elsewhere."""
        return (self.is_closing or self.lease_lost) and self._durable and not self.cancel_requested

    @property
    def has_no_readers(self) -> bool:
        """What is told is neither kept nor heard."""
        return not self._durable and self._channel.is_closed

    def check(self) -> None:
        """Before a step: raises CancelledError if the run is suspended, and StoreError once the record has failed."""
        if self.is_closing or self.lease_lost:
            raise asyncio.CancelledError
        if self._failure is not None:
            raise self._failure

    def call_on_cancel(self, callback: Callable[[], object]) -> None:
        """Set what cancels the run; called once, because its tools may be cleaning up."""
        self._on_cancel = callback

    def close(self) -> None:
        """Stop the run at its next step: the runtime closes."""
        self.is_closing = True

    def mark_cancelled(self) -> None:
        """Note that the run was cancelled in this process, so that it ends instead of being suspended."""
        self.cancel_requested = True

    def request_cancel(self) -> None:
        """Cancel the run, unless that was done before: a cancel request was recorded."""
        if not self.cancel_requested:
            self.cancel_requested = True
            self._on_cancel()

    def mark_lease_lost(self) -> None:
        """Stop working on the run: this process no longer holds it. Its record decides what becomes of it.

        A run whose last write has begun lets go of its record by itself, so it is not lost.
        """
        if not (self._is_ending or self._is_releasing or self.lease_lost):
            self.lease_lost = True
            self._on_cancel()

    async def append(self, event: Event) -> None:
        """Put an event on record, with the next write or a little later, and then hand it out."""
        if not self._durable:
            await self._channel.put(event)
            return
        self._outbox.append(event)
        self.schedule_flush()

    def schedule_flush(self) -> None:
        """Have the state written within a moment, at the latest; a failure shows at the next `save` or `check`."""
        if self._durable and self._failure is None:
            self._requested += 1
            self._write_soon()

    async def save(self) -> None:
        """Wait until the state, as it is now, is on record, and what was told with it handed out.

        Raises:
            StoreError: it could not be written: neither now nor, since then, ever.
        """
        if self._durable:
            self._requested += 1
            await self._wait_until_written(self._requested)

    async def end(self, events: Sequence[Event]) -> None:
        """Put the run's end on record with its last events; nothing that happens meanwhile keeps it from that."""
        self._is_ending = True
        self._channel.end()
        if not self._durable:
            await self._record.write(self._state, spans=self._take_spans(), last=True)
            for event in events:
                await self._channel.put(event)
            return
        self._outbox.extend(events)
        self._requested += 1  # at once: a write that begins now has the end, and there must be none after it
        await _wait_shielded(asyncio.ensure_future(self._wait_until_written(self._requested)))

    async def release(self) -> None:
        """Leave the run, as it is, to whoever resumes it."""
        self._channel.end()
        await _wait_shielded(asyncio.ensure_future(self._release()))

    async def _release(self) -> None:
        self._is_releasing = True
        await self.save()
        await self._record.release()

    async def _wait_until_written(self, target: int) -> None:
        """Until so much of what was asked for is on record."""
        while self._written < target:
            if self._failure is not None:
                raise self._failure
            await asyncio.shield(self._writing or self._begin_write())

    def _write_soon(self) -> None:
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_DELAY, self._begin_write)

    def _begin_write(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writing = asyncio.ensure_future(self._write())
        return self._writing

    async def _write(self) -> None:
        if self._failure is not None:  # the run was told that it has no record: nothing is written after that
            self._writing = None
            return
        covered, events, self._outbox = self._requested, self._outbox, []
        spans = self._take_spans(least=1 if self._is_ending or self._is_releasing else _SPAN_BATCH)
        try:
            await self._record.write(self._state, events, spans, last=self._is_ending)
            self._written = covered
            for event in events:
                await self._channel.put(event)
        except BaseException as failure:  # noqa: BLE001 - whoever saves next is told; nothing goes on without a record
            self._failure = failure
            if self._timer is not None:
                self._timer.cancel()
        finally:
            self._writing = None
        if self._record.cancel_requested:
            self.request_cancel()
        if self._failure is None:
            if self._outbox:
                self._begin_write()
            elif self._requested > covered:
                self._write_soon()


async def _wait_shielded(task: asyncio.Future[None]) -> None:
    """Wait for a task, also while being cancelled."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    task.result()


def next_event(root: RunState, event: type[RunEvent], **payload: Any) -> Event:
    """The next event of a root run, or of a part of it."""
    root.seq += 1
    head = {"run_id": root.run_id, "seq": root.seq, "generation": root.generation}
    return event(**head, **payload)  # type: ignore[return-value]  # every RunEvent is an Event
