"""Finds out which of the interrupted runs ends its processes, without making others fail for it.

A process that ends leaves all of its runs interrupted, and any of them may be the cause. The store counts for a run
only the ends of processes that held no other run (`RunInfo.crashes`). So runs that were interrupted repeatedly during
one step are resumed one at a time, each until it has saved a step, however long that takes; and one of which the
process ended again is resumed where nothing else is in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from framework.store.protocol import RunInfo, RunQuery, Store

MAX_RESUME_ATTEMPTS = 3
"""Number of times that a run is resumed at least before it can be failed, and of ends that it must have caused."""
SUSPECT_ATTEMPTS = MAX_RESUME_ATTEMPTS - 1
"""Number of times from which on a run is resumed only if no other resumed run has still to save a step."""


class Suspects:
    """The runs that this process has resumed, or is about to begin, after they were interrupted."""

    def __init__(self, store: Store, executes_only: Callable[[str], bool]) -> None:
        """Initialize. `executes_only`: returns whether this process executes no other run than the one with this id."""
        self._store, self._executes_only = store, executes_only
        self._unproven: set[str] = set()
        """Runs that had not saved a step when that was last checked."""
        self._alone: str | None = None
        """One of them, beside which this process takes no other run."""

    def __contains__(self, run_id: str) -> bool:
        """Return whether a run is being resumed or begun here, and had not saved a step when that was last checked."""
        return run_id in self._unproven

    async def tries_alone(self) -> bool:
        """Return whether this process takes no run now, because it tries one alone."""
        if self._alone is not None:
            await self._forget_proven()
        return self._alone is not None

    async def candidates(self, limit: int) -> Sequence[RunInfo]:
        """Return up to `limit` interrupted runs, and all suspects, those that were interrupted less often first."""
        found = await self._store.runs(RunQuery(orphaned=True, limit=limit))
        if all(info.attempts < SUSPECT_ATTEMPTS for info in found):
            return found
        others = await self._store.runs(RunQuery(orphaned=True, max_attempts=SUSPECT_ATTEMPTS - 1, limit=limit))
        suspects = await self._store.runs(RunQuery(orphaned=True, min_attempts=SUSPECT_ATTEMPTS))
        return *others, *sorted(suspects, key=lambda info: info.attempts)

    async def admit(self, run_id: str, attempts: int) -> bool:
        """Return whether a run may be taken now, for `trying`. Only suspects have to wait."""
        if await self.tries_alone():
            return False
        if attempts >= SUSPECT_ATTEMPTS:
            await self._forget_proven()
            is_alone = attempts >= MAX_RESUME_ATTEMPTS
            if self._unproven or (is_alone and not self._executes_only(run_id)):
                return False
            self._alone = run_id if is_alone else None
        self._unproven.add(run_id)
        return True

    async def has_crashed(self, run_id: str, attempts: int) -> bool:
        """Return whether a run ended the processes that resumed or claimed it, so that it is failed."""
        if attempts < MAX_RESUME_ATTEMPTS:
            return False
        await self._store.sweep(0)  # counts the ends of processes until now
        return any(info.crashes >= MAX_RESUME_ATTEMPTS for info in await self._store.runs(RunQuery(run_id=run_id)))

    @contextmanager
    def trying(self, run_id: str) -> Iterator[None]:
        """Count a run as unproven until it has saved a step, paused or ended."""
        self._unproven.add(run_id)
        try:
            yield
        finally:
            self.drop(run_id)

    def drop(self, run_id: str) -> None:
        """Forget a run that is not in progress here."""
        self._unproven.discard(run_id)
        if self._alone == run_id:
            self._alone = None

    async def _forget_proven(self) -> None:
        """Forget the runs that have saved a step: the store has set their attempts back."""
        if self._unproven:
            known = frozenset(self._unproven)
            found = await self._store.runs(RunQuery(statuses=("queued", "running"), min_attempts=1))
            for run_id in known - {info.run_id for info in found}:
                self.drop(run_id)
