"""Creates SQLAlchemy engines: for a SQLite file or PostgreSQL from a store's URL, and for databases in memory."""

from __future__ import annotations

import asyncio
import errno
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from framework.store.clock import StoreClock
from framework.types.errors import ConfigError, StoreError, StoreLost
from framework.types.extras import install_command
from framework.types.private_folder import make_private_folder

_BUSY_SECONDS = 10
"""How long SQLite waits for another process to finish its write."""
_CHECKPOINT_PAGES = 2000
"""Size of the write-ahead log of SQLite from which on a commit checkpoints it."""
_WAITS = "agentsd waits"
"""Entry of a connection's `info`: for how many milliseconds they wait now."""
_POOLED = "agentsd pooled"
"""Entry of a connection's `info`: whether a pooler lies between this process and PostgreSQL."""
_LOCKS = "agentsd locks"
"""Entry of a connection's `info`: for how many milliseconds the transactions of a SQLite file wait for a lock."""
_NETWORK = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Connection options of PostgreSQL: a network that drops packets is noticed in seconds instead of 15 minutes."""
MEMORY = sa.make_url("sqlite://")
"""The URL of a database in memory."""
NOW_FUNCTION = "agentsd_now"
"""SQL function without arguments that connections to SQLite have: the time of the store's clock."""
_LISTENER = "agentsd signals"
"""Name of listening connections in `pg_stat_activity`."""


def parse_store_url(url: str, root: Path) -> sa.URL:
    """Parse a store's URL, and make a file path relative to `root` absolute; raises ConfigError."""
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise ConfigError(
            "store.url is not a valid URL: use sqlite:///state.db or postgresql://user@host/database"
        ) from None
    match parsed.get_backend_name():
        case "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise ConfigError(
                    "store.url: SQLite needs a file, as in sqlite:///state.db; for a store in memory, use memory:"
                )
            return parsed.set(database=str(root / parsed.database))
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ConfigError(f"store.url: {other} is not supported; use sqlite, postgresql or memory:")


