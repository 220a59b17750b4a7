"""Offers of runs for tests: rows of a table in the store's own database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.store.store import Store
from framework.store.types import OfferedRun


class OfferTable:
    """Delivers offers into a table, so that an offer disappears with a transaction that is rolled back."""

    fails = False
    """Whether offers fail."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    async def of(cls, store: Store) -> OfferTable:
        """Let a store offer its runs through a new table."""
        create = "CREATE TABLE IF NOT EXISTS offers (run_id TEXT, queue TEXT, agent TEXT, priority INTEGER)"
        await store._database.write(lambda connection: connection.exec_driver_sql(create))
        offers = cls(store)
        store.offer_through(offers)
        return offers

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Insert the offers."""
        for run in runs:
            queue = "NULL" if run.queue is None else f"'{run.queue}'"
            connection.cursor().execute(
                f"INSERT INTO offers VALUES ('{run.run_id}', {queue}, '{run.agent}', {run.priority})"
            )
        if self.fails:
            connection.cursor().execute("SELECT * FROM missing")

    async def take(self) -> list[OfferedRun]:
        """Return the offers since the last call, sorted by run, and delete them."""
        rows = await self._store._database.write(
            lambda connection: connection.exec_driver_sql("DELETE FROM offers RETURNING *").all()
        )
        return sorted((OfferedRun(*row) for row in rows), key=lambda run: run.run_id)

    async def ids(self) -> list[str]:
        """Return the ids of the runs that were offered since the last call, and delete the offers."""
        return [run.run_id for run in await self.take()]
