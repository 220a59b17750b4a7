"""The protocol between what delivers queued and interrupted runs, and the process that executes them.

The rows of the store are the truth: they decide which run begins next and who may continue one. A delivery only says
that it is time to look at them, so one that comes twice, late or never does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

from framework.store.types import EVERYTHING, OfferedRun, WorkScope


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """Work on the whole store that one of its processes does at a time."""

    name: str
    cron: str
    """When: five fields, in UTC."""
    run: Callable[[], Awaitable[None]]
    """Does the work, and handles its errors."""


class Worker(Protocol):
    """The process that a work source delivers to."""

    must_look: bool
    """Whether runs may become ready without a `wake`, because other processes use the store."""

    def claim_soon(self) -> None:
        """Begin ready runs, best first, as long as the capacity permits. Returns at once."""
        ...

    async def drive(self, run_id: str) -> None:
        """Use the offer of a run: continue it if it was interrupted, else begin the best ready run.

        An offered run whose first confirmation expired is continued as well. If nothing needs this process, nothing
        happens. At full capacity, it waits for the end of another run.

        Returns when the run no longer needs this process: it has ended, paused or been released. Never raises; errors
        are logged. The run does not depend on this call: cancelling it leaves the run in progress.
        """
        ...


class WorkSource(Protocol):
    """Delivers the runs of a store to one process."""

    capacity: int
    """Number of runs that the process executes at once. 0: it executes none, and others do."""
    scope: WorkScope
    """The runs that are delivered."""
    is_shared: bool
    """Whether an offer reaches all processes at once. Then this process continues runs only if they are delivered."""

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Offer runs to all processes; see `Offers`."""
        ...

    def claim(self, worker: Worker) -> None:
        """Deliver runs to this worker, from the first `wake` until `release`."""
        ...

    def wake(self, *, has_looked: bool = False) -> None:
        """Look for runs now: one may have become ready, or this process has become able to execute another.

        Args:
            has_looked: the worker has just claimed the runs that are ready, so looking again can wait.
        """
        ...

    def repeat(self, job: PeriodicJob) -> bool:
        """Do periodic work in one process of all. Return False if each process must do it itself.

        Call it before the first `wake`. Another job with the same name replaces the first.
        """
        ...

    def release(self) -> None:
        """Deliver nothing more, from now on: this process is about to stop. Its runs are not affected."""
        ...


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
