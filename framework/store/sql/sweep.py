"""SQL that finds runs that need a process and have none, and offers them again.

Every run is offered when it becomes ready or is released. The sweep corrects what was lost: offers that never arrived,
and processes that ended. It reads a few rows, however many runs wait or are in progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.offering import OFFERED_COLUMNS, REOFFER_SECONDS, RunOffers
from framework.store.sql.processes import delete_old, find_dead, find_unfinished, lock_dead
from framework.store.sql.schema import CLAIM_ORDER, RELEASED_ORDER, has_status, is_next, runs
from framework.store.sql.slots import select_unblocked, wake
from framework.store.work import Allowed, OfferedRun

_WINDOW = 100
"""Number of queued runs of each kind that one sweep checks."""


@dataclass(frozen=True, slots=True)
class _Findings:
    """What a sweep has to do."""

    dead: Sequence[str]
    """Dead processes that hold runs, or whose rows are old."""
    wrong: Sequence[int]
    """Numbers of runs to offer, or that are wrongly marked as ready."""
    blocked: Sequence[int]
    """Numbers of runs that wait for a limit although it has a free slot."""


class Sweep:
    """Sweeps a store. Of the queued runs, each sweep checks the first ones, and some after those it checked before."""

    def __init__(self, database: Database, leases: RunLeases, offers: RunOffers) -> None:
        self._database, self._leases, self._offers = database, leases, offers
        self._position = 0
        """Number of the last queued run that was checked."""
        self._limit = ""
        """The last limit that was checked."""

    async def sweep(self, limit: int, allowed: Allowed | None) -> list[OfferedRun]:
        """Release the runs of dead processes, and offer up to `limit` others that need a process; return all."""
        found = await self._database.read(lambda connection: self._find(connection, limit, allowed))
        if not (found.dead or found.wrong or found.blocked):
            return []

        def work(connection: sa.Connection) -> list[OfferedRun]:
            offered = self._release(connection, found.dead)
            offered += self._correct(connection, found.wrong, limit - len(offered))
            return offered + wake(connection, self._offers, found.blocked[: max(0, limit - len(offered))])

        return await self._database.write(work)

    def _find(self, connection: sa.Connection, limit: int, allowed: Allowed | None) -> _Findings:
        dead = find_dead(connection, self._database, self._leases)
        numbers = set(self._next_waiting(connection))
        for select in self._windows:
            numbers.update(connection.execute(select, {"limit": limit}).scalars())
        checked = sa.select(runs.c.no).where(runs.c.no.in_(sorted(numbers)), self._is_wrong).order_by(runs.c.no)
        blocked: Sequence[int] = ()
        if allowed is not None:
            blocked, self._limit = select_unblocked(connection, self._database, allowed, self._limit)
        return _Findings(
            find_unfinished(connection, self._database, dead) if dead else (),
            list(connection.execute(checked).scalars()) if numbers else (),
            blocked,
        )

    @cached_property
    def _is_wrong(self) -> sa.ColumnElement[bool]:
        return sa.or_(self._needs_process(), _is_wrongly_ready())

    @cached_property
    def _windows(self) -> Sequence[sa.Select[int]]:
        return tuple(self._select_windows())

    def _select_windows(self) -> Iterator[sa.Select[int]]:
        """Yield what selects the numbers of the runs to check, each by its partial index."""
        number, limit = sa.select(runs.c.no), sa.bindparam("limit", type_=sa.Integer)
        ready = number.where(has_status("queued"), runs.c.ready)
        yield ready.order_by(*CLAIM_ORDER).limit(_WINDOW)
        handed_on = number.where(has_status("queued"), runs.c.refusals.is_not(None), self._was_offered_long_ago())
        yield handed_on.order_by(runs.c.offered_at).limit(limit)
        released = number.where(_is_released(), self._is_late())
        yield released.order_by(*RELEASED_ORDER).limit(limit)
        expired = number.where(self._has_expired(), self._is_late())
        yield expired.order_by(runs.c.expires_at).limit(limit)

    def _next_waiting(self, connection: sa.Connection) -> Sequence[int]:
        """Return the numbers of the queued runs after those of the sweep before."""
        waiting = sa.select(runs.c.no).where(has_status("queued"), runs.c.no > self._position)
        numbers = list(connection.execute(waiting.order_by(runs.c.no).limit(_WINDOW)).scalars())
        self._position = numbers[-1] if len(numbers) == _WINDOW else 0
        return numbers

    def _is_late(self) -> sa.ColumnElement[bool]:
        return sa.or_(runs.c.offered_at.is_(None), self._was_offered_long_ago())

    def _was_offered_long_ago(self) -> sa.ColumnElement[bool]:
        return runs.c.offered_at <= self._database.statement_start - REOFFER_SECONDS

    def _needs_process(self) -> sa.ColumnElement[bool]:
        """Return the condition that a run needs a process, has none, and was not offered lately."""
        can_begin = sa.and_(has_status("queued"), runs.c.owner.is_(None), runs.c.blocked_by.is_(None), is_next())
        return sa.and_(self._is_late(), sa.or_(can_begin, _is_released(), self._has_expired()))

    def _has_expired(self) -> sa.ColumnElement[bool]:
        return sa.and_(has_status("paused"), runs.c.expires_at <= self._database.statement_start)

    def _release(self, connection: sa.Connection, dead: Sequence[str]) -> list[OfferedRun]:
        """Release the runs of dead processes, and delete their rows if they are old."""
        if not dead:
            return []
        locked = lock_dead(connection, self._database, self._leases, dead)
        delete_old(connection, self._database)
        return self._offers.release_dead(connection, locked)

    def _correct(self, connection: sa.Connection, numbers: Sequence[int], limit: int) -> list[OfferedRun]:
        """Offer up to `limit` of these runs that need a process, and mark those as not ready that cannot begin."""
        if not numbers:
            return []
        connection.execute(sa.update(runs).where(runs.c.no.in_(numbers), _is_wrongly_ready()).values(ready=False))
        needing = sa.select(runs.c.no).where(runs.c.no.in_(numbers), self._needs_process()).order_by(runs.c.no)
        locked = connection.execute(needing.limit(max(0, limit)).with_for_update(skip_locked=True, of=runs)).scalars()
        update = sa.update(runs).where(runs.c.no.in_(list(locked)))
        offered = update.values(ready=has_status("queued"), offered_at=self._database.now)
        return self._offers.offer(connection, connection.execute(offered.returning(*OFFERED_COLUMNS)))


def _is_released() -> sa.ColumnElement[bool]:
    """Return the condition that a run in progress can be resumed by any process."""
    return sa.and_(has_status("running"), runs.c.process.is_(None), runs.c.blocked_by.is_(None))


def _is_wrongly_ready() -> sa.ColumnElement[bool]:
    can_begin = sa.and_(runs.c.owner.is_(None), is_next())
    return sa.and_(has_status("queued"), runs.c.ready, ~can_begin)
