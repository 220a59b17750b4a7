"""Which process holds a run, according to its row and that of the process."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.processes import is_leased
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
