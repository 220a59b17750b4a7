"""The generations that have been live, newest last, and the hold that a rollback puts on what lies on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from framework.config.generation import Generation
from framework.types.change import Change
from framework.types.errors import RequestError

KEPT = 20
Trigger = Literal["startup", "watch", "api", "rollback", "source"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One generation's time of going live, and why."""

    generation: Generation
    at: datetime
    trigger: Trigger
    changes: tuple[Change, ...]


class History:
    """The last generations."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, generation: Generation, trigger: Trigger, changes: tuple[Change, ...]) -> None:
        """Note a generation that went live now."""
        self._entries.append(Entry(generation, datetime.now(UTC), trigger, changes))

    def generation(self, number: int) -> Generation:
        """A generation by its number; raises RequestError when it is not kept."""
        for entry in self._entries:
            if entry.generation.number == number:
                return entry.generation
        kept = ", ".join(str(entry.generation.number) for entry in self._entries)
        raise RequestError(f"generation {number} is not kept; kept: {kept}")
