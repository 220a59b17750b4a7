"""Executes transactions: in threads that keep a connection each, or at once for a database in memory."""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from framework.store.clock import StoreClock
from framework.store.sql.engines import NOW_FUNCTION, memory_engine, wait_for_locks
from framework.types.errors import StoreError, StoreLost

T = TypeVar("T")
Work = Callable[[sa.Connection], T]


class ConnectionFailed(Exception):
    """The connection failed, or the file is locked. Another attempt may succeed if `again` is set."""

    def __init__(self, error: Exception, *, again: bool = True, stale: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.again = error, again
        self.stale = stale
        """The connection was idle before it failed, so a retry may succeed immediately."""


class ConnectionThreads:
    """A thread pool in which each thread keeps one connection."""

    def __init__(self, engine: sa.Engine, number: int) -> None:
        self.engine = engine
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="agentsd-store")
        self._driver: Any = engine.dialect.dbapi
        self._own = threading.local()
        self._connections: set[sa.Connection] = set()
        self._is_closed = False

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

    def stop(self) -> None:
        """Reject new work."""
        self._is_closed = True
        self._pool.shutdown(wait=False)

    def close(self) -> None:
        """Wait for submitted work, and close the connections."""
        self._pool.shutdown(wait=True)
        for connection in self._connections:
            connection.close()

    def _execute(self, work: Work[T], transaction: bool, locks_until: float | None) -> T:
        is_old = getattr(self._own, "connection", None) is not None
        try:
            connection = self._connection()
            if not transaction:
                return work(connection)
            wait_for_locks(connection, None if locks_until is None else locks_until - time.monotonic())
            with connection.begin():
                return work(connection)
        except DBAPIError as error:
            self._drop()
            lost = error.connection_invalidated  # an InternalError after a suspension, see `idle_seconds`
            if lost or isinstance(error, (OperationalError, InterfaceError)):
                raise ConnectionFailed(error, again=_is_transient(error.orig), stale=is_old and lost) from None
            raise
        except self._driver.Error as error:  # of work outside of transactions, which uses the driver
            self._drop()
            raise ConnectionFailed(error, again=_is_transient(error)) from None

    def _connection(self) -> sa.Connection:
        """Return the connection of this thread, which is opened if there is none."""
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self.engine.connect()
            self._connections.add(connection)
        return connection

    def _drop(self) -> None:
        """Close the connection of this thread after an error."""
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        self._own.connection = None
        if connection is not None:
            self._connections.discard(connection)
            connection.invalidate()
            connection.close()


class MemoryConnection:
    """The one connection of a database in memory. The caller's thread executes its transactions: none has to wait.

    It is closed when nothing refers to it any more.
    """

    def __init__(self, clock: StoreClock) -> None:
        """Create an empty database; `clock` is the time that SQL reads."""
        self.engine = memory_engine()
        self._connection, self._lock = self.engine.connect(), threading.Lock()
        driver: Any = self._connection.connection.dbapi_connection
        driver.create_function(NOW_FUNCTION, 0, clock)
        weakref.finalize(self, self._connection.close)

    def submit(self, work: Work[T], *, transaction: bool = True, locks_until: float | None = None) -> Future[T]:  # noqa: ARG002 - nothing locks it
        """Execute work, and return a future that is done."""
        done: Future[T] = Future()
        try:
            with self._lock, self._connection.begin() if transaction else nullcontext():
                result = work(self._connection)
        except Exception as error:  # noqa: BLE001 - the future raises it
            done.set_exception(error)
        else:
            done.set_result(result)
        return done

    def stop(self) -> None:
        """Do nothing: the data lasts as long as this object."""

    def close(self) -> None:
        """Do nothing."""


def _is_transient(error: BaseException | None) -> bool:
    """Return whether another attempt may succeed. Of SQLite's errors, only locks are transient."""
    if not isinstance(error, sqlite3.Error):
        return True
    code = getattr(error, "sqlite_errorcode", 0)  # none: text that is not UTF-8, for example
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
