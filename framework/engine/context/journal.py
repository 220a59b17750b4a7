"""The journal: persists the state and events of a root run, and delivers each event after it is persisted.

With a durable store, every step is one write that contains the changes of the state and the events since the last
write. Concurrent requests share a write: requests of one turn of the event loop are written together, and a request
made during a write waits for the next one, which includes it. A task writes, which the cancellation of a caller does
not affect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from framework.engine.context.event_hub import EventHub
from framework.store.run_record import CancelAccepted, RunRecord
from framework.types.budget import BudgetUse
from framework.types.events import Event, RunEvent
from framework.types.state import RunState
from framework.types.trace import SpanRecord

_FLUSH_DELAY = 0.002
"""Seconds to wait for the step's own write, which then includes the events appended so far."""
_SPAN_BATCH = 32
"""Number of finished spans that are written before the run ends."""


class TakeSpans(Protocol):
    """Returns the spans that have ended, each once."""

    def __call__(self, least: int = 1) -> Sequence[SpanRecord]:
        """Return the ended spans; empty if there are fewer than `least`."""
        ...


def _no_spans(least: int = 1) -> Sequence[SpanRecord]:  # noqa: ARG001 - the signature is TakeSpans'
    return ()


class Journal:
    """Persists one root run while this process works on it."""

    def __init__(
        self,
        state: RunState,
        record: RunRecord,
        hub: EventHub,
        *,
        durable: bool,
        take_spans: TakeSpans = _no_spans,
    ) -> None:
        """Create the journal of a run.

        Args:
            state: the root run's state.
            record: writes the run to the store; holds its lease.
            hub: receives events once they are persisted.
            durable: whether the store outlives this process.
            take_spans: returns ended spans to persist: in batches, and the rest at the end.
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
        """Writes what was requested before it was set. Writes done at once do not cancel it, to save one per step."""
        self._timed = 0
        """Number of the last request when the timer was set."""
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

        Does nothing once the last write has begun, since that write releases the lease.
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
        self._requested += 1  # before any await: a write that begins now includes the end, and must be the last one
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
            await asyncio.shield(self._writing or self._begin_write())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write_soon(self) -> None:
        if self._timer is None and self._writing is None:
            self._timed = self._requested
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_DELAY, self._on_timer)

    def _on_timer(self) -> None:
        """Write, unless that was done since. If only later requests are left, wait for the step's own write again."""
        self._timer = None
        if self._writing is not None or self._failure is not None:
            return  # the end of that write begins the next one
        if self._written < self._timed:
            self._begin_write()
        elif self._written < self._requested:
            self._write_soon()

    def _begin_write(self) -> asyncio.Task[None]:
        """Return the task that writes."""
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
        return self._requested, events, (*left, *self._take_spans(least=least)), self._take_uses()

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
                self._begin_write()
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
    return event(run_id=root.run_id, seq=root.seq, generation=root.generation, **payload)  # type: ignore[return-value]  # every RunEvent is an Event
