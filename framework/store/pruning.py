"""Deletes old data of a store in many small transactions, so that runs can write between them, and shrinks its file."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from framework.store.conversations import delete_ended, delete_expired, delete_unused_blueprints, delete_unused_media
from framework.store.database import Database, Work, elapsed
from framework.store.limits import delete_ended_counters
from framework.store.notes import delete_expired_notes
from framework.store.processes import delete_old
from framework.store.queue import delete_expired_keys
from framework.store.run_links import delete_old_case_results, delete_old_grants
from framework.store.schema import processes, runs
from framework.store.types import Pruned
from framework.types.errors import ClockRefused, StoreError

log = logging.getLogger(__name__)


MAX_CLOCK_SECONDS = 86400.0
"""Nothing is deleted by a clock that may be wrong by more than this."""
_RESERVED_BYTES = 1_000_000
"""Free space that stays in the file for new runs. A file with less than twice this is not shrunk."""
SLICE_PAGES = 1000
"""Number of pages that one transaction frees, so that other processes can write in between."""
_INCREMENTAL = 2
"""Value of `auto_vacuum` in a file that a store created. Others cannot be shrunk in slices."""


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """The store's clock when this process opened the store, and the newest entry that it found.

    A wrong clock is recognized by the time that nothing was saved. A store that was really not used for so long is
    pruned a day later: until then, an operator can correct the clock.
    """

    opened_at: float
    newest: float | None
    """Unix time; None if the store was empty."""
    _opened: float = field(default_factory=elapsed)

    def check(self, now: float) -> None:
        """Raise ClockRefused if data must not be deleted by this time."""
        since = elapsed() - self._opened
        if self.newest is not None and abs(self.newest - self.opened_at) > MAX_CLOCK_SECONDS > since:
            self._compare(now, self.newest, "the newest entry of the store", is_late=now < self.newest)
        self._compare(now, self.opened_at + since, "the time of the store")

    def _compare(self, now: float, known: float, what: str, *, is_late: bool = False) -> None:
        """Raise ClockRefused if a time is more than a day ahead of a known one, or that is ahead of it if `is_late`."""
        days = (known - now if is_late else now - known) / 86400
        if days * 86400 > MAX_CLOCK_SECONDS:
            raise ClockRefused(
                f"nothing is deleted: the clock says {_shown(now)}, {days:.1f} days {'before' if is_late else 'after'} "
                f"{what}, {_shown(known)}: correct it; if it is right, run: agentsd runs prune --trust-clock"
            )


def check_clock(connection: sa.Connection, now: float) -> ClockCheck:
    """Return what to check before data is deleted, when a store is opened at `now`."""
    times = (
        sa.select(runs.c.created_at).order_by(runs.c.no.desc()).limit(1),
        sa.select(sa.func.max(runs.c.ended_at)),
        sa.select(sa.func.max(processes.c.seen_at)),
    )
    found = connection.execute(sa.select(*(time.scalar_subquery() for time in times))).one()
    return ClockCheck(now, max((time for time in found if time is not None), default=None))


def _shown(moment: float) -> str:
    try:
        return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{moment:.0f}"


async def prune(database: Database, before: float | None, now: float) -> Pruned:
    """Delete old data, and return how much; see `Store.prune`."""
    pruned = await _repeat(database, lambda connection: delete_expired(connection, now))
    if before is not None:
        ended = await _repeat(database, lambda connection: delete_ended(connection, before))
        pruned += ended
        await database.write(lambda connection: delete_ended_counters(connection, before))
    pruned += Pruned(versions=await database.write(lambda connection: delete_unused_blueprints(connection, now)))
    pruned += Pruned(files=await database.write(lambda connection: delete_unused_media(connection, now)))
    await database.write(lambda connection: delete_expired_keys(connection, now))
    await database.write(lambda connection: delete_expired_notes(connection, now))
    await database.write(lambda connection: delete_old(connection, database))
    await database.write(lambda connection: delete_old_grants(connection, now))
    await database.write(lambda connection: delete_old_case_results(connection, now))
    return replace(pruned, freed_bytes=await _shrink(database))


async def _repeat(database: Database, delete: Work[Pruned | None]) -> Pruned:
    """Repeat a transaction until it finds nothing more to delete; return the totals."""
    total = Pruned()
    while (some := await database.write(delete)) is not None:
        total += some
    return total


async def _shrink(database: Database) -> int:
    """Shrink a database's file, and return the number of bytes freed. Failures are logged, not raised.

    PostgreSQL is skipped, which has autovacuum, and a database without a file.
    """
    if not database.is_sqlite or database.is_in_memory:
        return 0
    try:
        before = await database.maintain(_Pages)
        if before.mode != _INCREMENTAL or before.free <= 2 * before.reserved:
            return 0
        while await database.maintain(_free_some):
            pass
        after = await database.maintain(_Pages)
    except StoreError as error:
        log.warning("the store file was not shrunk: %s", error.message)
        return 0
    return max(0, before.all - after.all) * before.size


class _Pages:
    def __init__(self, connection: Any) -> None:
        self.all, self.free, self.size, self.mode = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size", "auto_vacuum")
        )
        self.reserved = _RESERVED_BYTES // self.size


def _free_some(connection: Any) -> bool:
    """Free one slice of pages; return whether more remain."""
    pages = _Pages(connection)
    excess = pages.free - pages.reserved
    if excess > 0:
        # Returns a row without columns per page, and `execute` would stop at the first.
        connection.executescript(f"PRAGMA incremental_vacuum({min(excess, SLICE_PAGES)})")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # truncates the file unless it is being read
    return excess > SLICE_PAGES
