"""The clock of a store: what expires, and what is old enough to be deleted, does not depend on one machine's time."""

from __future__ import annotations

import time
from collections.abc import Callable

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Return seconds on a clock that nobody sets. It counts the time in which the machine sleeps, where that exists."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class StoreClock:
    """Unix time in seconds: read once, then measured by a clock that nobody sets.

    A store sets it to the time of its database when it is opened, and later with each renewal of a lease.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        """Initialize. `wall`: the time of day of this machine, with which the clock begins."""
        self._offset = wall() - elapsed()

    def __call__(self) -> float:
        """Return the time."""
        return elapsed() + self._offset

    def set(self, now: float) -> None:
        """Set the time."""
        self._offset = now - elapsed()
