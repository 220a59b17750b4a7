"""The migrations between the versions of a store's tables. A released migration is never changed.

Later changes are new migrations at the end of the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from framework.store.schema import complete_for_postgresql, conversations, metadata, runs, versions
from framework.types.errors import ConfigError, StoreTooNew

_MIGRATION_LOCK = 0x6167656E7473

Migration = Callable[[sa.Connection], None]


def _ratings_and_forks(connection: sa.Connection) -> None:
    for name in ("copied_from", "rating", "rating_comment", "rated_by", "rated_at"):
        _add_column(connection, runs.c[name])
    _add_column(connection, conversations.c.forked_from)


def _add_column(connection: sa.Connection, column: sa.Column[Any]) -> None:
    definition = CreateColumn(column).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {definition}")


MIGRATIONS: Mapping[int, Migration] = {2: _ratings_and_forks}
"""Migrates a database from the version before to this one. All run in one transaction."""
SCHEMA_VERSION = max(MIGRATIONS)
"""The version of the tables that this code uses."""
_MIN_VERSIONS: Mapping[int, int] = {1: 1, 2: 1}
"""The oldest schema version of code that may use a database of this version."""
_DEVELOPMENT = sa.table("agentsd_schema", sa.column("version"))
"""The table of versions before their numbers started at 1 again."""
_DEVELOPMENT_VERSIONS: Mapping[int, int] = {10: 1, 11: 2}
"""The versions of that table whose other tables are those of a version of today."""


def upgrade(connection: sa.Connection) -> int:
    """Migrate a database to the newest version in the connection's transaction, and return its earlier version.

    A newer database is left as it is, if this code may still use it.

    Raises:
        StoreTooNew: the schema version is newer than this code supports.
        ConfigError: a development version from before the first release wrote it, which cannot be migrated.
    """
    if connection.dialect.name == "postgresql":
        complete_for_postgresql()
        # Two processes that start concurrently must not both create tables.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    versions.create(connection, checkfirst=True)
    saved: int = connection.execute(sa.select(sa.func.coalesce(sa.func.max(versions.c.version), 0))).scalar_one()
    if saved > SCHEMA_VERSION:
        _check_newer(connection, saved)
    version = saved or _development_version(connection)
    if version == 0:
        for statement in _create_statements(connection.dialect.name):
            connection.exec_driver_sql(statement)
    else:
        for number in range(version + 1, SCHEMA_VERSION + 1):
            MIGRATIONS[number](connection)
    rows = [
        {"version": number, "applied_at": time.time(), "min_version": _MIN_VERSIONS[number]}
        for number in range(saved + 1, SCHEMA_VERSION + 1)
    ]
    if rows:
        connection.execute(versions.insert(), rows)
    return version


@cache
def _create_statements(dialect: str) -> Sequence[str]:
    """Return the SQL that creates all tables but that of the versions, with their indexes."""
    statements: list[str] = []

    def add(statement: sa.DDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = sa.create_mock_engine(f"{dialect}://", add)
    tables = [table for table in metadata.sorted_tables if table is not versions]
    metadata.create_all(engine, tables, checkfirst=False)
    return statements


def _check_newer(connection: sa.Connection, version: int) -> None:
    """Raise StoreTooNew if a migration of a newer version of agentsd allows only newer code."""
    oldest = sa.func.max(sa.func.coalesce(versions.c.min_version, versions.c.version))
    min_version: int = connection.execute(sa.select(oldest)).scalar_one()
    if min_version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"the store has schema version {version}; this version of agentsd supports up to {SCHEMA_VERSION}, and "
            f"the store requires at least {min_version}: upgrade agentsd"
        )


def _development_version(connection: sa.Connection) -> int:
    """Return the version of tables that a development version wrote, 0 without tables; raises ConfigError."""
    if not sa.inspect(connection).has_table(_DEVELOPMENT.name):
        return 0
    number: int = connection.execute(sa.select(sa.func.coalesce(sa.func.max(_DEVELOPMENT.c.version), 0))).scalar_one()
    if number and number not in _DEVELOPMENT_VERSIONS:
        raise ConfigError(
            f"store.url: a development version of agentsd wrote this store, with schema {number}, which cannot be "
            "migrated: move the store away, or set store.url to another one"
        )
    return _DEVELOPMENT_VERSIONS.get(number, 0)