def create_engine(
    url: sa.URL, *, begin: str, idle_seconds: float, clock: StoreClock, snapshots: bool = False
) -> sa.Engine:
    """Create the engine for a database.

    Args:
        url: a URL from `parse_store_url`.
        begin: SQL statement that begins a SQLite transaction.
        idle_seconds: how long a transaction in PostgreSQL may wait for the next statement of this process, which may
            be suspended, before the server ends it and releases its locks.
        clock: the time that SQLite reads; PostgreSQL has its own.
        snapshots: use REPEATABLE READ in PostgreSQL, so that a transaction reads one snapshot, as in SQLite.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, begin, clock)
    options: dict[str, Any] = {"isolation_level": "REPEATABLE READ"} if snapshots else {}
    connect_args = {name: value for name, value in _NETWORK.items() if name not in url.query}
    try:
        engine = sa.create_engine(
            url, poolclass=sa.NullPool, hide_parameters=True, connect_args=connect_args, **options
        )
    except ModuleNotFoundError:
        raise ConfigError(f"PostgreSQL needs a driver: {install_command('agentsd[postgres]')}") from None
    limit = f"idle_in_transaction_session_timeout = {max(1, round(idle_seconds * 1000))}"

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: Any, record: Any) -> None:
        connection.autocommit = True  # in a transaction, the limit would also apply until its commit
        (session,) = connection.execute("SELECT pg_backend_pid()").fetchone()
        record.info[_POOLED] = session != connection.info.backend_pid
        if record.info[_POOLED]:  # a pooler may execute each transaction in another session of the server
            connection.prepare_threshold = None
        else:
            connection.execute(f"SET {limit}")
        connection.autocommit = False

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if connection.info[_POOLED]:
            connection.exec_driver_sql(f"SET LOCAL {limit}")

    return engine


@cache
def memory_engine() -> sa.Engine:
    """Return the engine of all databases in memory, which share its compiled statements.

    Each connection is a database of its own, without a clock. Any thread may use it, one at a time.
    """
    engine = sa.create_engine(
        MEMORY, poolclass=sa.NullPool, hide_parameters=True, connect_args={"check_same_thread": False}
    )

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


async def connect_to_listen(engine: sa.Engine) -> Any:
    """Return a new asyncio connection of psycopg to the PostgreSQL database of an engine, in autocommit mode.

    If the caller is cancelled, no connection stays open.
    """
    _, options = engine.dialect.create_connect_args(engine.url)
    options = {**_NETWORK, "application_name": _LISTENER, **options, "autocommit": True}
    driver: Any = engine.dialect.loaded_dbapi
    try:
        return await driver.AsyncConnection.connect(**options)
    except asyncio.CancelledError as cancelled:
        # A half-open connection is closed when it is freed. The traceback, kept by the cancelled task, refers to it.
        raise cancelled.with_traceback(None) from None


def driver_options(url: sa.URL) -> dict[str, Any]:
    """Return the arguments with which psycopg connects to a PostgreSQL database."""
    _, options = url.get_dialect()().create_connect_args(url)
    return {**_NETWORK, **options}


def lock_seconds(url: sa.URL) -> float:
    """Return how long to wait for a locked SQLite file; 0 for PostgreSQL.

    SQLite itself waits for a lock, except when it switches a new file to a write-ahead log: then it fails at once.
    """
    return float(str(url.query.get("timeout", _BUSY_SECONDS))) if url.get_backend_name() == "sqlite" else 0.0


def wait_for_locks(connection: sa.Connection, seconds: float | None) -> None:
    """Set how long the next transaction of a SQLite connection waits for locks: None, or more than configured: so long.

    PostgreSQL has no lock of the whole database.
    """
    if (configured := connection.info.get(_LOCKS)) is None:
        return
    wanted = configured if seconds is None else min(configured, max(0, round(seconds * 1000)))
    if wanted != connection.info.get(_WAITS, configured):
        connection.connection.cursor().execute(f"PRAGMA busy_timeout={wanted}")
        connection.info[_WAITS] = wanted


def _sqlite(url: sa.URL, begin: str, clock: StoreClock) -> sa.Engine:
    file = SqliteFile(Path(url.database or ""))
    options: dict[str, Any] = {"check_same_thread": False}  # the thread that closes the store closes its connections
    options |= {} if "timeout" in url.query else {"timeout": _BUSY_SECONDS}
    engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True, connect_args=options)

    @sa.event.listens_for(engine, "do_connect")
    def _connect(*_: object) -> None:
        file.check()  # SQLite would create a new one

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin as below
        if file.is_empty:  # changing it later needs a VACUUM, see `pruning`
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        # Durable after a crash of the process, consistent after a power loss.
        checkpoint = f"wal_autocheckpoint={_CHECKPOINT_PAGES}"
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", checkpoint):
            connection.execute(f"PRAGMA {pragma}")
        connection.create_function(NOW_FUNCTION, 0, clock)
        record.info[_LOCKS] = round(lock_seconds(url) * 1000)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        file.check()
        connection.exec_driver_sql(begin)

    return engine


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
        self._identity = opened.st_ino, opened.st_dev

    @property
    def is_empty(self) -> bool:
        """Whether it contains no tables."""
        return self._path.stat().st_size == 0

    def check(self) -> None:
        """Raise StoreError if the file was deleted or replaced: SQLite would continue to write to the deleted one."""
        try:
            now = self._path.stat()
        except OSError:
            now = None
        if now is None or (now.st_ino, now.st_dev) != self._identity:
            reason = "the file was deleted or replaced while in use; restart the process"
            raise StoreLost(f"store {self._path}: {reason}")


def _hint(error: OSError) -> str:
    """Return what to do about a folder in which the store cannot be created; empty for other errors."""
    if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ""
    return (
        "; set store.url to a file in a folder that can be written (AGENTSD_STORE__URL=sqlite:////data/state.db), or "
        "keep nothing after the process ends (AGENTSD_STORE__URL=memory:)"
    )
