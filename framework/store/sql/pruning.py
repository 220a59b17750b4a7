"""Deletes old data of a store in many small transactions, so that runs can write between them."""

from __future__ import annotations

from dataclasses import replace

from framework.store.protocol import Pruned
from framework.store.sql.budgets import delete_ended_counters
from framework.store.sql.connections import Work
from framework.store.sql.conversations import delete_ended, delete_expired, delete_unused_blueprints
from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.media import delete_unused_media
from framework.store.sql.processes import delete_old, list_processes
from framework.store.sql.queue import delete_expired_keys
from framework.store.sql.shrinking import shrink


async def prune(database: Database, leases: RunLeases, before: float | None, now: float) -> Pruned:
    """Delete old data, and return how much; see `Store.prune`."""
    pruned = await _repeat(database, lambda connection: delete_expired(connection, now))
    if before is not None:
        ended = await _repeat(database, lambda connection: delete_ended(connection, before))
        pruned = Pruned(pruned.runs + ended.runs, pruned.conversations)
        await database.write(lambda connection: delete_ended_counters(connection, before))
    await database.write(lambda connection: delete_unused_blueprints(connection, now))
    await database.write(lambda connection: delete_unused_media(connection, now))
    await database.write(lambda connection: delete_expired_keys(connection, now))
    await database.write(lambda connection: delete_old(connection, database))

    async def is_idle() -> bool:
        """Return whether no run is in progress, so that a longer write delays none."""
        processes = await database.read(lambda connection: list_processes(connection, database, leases))
        return not any(process.is_alive and process.holds for process in processes)

    return replace(pruned, freed_bytes=await shrink(database, is_idle))


async def _repeat(database: Database, delete: Work[Pruned | None]) -> Pruned:
    """Repeat a transaction until it finds nothing more to delete; return the totals."""
    total = Pruned()
    while (some := await database.write(delete)) is not None:
        total = Pruned(total.runs + some.runs, total.conversations + some.conversations)
    return total
