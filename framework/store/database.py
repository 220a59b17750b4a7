"""Connections, threads, transactions and retries for SQLite or PostgreSQL. Failures are raised as StoreError."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from framework.store.schema import upgrade
from framework.types.errors import ConfigError, StoreError, StoreLost
from framework.types.installation import install_command, make_private_folder

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Return seconds on a clock that nobody sets. It counts the time in which the machine sleeps, where that exists."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class StoreClock:
    """Unix time in seconds: read once, then measured by a clock that nobody sets.

    A store sets it to the time of its database when it is opened, and later with each renewal of a lease.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        """Initialize. `wall`: the time of day of this machine, with which the clock starts."""
        self._offset = wall() - elapsed()

    def __call__(self) -> float:
        """Return the time."""
        return elapsed() + self._offset

    def set(self, now: float) -> None:
        """Set the time."""
        self._offset = now - elapsed()


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
            "store.url is not a valid URL: use sqlite:///state.db, postgresql://user@host/database or memory:"
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

    `begin` starts a SQLite transaction. In PostgreSQL, a transaction whose process sends no statement for
    `idle_seconds` is ended, and with `snapshots`, each reads one snapshot, as in SQLite.
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

    Each connection is a database of its own, without a clock. Any thread may use it, one at a time: the driver's own
    transactions, which start with the first change, are enough.
    """
    engine = sa.create_engine(
        MEMORY, poolclass=sa.NullPool, hide_parameters=True, connect_args={"check_same_thread": False}
    )

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA foreign_keys=ON")

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
        connection.isolation_level = None  # transactions start as below
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

        `locks_until` is the time of the monotonic clock from which it does not wait for locks.
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
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self.engine.connect()
            self._connections.add(connection)
        return connection

    def _drop(self) -> None:
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


@cache
def _empty_database() -> MemoryConnection:
    """Return a database in memory with its tables and no rows. Copying it is 30 times as fast as creating them."""
    template = MemoryConnection(StoreClock())
    template.submit(upgrade).result()
    return template


def _copy(source: sa.Connection, target: sa.Connection) -> None:
    driver: Any = source.connection.dbapi_connection
    driver.backup(target.connection.dbapi_connection)


def now_in(dialect: str) -> sa.ColumnElement[float]:
    """Return the SQL expression for the clock of a database, as Unix time in seconds."""
    text = f"{NOW_FUNCTION}()" if dialect == "sqlite" else "extract(epoch from clock_timestamp())"
    return sa.literal_column(text, sa.Double)


def _is_transient(error: BaseException | None) -> bool:
    """Return whether another attempt may succeed. Of SQLite's errors, only locks are transient."""
    if not isinstance(error, sqlite3.Error):
        return True
    code = getattr(error, "sqlite_errorcode", 0)  # none: text that is not UTF-8, for example
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


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

        Opening is retried only while a SQLite file is locked, for `lock_seconds`. `clock` is set to the database's
        clock; a SQLite file has none.

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
        _empty_database().submit(lambda source: database._writer.submit(partial(_copy, source)).result()).result()
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

    async def listen(self, channel: str, started: Callable[[], object], received: Callable[[str], object]) -> None:
        """Listen on a channel of PostgreSQL, through a connection of its own, until the caller is cancelled.

        `started` is called once the connection listens, `received` in the event loop with each payload.

        Raises:
            StoreError: the connection was cut, or could not be opened.
        """
        engine = self._reader.engine
        driver: Any = engine.dialect.loaded_dbapi
        try:
            connection = await connect_to_listen(engine)
            try:
                await connection.execute(f"LISTEN {channel}")
                started()
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
        return now_in(self.dialect.name)

    @property
    def statement_start(self) -> sa.ColumnElement[float]:
        """SQL expression for `now` at the start of the statement, which can be compared by an index."""
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
                    return await self._started_in_time(ended, deadline)
                return await (_await_completion(ended) if threads is self._writer else asyncio.wrap_future(ended))
            except ConnectionFailed as broken:
                if not broken.stale:
                    if not broken.again or time.monotonic() >= deadline:
                        raise self._error(broken.error) from None
                    await asyncio.sleep(_RETRY_INTERVAL_SECONDS)
                work = again
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                raise self._error(error) from None

    async def _started_in_time(self, work: Future[T], deadline: float) -> T:
        """Return the result of work of the writer; raise StoreError if it has not started by the deadline."""
        seconds = max(0.0, deadline - time.monotonic())
        timer = asyncio.get_running_loop().call_later(seconds, work.cancel)  # has no effect once it has started
        try:
            return await _await_completion(work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not work.cancelled() or (task is not None and task.cancelling()):
                raise
            raise StoreError(
                f"store {self.name}: other writes take longer than {round(seconds, 1):g} s; try again"
            ) from None
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

    If the caller is cancelled, work that has started still ends. Then the cancellation is delivered again at the next
    await; if the work failed, CancelledError is raised instead.
    """
    ended = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        if work.cancel():  # the work has not started
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
