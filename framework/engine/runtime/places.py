"""The places of a process: each run that its work source delivers needs one, so that it never takes too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager


class Places:
    """A number of places, each for one queued or continued run."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._taken = self._looks = self._sought = 0
        self._is_closed = False
        self._freed = asyncio.Event()
        self._on_free: Callable[[], object] = lambda: None

    @property
    def free(self) -> int:
        """Number of places that can be taken now."""
        return 0 if self._is_closed else max(self.capacity - self._taken, 0)

    @property
    def taken(self) -> int:
        """Number of runs that have a place, without the places that a look for runs has taken in advance."""
        return max(self._taken - self._sought, 0)

    def call_on_free(self, callback: Callable[[], object]) -> None:
        """Set the callback for the end of a run that had a place. It is not called if the run could not begin."""
        self._on_free = callback

    def take(self, number: int = 1) -> int:
        """Take at most this number of places, and return how many were free."""
        taken = min(number, self.free)
        self._taken += taken
        return taken

    def give_back(self, number: int = 1) -> None:
        """Give back places of runs that do not begin."""
        self._taken -= number
        self._freed.set()

    @contextmanager
    def all_free(self) -> Iterator[int]:
        """Take all free places while runs are looked for; yield their number. Those without a run are given back."""
        number = self.take(self.free)
        self._looks, self._sought = self._looks + 1, self._sought + number
        try:
            yield number
        finally:
            self._looks, self._sought = self._looks - 1, self._sought - number
            self._freed.set()

    async def known(self) -> None:
        """Wait until it is known whether a place is free, if a look for runs has taken all that were."""
        while self._looks and not self.free and not self._is_closed:
            self._freed.clear()
            await self._freed.wait()

    async def wait(self) -> bool:
        """Wait for a free place, and take it. Return False if there is none any more, because of `close`."""
        while not self.take():
            if self._is_closed or self.capacity == 0:
                return False
            self._freed.clear()
            await self._freed.wait()
        return True

    async def execute(self, work: Awaitable[None]) -> None:
        """Await work that has a place, and give the place back."""
        try:
            await work
        finally:
            self.give_back()
        self._on_free()  # not after an error: a run that could not begin would be tried again at once

    def close(self) -> None:
        """Give away no more places."""
        self._is_closed = True
        self._freed.set()
