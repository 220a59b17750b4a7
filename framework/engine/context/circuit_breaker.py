"""A circuit breaker per model: after repeated failures, calls are suspended for a cooldown.

Pure bookkeeping over a clock. After `after` failures in a row a model is in cooldown: its circuit is open, and no call
is admitted. When the cooldown ends, one call is admitted as a probe. If it fails, the next cooldown is twice as long,
up to a minute; if it succeeds, the circuit closes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_COOLDOWN = 60.0
"""Seconds."""
JITTER = 0.2
"""Share by which a cooldown is shortened at random, so that processes do not all call at the same moment."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Whether a model may be called now."""

    wait: float
    """Seconds until the next permit can be requested; 0 if the call is admitted."""
    epoch: int
    """Number of cooldowns and probes before this call: a call from before a cooldown does not count at its end."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    """Number of failures in a row."""
    cooldown: float = 0.0
    """Length in seconds; 0 while the circuit is closed."""
    until: float = 0.0
    epoch: int = 0
    last_message: str = ""


class CircuitBreakers:
    """The circuit breakers of a process, by the model names that agent files use.

    Args:
        clock: returns seconds; monotonic.
        random_share: returns a number from 0 to 1.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, random_share: Callable[[], float] = random.random
    ) -> None:
        self._clock, self._random_share = clock, random_share
        self._records: dict[str, _Record] = {}

    def acquire(self, model: str) -> Permit:
        """Return whether a call is admitted. The outcome of an admitted call must be recorded."""
        record = self._records.get(model)
        if record is None or not record.cooldown:
            return Permit(0.0, record.epoch if record else 0)
        now = self._clock()
        if now < record.until:
            return Permit(record.until - now, record.epoch)
        # This call is the probe. If its outcome is never recorded, another probe is admitted after the same time.
        record.until = now + record.cooldown
        record.epoch += 1
        return Permit(0.0, record.epoch)

    def record_success(self, model: str) -> None:
        """Record that the model answered, even with a rejection."""
        if (record := self._records.get(model)) is not None:
            record.failures, record.cooldown = 0, 0.0

    def record_failure(self, model: str, permit: Permit, error: str, *, after: int, cooldown: float) -> None:
        """Record that the model was unavailable.

        Args:
            model: its name.
            permit: the permit of the call.
            error: the error message, reported to calls that have to wait.
            after: number of failures in a row that begin a cooldown.
            cooldown: length of the first cooldown, in seconds.
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
        """Return whether the model is in cooldown, so that no call is admitted."""
        record = self._records.get(model)
        return record is not None and record.cooldown > 0 and self._clock() < record.until

    def last_error(self, model: str) -> str:
        """Return why the model is in cooldown, as a message."""
        record = self._records.get(model, _Record())
        return f"{record.failures} failures in a row, most recently: {record.last_message}"
