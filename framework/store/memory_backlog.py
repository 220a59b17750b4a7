"""The runs of a store in memory that have not ended: how many wait, where and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from framework.store.protocol import RunInfo
from framework.types.fleet import Backlog, HandedOnRun, WaitingReason, WaitingRuns


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended."""

    info: RunInfo
    queue: str | None = None
    is_ready: bool = False
    """Whether it is queued and can begin."""
    refusals: Mapping[str, str] | None = None

    @property
    def limit(self) -> str | None:
        """The limit that it waits for, if any."""
        waits_for = self.info.waits_for or ""
        return waits_for if ":" in waits_for else None

    @property
    def reason(self) -> WaitingReason:
        """Why it waits, if no process holds it."""
        if self.limit is not None:
            return "limit"
        if self.refusals:
            return "handed_on"
        if self.info.status == "running":
            return "released"
        return "capacity" if self.is_ready else "conversation"


def count_backlog(runs: Iterable[OpenRun], now: float) -> Backlog:
    """Count runs that have not ended by `now`, in the order in which they were added."""
    groups: defaultdict[tuple[str | None, str, WaitingReason, str | None], list[RunInfo]] = defaultdict(list)
    handed_on, paused, running = [], 0, 0
    for run in runs:
        info = run.info
        if info.status == "paused":
            paused += 1
        elif info.held:
            running += 1
        else:
            groups[run.queue, info.agent, run.reason, run.limit].append(info)
            if run.refusals:
                handed_on.append(HandedOnRun(run_id=info.run_id, reasons=dict(run.refusals)))
    waiting = [
        WaitingRuns(
            queue=queue,
            agent=agent or None,
            count=len(infos),
            oldest_seconds=round(max(0.0, now - infos[0].created_at), 1),
            reason=reason,
            limit=limit,
        )
        for (queue, agent, reason, limit), infos in groups.items()
    ]
    waiting.sort(key=lambda one: (-one.count, -one.oldest_seconds))
    return Backlog(waiting=tuple(waiting), handed_on=tuple(handed_on), paused=paused, running=running)
