"""Delivery of a run's events: the channel that they pass through, and the stream that the caller reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from framework.types.events import ContentReceived, Event
from framework.types.state import RunResult

CHANNEL_CAPACITY = 256


class Channel:
    """A bounded queue of events: a slow reader slows the run down.

    A full channel merges text pieces of the same message. No event is dropped. The bound is lifted when the run ends.
    """

    def __init__(self, size: int = CHANNEL_CAPACITY) -> None:
        self._events: deque[Event] = deque()
        self._size = size
        self._closed = self._ending = False
        self._changed = asyncio.Event()
        self._capacity = asyncio.Event()
        self._capacity.set()
        self._order, self._waiting = asyncio.Lock(), 0

    async def put(self, event: Event) -> None:
        """Add an event, in order; wait while the channel is full and the run has not ended. No-op after `close`."""
        if self._waiting == 0 and not self._is_full:
            self._append(event)
            return
        self._waiting += 1
        try:
            async with self._order:
                while self._is_full:
                    if self._merged(event):
                        return
                    self._capacity.clear()
                    await self._capacity.wait()
                self._append(event)
        finally:
            self._waiting -= 1

    @property
    def _is_full(self) -> bool:
        return len(self._events) >= self._size and not (self._closed or self._ending)

    def _append(self, event: Event) -> None:
        if not self._closed:
            self._events.append(event)
            self._changed.set()

    def end(self) -> None:
        """Lift the bound, because the run ends: `put` no longer waits for the reader."""
        self._ending = True
        self._capacity.set()

    def close(self) -> None:
        """Accept no more events; the reader still gets the remaining ones."""
        self._closed = True
        self._changed.set()
        self._capacity.set()

    @property
    def is_closed(self) -> bool:
        """Whether new events are ignored."""
        return self._closed

    async def get(self) -> Event | None:
        """Wait for the next event; None at the end."""
        while not self._events:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        self._capacity.set()
        return event

    def _merged(self, event: Event) -> bool:
        last = self._events[-1]
        if not (isinstance(event, ContentReceived) and isinstance(last, ContentReceived)):
            return False
        if last.seq or event.seq or last.message_id != event.message_id:
            return False
        self._events[-1] = last.model_copy(update={"text": last.text + event.text})
        return True


class RunStream:
    """A run in progress: iterate over its events, then await its `result()`."""

    def __init__(self, run_id: str, channel: Channel, task: asyncio.Task[RunResult]) -> None:
        self.run_id = run_id
        self._channel = channel
        self._task = task
        self._is_awaited = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._channel.get()) is not None:
            yield event
        self._is_awaited = True  # read to the end, so leaving does not cancel the run

    async def result(self) -> RunResult:
        """Wait for the run to end, and return its result. Unread events are discarded.

        Raises:
            AgentsdError: the run could not be recorded.
        """
        self._is_awaited = True
        self._channel.close()
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:  # the caller no longer waits, so `leave` cancels the run
            self._is_awaited = False
            raise

    def cancel(self) -> None:
        """Cancel the run; its result has the status `cancelled`."""
        asyncio.get_running_loop().call_soon(
            self._task.cancel
        )  # later: a task that has not begun could not record its end

    def end(self) -> asyncio.Task[RunResult]:
        """Return the task that ends when the run's end or pause is persisted."""
        return self._task

    async def leave(self) -> None:
        """Stop reading. Cancel the run unless its end was awaited; return when its end is persisted."""
        self._channel.close()
        if not self._is_awaited:
            self.cancel()
        await asyncio.wait([self._task])
