"""Numbers configuration events, and keeps the last ones for clients that reconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from framework.server.schemas import redact_changes, redact_problems
from framework.types.events import ConfigRejected, ConfigReloaded, wire
from framework.types.redact import redact_data

MAX_EVENTS = 100


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event with its number, starting at 1."""

    number: int
    data: dict[str, Any]
    """The event as wire data, with secrets redacted."""


class ConfigFeed:
    """Keeps the last `MAX_EVENTS` events. Listeners pull them, so a slow one misses events and delays no other."""

    def __init__(self) -> None:
        self._origin = token_hex(4)
        """A random prefix of event ids, which separates this process from earlier ones."""
        self._events: deque[FeedEvent] = deque(maxlen=MAX_EVENTS)
        self._count = 0
        self._changed = asyncio.Event()
        self.closed = False

    @property
    def count(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._count

    def add(self, event: ConfigReloaded | ConfigRejected) -> None:
        """Add an event. Pass this method to `catalog.subscribe`."""
        event = event.model_copy(update={"problems": redact_problems(event.problems)})
        if isinstance(event, ConfigReloaded):
            event = event.model_copy(update={"changes": redact_changes(event.changes)})
        self._count += 1
        self._events.append(FeedEvent(self._count, redact_data(wire(event))))
        self._wake()

    def close(self) -> None:
        """Close the feed, and end all streams."""
        self.closed = True
        self._wake()

    async def wait_after(self, number: int) -> Sequence[FeedEvent]:
        """Wait for events after `number`, and return those still kept. Return none once the feed is closed."""
        while not self.closed and self._count <= number:
            await self._changed.wait()
        return () if self.closed else [item for item in self._events if item.number > number]

    def id_of(self, item: FeedEvent) -> str:
        """Return the id of an event on the wire."""
        return f"{self._origin}-{item.number}"

    def number_of(self, last_id: str | None) -> int:
        """Return the number of the last event that a client has seen.

        Without an id, that is the last event. An id of another process is 0: the client gets all kept events.
        """
        if last_id is None:
            return self._count
        origin, _, number = last_id.partition("-")
        is_own = origin == self._origin and number.isascii() and number.isdecimal() and len(number) < 20
        return min(int(number), self._count) if is_own else 0

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
