"""The one channel a run's events go through, and what the caller holds while it runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from framework.types.events import ContentReceived, Event
from framework.types.state import RunResult

CHANNEL_CAPACITY = 256


class Channel:
    """Bounded while the run goes on: a slow reader slows it down. When full, deltas of one message are merged.

    Nothing is dropped.
    """

    def __init__(self, size: int = CHANNEL_CAPACITY) -> None:
        self._events: deque[Event] = deque()
        self._size = size
        self._closed = self._ending = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._line, self._waiting = asyncio.Lock(), 0

    async def put(self, event: Event) -> None:
        """Add an event behind those that wait for room, waiting unless the run ends; after `close` it goes nowhere."""
        if self._waiting == 0 and not self._is_full:
            self._append(event)
            return
        self._waiting += 1
        try:
            async with self._line:
                while self._is_full:
                    if self._merged(event):
                        return
                    self._room.clear()
                    await self._room.wait()
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
        """The run ends: it waits for nobody any more."""
        self._ending = True
        self._room.set()

    def close(self) -> None:
        """No more events; the reader gets those that are left."""
        self._closed = True
        self._changed.set()
        self._room.set()

    @property
    def is_closed(self) -> bool:
        """Nobody will read what is put in."""
        return self._closed

    async def get(self) -> Event | None:
        """The next event; none at the end."""
        while not self._events:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        self._room.set()
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
    """A run in progress: iterate it for its events, then ask for its `result`."""

    def __init__(self, run_id: str, channel: Channel, task: asyncio.Task[RunResult]) -> None:
        self.run_id = run_id
        self._channel = channel
        self._task = task
        self._wanted = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._channel.get()) is not None:
            yield event
        self._wanted = True  # read to the end: nobody left early

    async def result(self) -> RunResult:
        """Wait for the end, whether or not all events were read.

        Raises:
            AgentsdError: the run could not even be recorded.
        """
        self._wanted = True
        self._channel.close()
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:  # whoever waited does so no more: `leave` stops the run
            self._wanted = False
            raise

    def cancel(self) -> None:
        """Stop the run; its result says so."""
        asyncio.get_running_loop().call_soon(self._task.cancel)  # a task that has not begun could not put down its end

    def end(self) -> asyncio.Task[RunResult]:
        """What ends when the run is on record."""
        return self._task

    async def leave(self) -> None:
        """The reader goes: a run whose end was not waited for is stopped. Returns when the run is on record."""
        self._channel.close()
        if not self._wanted:
            self.cancel()
        await asyncio.wait([self._task])
