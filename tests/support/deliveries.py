"""A work source of which the test decides when it delivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.engine.runtime.background import PeriodicJob, Worker
from framework.store.types import EVERYTHING, OfferedRun, WorkScope


class Deliveries:
    """A work source that delivers nothing by itself, and notes what is offered."""

    def __init__(self, capacity: int = 10, scope: WorkScope = EVERYTHING, *, is_shared: bool = True) -> None:
        self.capacity, self.scope, self.is_shared = capacity, scope, is_shared
        self.offered: list[str] = []
        self.is_released = False
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The worker to deliver to."""
        assert self._worker is not None
        return self._worker

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Note the runs."""
        self.offered += [run.run_id for run in runs]

    def claim(self, worker: Worker) -> None:
        """Note the worker."""
        self._worker = worker

    def wake(self, *, has_looked: bool = False) -> None:
        """Do nothing."""

    def repeat(self, job: PeriodicJob) -> bool:
        """Promise to do the work."""
        return True

    def release(self) -> None:
        """Note that the process stops."""
        self.is_released = True
