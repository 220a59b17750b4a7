"""SQL for runs that change hands: take over, hand over to any process, hand on to others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from framework.store.database import Database
from framework.store.limits import OFFERED_COLUMNS, RELEASED, REOFFER_SECONDS, UNCOUNTED, RunOffers, block_run
from framework.store.processes import RunLeases, find_owner, lock_dead
from framework.store.runs import HELD_COLUMNS, UNMEASURED, HeldRow, held_row
from framework.store.schema import decisions, has_status, is_claimed_or_running, runs, storable, to_sql_text
from framework.store.types import OPEN_STATUSES, Deciders, RunLimits
from framework.types.errors import DecisionRefused, RunBusy
from framework.types.state import RunState


@dataclass(frozen=True, slots=True)
class NewDecisions:
    """Decisions about a run, to be saved when it is taken over."""

    bodies: Mapping[str, str]
    """The decisions as JSON, by confirmation id."""
    by: Deciders

    def insert(self, connection: sa.Connection, run_id: str, now: float) -> None:
        """Insert the decisions, made at `now`; raises DecisionRefused if a confirmation was already decided."""
        rows = [
            {
                "run_id": run_id,
                "confirmation_id": to_sql_text(key),
                "decision": body,
                "decided_by": to_sql_text(self.by.get(key)),
                "decided_at": now,
            }
            for key, body in self.bodies.items()
        ]
        if rows:
            try:
                connection.execute(sa.insert(decisions), rows)
            except IntegrityError:
                raise DecisionRefused(f"already decided: {', '.join(sorted(self.bodies))}") from None

    def are_stored(self, connection: sa.Connection, run_id: str) -> bool:
        """Return whether the decisions are saved."""
        keys = [to_sql_text(key) for key in self.bodies]
        stored = sa.select(sa.func.count()).where(decisions.c.run_id == run_id, decisions.c.confirmation_id.in_(keys))
        return connection.execute(stored).scalar_one() == len(keys)


class Takeover:
    """A run that is not held and has not changed since it was loaded, to be given another holder."""

    def __init__(
        self, database: Database, leases: RunLeases, offers: RunOffers, state: RunState, made: NewDecisions
    ) -> None:
        self._database, self._leases, self._offers = database, leases, offers
        self._run_id, self._version, self._made = state.run_id, state.version, made

    def acquire(self, connection: sa.Connection, lease_name: str) -> HeldRow:
        """Claim the run under a lease of this process.

        Raises:
            RunBusy: the run is held, or another process took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        status = sa.case((has_status("queued"), "queued"), else_="running")
        holder = {"owner": lease_name, "process": self._leases.name, "ready": False}
        values = {**holder, "status": status, "attempts": runs.c.attempts + 1}
        return held_row(self._update(connection, runs.c.status.in_(OPEN_STATUSES), values))

    def save_decisions(self, connection: sa.Connection) -> None:
        """Offer the run to any process.

        Raises:
            RunBusy: the run is held or queued, or another process took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        values = {**RELEASED, "status": "running", "offered_at": self._offers.offered_at}
        row = self._update(connection, runs.c.status.in_(("paused", "running")), values)
        self._offers.offer(connection, [row[: len(OFFERED_COLUMNS)]])

    def block(self, connection: sa.Connection, limits: RunLimits) -> None:
        """Let the run wait for a slot, or offer it if each limit has one by now; raises as `save_decisions` does."""
        self._update(connection, runs.c.status.in_(("paused", "running")), {**RELEASED, "status": "running"})
        block_run(connection, self._offers, self._database, runs.c.id == self._run_id, limits)

    def was_handed_over(self, connection: sa.Connection) -> bool | None:
        """Return True if `save_decisions` was committed, else None."""
        is_mine = (runs.c.id == self._run_id, runs.c.version == self._version + 1, runs.c.owner.is_(None))
        is_saved = connection.execute(sa.select(runs.c.no).where(*is_mine)).one_or_none() is not None
        return (is_saved and self._made.are_stored(connection, self._run_id)) or None

    def _update(self, connection: sa.Connection, may_change: sa.ColumnElement[bool], values: Mapping[str, Any]) -> Any:
        free = self._release(connection)
        row = None
        if free is not None:
            is_unchanged = (runs.c.id == self._run_id, runs.c.version == self._version, may_change, free)
            taken = {"version": runs.c.version + 1, "expires_at": None, "blocked_by": None, **values, **UNMEASURED}
            update = sa.update(runs).where(*is_unchanged).values(taken)
            row = connection.execute(update.returning(*OFFERED_COLUMNS, *HELD_COLUMNS)).one_or_none()
        if row is None:
            raise RunBusy(f"run {self._run_id} is already in progress in another process")
        self._made.insert(connection, self._run_id, self._database.clock())
        return row

    def _release(self, connection: sa.Connection) -> sa.ColumnElement[bool] | None:
        """Release the run if its process has ended, with all others of that process, or has left it.

        Return the condition that nobody has taken it over since; None if a process holds it.
        """
        owner = find_owner(connection, self._database, self._leases, self._run_id)
        if owner is None:
            return runs.c.owner.is_(None)
        if owner.is_held:
            return None
        if owner.process is None or owner.process == self._leases.name:  # a write failed: this was nobody else
            is_left = sa.and_(runs.c.id == self._run_id, runs.c.owner == owner.name)
            connection.execute(sa.update(runs).where(is_left).values(**RELEASED, crashes=runs.c.crashes + 1))
        elif lock_dead(connection, self._database, self._leases, [owner.process]):
            self._offers.release_dead(connection, [owner.process])
        else:
            return None
        return runs.c.owner.is_(None)


def release_for_others(
    connection: sa.Connection, database: Database, run_id: str, process: tuple[str, str], reason: str, delay: float
) -> str | None:
    """Release a run that a process cannot execute, and save the reason. It is offered after `delay` seconds.

    Args:
        connection: the connection.
        database: the database.
        run_id: a run that the process holds; another one is not changed.
        process: id and name of the process.
        reason: why it cannot execute the run.
        delay: in seconds.

    Returns:
        The name of the lease under which the process held the run; None if it did not.
    """
    held = sa.and_(runs.c.id == storable(run_id), is_claimed_or_running(), runs.c.process == process[0])
    row = connection.execute(sa.select(runs.c.owner, runs.c.refusals).where(held).with_for_update()).one_or_none()
    if row is None:
        return None
    refusals = {**json.loads(row.refusals or "{}"), process[1]: reason}
    values = {
        **RELEASED,
        "refusals": json.dumps(refusals),
        "offered_at": database.now + (delay - REOFFER_SECONDS),  # the sweep waits this long after an offer
        "attempts": sa.case((has_status("queued"), runs.c.attempts), else_=UNCOUNTED),
    }
    connection.execute(sa.update(runs).where(held).values(values))
    return str(row.owner)
