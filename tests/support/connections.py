"""The connections of a PostgreSQL database."""

from __future__ import annotations

import time

import psycopg

PATIENCE = 20
"""Timeout in seconds, for waits that should be short."""


def until_disconnected(url: str) -> None:
    """Wait until nobody is connected to a database any more; return at once if it is SQLite.

    The server may still execute what a process sent before it was killed.
    """
    if url.startswith("sqlite"):
        return
    others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    limit = time.monotonic() + PATIENCE
    with psycopg.connect(url, autocommit=True) as connection:
        while found := connection.execute(f"SELECT pid FROM pg_stat_activity WHERE {others}").fetchall():
            assert time.monotonic() < limit, f"{len(found)} connections are open"
