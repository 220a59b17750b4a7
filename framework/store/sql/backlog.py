"""SQL for the runs that have not ended: how many wait, where and why."""

from __future__ import annotations

import json

import sqlalchemy as sa

from framework.store.protocol import RunQuery
from framework.store.sql.run_lists import conditions
from framework.store.sql.schema import has_status, is_claimed_or_running, runs
from framework.types.fleet import Backlog, HandedOnRun, WaitingRuns
from framework.types.report import Status

MAX_WAITING_GROUPS = 200
"""Number of groups of waiting runs in a report."""
MAX_HANDED_ON = 100
"""Number of runs in a report that were handed on."""
_WAITING_STATUSES: tuple[Status, ...] = ("queued", "running")

_REASON = sa.case(
    (runs.c.blocked_by.is_not(None), "limit"),
    (runs.c.refusals.is_not(None), "handed_on"),
    (has_status("running"), "released"),
    (runs.c.ready, "capacity"),
    else_="conversation",
)


def select_backlog(connection: sa.Connection, query: RunQuery, now: float) -> Backlog:
    """Return the matching runs that have not ended by `now`. Partial indexes find them, however many have ended."""
    matches = list(conditions(query, connection.dialect.name))
    count = sa.select(sa.func.count()).select_from(runs).where(*matches)
    is_executed = sa.and_(is_claimed_or_running(), runs.c.process.is_not(None))
    return Backlog(
        waiting=_waiting(connection, matches, now),
        handed_on=_handed_on(connection, matches),
        paused=connection.execute(count.where(has_status("paused"))).scalar_one(),
        running=connection.execute(count.where(is_executed)).scalar_one(),
    )


def _waiting(connection: sa.Connection, matches: list[sa.ColumnElement[bool]], now: float) -> tuple[WaitingRuns, ...]:
    """Count the runs that no process holds, by queue, agent and reason; the largest groups first."""
    columns = (runs.c.queue, runs.c.agent, _REASON.label("reason"), runs.c.blocked_by.label("limit"), runs.c.created_at)
    free = sa.select(*columns).where(runs.c.process.is_(None), *matches)
    found = sa.union_all(*(free.where(has_status(status)) for status in _WAITING_STATUSES)).subquery()
    group = (found.c.queue, found.c.agent, found.c.reason, found.c.limit)
    number, oldest = sa.func.count().label("number"), sa.func.min(found.c.created_at).label("oldest")
    groups = (
        sa.select(*group, number, oldest).group_by(*group).order_by(number.desc(), oldest).limit(MAX_WAITING_GROUPS)
    )
    return tuple(
        WaitingRuns(
            queue=row.queue,
            agent=row.agent or None,
            count=row.number,
            oldest_seconds=round(max(0.0, now - row.oldest), 1),
            reason=row.reason,
            limit=row.limit,
        )
        for row in connection.execute(groups)
    )


def _handed_on(connection: sa.Connection, matches: list[sa.ColumnElement[bool]]) -> tuple[HandedOnRun, ...]:
    """Return the runs that wait because processes handed them on, oldest first."""
    waits = sa.select(runs.c.no, runs.c.id, runs.c.refusals).where(
        runs.c.refusals.is_not(None), runs.c.process.is_(None), *matches
    )
    found = sa.union_all(*(waits.where(has_status(status)) for status in _WAITING_STATUSES)).subquery()
    rows = connection.execute(sa.select(found.c.id, found.c.refusals).order_by(found.c.no).limit(MAX_HANDED_ON))
    return tuple(HandedOnRun(run_id=row.id, reasons=json.loads(row.refusals)) for row in rows)
