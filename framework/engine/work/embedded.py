"""The default work source: each process looks for runs in its store, without any other program."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from framework.engine.work.source import PeriodicJob, Worker
from framework.store.work import EVERYTHING, OfferedRun, WorkScope

DEFAULT_CAPACITY = 200
"""Number of queued and continued runs that one process executes at once, unless the settings say otherwise."""
RECHECK_SECONDS = 1.0
"""Interval at which a process looks for runs that can begin because of another process."""


class EmbeddedSource:
    """Looks for ready runs when this process is woken and, if other processes use the store, at an interval."""

    is_shared = False

    def __init__(self, capacity: int = DEFAULT_CAPACITY, scope: WorkScope = EVERYTHING) -> None:
        self.capacity, self.scope = capacity, scope
        self._worker: Worker | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_released = False

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Do nothing: processes find the runs in the store."""

    def claim(self, worker: Worker) -> None:
        """Look for the ready runs of this worker."""
        self._worker = worker

    def wake(self, *, has_looked: bool = False) -> None:
        """Look for ready runs now, and again at the interval."""
        if self._worker is None or self.capacity == 0:
            return
        if not has_looked:
            self._worker.claim_soon()
        if self._timer is not None:
            self._timer.cancel()
        if self._worker.must_look and not self._is_released:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_SECONDS, self.wake, context=Context())

    def repeat(self, job: PeriodicJob) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: this process knows of no others."""
        return False

    def release(self) -> None:
        """Look only for runs of this process: those that requests in progress still submit."""
        self._is_released = True
        if self._timer is not None:
            self._timer.cancel()
