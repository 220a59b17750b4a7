"""A database's connections and threads: SQLite in one file, or PostgreSQL. What fails is a StoreError that says why."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from framework.store.sql.engines import create_engine, parse_url
from framework.store.sql.schema import upgrade
from framework.types.errors import StoreError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

_POSTGRES_THREADS = 5
_READERS = 2
DEFAULT_RETRY_SECONDS = 15.0
"""How long PostgreSQL may be unreachable, or a SQLite file locked, before what needs it fails."""
_RETRY_INTERVAL_SECONDS = 0.2
_ADVICE = {
    "full": "free some space, then resume the run",
    "locked": "another process holds it; try again",
    "not a database": "it is something else, or damaged: move it away, or give `store.url` another file",
    "decode": "it is damaged: restore a copy, or `sqlite3 FILE .recover`",
    "malformed": "it is damaged: restore a copy, or `sqlite3 FILE .recover`",
    "readonly": "let this process write it, and its folder",
    "refused": "is its server there? Once it is, what was under way can be resumed",
    "unable to open": "is its folder there, and may this process write to it?",
}


class Database:
    """Runs pieces of work in transactions, in threads of its own."""

    def __init__(self, url: sa.URL, retry_seconds: float = DEFAULT_RETRY_SECONDS) -> None:
        self.name = url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._retry_seconds = retry_seconds
        writers = 1 if self.is_sqlite else _POSTGRES_THREADS
        self._writer = _ConnectionThreads(create_engine(url, begin="BEGIN IMMEDIATE"), writers)
        self._reader = _ConnectionThreads(create_engine(url, begin="BEGIN", snapshots=True), _READERS)

    @classmethod
    async def open(cls, url: str, root: Path, *, retry_seconds: float = DEFAULT_RETRY_SECONDS) -> Database:
        """Connect, and bring the tables up to date.

        Args:
            url: of the database.
            root: what a file's path is relative to.
            retry_seconds: how long to retry while PostgreSQL is unreachable after the first connection, or a SQLite
                file is locked.

        Raises:
            ConfigError: that is no URL of a database we know, or its driver is not installed.
            StoreError: it cannot be opened.
        """
        database = cls(parse_url(url, root), retry_seconds)
        try:
            await database._do(database._writer, upgrade, upgrade, retry_seconds=0)
        except BaseException:
            await database.close()
            raise
        return database

    async def write(self, work: Work[T], committed: Work[T | None] | None = None) -> T:
        """Do work in a transaction; raises StoreError, and then nothing of it was done.

        Whoever is cancelled meanwhile learns it after the work, if that was done: so nobody has written what they do
        not know of.

        Args:
            work: what to do. Where the connection broke, it is done again.
            committed: asked before that; what the work would have returned if it was done the first time after all.
                Missing: it is harmless to do it twice.
        """
        return await self._do(self._writer, work, _unless_committed(committed, work), self._retry_seconds)

    async def read(self, work: Work[T]) -> T:
        """Read what was committed before, all of it as of one moment; raises StoreError."""
        return await self._do(self._reader, work, work, self._retry_seconds)

    async def maintain(self, work: Callable[[Any], T]) -> T:
        """Do work with the writer's own connection of the driver, outside a transaction; raises StoreError."""

        def maintaining(connection: sa.Connection) -> T:
            return work(connection.connection.dbapi_connection)

        return await self._do(self._writer, maintaining, maintaining, self._retry_seconds, transaction=False)

    async def close(self) -> None:
        """Let what is under way end, and close the connections; from the first moment nothing else begins."""
        for threads in (self._writer, self._reader):
            threads.pool.shutdown(wait=False)
        for threads in (self._writer, self._reader):
            await asyncio.to_thread(threads.close)

    @property
    def dialect(self) -> sa.Dialect:
        """How it wants its statements."""
        return self._writer.engine.dialect

    @property
    def now(self) -> sa.ColumnElement[float]:
        """The database's clock, in seconds since 1970: the one that all processes share."""
        text = "(julianday('now')-2440587.5)*86400.0" if self.is_sqlite else "extract(epoch from clock_timestamp())"
        return sa.literal_column(text, sa.Double)

    async def _do(
        self,
        threads: _ConnectionThreads,
        work: Work[T],
        again: Work[T],
        retry_seconds: float,
        *,
        transaction: bool = True,
    ) -> T:
        deadline = time.monotonic() + retry_seconds
        while True:
            try:
                ended = threads.submit(work, transaction=transaction)
                return await (_await_completion(ended) if threads is self._writer else asyncio.wrap_future(ended))
            except _ConnectionFailed as broken:
                if not broken.stale:
                    if not broken.again or time.monotonic() >= deadline:
                        raise self._error(broken.error) from None
                    await asyncio.sleep(_RETRY_INTERVAL_SECONDS)
                work = again
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                raise self._error(error) from None

    def _error(self, error: BaseException) -> StoreError:
        """Only the driver's own words: statements and what is in them stay out of it."""
        told = getattr(error, "orig", None) or (type(error).__name__ if isinstance(error, SQLAlchemyError) else error)
        said = str(told).strip().splitlines()
        text = said[0].partition(" with text ")[0] if said else type(error).__name__  # what is in it stays out, too
        advice = next((f"; {advice}" for sign, advice in _ADVICE.items() if sign in text), "")
        return StoreError(f"the store {self.name}: {text}{advice}")


