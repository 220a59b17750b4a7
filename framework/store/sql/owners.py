"""Which process holds a run according to its row, and whether the lease is still valid."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.schema import runs


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The holder of a run, as named in its row."""

    name: str
    lease_until: float | None
    is_held: bool
    """Whether the lease is valid, as far as can be determined."""


def find_owner(connection: sa.Connection, database: Database, leases: RunLeases, run_id: str) -> RunOwner | None:
    """Return the owner of a run; None if it has none, or the run does not exist."""
    columns = (runs.c.owner, runs.c.lease_until, runs.c.lease_boot, is_leased(database))
    row = connection.execute(sa.select(*columns).where(runs.c.id == run_id)).one_or_none()
    if row is None or row.owner is None:
        return None
    return RunOwner(row.owner, row.lease_until, leases.is_held(row.owner, row.lease_boot, leased=bool(row.leased)))


def is_leased(database: Database) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a run's lease is valid by the database's clock."""
    return sa.and_(runs.c.owner.is_not(None), runs.c.lease_until > database.now).label("leased")
