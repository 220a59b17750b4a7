"""Returns free pages of a SQLite file to the file system, in small transactions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from framework.store.sql.database import Database
from framework.types.errors import StoreError

log = logging.getLogger(__name__)

_RESERVED_BYTES = 1_000_000
"""Free space that stays in the file for new runs. A file with less than twice this is not shrunk."""
SLICE_PAGES = 1000
"""Number of pages that one transaction frees, so that other processes can write in between."""
MAX_REWRITE_BYTES = 256_000_000
"""A file of an older version is rewritten once if at most this much of it is in use: a few seconds in which other
processes wait."""
_INCREMENTAL = 2


async def shrink(database: Database, is_idle: Callable[[], Awaitable[bool]]) -> int:
    """Shrink a database's file, and return the number of bytes freed. Failures are logged, not raised.

    Args:
        database: the database. PostgreSQL is skipped, which has autovacuum, and a database without a file.
        is_idle: returns whether no run is in progress. Only then is a file of an older version rewritten.
    """
    if not database.is_sqlite or database.is_in_memory:
        return 0
    try:
        return await _shrink(database, is_idle)
    except StoreError as error:
        log.warning("the store file was not shrunk: %s", error.message)
        return 0


async def _shrink(database: Database, is_idle: Callable[[], Awaitable[bool]]) -> int:
    before = await database.maintain(_Pages)
    if before.free <= 2 * before.reserved:
        return 0
    if before.mode == _INCREMENTAL:
        while await database.maintain(_free_some):
            pass
    elif before.used * before.size > MAX_REWRITE_BYTES:
        advice = "while no process uses it, run: sqlite3 FILE 'PRAGMA auto_vacuum=2; VACUUM'"
        log.warning("%d MB of the store file are free; %s", before.free * before.size // 10**6, advice)
        return 0
    elif not await is_idle():
        return 0
    else:
        await database.maintain(_rewrite)
    after = await database.maintain(_Pages)
    return max(0, before.all - after.all) * before.size


class _Pages:
    """Page counts and page size of a SQLite file."""

    def __init__(self, connection: Any) -> None:
        self.all, self.free, self.size, self.mode = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size", "auto_vacuum")
        )
        self.used, self.reserved = self.all - self.free, _RESERVED_BYTES // self.size


def _free_some(connection: Any) -> bool:
    """Free one slice of pages; return whether more remain."""
    pages = _Pages(connection)
    excess = pages.free - pages.reserved
    if excess > 0:
        # Returns a row without columns per page, and `execute` would stop at the first.
        connection.executescript(f"PRAGMA incremental_vacuum({min(excess, SLICE_PAGES)})")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # truncates the file unless it is being read
    return excess > SLICE_PAGES


def _rewrite(connection: Any) -> None:
    """Rewrite the whole file, so that it can be shrunk in slices from now on."""
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
