"""The processes that share a store, what each of them executes, and what waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from framework.types.frozen import Frozen

WaitingReason = Literal["capacity", "no_worker", "conversation", "limit", "handed_on", "released"]
"""Why runs wait: for a process with free capacity (`capacity`), because no live process executes runs of this queue or
agent (`no_worker`), for another run of their conversation, for a limit, because a process handed them on, or because
the process that executed them has ended (`released`)."""


class ProcessDetails(Frozen):
    """What a process says about itself with each heartbeat. Unknown keys are those of a newer version."""

    model_config = ConfigDict(extra="ignore")

    kind: str = ""
    """`serve` or `worker`."""
    version: str = ""
    """Version of agentsd."""
    host: str = ""
    pid: int = 0
    works: bool = False
    """Whether it executes queued runs."""
    running: int = 0
    """Number of runs that it executes."""
    capacity: int = 0
    """Maximum number of runs that it executes at once; 0 if it executes none."""
    begun_per_second: float = 0.0
    """Runs that it started, per second over the last minute."""
    generation: int = 0
    """Number of its live generation. Each process counts its own."""
    problems: int = 0
    """Number of errors in its files."""
    queues: tuple[str, ...] | None = None
    """Named queues whose runs it executes. None: as `only_agents` says."""
    only_agents: tuple[str, ...] | None = None
    """Agents whose runs it executes. With neither this nor `queues`: every run."""
    agents: dict[str, str] = {}
    """Digest of each live agent: of its file, templates, tools, hooks and executor."""

    @classmethod
    def parse(cls, info: Mapping[str, Any]) -> ProcessDetails:
        """Return the details in a heartbeat; without those that this version cannot read."""
        known = {name: value for name, value in info.items() if name in cls.model_fields}
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            unreadable = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
            return cls.model_validate({name: value for name, value in known.items() if name not in unreadable})


class FleetProcess(ProcessDetails):
    """A process that shares the store."""

    name: str
    alive: bool
    """Whether its lease is valid. The entry of a process that was killed is kept for an hour."""
    started_at: datetime
    seen_at: datetime
    """The time of its last heartbeat, on the database's clock."""


class WaitingRuns(Frozen):
    """Runs that wait for the same reason."""

    queue: str | None
    """Their named queue."""
    agent: str | None
    """Their agent. None: it is chosen when the run starts."""
    count: int
    oldest_seconds: float
    """How long the oldest of them has waited."""
    reason: WaitingReason
    limit: str | None = None
    """The limit that they wait for, such as `agent:support`, if that is the reason."""


class HandedOnRun(Frozen):
    """A run that processes could not execute and left to others."""

    run_id: str
    reasons: dict[str, str]
    """What each process lacked, by its name."""


class Backlog(Frozen):
    """The runs of a store that have not ended."""

    waiting: tuple[WaitingRuns, ...]
    """Runs that wait, by queue, agent and reason; the largest groups first."""
    handed_on: tuple[HandedOnRun, ...]
    """Runs that processes could not execute and left to others, oldest first."""
    paused: int
    """Number of runs that wait for a decision."""
    running: int
    """Number of runs that a process executes."""


class Fleet(Backlog):
    """The processes that share a store, and the runs that have not ended."""

    processes: tuple[FleetProcess, ...]
    """Live ones first, by name."""
    digests: dict[str, dict[str, int]]
    """Number of live processes with each digest of an agent. Several digests: they have different versions of it."""
