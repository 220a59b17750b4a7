"""Gives the free pages of a SQLite file back to the file system, in small transactions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from framework.store.sql.database import Database
from framework.types.errors import StoreError

log = logging.getLogger(__name__)

_RESERVED_BYTES = 1_000_000
"""So much free space stays in the file, for the runs to come; less than twice as much is left as it is."""
SLICE_PAGES = 1000
"""One transaction frees so many pages: other processes must be able to write in between."""
MAX_REWRITE_BYTES = 256_000_000
"""A file that an older version has made is rewritten once, if what is in use of it is no more than that: a few seconds,
while other processes wait."""
_INCREMENTAL = 2


async def shrink(database: Database, is_idle: Callable[[], Awaitable[bool]]) -> int:
    """Free what is free in a database's file.

    Args:
        database: the database; nothing is done for PostgreSQL, which has its own autovacuum.
        is_idle: whether no run is in progress. Otherwise a file of an older version is left as it is.

    Returns:
        How many bytes the file has shrunk by. A failure is logged: the file stays larger than it could be.
    """
    if not database.is_sqlite:
        return 0
    try:
        return await _shrink(database, is_idle)
    except StoreError as error:
        log.warning("the store's file was not shrunk: %s", error.message)
        return 0


async def _shrink(database: Database, is_idle: Callable[[], Awaitable[bool]]) -> int:
    before = await database.maintain(_Pages)
    if before.free <= 2 * before.kept:
        return 0
    if before.mode == _INCREMENTAL:
        while await database.maintain(_free_some):
            pass
    elif before.used * before.size > MAX_REWRITE_BYTES:
        how = "with no process using it, run: sqlite3 FILE 'PRAGMA auto_vacuum=2; VACUUM'"
        log.warning("%d MB of the store's file are free; %s", before.free * before.size // 10**6, how)
        return 0
    elif not await is_idle():
        return 0
    else:
        await database.maintain(_rewrite)
    after = await database.maintain(_Pages)
    return max(0, before.all - after.all) * before.size


class _Pages:
    """How many pages a file has."""

    def __init__(self, connection: Any) -> None:
        self.all, self.free, self.size, self.mode = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size", "auto_vacuum")
        )
        self.used, self.kept = self.all - self.free, _RESERVED_BYTES // self.size


def _free_some(connection: Any) -> bool:
    """Free a slice; returns whether there is more to do."""
    pages = _Pages(connection)
    more = pages.free - pages.kept
    if more > 0:
        # A row without columns for each page: `execute` stops at the first.
        connection.executescript(f"PRAGMA incremental_vacuum({min(more, SLICE_PAGES)})")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # the file is cut off, unless others read it
    return more > SLICE_PAGES


def _rewrite(connection: Any) -> None:
    """Rewrite the whole file, so that from then on it can be shrunk in slices."""
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
