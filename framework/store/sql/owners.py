"""Who has a run, by its row in a database, and whether that process still works on it."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.leases import Holds
from framework.store.sql.schema import runs


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has a run, by its row."""

    name: str
    lease_until: float | None
    is_held: bool
    """Its process works on the run, as far as can be known."""


def owner_of(connection: sa.Connection, database: Database, holds: Holds, run_id: str) -> Owner | None:
    """The owner of a run; None if it has none, or there is no such run."""
    columns = (runs.c.owner, runs.c.lease_until, runs.c.lease_boot, is_leased(database))
    row = connection.execute(sa.select(*columns).where(runs.c.id == run_id)).one_or_none()
    if row is None or row.owner is None:
        return None
    return Owner(row.owner, row.lease_until, holds.is_held(row.owner, row.lease_boot, leased=bool(row.leased)))


def is_leased(database: Database) -> sa.ColumnElement[bool]:
    """Whether the lease of a run has not expired, by the database's clock."""
    return sa.and_(runs.c.owner.is_not(None), runs.c.lease_until > database.now).label("leased")
