"""Push notifications: where clients want to be told of a run's pauses and end, and what was delivered to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from framework.store.database import Database
from framework.store.schema import insert_into, pushes, runs
from framework.types.errors import RequestError
from framework.types.text import storable

MAX_PUSHES = 10
"""Number of receivers of one run."""
_CLAIM_SECONDS = 20.0
"""Time for one attempt, of at most 15 seconds. If the process ends meanwhile, another one repeats it."""


@dataclass(frozen=True, slots=True)
class DuePush:
    """A run that has paused or ended, and a receiver that this process is to tell."""

    run_id: str
    id: str
    body: str
    """Where and how to send it, as the caller of `save` wrote it."""
    version: int
    """Version of the run."""
    updated_at: float
    """When the run had this version."""
    attempts: int
    """Number of attempts to send this version, the present one included."""
    is_last: bool
    """Whether the run has ended."""


class StoredPushes:
    """The receivers of push notifications in a store. Each is told at least once of a state that lasts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, run_id: str, push_id: str, body: str) -> None:
        """Add a receiver of a run, or replace the one with this id; raises RequestError if there are too many."""
        row = {"body": storable(body), "delivered": 0, "attempts": 0, "due_at": 0.0}

        def work(connection: sa.Connection) -> None:
            key = storable(push_id)
            others = sa.select(sa.func.count()).where(pushes.c.run_id == run_id, pushes.c.id != key)
            if connection.execute(others).scalar_one() >= MAX_PUSHES:
                raise RequestError(f"the run has {MAX_PUSHES} receivers of push notifications: delete one of them")
            insert = insert_into(pushes, connection.dialect.name).values(run_id=run_id, id=key, **row)
            connection.execute(insert.on_conflict_do_update(index_elements=["run_id", "id"], set_=row))

        await self._database.write(work, is_request=True)

    async def list(self, run_id: str) -> Mapping[str, str]:
        """Return the bodies of a run's receivers, by id."""
        select = sa.select(pushes.c.id, pushes.c.body).where(pushes.c.run_id == run_id).order_by(pushes.c.id)
        rows = await self._database.read(lambda connection: connection.execute(select).all())
        return {row.id: row.body for row in rows}

    async def delete(self, run_id: str, push_id: str) -> None:
        """Delete a receiver. One that does not exist is no error."""
        delete = sa.delete(pushes).where(pushes.c.run_id == run_id, pushes.c.id == storable(push_id))
        await self._database.write(lambda connection: connection.execute(delete).rowcount, is_request=True)

    async def claim(self, limit: int) -> Sequence[DuePush]:
        """Return receivers to tell now, which no other process tells meanwhile; first those that failed least."""
        now = self._database.clock()
        select = sa.select(pushes, runs.c.version, runs.c.updated_at, runs.c.status).join(
            runs, runs.c.id == pushes.c.run_id
        )
        is_due = (pushes.c.due_at <= now, runs.c.version > pushes.c.delivered)
        select = select.where(*is_due, runs.c.status.not_in(("queued", "running")))
        select = select.order_by(pushes.c.attempts, pushes.c.due_at, pushes.c.run_id).limit(limit)
        found = await self._database.read(lambda connection: connection.execute(select).all())
        if not found:
            return ()

        def work(connection: sa.Connection) -> Sequence[DuePush]:
            claimed = []
            for row in found:
                values = {"attempts": row.attempts + 1, "due_at": now + _CLAIM_SECONDS}
                is_same = (pushes.c.attempts == row.attempts, pushes.c.delivered == row.delivered)
                update = sa.update(pushes).where(pushes.c.run_id == row.run_id, pushes.c.id == row.id, *is_same)
                if connection.execute(update.values(values)).rowcount:
                    is_last = row.status != "paused"
                    claimed.append(
                        DuePush(row.run_id, row.id, row.body, row.version, row.updated_at, row.attempts + 1, is_last)
                    )
            return claimed

        return await self._database.write(work)

    async def settle(self, push: DuePush, retry_seconds: float | None) -> None:
        """Note the outcome of an attempt.

        Args:
            push: what was sent.
            retry_seconds: time until the next attempt. None: the receiver was told, or is not told any more.
        """
        if retry_seconds is None:
            values = {"delivered": push.version, "attempts": 0, "due_at": None if push.is_last else 0.0}
        else:
            values = {"due_at": self._database.clock() + retry_seconds}
        is_same = (pushes.c.attempts == push.attempts, pushes.c.delivered < push.version)
        update = sa.update(pushes).where(pushes.c.run_id == push.run_id, pushes.c.id == push.id, *is_same)
        await self._database.write(lambda connection: connection.execute(update.values(values)).rowcount)
