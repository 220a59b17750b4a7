"""A database's connections and threads: SQLite in one file, or PostgreSQL. What fails is a StoreError that says why."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from framework.memory.schema import upgrade
from framework.types.errors import ConfigError, StoreError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

POSTGRES_THREADS = 6
SQLITE_READERS = 2
BUSY_SECONDS = 10
"""How long SQLite waits for another process that writes."""
PATIENCE_SECONDS = 15.0
"""How long PostgreSQL may be away before what needs it fails."""
_PAUSE_SECONDS = 0.2
_ADVICE = {
    "full": "free some space, then resume the run",
    "locked": "another process holds it; try again",
    "not a database": "it is something else, or damaged: move it away, or give `store.url` another file",
    "decode": "it is damaged: restore a copy, or `sqlite3 FILE .recover`",
    "malformed": "it is damaged: restore a copy, or `sqlite3 FILE .recover`",
    "readonly": "let this process write it, and its folder",
    "unable to open": "is its folder there, and may this process write to it?",
}


class Database:
    """Runs pieces of work in transactions, in threads of its own."""

    def __init__(self, url: sa.URL) -> None:
        self.name = url.render_as_string(hide_password=True)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        writers = 1 if self.is_sqlite else POSTGRES_THREADS
        self._writer = _Threads(_engine(url, begin="BEGIN IMMEDIATE"), writers)
        self._reader = _Threads(_engine(url, begin="BEGIN"), SQLITE_READERS) if self.is_sqlite else self._writer

    @classmethod
    async def open(cls, url: str, root: Path) -> Database:
        """Connect, and bring the tables up to date.

        Raises:
            ConfigError: that is no URL of a database we know, or its driver is not installed.
            StoreError: it cannot be opened.
        """
        database = cls(_parsed(url, root))
        try:
            await database._do(database._writer, upgrade, patience=0)
        except BaseException:
            await database.close()
            raise
        return database

    async def write(self, work: Work[T]) -> T:
        """Do work in a transaction; raises StoreError, and then nothing of it was done.

        Where the connection broke, the work is done again: it must be harmless to do it twice.
        """
        return await self._do(self._writer, work)

    async def read(self, work: Work[T]) -> T:
        """Read what was committed before; raises StoreError."""
        return await self._do(self._reader, work)

    async def close(self) -> None:
        """Let what is under way end, and close the connections."""
        for threads in dict.fromkeys((self._writer, self._reader)):
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

    async def _do(self, threads: _Threads, work: Work[T], patience: float = PATIENCE_SECONDS) -> T:
        deadline = time.monotonic() + (0 if self.is_sqlite else patience)
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(threads.pool, partial(threads.do, work))
            except _Broken as broken:
                if not broken.again or time.monotonic() >= deadline:
                    raise self._error(broken.error) from None
                await asyncio.sleep(_PAUSE_SECONDS)
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                raise self._error(error) from None

    def _error(self, error: BaseException) -> StoreError:
        """Only the driver's own words: statements and what is in them stay out of it."""
        told = getattr(error, "orig", None) or (type(error).__name__ if isinstance(error, SQLAlchemyError) else error)
        said = str(told).strip().splitlines()
        text = said[0].partition(" with text ")[0] if said else type(error).__name__  # what is in it stays out, too
        advice = next((f"; {advice}" for sign, advice in _ADVICE.items() if sign in text), "")
        return StoreError(f"the store {self.name}: {text}{advice}")


class _Broken(Exception):
    """The connection is gone: another one may work."""

    def __init__(self, error: Exception, *, again: bool = True) -> None:
        super().__init__(str(error))
        self.error, self.again = error, again


class _Threads:
    """Some threads, each with a connection that it keeps."""

    def __init__(self, engine: sa.Engine, number: int) -> None:
        self.pool = ThreadPoolExecutor(number, thread_name_prefix="agentsd-store")
        self.engine = engine
        self._driver: Any = engine.dialect.dbapi
        self._own = threading.local()
        self._open: set[sa.Connection] = set()

    def do(self, work: Work[T]) -> T:
        """Do work in a transaction of this thread's connection."""
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        try:
            if connection is None:
                connection = self._own.connection = self.engine.connect()
                self._open.add(connection)
            with connection.begin():
                return work(connection)
        except DBAPIError as error:
            self._drop()
            if isinstance(error, (OperationalError, InterfaceError)):
                raise _Broken(error) from None
            raise
        except self._driver.Error as error:  # of a statement that was prepared
            self._drop()
            broken = isinstance(error, (self._driver.OperationalError, self._driver.InterfaceError))
            raise _Broken(error, again=broken) from None

    def close(self) -> None:
        """Let what is under way end; no more after that."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()

    def _drop(self) -> None:
        connection: sa.Connection | None = getattr(self._own, "connection", None)
        self._own.connection = None
        if connection is not None:
            connection.invalidate()
            connection.close()
            self._open.discard(connection)


def _parsed(url: str, root: Path) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise ConfigError("store.url is no URL: write sqlite:///state.db or postgresql://user@host/database") from None
    match parsed.get_backend_name():
        case "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise ConfigError("store.url: SQLite needs a file, as in sqlite:///state.db")
            return parsed.set(database=str(root / parsed.database))
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ConfigError(f"store.url: {other} is not supported; use sqlite or postgresql")


def _engine(url: sa.URL, *, begin: str) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, begin)
    try:
        return sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True, connect_args={"connect_timeout": 5})
    except ModuleNotFoundError:
        raise ConfigError('PostgreSQL needs a driver: pip install "agentsd[postgres]"') from None


def _sqlite(url: sa.URL, begin: str) -> sa.Engine:
    file = Path(url.database or "")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # what people say is in it
    except OSError as error:
        raise StoreError(f"the store {file}: {error.strerror}") from None
    options: dict[str, Any] = {"check_same_thread": False}  # a thread's connection is closed by another
    options |= {} if "timeout" in url.query else {"timeout": BUSY_SECONDS}
    engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True, connect_args=options)

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "wal_autocheckpoint=2000"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
