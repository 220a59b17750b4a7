"""The connections that receive the signals of a PostgreSQL database."""

from __future__ import annotations

import psycopg

from tests.support.waiting import wait_until

PATIENCE = 20
"""Timeout in seconds, for waits that should be short."""


def cut_signals(url: str, number: int = 1) -> None:
    """Cut the connections that receive signals, and no other, as soon as there are exactly so many."""
    with psycopg.connect(url, autocommit=True) as connection:
        for pid in _receivers(connection, number):
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def wait_until_none_receives(url: str) -> None:
    """Wait until the server has closed all connections that receive signals."""
    with psycopg.connect(url, autocommit=True) as connection:
        _receivers(connection, 0)


def _receivers(connection: psycopg.Connection, number: int) -> list[int]:
    """Return the processes of the server that send signals, as soon as there are exactly so many.

    The server still lists a connection for a moment after it was closed or cut.
    """
    chosen = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'agentsd signals'"
    found: list[tuple[int]] = []

    def look() -> bool:
        found[:] = connection.execute(f"SELECT pid {chosen}").fetchall()
        return len(found) == number

    wait_until(look, f"{number} connections receive signals")
    return [pid for (pid,) in found]
