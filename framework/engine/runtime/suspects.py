"""Resumes, one at a time, the runs that may crash their process, so that they do not take other runs with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from framework.store.protocol import RunQuery, Store

MAX_RESUME_ATTEMPTS = 3
"""A run that was resumed this often without saving another step is failed: it probably crashes its processes."""
TRIAL_SECONDS = 5.0
"""Longest time that the next run waits. A step may take minutes; a run that crashes its process does so early."""
CHECK_SECONDS = 0.1
"""Interval at which the store is asked whether the run that was resumed last has saved a step."""


class Suspects:
    """The interrupted runs with one attempt left. This process resumes them one after another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: set[str] = set()
        self._next = asyncio.Lock()
        """Held by the run that is resumed next."""
        self._last: str | None = None
        """The run that was resumed last; None after its end or pause."""
        self._resumed_at = 0.0
        """When that was, on the monotonic clock."""
        self._is_closed = False

    def __contains__(self, run_id: str) -> bool:
        """Return whether a run waits here until it is resumed, or was resumed and is in progress."""
        return run_id in self._runs

    @asynccontextmanager
    async def turn(self, run_id: str) -> AsyncIterator[bool]:
        """Wait until the run before has saved a step, paused or ended, or for `TRIAL_SECONDS`.

        Yields whether to resume the run: the runtime is open, and no other process has resumed it meanwhile.
        """
        self._runs.add(run_id)
        try:
            async with self._next:
                while not self._is_closed and await self._must_wait():  # noqa: ASYNC110 - the store sends no signal for it
                    await asyncio.sleep(CHECK_SECONDS)
                self._last, self._resumed_at = run_id, time.monotonic()
            yield not self._is_closed and await self._has_attempt(run_id)
        finally:
            self._runs.discard(run_id)
            if self._last == run_id:
                self._last = None

    def close(self) -> None:
        """Let nothing wait any longer."""
        self._is_closed = True

    async def _must_wait(self) -> bool:
        if self._last is None or time.monotonic() > self._resumed_at + TRIAL_SECONDS:
            return False
        return any(info.attempts for info in await self._store.runs(RunQuery(run_id=self._last)))

    async def _has_attempt(self, run_id: str) -> bool:
        found = await self._store.runs(RunQuery(run_id=run_id))
        return any(info.orphaned and info.attempts < MAX_RESUME_ATTEMPTS for info in found)
