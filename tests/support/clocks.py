"""Clocks in tests: timeouts and times of stores expire at the moment that a test chooses, however slow the machine is.

A test sets a long timeout, which no delay of the machine reaches, and skips it.
"""

from __future__ import annotations

import asyncio
import time

from framework.store.database import StoreClock
from framework.store.store import Store


def skip(seconds: float) -> None:
    """Move the clock of the running event loop forward. Timeouts that are due by then expire at its next iteration.

    Code that has kept the method `time` of the loop before does not notice.
    """
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]  # until the loop is closed


class MovableClock(StoreClock):
    """The clock of a store, which a test moves. Its store sets the time before that."""

    ahead = 0.0
    """Seconds that are added to the time."""
    at: float | None = None
    """The time, if it stands still."""

    def __call__(self) -> float:
        """Return the time."""
        return super().__call__() + self.ahead if self.at is None else self.at


def clock_of(store: Store) -> MovableClock:
    """Return the clock of a store that was opened with a `MovableClock`."""
    clock = getattr(store, "clock", None)
    assert isinstance(clock, MovableClock)
    return clock


def wrong_by(seconds: float) -> StoreClock:
    """Return the clock of a store on a machine whose time of day is wrong."""
    return StoreClock(lambda: time.time() + seconds)
