"""A process that is suspended inside a transaction of PostgreSQL does not stop others, and repeats it afterwards."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import sqlalchemy as sa

from examples.scale_demo.postgres import new_database
from framework.store.database import Database

SECONDS = 60.0
"""More than any machine needs."""
ROWS = sa.table("rows", sa.column("writer"))


class Suspended:
    """Work that locks a row and then stands still, in its first attempt, as that of a suspended process does."""

    def __init__(self) -> None:
        self.attempts, self.locks, self.continues = 0, threading.Event(), threading.Event()

    def __call__(self, connection: sa.Connection) -> int:
        self.attempts += 1
        connection.execute(sa.update(ROWS).values(writer="suspended"))
        self.locks.set()
        assert self.continues.wait(SECONDS)
        return connection.execute(sa.update(ROWS).values(writer="continued")).rowcount


def create(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE rows (writer text)")
    connection.execute(sa.insert(ROWS).values(writer="nobody"))


async def written_by(database: Database) -> str:
    return await database.read(lambda connection: str(connection.execute(sa.select(ROWS.c.writer)).scalar_one()))


def test_others_write_a_row_that_a_suspended_process_has_locked(postgres: str, tmp_path: Path) -> None:
    async def main(first: Database, second: Database) -> None:
        await first.write(create)
        work = Suspended()
        writing = asyncio.create_task(first.write(work))
        assert await asyncio.to_thread(work.locks.wait, SECONDS)
        await second.write(lambda connection: connection.execute(sa.update(ROWS).values(writer="other")))
        assert await written_by(second) == "other"
        work.continues.set()
        assert await writing == 1
        assert work.attempts > 1, "the server ended the first transaction, and may end others of a slow machine"
        assert await written_by(second) == "continued"

    async def opened() -> None:
        url = new_database(postgres)
        first = await Database.open(url, tmp_path, idle_seconds=0.2)
        second = await Database.open(url, tmp_path)
        try:
            await main(first, second)
        finally:
            await first.close()
            await second.close()

    asyncio.run(opened())


def test_a_migration_may_be_slower_than_the_transactions_of_a_short_lease(postgres: str, tmp_path: Path) -> None:
    async def opened() -> None:
        database = await Database.open(new_database(postgres), tmp_path, idle_seconds=0.001)
        await database.close()

    asyncio.run(opened())  # it has dozens of statements, and a millisecond between any two of them would be too long
