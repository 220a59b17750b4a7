"""What happens to the configuration, for those who listen: numbered, and the last ones kept for who was away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from framework.server.schemas import redact_changes, redact_problems
from framework.types.events import ConfigRejected, ConfigReloaded, wire
from framework.types.redact import redact_data

MAX_EVENTS = 100


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event with its number, from 1."""

    number: int
    data: dict[str, Any]
    """As `wire` gives it, without secrets."""


class ConfigFeed:
    """Keeps the last events. Who listens asks for what is new: who is slow misses old ones, and holds up nobody."""

    def __init__(self) -> None:
        self._origin = token_hex(4)
        """Tells the numbers of this process from those of one before it."""
        self._events: deque[FeedEvent] = deque(maxlen=MAX_EVENTS)
        self._count = 0
        self._changed = asyncio.Event()
        self.closed = False
        self.listeners = 0
        """How many ask for what is new, again and again."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count among the listeners while the context is open."""
        self.listeners += 1
        try:
            yield
        finally:
            self.listeners -= 1

    @property
    def count(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._count

    def add(self, event: ConfigReloaded | ConfigRejected) -> None:
        """Take in an event; for `catalog.subscribe`."""
        event = event.model_copy(update={"problems": redact_problems(event.problems)})
        if isinstance(event, ConfigReloaded):
            event = event.model_copy(update={"changes": redact_changes(event.changes)})
        self._count += 1
        self._events.append(FeedEvent(self._count, redact_data(wire(event))))
        self._wake()

    def close(self) -> None:
        """Let everybody go who listens."""
        self.closed = True
        self._wake()

    async def wait_after(self, number: int) -> Sequence[FeedEvent]:
        """What is kept after an event, at least one; waits for it. Empty once the feed is closed."""
        while not self.closed and self._count <= number:
            await self._changed.wait()
        return () if self.closed else [item for item in self._events if item.number > number]

    def id_of(self, item: FeedEvent) -> str:
        """An event's id on the wire."""
        return f"{self._origin}-{item.number}"

    def number_of(self, last_id: str | None) -> int:
        """After which event a client goes on that saw this id last: one of another process gets all that is kept."""
        if last_id is None:
            return self._count
        origin, _, number = last_id.partition("-")
        known = origin == self._origin and number.isascii() and number.isdecimal() and len(number) < 20
        return min(int(number), self._count) if known else 0

    def _wake(self) -> None:
        more, self._changed = self._changed, asyncio.Event()
        more.set()
