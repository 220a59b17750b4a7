"""SQL that makes runs ready or releases them, and offers them to processes in the same transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from framework.store.signals import Signal
from framework.store.sql.database import Database
from framework.store.sql.schema import conversations, has_status, is_claimed_or_running, is_next, runs
from framework.store.sql.signals import notify
from framework.store.work import OfferedRun, Offers

OFFERED_COLUMNS = (runs.c.id, runs.c.queue, runs.c.agent, runs.c.priority)
"""The columns of `RunOffers.offer`."""
REOFFER_SECONDS = 5.0
"""A run that still needs a process this long after it was offered is offered again."""
RELEASED: Mapping[str, Any] = {"owner": None, "process": None}
"""The columns of a run that no process holds."""
UNCOUNTED = sa.case((runs.c.attempts > 0, runs.c.attempts - 1), else_=0)
"""The attempts of a run whose process releases it: only those that ended with their process count."""


class RunOffers:
    """Offers runs through the store's `Offers`. Without them, a signal has processes look for runs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offers: Offers | None = None
        self._make_next_ready = _make_next_ready(database)

    def offer_through(self, offers: Offers) -> None:
        """Set what delivers the offers."""
        self._offers = offers

    @property
    def offered_at(self) -> sa.ColumnElement[Any]:
        """Value of the column of a run that is offered: when that was, or null if nothing delivers offers."""
        return sa.null() if self._offers is None else self._database.now

    def offer(self, connection: sa.Connection, rows: Iterable[Any]) -> list[OfferedRun]:
        """Offer the runs of these rows, and return them."""
        offered = [OfferedRun(*row) for row in rows]
        if not offered:
            return []
        if self._offers is not None:
            self._offers.offer(connection.connection.dbapi_connection, offered)
        elif not self._database.is_sqlite:
            notify(connection, Signal("ready"))
        return offered

    def release(self, connection: sa.Connection, condition: sa.ColumnElement[bool], **columns: Any) -> list[OfferedRun]:
        """Release the runs in progress and the claimed runs that match, offer those that can begin or be resumed.

        Args:
            connection: the connection.
            condition: selects runs that this process may write.
            columns: more columns to set.
        """
        ready = sa.and_(has_status("queued"), is_next(), runs.c.blocked_by.is_(None))
        values = {**RELEASED, "ready": ready, "offered_at": self.offered_at, **columns}
        returned = (*OFFERED_COLUMNS, runs.c.status, runs.c.ready)
        rows = connection.execute(sa.update(runs).where(condition).values(values).returning(*returned)).all()
        return self.offer(connection, (row[:4] for row in rows if row.ready or row.status == "running"))

    def release_dead(self, connection: sa.Connection, dead: Collection[str]) -> list[OfferedRun]:
        """Release all runs of processes that have ended, and offer them.

        A process that held a single run ended because of it, as far as can be known. All runs of a process are released
        together, so that the last one does not look as if it had been alone.

        Args:
            connection: the connection.
            dead: ids of processes that cannot renew their leases until the transaction ends.
        """
        held = sa.select(runs.c.no, runs.c.process).where(is_claimed_or_running(), runs.c.process.in_(dead))
        rows = connection.execute(held.order_by(runs.c.no).with_for_update()).all()
        if not rows:
            return []
        number = Counter(row.process for row in rows)
        alone = [row.no for row in rows if number[row.process] == 1]
        columns = {
            "attempts": sa.case(
                (has_status("queued"), runs.c.attempts + 1), else_=runs.c.attempts
            ),  # `take` counts others
            "crashes": runs.c.crashes + sa.case((runs.c.no.in_(alone), 1), else_=0),
        }
        return self.release(
            connection, runs.c.no.in_([row.no for row in rows]), offered_at=self._database.now, **columns
        )

    def make_next_ready(self, connection: sa.Connection, conversation: str) -> None:
        """Make the first queued run of a conversation ready, and offer it, if no run of that is open any more."""
        row = {"conversation": conversation, "offering": self._offers is not None}
        if (offered := connection.execute(self._make_next_ready, row).one_or_none()) is not None:
            self.offer(connection, [offered])


def _make_next_ready(database: Database) -> sa.Executable:
    key = sa.bindparam("conversation", type_=sa.Text)
    waiting = runs.alias()
    first = sa.select(sa.func.min(waiting.c.no)).where(
        waiting.c.conversation_id == key, waiting.c.no > 0, waiting.c.status == sa.literal_column("'queued'")
    )
    is_open = sa.exists().where(conversations.c.id == key, conversations.c.open_run.is_not(None))
    is_free = sa.and_(runs.c.owner.is_(None), runs.c.blocked_by.is_(None), ~is_open)
    offered_at = sa.case((sa.bindparam("offering", type_=sa.Boolean), database.now))
    update = sa.update(runs).where(runs.c.no == first.scalar_subquery(), has_status("queued"), is_free)
    return update.values(ready=sa.true(), offered_at=offered_at).returning(*OFFERED_COLUMNS)
