"""Which process holds a run, according to its row and that of the process."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.processes import is_leased, lock_dead
from framework.store.sql.schema import processes, runs


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The holder of a run, as named in its row."""

    name: str
    process: str | None
    """The process, if it has a row."""
    is_held: bool
    """Whether the process is alive and works on the run, as far as can be determined."""


def find_owner(connection: sa.Connection, database: Database, leases: RunLeases, run_id: str) -> RunOwner | None:
    """Return the owner of a run; None if it has none, or the run does not exist."""
    columns = (runs.c.owner, processes.c.id, processes.c.lease_boot, is_leased(database))
    owners = sa.select(*columns).outerjoin_from(runs, processes, runs.c.process == processes.c.id)
    row = connection.execute(owners.where(runs.c.id == run_id)).one_or_none()
    if row is None or row.owner is None:
        return None
    return RunOwner(row.owner, row.id, leases.is_held(row.owner, row.lease_boot, leased=bool(row.leased)))


def is_free(
    connection: sa.Connection, database: Database, leases: RunLeases, run_id: str
) -> sa.ColumnElement[bool] | None:
    """Return the condition that nobody has taken a run over since now; None if a process holds it.

    The process that held the run cannot renew its lease until the transaction ends.
    """
    owner = find_owner(connection, database, leases, run_id)
    if owner is None:
        return runs.c.owner.is_(None)
    if owner.is_held:
        return None
    is_own = owner.process == leases.name
    if owner.process is not None and not is_own and not lock_dead(connection, database, leases, [owner.process]):
        return None
    return sa.or_(runs.c.owner == owner.name, runs.c.owner.is_(None))  # released since it was read
