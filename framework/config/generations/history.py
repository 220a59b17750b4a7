"""The generations that have been live, newest last."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from framework.config.generations.archived import Kept
from framework.config.generations.generation import Generation
from framework.types.change import Change
from framework.types.errors import GenerationNotFound
from framework.types.problem import Problem

KEPT = 20
Trigger = Literal["startup", "watch", "api", "rollback", "source"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One generation's time of going live, and why."""

    kept: Kept
    at: datetime
    trigger: Trigger
    pickled: bytes
    """The changes, as bytes: there may be thousands, and no garbage collection has to look through these."""

    @property
    def number(self) -> int:
        """The generation's."""
        return self.kept.bare.number

    @property
    def digest(self) -> str:
        """Of the bytes it was built from."""
        return self.kept.bare.digest

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What of the files could not be used, or was odd."""
        return self.kept.bare.problems

    @property
    def unusable(self) -> tuple[str, ...]:
        """The files that could not be used."""
        return self.kept.bare.unusable

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents."""
        return tuple(self.kept.paths)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What it changed, each change with its direction."""
        changes: tuple[Change, ...] = pickle.loads(self.pickled)
        return changes


class History:
    """The last generations."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> Entry | None:
        """The one of what is live; none before anything is."""
        return self._entries[-1] if self._entries else None

    def add(self, generation: Generation, trigger: Trigger, changes: tuple[Change, ...]) -> None:
        """Note a generation that went live now."""
        self._entries.append(Entry(Kept.of(generation), datetime.now(UTC), trigger, pickle.dumps(changes)))

    def entry(self, number: int) -> Entry:
        """What is known of a generation; raises GenerationNotFound when it is not kept."""
        for entry in self._entries:
            if entry.number == number:
                return entry
        kept = ", ".join(str(entry.number) for entry in self._entries)
        raise GenerationNotFound(f"generation {number} is not kept; kept: {kept or 'none'}")
