"""Reads from several tables: a run with all that repeating it needs, and the processes with what waits for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from framework.store.types import Blueprint, ProcessInfo, RunQuery, WorkScope
from framework.types.errors import RequestError
from framework.types.fleet import Fleet, FleetProcess, ProcessDetails, WaitingRuns
from framework.types.state import Rating, RunState

if TYPE_CHECKING:
    from framework.store.store import Store


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was loaded from a store, which is not needed any more."""

    state: RunState
    events: Sequence[Mapping[str, Any]]
    """Its events in wire format."""
    blueprint: Blueprint | None
    """The files that it ran on, if they are stored."""
    rating: Rating | None = None


async def load_stored_run(store: Store, state: RunState) -> StoredRun:
    """Load the events and files of a run.

    Raises:
        RequestError: the run has not started, or its calls were pruned.
    """
    if state.status == "queued":
        raise RequestError(f"run {state.run_id} is queued: it has not started")
    events = await store.events(state.run_id)
    if not events and state.status not in ("running", "paused"):
        raise RequestError(f"only the messages of run {state.run_id} are left: its calls were pruned")
    blueprint = await store.blueprint(state.blueprint) if state.blueprint else None
    infos = await store.runs(RunQuery(run_id=state.run_id))
    return StoredRun(state, events, blueprint, infos[0].rating if infos else None)


async def read_fleet(store: Store, scope: RunQuery | None = None) -> Fleet:
    """Return the processes that share a store and report themselves, and the runs that wait.

    Args:
        store: the store.
        scope: the owner and agents of the runs to report; other agents of the processes are left out too.

    Raises:
        StoreError: the store cannot be read.
    """
    scope = scope or RunQuery()
    reported = (_fleet_process(one) for one in await store.processes() if one.info)
    processes = sorted(reported, key=lambda one: (not one.alive, one.name))
    backlog = await store.backlog(scope)
    waiting = tuple(_with_worker_checked(group, processes) for group in backlog.waiting)
    if scope.agents is not None:
        processes = [_limited(one, scope.agents) for one in processes]
    own = dict(backlog) | {"waiting": waiting}
    return Fleet(**own, processes=tuple(processes), digests=_digests(processes))


def _fleet_process(info: ProcessInfo) -> FleetProcess:
    details = ProcessDetails.parse(info.info)
    return FleetProcess(
        **dict(details) | {"running": info.holds},
        name=info.name,
        alive=info.is_alive,
        started_at=datetime.fromtimestamp(info.started_at, UTC),
        seen_at=datetime.fromtimestamp(info.seen_at, UTC),
    )


def _with_worker_checked(group: WaitingRuns, processes: Iterable[FleetProcess]) -> WaitingRuns:
    """Return a group that waits for capacity with the reason `no_worker` if no live process executes its runs."""
    if group.reason != "capacity" or any(_executes(one, group) for one in processes):
        return group
    return group.model_copy(update={"reason": "no_worker"})


def _executes(process: FleetProcess, group: WaitingRuns) -> bool:
    agents, queues = (None if names is None else frozenset(names) for names in (process.only_agents, process.queues))
    return process.alive and process.works and WorkScope(agents, queues).includes(group.queue, group.agent or "")


def _limited(process: FleetProcess, agents: Iterable[str]) -> FleetProcess:
    visible = frozenset(agents)
    update: dict[str, object] = {"agents": {name: one for name, one in process.agents.items() if name in visible}}
    if process.only_agents is not None:
        update["only_agents"] = tuple(name for name in process.only_agents if name in visible)
    return process.model_copy(update=update)


def _digests(processes: Sequence[FleetProcess]) -> dict[str, dict[str, int]]:
    """Count the live processes with each digest of each agent, the most frequent digest first."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for process in processes:
        if process.alive:
            for name, digest in process.agents.items():
                counts[name][digest] += 1
    return {name: dict(counts[name].most_common()) for name in sorted(counts)}
