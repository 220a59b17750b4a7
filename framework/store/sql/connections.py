"""Executes transactions: in threads that keep a connection each, or, for a moment, in the thread of the caller.

A thread costs more than a small transaction of SQLite: passing the work to it and back takes longer than the write. So
a small transaction may be executed where it is needed, with the writer's connection while its thread is idle. It never
waits there: neither for a lock, which fails at once, nor for a checkpoint, which the thread executes.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from framework.store.sql.transactions import SqliteTransactions, Transactions, transactions_of
from framework.types.errors import StoreError, StoreLost

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

_MAX_LENT = 100
"""Number of transactions of the caller's thread after which the pool's thread executes one, and may checkpoint."""
_SLOW_SECONDS = 0.05
"""A transaction of the caller's thread that takes longer shows that the disk is slow."""
_PAUSE_SECONDS = 1.0
"""How long the pool's thread executes all transactions after a slow one."""


class ConnectionFailed(Exception):
    """The connection failed, or the file is locked. Another attempt may succeed if `again` is set."""

    def __init__(self, error: Exception, *, again: bool = True, stale: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.again = error, again
        self.stale = stale
        """The connection was idle before it failed, so a retry may succeed immediately."""


class _Holder:
    """The connection of a thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while the connection is in use."""
        self.connection: sa.Connection | None = None
        self._driver: Any = None
        self.transactions: Transactions | None = None

    def open(self, engine: sa.Engine) -> sa.Connection:
        """Return the connection, which is opened if there is none."""
        if self.connection is None:
            self.connection = engine.connect()
            self._driver = self.connection.connection.dbapi_connection
            self.transactions = transactions_of(self.connection)
        return self.connection

    def transact(self, connection: sa.Connection, work: Work[T]) -> T:
        """Execute work in a transaction that has begun. SQLAlchemy takes part only if the work itself uses it."""
        try:
            result = work(connection)
            if connection.in_transaction():
                connection.commit()
            else:
                self._driver.commit()
        except BaseException:
            with suppress(Exception):  # a connection that is lost has rolled back
                connection.rollback()
                self._driver.rollback()
            raise
        return result

    def is_disconnect(self, error: Any) -> bool:
        """Return whether an error of the driver means that the connection is lost."""
        connection = self.connection
        return connection is not None and connection.dialect.is_disconnect(error, self._driver, None)

    def drop(self) -> None:
        """Close the connection after an error."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


class ConnectionThreads:
    """A thread pool in which each thread keeps one connection."""

    def __init__(self, engine: sa.Engine, number: int) -> None:
        self.engine = engine
        self.slow_seconds = _SLOW_SECONDS
        """Duration from which on a transaction of the caller's thread is slow."""
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="agentsd-store")
        self._driver: Any = engine.dialect.dbapi
        self._own = threading.local()
        self._holders: list[_Holder] = []
        self._is_closed = False
        self._lent, self._paused_until = 0, 0.0

    def submit(self, work: Work[T], *, transaction: bool = True, locks_until: float | None = None) -> Future[T]:
        """Execute work in one of the threads; raises StoreError after `close`.

        Args:
            work: the function to execute.
            transaction: execute it in a transaction.
            locks_until: time of the monotonic clock from which it does not wait for locks. None: as configured.
        """
        try:
            return self._pool.submit(self._execute, work, transaction, locks_until)
        except RuntimeError as error:
            if self._is_closed:
                raise StoreError("the store is closed") from None
            raise StoreLost(f"no thread for the store can be started: {error}") from None

    def execute_now(self, work: Work[T]) -> T | None:
        """Execute work in a transaction in the thread of the caller, with the writer's connection to SQLite.

        Returns:
            The result of the work; None if it was not executed, because it would have to wait: let a thread do it.
        """
        if self._is_closed or not self._holders or self._lent >= _MAX_LENT or time.monotonic() < self._paused_until:
            return None
        holder = self._holders[0]
        if not holder.lock.acquire(blocking=False):
            return None
        try:
            return self._lend(holder, work)
        finally:
            holder.lock.release()

    def stop(self) -> None:
        """Reject new work."""
        self._is_closed = True
        self._pool.shutdown(wait=False)

    def close(self) -> None:
        """Wait for submitted work, and close the connections."""
        self._pool.shutdown(wait=True)
        for holder in self._holders:
            if holder.connection is not None:
                holder.connection.close()

    def _lend(self, holder: _Holder, work: Work[T]) -> T | None:
        connection, transactions = holder.connection, holder.transactions
        if connection is None or not isinstance(transactions, SqliteTransactions):
            return None
        started = time.monotonic()
        try:
            if not transactions.begin_now():
                return None
            self._lent += 1
            return holder.transact(connection, work)
        except (DBAPIError, self._driver.Error) as error:
            if _is_transient(getattr(error, "orig", error)):
                return None
            holder.drop()
            raise
        finally:
            if (ended := time.monotonic()) - started > self.slow_seconds:
                self._paused_until = ended + _PAUSE_SECONDS

    def _execute(self, work: Work[T], transaction: bool, locks_until: float | None) -> T:
        holder: _Holder | None = getattr(self._own, "holder", None)
        if holder is None:
            holder = self._own.holder = _Holder()
            self._holders.append(holder)
        with holder.lock:
            self._lent = 0
            return self._execute_held(holder, work, transaction, locks_until)

    def _execute_held(self, holder: _Holder, work: Work[T], transaction: bool, locks_until: float | None) -> T:
        is_old = holder.connection is not None
        try:
            connection = holder.open(self.engine)
            if not transaction:
                transactions_of(connection).wait()
                return work(connection)
            transactions_of(connection).begin(None if locks_until is None else locks_until - time.monotonic())
            return holder.transact(connection, work)
        except DBAPIError as error:
            holder.drop()
            lost = error.connection_invalidated  # an InternalError after a suspension, see `idle_seconds`
            if lost or isinstance(error, (OperationalError, InterfaceError)):
                stale = is_old and lost
                raise ConnectionFailed(error, again=_is_transient(error.orig), stale=stale) from None
            raise
        except self._driver.Error as error:  # of the driver itself, which SQLAlchemy does not wrap
            lost = holder.is_disconnect(error)
            holder.drop()
            broken = lost or isinstance(error, (self._driver.OperationalError, self._driver.InterfaceError))
            raise ConnectionFailed(error, again=broken and _is_transient(error), stale=is_old and lost) from None


def _is_transient(error: BaseException | None) -> bool:
    """Return whether another attempt may succeed. Of SQLite's errors, only locks are transient."""
    if not isinstance(error, sqlite3.Error):
        return True
    code = getattr(error, "sqlite_errorcode", 0)  # none: text that is not UTF-8, for example
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
