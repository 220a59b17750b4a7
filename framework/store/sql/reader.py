"""What a store reads: runs, their events and traces, lists, figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from framework.store.clock import StoreClock
from framework.store.conversation_lists import ConversationInfo, ConversationQuery
from framework.store.period import Period
from framework.store.protocol import Blueprint, RunInfo, RunQuery
from framework.store.span_rows import decode_spans
from framework.store.sql import conversations as sql_conversations
from framework.store.sql import media as sql_media
from framework.store.sql import runs as sql_runs
from framework.store.sql.backlog import select_backlog
from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.processes import list_processes
from framework.store.sql.run_lists import count_runs, count_waiting, list_runs, queue_size
from framework.store.sql.schema import blueprints
from framework.store.sql.texts import storable
from framework.store.sql.usage import select_usage
from framework.store.usage import Grouping, UsageReport
from framework.store.work import ProcessInfo, QueueSize
from framework.types.fleet import Backlog
from framework.types.report import Status
from framework.types.state import MadeDecision, RunState
from framework.types.trace import SpanRecord


class SqlReader:
    """Reads a store in a database. Each method reads one snapshot."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._leases = RunLeases(local=database.is_sqlite)

    @property
    def clock(self) -> StoreClock:
        """The database's clock, as this process knows it."""
        return self._database.clock

    def now(self) -> float:
        """Return the database's clock."""
        return self._database.clock()

    async def load_run(self, run_id: str) -> RunState:
        """Return the last saved state of a run."""
        return await self._database.read(lambda connection: sql_runs.load_run(connection, run_id))

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first."""
        run_filter = query or RunQuery()
        return await self._database.read(
            lambda connection: list_runs(connection, self._database, self._leases, run_filter)
        )

    async def count_runs(self, query: RunQuery) -> int:
        """Count the matching runs."""
        return await self._database.read(lambda connection: count_runs(connection, query))

    async def usage(self, query: RunQuery, by: Grouping, period: Period) -> UsageReport:
        """Return figures of the matching runs, counted by the database."""
        return await self._database.read(lambda connection: select_usage(connection, query, by, period))

    async def count_waiting(self) -> Mapping[Status, int]:
        """Count the queued and the paused runs."""
        return await self._database.read(count_waiting)

    async def backlog(self, query: RunQuery) -> Backlog:
        """Return the matching runs that have not ended, counted by the database."""
        return await self._database.read(lambda connection: select_backlog(connection, query, self.now()))

    async def queue_size(self) -> QueueSize:
        """Return how many runs wait in the queue."""
        return await self._database.read(queue_size)

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the events of a run."""
        return await self._database.read(lambda connection: sql_runs.load_events(connection, storable(run_id), after))

    async def events_named(self, run_id: str, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the events of one name; the others are not parsed."""
        key = storable(run_id)
        return await self._database.read(lambda connection: sql_runs.load_events(connection, key, 0, name))

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """Return the spans of a run."""
        bodies = await self._database.read(lambda connection: sql_runs.load_spans(connection, storable(run_id)))
        return decode_spans(bodies)

    async def decisions(self, run_id: str) -> Sequence[MadeDecision]:
        """Return the decisions about a run, in the order they were made."""
        return await self._database.read(lambda connection: sql_runs.load_decisions(connection, storable(run_id)))

    async def latest_decisions(self, run_ids: Collection[str], limit: int) -> Sequence[MadeDecision]:
        """Return the latest decisions about runs."""
        keys = [storable(run_id) for run_id in run_ids]
        return await self._database.read(lambda connection: sql_runs.latest_decisions(connection, keys, limit))

    async def blueprint(self, digest: str) -> Blueprint | None:
        """Return a stored blueprint, or None."""
        select = sa.select(blueprints.c.files).where(blueprints.c.digest == digest)
        files = await self._database.read(lambda connection: connection.execute(select).scalar_one_or_none())
        return Blueprint(digest, orjson.loads(files)) if files else None

    async def load_media(self, digests: Collection[str], of: RunQuery | None = None) -> Mapping[str, bytes]:
        """Return the stored files with these digests."""
        return await self._database.read(lambda connection: sql_media.select_media(connection, digests, of))

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first."""
        filters = query or ConversationQuery()
        return await self._database.read(lambda connection: sql_conversations.list_conversations(connection, filters))

    async def processes(self) -> Sequence[ProcessInfo]:
        """Return the processes, in the order in which they started."""
        return await self._database.read(lambda c: list_processes(c, self._database, self._leases))
