"""Connections, threads, transactions and retries for SQLite or PostgreSQL. Failures are raised as StoreError."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from framework.store.clock import StoreClock
from framework.store.sql.connections import ConnectionFailed, ConnectionThreads, MemoryConnection, Work
from framework.store.sql.engines import (
    MEMORY,
    NOW_FUNCTION,
    connect_to_listen,
    create_engine,
    lock_seconds,
    parse_store_url,
)
from framework.store.sql.migrations import upgrade
from framework.types.errors import StoreError

T = TypeVar("T")

_POSTGRES_THREADS = 5
_READERS = 2
DEFAULT_RETRY_SECONDS = 15.0
"""How long to retry while PostgreSQL is unreachable or a SQLite file is locked."""
DEFAULT_IDLE_SECONDS = 30.0
"""After how long PostgreSQL ends a transaction whose process sends no statement."""
_MIGRATION_IDLE_SECONDS = 60.0
"""The same for a migration: a lease may be far shorter, and opening a store is not retried."""
REQUEST_SECONDS = 4.0
"""How long what a client waits for may wait for a SQLite file: for other writes of this process, and for locks."""
_RETRY_INTERVAL_SECONDS = 0.2
_UNLISTEN_SECONDS = 1.0
_ADVICE = {
    "full": "free some space, then resume the run",
    "locked": "another process is using it; try again",
    "not a database": "move the file away, or set `store.url` to another one",
    "decode": "the file is damaged: restore a backup, or run `sqlite3 FILE .recover`",
    "malformed": "the file is damaged: restore a backup, or run `sqlite3 FILE .recover`",
    "readonly": "grant this process write access to the file and its folder",
    "refused": "start the database server; interrupted runs can then be resumed",
    "unable to open": "check that the folder exists and that this process may write to it",
}


class Database:
    """Executes functions in transactions, in dedicated threads."""

    def __init__(
        self,
        url: sa.URL,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        idle_seconds: float = DEFAULT_IDLE_SECONDS,
        clock: StoreClock | None = None,
    ) -> None:
        self.name = url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.clock = clock or StoreClock()
        """The database's clock, as this process knows it: see `processes.set_clock`."""
        self.is_in_memory = url == MEMORY
        self._retry_seconds = retry_seconds
        self._writer: ConnectionThreads | MemoryConnection
        self._reader: ConnectionThreads | MemoryConnection
        if self.is_in_memory:
            self._writer = self._reader = MemoryConnection(self.clock)
            return
        writers = 1 if self.is_sqlite else _POSTGRES_THREADS
        writer = create_engine(url, begin="BEGIN IMMEDIATE", idle_seconds=idle_seconds, clock=self.clock)
        reader = create_engine(url, begin="BEGIN", idle_seconds=idle_seconds, clock=self.clock, snapshots=True)
        self._writer, self._reader = ConnectionThreads(writer, writers), ConnectionThreads(reader, _READERS)

    @classmethod
    async def open(
        cls,
        url: str,
        root: Path,
        *,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        idle_seconds: float = DEFAULT_IDLE_SECONDS,
        clock: StoreClock | None = None,
    ) -> Database:
        """Connect, and migrate the tables to the current version.

        Args:
            url: the URL of the database.
            root: base folder for a relative file path.
            retry_seconds: how long to retry while PostgreSQL is unreachable after the first connection, or a SQLite
                file is locked. Opening is retried only while a SQLite file is locked, for `lock_seconds`.
            idle_seconds: after how long PostgreSQL ends a transaction of this process if it sends no statement.
            clock: set to the database's clock. A SQLite file has none: there, it begins with this machine's time.

        Raises:
            ConfigError: the URL is invalid or of an unsupported database, or its driver is not installed.
            StoreError: the database cannot be opened.
        """
        parsed = parse_store_url(url, root)
        database = cls(parsed, retry_seconds, idle_seconds, clock)
        try:
            await database._migrate(parsed)
        except BaseException:
            await database.close()
            raise
        return database

    @classmethod
    def in_memory(cls, clock: StoreClock | None = None) -> Database:
        """Create a database in memory, with its tables. Its data ends with the last reference to it."""
        database = cls(MEMORY, clock=clock)
        database._writer.submit(upgrade).result()
        return database

    async def _migrate(self, url: sa.URL) -> None:
        """Migrate the tables; in PostgreSQL through a connection of its own, whose transaction may be slow."""
        if self.is_sqlite:
            await self._do(self._writer, upgrade, upgrade, lock_seconds(url))
            return
        engine = create_engine(url, begin="BEGIN", idle_seconds=_MIGRATION_IDLE_SECONDS, clock=self.clock)
        threads = ConnectionThreads(engine, 1)
        try:
            await self._do(threads, upgrade, upgrade, 0)
        finally:
            threads.stop()
            await asyncio.to_thread(threads.close)

    async def write(
        self,
        work: Work[T],
        committed: Work[T | None] | None = None,
        *,
        is_request: bool = False,
    ) -> T:
        """Execute work in a transaction and return its result. Raises StoreError if it was rolled back.

        If the caller is cancelled during the work, the cancellation is delivered after the work has finished, so that
        the caller always knows what was written.

        Args:
            work: the function to execute. It is repeated after a lost connection.
            committed: called before a repetition. Returns the result of the work if the first attempt was committed
                after all, else None. Omit it for idempotent work.
            is_request: a client waits for it, and can repeat it: a SQLite file is waited for no longer than
                `REQUEST_SECONDS`.
        """
        is_short = is_request and self.is_sqlite
        seconds = min(REQUEST_SECONDS, self._retry_seconds) if is_short else self._retry_seconds
        return await self._do(self._writer, work, _unless_committed(committed, work), seconds, is_short=is_short)

    async def write_once(self, work: Work[T]) -> T:
        """Execute work in a transaction, without waiting for a database that is unreachable."""
        return await self._do(self._writer, work, work, 0)

    async def read(self, work: Work[T]) -> T:
        """Execute a read in one snapshot of the committed data, and return its result; raises StoreError."""
        return await self._do(self._reader, work, work, self._retry_seconds)

    async def maintain(self, work: Callable[[Any], T]) -> T:
        """Execute work with the writer's driver connection, outside a transaction; raises StoreError."""

        def with_driver(connection: sa.Connection) -> T:
            return work(connection.connection.dbapi_connection)

        return await self._do(self._writer, with_driver, with_driver, self._retry_seconds, transaction=False)

    async def listen(self, channel: str, begun: Callable[[], object], received: Callable[[str], object]) -> None:
        """Listen on a channel of PostgreSQL, through a connection of its own, until the caller is cancelled.

        Args:
            channel: the name of the channel.
            begun: called once the connection listens.
            received: called in the event loop with the payload of each notification.

        Raises:
            StoreError: the connection was cut, or could not be opened.
        """
        engine = self._reader.engine
        driver: Any = engine.dialect.loaded_dbapi
        try:
            connection = await connect_to_listen(engine)
            try:
                await connection.execute(f"LISTEN {channel}")
                begun()
                await _read_notifications(connection.pgconn, driver, received)
            finally:
                try:
                    with suppress(driver.Error, TimeoutError):  # a pooler passes the connection on
                        async with asyncio.timeout(_UNLISTEN_SECONDS):
                            await connection.execute(f"UNLISTEN {channel}")
                finally:
                    await connection.close()
        except (driver.Error, OSError) as error:
            raise self._error(error) from None

    async def close(self) -> None:
        """Wait for work in progress and close the connections. New work is rejected immediately."""
        for threads in (self._writer, self._reader):
            threads.stop()
        for threads in (self._writer, self._reader):
            await asyncio.to_thread(threads.close)

    @property
    def dialect(self) -> sa.Dialect:
        """SQL dialect of the database."""
        return self._writer.engine.dialect

    @property
    def now(self) -> sa.ColumnElement[float]:
        """SQL expression for the database's clock as Unix time in seconds. All processes share this clock."""
        text = f"{NOW_FUNCTION}()" if self.is_sqlite else "extract(epoch from clock_timestamp())"
        return sa.literal_column(text, sa.Double)

    @property
    def statement_start(self) -> sa.ColumnElement[float]:
        """SQL expression for `now` at the beginning of the statement, which can be compared by an index."""
        return self.now if self.is_sqlite else sa.literal_column("extract(epoch from statement_timestamp())", sa.Double)

    async def _do(
        self,
        threads: ConnectionThreads | MemoryConnection,
        work: Work[T],
        again: Work[T],
        retry_seconds: float,
        *,
        transaction: bool = True,
        is_short: bool = False,
    ) -> T:
        """Do work in one of the threads. If `is_short`, the time for retries also limits each wait for its turn."""
        deadline = time.monotonic() + retry_seconds
        while True:
            try:
                ended = threads.submit(work, transaction=transaction, locks_until=deadline if is_short else None)
                if self.is_in_memory:
                    return ended.result()
                if is_short:
                    return await self._begun_in_time(ended, deadline)
                return await (_await_completion(ended) if threads is self._writer else asyncio.wrap_future(ended))
            except ConnectionFailed as broken:
                if not broken.stale:
                    if not broken.again or time.monotonic() >= deadline:
                        raise self._error(broken.error) from None
                    await asyncio.sleep(_RETRY_INTERVAL_SECONDS)
                work = again
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                raise self._error(error) from None

    async def _begun_in_time(self, work: Future[T], deadline: float) -> T:
        """Return the result of work of the writer; raise StoreError if it has not begun by the deadline."""
        seconds = max(0.0, deadline - time.monotonic())
        timer = asyncio.get_running_loop().call_later(seconds, work.cancel)  # has no effect once it has begun
        try:
            return await _await_completion(work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not work.cancelled() or (task is not None and task.cancelling()):
                raise
            raise StoreError(f"store {self.name}: other writes take longer than {seconds:.3g} s; try again") from None
        finally:
            timer.cancel()

    def _error(self, error: BaseException) -> StoreError:
        """Convert an error, keeping only the driver's message: statements and their values may be confidential."""
        cause = getattr(error, "orig", None) or (type(error).__name__ if isinstance(error, SQLAlchemyError) else error)
        lines = str(cause).strip().splitlines()
        text = lines[0].partition(" with text ")[0] if lines else type(error).__name__  # the rest quotes stored text
        advice = next((f"; {advice}" for sign, advice in _ADVICE.items() if sign in text), "")
        return StoreError(f"store {self.name}: {text}{advice}")


async def _read_notifications(connection: Any, driver: Any, received: Callable[[str], object]) -> None:
    """Pass on the notifications of a connection of libpq until it is cut, then raise the driver's error.

    The driver's own iterator would look ten times a second, also if nothing arrives.
    """
    loop, socket = asyncio.get_running_loop(), connection.socket
    cut: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        try:
            connection.consume_input()
            while (notification := connection.notifies()) is not None:
                received(notification.extra.decode(errors="replace"))
        except driver.Error as error:
            loop.remove_reader(socket)
            if not cut.done():
                cut.set_exception(error)

    loop.add_reader(socket, read)
    try:
        await cut
    finally:
        loop.remove_reader(socket)


def _unless_committed(committed: Work[T | None] | None, work: Work[T]) -> Work[T]:
    """Return a function that does the work unless the first attempt was committed."""
    if committed is None:
        return work

    def again(connection: sa.Connection) -> T:
        result = committed(connection)
        return work(connection) if result is None else result

    return again


async def _await_completion(work: Future[T]) -> T:
    """Await work in a thread and return its result.

    If the caller is cancelled, work that has begun still finishes. Then the cancellation is delivered again at the next
    await; if the work failed, CancelledError is raised instead.
    """
    ended = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        if work.cancel():  # the work has not begun
            raise
    while not ended.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([ended])
    if ended.exception() is not None:
        raise asyncio.CancelledError
    if (task := asyncio.current_task()) is not None:
        task.uncancel()  # `asyncio.timeout` counts cancellations and must not see another one
        task.cancel()
    return ended.result()
