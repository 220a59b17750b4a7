"""Which database a URL names, and how connections to it are set up: SQLite in one file, or PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from framework.types.errors import ConfigError, StoreError
from framework.types.private_folder import make_private_folder

_BUSY_SECONDS = 10
"""How long SQLite waits for another process that writes."""
_NETWORK = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Of connections to PostgreSQL: a network that swallows everything is noticed in seconds, not a quarter of an hour."""


def parse_url(url: str, root: Path) -> sa.URL:
    """A store's URL, a file's path below a root; raises ConfigError."""
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


def create_engine(url: sa.URL, *, begin: str, snapshots: bool = False) -> sa.Engine:
    """Connections to a database.

    Args:
        url: where it is.
        begin: how SQLite begins transactions.
        snapshots: in PostgreSQL, too, a transaction sees the database as it was at its beginning.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, begin)
    options: dict[str, Any] = {"isolation_level": "REPEATABLE READ"} if snapshots else {}
    given = {name: value for name, value in _NETWORK.items() if name not in url.query}
    try:
        return sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True, connect_args=given, **options)
    except ModuleNotFoundError:
        raise ConfigError('PostgreSQL needs a driver: pip install "agentsd[postgres]"') from None


def _sqlite(url: sa.URL, begin: str) -> sa.Engine:
    file = Path(url.database or "")
    try:
        make_private_folder(file.parent)
        file.touch(mode=0o600)  # what people say is in it
        opened = file.stat()
    except OSError as error:
        raise StoreError(f"the store {file}: {error.strerror}") from None
    options: dict[str, Any] = {"check_same_thread": False}  # a thread's connection is closed by another
    options |= {} if "timeout" in url.query else {"timeout": _BUSY_SECONDS}
    engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True, connect_args=options)

    def must_be_there() -> None:  # SQLite would write on into a file that nobody can open any more
        try:
            same = os.path.samestat(file.stat(), opened)
        except OSError:
            same = False
        if not same:
            raise StoreError(f"the store {file}: the file was deleted or replaced while it was in use; start again")

    @sa.event.listens_for(engine, "do_connect")
    def _connect(*_: object) -> None:
        must_be_there()

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say
        if not file.stat().st_size:  # afterwards it takes a VACUUM: see `shrinking`
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "wal_autocheckpoint=2000"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        must_be_there()
        connection.exec_driver_sql(begin)

    return engine
