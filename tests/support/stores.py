"""Runs the body of a test on a store in memory or in a database, and reuses databases of a PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from examples.scale_demo.postgres import new_database
from framework.store.memory import MemoryStore
from framework.store.store import Store
from tests.support.cases import FACTOR
from tests.support.clocks import MovableClock

LONG_ON_POSTGRESQL = pytest.mark.parametrize(
    "new_store", ["sqlite", *(["postgresql"] if FACTOR > 1 else [])], indirect=True
)
"""Runs a test of killed processes on SQLite, and in `make test-long` on PostgreSQL, too.

In `make test`, kills of processes on PostgreSQL are those of tests/conformance/test_fleet.py.
"""
_TABLES = """
SELECT md5(string_agg(concat_ws(' ', c.relname, c.relkind, attnum, attname, atttypid), ',' ORDER BY c.relname, attnum))
FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
WHERE c.relnamespace = 'public'::regnamespace AND NOT attisdropped
"""
_VERSIONS = "SELECT array_agg(version ORDER BY version) FROM agentsd_versions"
_IS_LARGE = "SELECT pg_database_size(current_database()) > 40000000"  # with the tables alone, it has 8 MB
_DISCONNECT_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_DELETE_ALL = """
DO $$ DECLARE one record; BEGIN
SET LOCAL session_replication_role = replica; -- no table's rows are needed by those of another
FOR one IN SELECT oid::regclass AS name, relkind FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S') AND relname <> 'agentsd_versions' LOOP
    IF one.relkind = 'r' THEN EXECUTE format('DELETE FROM %s', one.name);
    ELSE EXECUTE format('ALTER SEQUENCE %s RESTART', one.name); END IF;
END LOOP; END $$
"""


class ReusedDatabases:
    """Databases of a PostgreSQL server with the empty tables of a store.

    Deleting the rows of a test takes a third of the time of creating the tables again.
    """

    def __init__(self, server_url: str) -> None:
        self._server_url, self._free = server_url, list[str]()
        self._model = new_database(server_url)
        asyncio.run(self._create_tables())
        with psycopg.connect(self._model, autocommit=True) as connection:
            checks = (_TABLES, _VERSIONS, _IS_LARGE)  # in this order: without its tables, it has no versions
            self._expected = {query: connection.execute(query).fetchone() for query in checks}

    async def _create_tables(self) -> None:
        await (await Store.open(self._model, Path("/"))).close()

    def give(self) -> str:
        """Return the URL of a database that no other test uses."""
        return self._free.pop() if self._free else new_database(self._server_url, model=self._model)

    def take_back(self, url: str) -> None:
        """Delete all rows of a database and close its connections; drop it if its tables were changed."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_DISCONNECT_OTHERS)
            if all(connection.execute(query).fetchone() == found for query, found in self._expected.items()):
                connection.execute(_DELETE_ALL)
                self._free.append(url)
                return
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(url.rpartition("/")[2])))


def with_store(body: Callable[[Store], Awaitable[None]], url: str | None) -> None:
    """Run the body on a store with a `MovableClock`."""

    async def main() -> None:
        clock = MovableClock()
        store = MemoryStore(clock=clock) if url is None else await Store.open(url, Path("/"), clock=clock)
        try:
            await body(store)
        finally:
            await store.close()

    asyncio.run(main())
