"""The stream that the caller of a run reads: its events, with each text once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any, Generic

from framework.engine.context.event_hub import EventReader, Path, TextKind
from framework.types.events import ContentReceived, Event, Thought, Warned
from framework.types.state import OutputT, RunResult


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
