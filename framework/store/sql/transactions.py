"""Begins transactions through the driver of a connection, which costs less than through SQLAlchemy."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from framework.types.errors import StoreError, StoreLost
from framework.types.private_folder import make_private_folder

_CHECKPOINT_PAGES = 2000
"""Size of the write-ahead log of SQLite from which on a commit checkpoints it."""
_KEY = "agentsd transactions"


class Transactions(Protocol):
    """Begins the transactions of one connection."""

    def begin(self, seconds: float | None = None) -> None:
        """Begin a transaction, unless one has begun; raises StoreError or an error of the driver.

        Args:
            seconds: how long to wait for a lock of SQLite. None, or more than is configured: as configured.
        """
        ...

    def wait(self) -> None:
        """Let statements outside of transactions wait for locks."""
        ...


class PostgresTransactions:
    """Begins transactions of psycopg, which sends BEGIN with the first statement."""

    def __init__(self, driver: Any, first: str | None) -> None:
        """Initialize. `first`: a statement with which every transaction begins."""
        self._driver, self._first = driver, first

    def begin(self, seconds: float | None = None) -> None:  # noqa: ARG002 - PostgreSQL has no lock of the whole file
        """Execute the first statement, if there is one."""
        if self._first is not None and not self._driver.info.transaction_status:
            self._driver.execute(self._first)

    def wait(self) -> None:
        """Do nothing: statements wait."""


class SqliteTransactions:
    """Begins transactions of a SQLite connection in autocommit mode."""

    def __init__(self, driver: Any, file: SqliteFile, begin: str, busy_seconds: float) -> None:
        """Initialize.

        Args:
            driver: the connection.
            file: its file.
            begin: the statement that begins a transaction.
            busy_seconds: how long a statement waits for a lock.
        """
        self._driver, self._file, self._begin, self._busy_seconds = driver, file, begin, busy_seconds
        self._waits: bool | None = True
        """Whether statements wait as configured; None after a transaction that waited less."""
        self._checkpointed_at = 0

    def begin(self, seconds: float | None = None) -> None:
        """Begin a transaction that waits for locks, and checkpoints the log if that is long."""
        if self._driver.in_transaction:
            return
        self._checkpointed_at = self._file.checkpointed_at()
        self.wait()
        if seconds is not None and seconds < self._busy_seconds:
            self._driver.execute(f"PRAGMA busy_timeout={max(0, round(seconds * 1000))}")
            self._waits = None
        self._driver.execute(self._begin)

    def wait(self) -> None:
        """Let statements wait for locks, and checkpoint the log if that is long."""
        self._set_waits(waits=True)

    def begin_now(self) -> bool:
        """Begin a transaction that waits neither for a lock, which raises an error, nor for the disk.

        Return False if it could have to: the first transaction after a checkpoint waits until the log begins anew.
        """
        if self._file.checkpointed_at() != self._checkpointed_at:
            return False
        self._set_waits(waits=False)
        self._driver.execute(self._begin)
        return True

    def _set_waits(self, *, waits: bool) -> None:
        if self._waits != waits:
            self._driver.execute(f"PRAGMA busy_timeout={round(self._busy_seconds * 1000) if waits else 0}")
            self._driver.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES if waits else 0}")
            self._waits = waits


def _hint(error: OSError) -> str:
    """Return what to do about a folder in which the store cannot be created; empty for other errors."""
    if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ""
    return (
        "; set store.url to a file in a folder that can be written (AGENTSD_STORE__URL=sqlite:////data/state.db), or "
        "keep nothing after the process ends (AGENTSD_STORE__URL=memory:)"
    )


class SqliteFile:
    """The file of a SQLite database."""

    def __init__(self, path: Path) -> None:
        """Create the file unless it exists; raises StoreError."""
        self._path = path
        try:
            make_private_folder(path.parent)
            path.touch(mode=0o600)  # it contains conversations
            opened = path.stat()
        except OSError as error:
            raise StoreError(f"store {path}: {error.strerror}{_hint(error)}") from None
        self._name, self._identity = str(path), (opened.st_ino, opened.st_dev)

    @property
    def is_empty(self) -> bool:
        """Whether it contains no tables."""
        return self._path.stat().st_size == 0

    def checkpointed_at(self) -> int:
        """Return when the file was last changed, in nanoseconds: with a write-ahead log, only checkpoints do that.

        Raises:
            StoreError: the file was deleted or replaced, and SQLite would continue to write to the deleted one.
        """
        try:
            now = os.stat(self._name)  # noqa: PTH116 - at each write, where a Path takes twice as long
        except OSError:
            now = None
        if now is None or (now.st_ino, now.st_dev) != self._identity:
            reason = "the file was deleted or replaced while in use; restart the process"
            raise StoreLost(f"store {self._path}: {reason}")
        return now.st_mtime_ns


def set_up_sqlite(driver: Any, file: SqliteFile) -> None:
    """Set the options of a new connection: durable after a crash of the process, consistent after a power loss."""
    driver.isolation_level = None  # `SqliteTransactions` begins transactions
    if file.is_empty:  # changing it later needs a VACUUM, see `shrinking`
        driver.execute("PRAGMA auto_vacuum=INCREMENTAL")
    checkpoint = f"wal_autocheckpoint={_CHECKPOINT_PAGES}"
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", checkpoint):
        driver.execute(f"PRAGMA {pragma}")


def begin_through_driver(engine: sa.Engine) -> None:
    """Let SQLAlchemy begin its transactions of an engine through the driver too."""

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        transactions_of(connection).begin()


def set_transactions(record: Any, transactions: Transactions) -> None:
    """Set what begins the transactions of a new connection."""
    record.info[_KEY] = transactions


def transactions_of(connection: sa.Connection) -> Transactions:
    """Return what begins the transactions of a connection."""
    transactions: Transactions = connection.info[_KEY]
    return transactions
