"""Which models can be asked just now: one that fails again and again is left alone for a while.

Pure bookkeeping over a clock. A model that has failed `after` times in a row is in a cooldown: nobody asks it. When
that is over, one call goes through as a probe; if it fails the next cooldown is twice as long, up to a minute, and as
soon as one succeeds everything is forgotten.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_COOLDOWN = 60.0
"""Seconds."""
JITTER = 0.2
"""Of a cooldown: by so much it may be shorter, so that processes do not come back all at once."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Whether a model may be asked now."""

    wait: float
    """Seconds after which to ask for another permit; 0: ask the model."""
    epoch: int
    """The call's place in the model's history: what was begun before a cooldown says nothing about its end."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    """In a row."""
    cooldown: float = 0.0
    """Seconds; 0 while the model can be asked."""
    until: float = 0.0
    epoch: int = 0
    last_message: str = ""


class CircuitBreakers:
    """What a process knows of its models, by the names that agent files use.

    Args:
        clock: seconds, never going back.
        chance: a number from 0 to 1.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, random_share: Callable[[], float] = random.random
    ) -> None:
        self._clock, self._random_share = clock, random_share
        self._records: dict[str, _Record] = {}

    def acquire(self, model: str) -> Permit:
        """Ask whether a call may be made; one that may is taken for made, so its outcome must be told."""
        record = self._records.get(model)
        if record is None or not record.cooldown:
            return Permit(0.0, record.epoch if record else 0)
        now = self._clock()
        if now < record.until:
            return Permit(record.until - now, record.epoch)
        # This call is the probe. If it never comes back with an outcome, there is another one after the same time.
        record.until = now + record.cooldown
        record.epoch += 1
        return Permit(0.0, record.epoch)

    def record_success(self, model: str) -> None:
        """The model has answered, whatever the answer is worth."""
        if (record := self._records.get(model)) is not None:
            record.failures, record.cooldown = 0, 0.0

    def record_failure(self, model: str, permit: Permit, error: str, *, after: int, cooldown: float) -> None:
        """The model could not be had.

        Args:
            model: its name.
            permit: what the call was made with.
            error: what went wrong, for those who are told to wait.
            after: failures in a row that begin a cooldown.
            cooldown: seconds of the first one.
        """
        record = self._records.setdefault(model, _Record(epoch=permit.epoch))
        if permit.epoch != record.epoch:
            return
        record.failures += 1
        record.last_message = error
        if record.cooldown or record.failures >= after:
            record.cooldown = min(MAX_COOLDOWN, record.cooldown * 2 if record.cooldown else cooldown)
            record.until = self._clock() + record.cooldown * (1 - JITTER * self._random_share())
            record.epoch += 1

    def is_open(self, model: str) -> bool:
        """Whether the model is in a cooldown, and not to be asked just now."""
        record = self._records.get(model)
        return record is not None and record.cooldown > 0 and self._clock() < record.until

    def last_error(self, model: str) -> str:
        """Why a model is left alone, for people."""
        record = self._records.get(model, _Record())
        return f"it failed {record.failures} times in a row, the last time: {record.last_message}"
