"""Admits requests to the queue while it is not full, and says when a refused one may be sent again."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from framework.store.protocol import Store
from framework.types.errors import QueueFull

SAMPLE_SECONDS = 1.0
"""How long a count of the waiting runs is used, with the runs that this process has added since."""
_SECONDS_PER_RUN = 25e-6
"""The same for each run that may wait, while the queue seems full: 0.25 s for 10,000. Counting more runs costs more."""
_RATE_SECONDS = 60.0
"""Period over which the rate is measured at which runs begin."""
_MAX_RETRY_SECONDS = 600


@dataclass(frozen=True, slots=True)
class _Sample:
    """The queue of all processes at a time of this process's clock, in seconds."""

    at: float
    waiting: int
    added: int
    """Number of runs that were ever added, to compare with that of other samples."""

    def begun_since(self, earlier: _Sample) -> int:
        """Return the number of runs that have left the queue since an earlier sample."""
        return max(0, (self.added - earlier.added) - (self.waiting - earlier.waiting))


class QueueAdmission:
    """Counts the waiting runs of all processes, at most once a second unless the queue is full."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._samples: deque[_Sample] = deque()
        """One about each second in which requests came, of the last minute, oldest first."""
        self._latest: _Sample | None = None
        self._admitted = 0
        """Requests that were admitted since the latest sample."""
        self._refused = 0
        """Requests that were refused in about the last second. They are told to come back one after the other."""
        self._sampling = asyncio.Lock()

    async def admit(self, max_waiting: int) -> None:
        """Admit a request to the queue; raises QueueFull if `max_waiting` runs wait already."""
        latest = await self._sample(SAMPLE_SECONDS)
        if latest.waiting + self._admitted >= max_waiting:
            latest = await self._sample(max_waiting * _SECONDS_PER_RUN)
        if (waiting := latest.waiting + self._admitted) < max_waiting:
            self._admitted += 1
            return
        self._refused += 1
        seconds = self._seconds_until_begun(waiting - max_waiting + self._refused)
        advice = "retry later" if seconds is None else f"retry in {seconds} s"
        raise QueueFull(f"{waiting} runs wait, the maximum (work.max_waiting): {advice}", retry_after=seconds)

    async def _sample(self, max_age: float) -> _Sample:
        """Return a count of the waiting runs that is at most `max_age` seconds old."""
        async with self._sampling:
            if self._latest is None or self._clock() - self._latest.at >= max_age:
                size = await self._store.queue_size()
                self._latest = _Sample(self._clock(), size.waiting, size.added)
                self._admitted = 0
                self._keep(self._latest)
            return self._latest

    def _keep(self, sample: _Sample) -> None:
        while self._samples and self._samples[0].at < sample.at - _RATE_SECONDS:
            self._samples.popleft()
        if not self._samples or self._samples[-1].at <= sample.at - SAMPLE_SECONDS:
            self._samples.append(sample)
            self._refused = 0

    def _seconds_until_begun(self, runs: int) -> int | None:
        """Return after how many seconds this number of runs will have begun, by the measured rate; None if unknown."""
        first, latest = self._samples[0], self._latest
        if latest is None or latest.at - first.at < SAMPLE_SECONDS:
            return None
        begun = latest.begun_since(first)
        seconds = runs * (latest.at - first.at) / begun if begun else _MAX_RETRY_SECONDS
        return ceil(min(max(seconds, 1.0), _MAX_RETRY_SECONDS))
