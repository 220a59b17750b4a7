"""Work that waits in a store: runs that are offered to processes, and the processes that execute runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from framework.types.run_request import RunRequest

DEFAULT_LEASE_SECONDS = 6.0
"""How long the lease of a process lasts without renewal. After that, other processes may take over its runs."""


@dataclass(frozen=True, slots=True)
class OfferedRun:
    """A run that needs a process: it can begin, it was interrupted, or a confirmation of it expired."""

    run_id: str
    queue: str | None
    """The named queue of the run; None: the workers of its agent execute it."""
    agent: str
    """Its agent; empty if none is chosen yet."""
    priority: int
    """Runs with a higher one begin first."""


class Offers(Protocol):
    """Delivers offered runs to processes that can execute them."""

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Offer runs in the transaction that is open on the connection of the database's driver.

        Called in a thread of the store. If the transaction is rolled back, the runs are not offered.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkScope:
    """The runs that a process executes. With neither option it executes all."""

    agents: frozenset[str] | None = None
    """Runs of these agents that name no queue."""
    queues: frozenset[str] | None = None
    """Runs that name one of these queues, whatever their agent."""

    def includes(self, queue: str | None, agent: str) -> bool:
        """Return whether a run with this queue and agent is among them."""
        if self.agents is None and self.queues is None:
            return True
        return agent in (self.agents or ()) if queue is None else queue in (self.queues or ())


EVERYTHING = WorkScope()


RunLimits = Mapping[str, int]
"""Limits on the number of runs in progress, by key, such as `agent:support`."""
Allowed = Callable[[str], int | None]
"""Returns the limit with a key; None if there is none any more."""
UNLIMITED: RunLimits = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QueueSize:
    """The queue of a store at some moment."""

    waiting: int
    """Number of queued runs."""
    added: int
    """Number of runs that were ever added to the store, whether they were queued or began at once."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that uses a store. Its lease covers all the runs that it holds."""

    id: str
    name: str
    started_at: float
    """Unix time of the database's clock, like `seen_at`."""
    seen_at: float
    """When it last renewed its lease."""
    is_alive: bool
    holds: int
    """Number of runs that it holds, including queued ones that it has claimed."""
    info: Mapping[str, Any]
    """What the process reports about itself, as JSON data."""


class WorkStore(Protocol):
    """Gives the runs of a store to processes."""

    lease_seconds: float
    """How long this process keeps its runs without a renewal of its lease, in seconds."""

    def offer_through(self, offers: Offers) -> None:
        """Offer each run that becomes ready, or is released, in the same transaction.

        Without offers, processes find such runs by `claim`, and by `runs` with `orphaned`. A store in memory offers
        nothing.
        """
        ...

    async def claim(
        self, limit: int, *, run_id: str | None = None, scope: WorkScope = EVERYTHING
    ) -> Sequence[RunRequest]:
        """Claim queued runs that are ready. Renew the lease of this process, and begin or unclaim each run.

        Runs with a higher priority come first, then those with a lower fair rank, then the oldest. A run is ready if no
        living process holds it, if it is the first of its conversation and no run of the conversation is open, and if
        no limit blocks it. If a process ends before it begins a run, the run can be claimed again.

        Args:
            limit: the maximum number of runs.
            run_id: claim only this run, if it is ready.
            scope: claim only these runs.
        """
        ...

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims of this store, and offer the runs to any process. Runs that have begun are skipped."""
        ...

    async def release_for_others(self, run_id: str, reason: str, delay: float) -> None:
        """Release a run that this process holds or has claimed, and cannot execute.

        Args:
            run_id: the run. If this process does not hold it, nothing changes.
            reason: why this process cannot execute it, which is stored by the name of the process.
            delay: the run is offered again by the first sweep after this many seconds.
        """
        ...

    async def queue_size(self) -> QueueSize:
        """Return how many runs wait in the queue, those of other processes included, by a count that is cheap."""
        ...

    async def sweep(self, limit: int, allowed: Allowed | None = None) -> Sequence[OfferedRun]:
        """Offer runs again that need a process and have none, and return them; call it every few seconds.

        These are ready and released runs that were not offered in the last 5 seconds, runs of processes that have
        ended, and paused runs of which a confirmation has expired. A store in memory has none.

        Args:
            limit: the maximum number of runs, such as those that the process could execute.
            allowed: the limits on runs in progress as they are now. Runs whose limit has a free slot may try again.
        """
        ...

    async def keep_alive(self, name: str, info: Mapping[str, Any]) -> None:
        """Save what this process reports about itself, and renew its lease.

        Args:
            name: the name of the process for people, such as that of its machine.
            info: JSON data.
        """
        ...

    async def processes(self) -> Sequence[ProcessInfo]:
        """Return the processes that hold runs or report themselves, in the order in which they started.

        Those that have ended are listed for an hour.
        """
        ...

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Renew the lease of this process, which covers its runs and those that it claimed.

        A run whose record failed to write is released.

        Returns:
            Whether a cancel request exists, by run id. Contains only runs that this store still holds: a run that is
            missing has paused or ended, or was taken over by another process.
        """
        ...
