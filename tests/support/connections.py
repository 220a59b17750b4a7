"""The connections of a PostgreSQL database."""

from __future__ import annotations

import psycopg

from tests.support.waiting import wait_until


def until_disconnected(url: str) -> None:
    """Wait until nobody is connected to a database any more; return at once if it is SQLite.

    The server may still execute what a process sent before it was killed.
    """
    if url.startswith("sqlite"):
        return
    others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        query = f"SELECT pid FROM pg_stat_activity WHERE {others}"
        wait_until(lambda: not connection.execute(query).fetchall(), "all connections are closed")