def _unless_committed(committed: Work[T | None] | None, work: Work[T]) -> Work[T]:
    """The work, where it was not done before after all."""
    if committed is None:
        return work

    def again(connection: sa.Connection) -> T:
        known = committed(connection)
        return work(connection) if known is None else known

    return again


async def _await_completion(work: Future[T]) -> T:
    """What comes of work in a thread. Who is cancelled meanwhile is cancelled after it, or by it, if it fails."""
    ended = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        if work.cancel():  # it has not begun
            raise
    while not ended.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([ended])
    if ended.exception() is not None:
        raise asyncio.CancelledError
    if (task := asyncio.current_task()) is not None:
        task.uncancel()  # who counts cancellations, such as `asyncio.timeout`, must not see one more
        task.cancel()
    return ended.result()


class _ConnectionFailed(Exception):
    """The connection is gone, or the file is locked: another attempt may work, if `again` says so."""

    def __init__(self, error: Exception, *, again: bool = True, stale: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.again = error, again
        self.stale = stale
        """It was made a while ago, and what ended it may be over."""


def _is_transient(error: BaseException | None) -> bool:
    """Whether another attempt may succeed: of SQLite's errors, only a lock passes by itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class _ConnectionThreads:
    """Some threads, each with a connection that it keeps."""

    def __init__(self, engine: sa.Engine, number: int) -> None:
        self.pool = ThreadPoolExecutor(number, thread_name_prefix="agentsd-store")
        self.engine = engine
        self._driver: Any = engine.dialect.dbapi
        self._own = threading.local()
        self._open: set[sa.Connection] = set()

    def submit(self, work: Work[T], *, transaction: bool = True) -> Future[T]:
        """Do work in one of the threads, usually in a transaction; raises StoreError after `close`."""
        try:
            return self.pool.submit(self._do, work, transaction)
        except RuntimeError:
            raise StoreError("the store is closed") from None

    def _do(self, work: Work[T], transaction: bool) -> T:
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        is_old = connection is not None
        try:
            if connection is None:
                connection = self._own.connection = self.engine.connect()
                self._open.add(connection)
            with connection.begin() if transaction else nullcontext():
                return work(connection)
        except DBAPIError as error:
            self._drop()
            if isinstance(error, (OperationalError, InterfaceError)):
                stale = is_old and error.connection_invalidated
                raise _ConnectionFailed(error, again=_is_transient(error.orig), stale=stale) from None
            raise
        except self._driver.Error as error:  # of a statement that was prepared
            stale = is_old and self._is_disconnect(error)
            self._drop()
            broken = isinstance(error, (self._driver.OperationalError, self._driver.InterfaceError))
            raise _ConnectionFailed(error, again=broken and _is_transient(error), stale=stale) from None

    def close(self) -> None:
        """Let what was submitted end; no more after that."""
        self.pool.shutdown(wait=True)
        for connection in self._open:
            connection.close()

    def _is_disconnect(self, error: Any) -> bool:
        driver = self._own.connection.connection.dbapi_connection if self._own.connection else None
        return driver is not None and self.engine.dialect.is_disconnect(error, driver, None)

    def _drop(self) -> None:
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        self._own.connection = None
        if connection is not None:
            connection.invalidate()
            connection.close()
            self._open.discard(connection)
