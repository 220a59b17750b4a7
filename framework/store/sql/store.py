"""The durable store: SQLAlchemy Core over SQLite or PostgreSQL, the same code for both."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from pydantic_core import PydanticSerializationError

from framework.store.database_files import database_paths
from framework.store.protocol import (
    Blueprint,
    Conversation,
    ConversationInfo,
    ConversationQuery,
    Pruned,
    RunInfo,
    RunQuery,
    RunRecord,
)
from framework.store.sql import conversations as sql_conversations
from framework.store.sql import runs as sql_runs
from framework.store.sql.database import DEFAULT_RETRY_SECONDS, Database, Work
from framework.store.sql.leases import RunLease, RunLeases
from framework.store.sql.owners import find_owner
from framework.store.sql.record import LEASE_SECONDS, RowBatch, SqlRecord, Statements
from framework.store.sql.schema import blueprints, runs
from framework.store.sql.shrinking import shrink
from framework.store.sql.span_rows import decode_spans
from framework.store.sql.state_rows import StateDiff, head_json, history_rows
from framework.types.errors import RunNotFound, StoreError
from framework.types.state import Decision, RunState
from framework.types.status import Status
from framework.types.trace import SpanRecord


class SqlStore:
    """Keeps everything in a database. Make one with `SqlStore.open`; several processes may use the same database."""

    durable = True
    keeps_spans = True

    def __init__(self, database: Database, lease_seconds: float, files: tuple[Path, ...] = ()) -> None:
        self.lease_seconds, self.files = lease_seconds, files
        self._database, self._statements = database, Statements(database)
        self._leases = RunLeases(local=database.is_sqlite)
        self._known_blueprints: dict[str, float] = {}
        """When they were last put on record."""

    @classmethod
    async def open(
        cls, url: str, root: Path, *, lease_seconds: float = LEASE_SECONDS, retry_seconds: float = DEFAULT_RETRY_SECONDS
    ) -> SqlStore:
        """Open a database, and bring its tables up to date.

        Args:
            url: `sqlite:///state.db` (relative to `root`; four slashes: absolute) or `postgresql://…`.
            root: a folder.
            lease_seconds: seconds without a sign of life after which another process may take a run over.
            retry_seconds: how long to retry while PostgreSQL is unreachable or a SQLite file is locked.

        Raises:
            ConfigError: the URL cannot be used.
            StoreError: the database cannot be opened; StoreTooNew: a newer version has written it.
        """
        return cls(
            await Database.open(url, root, retry_seconds=retry_seconds), lease_seconds, database_paths(url, root)
        )

    async def begin(self, state: RunState, conversation: Conversation | None, blueprint: Blueprint | None) -> RunRecord:
        """One transaction: the conversation claimed, the run and the user's message inserted."""
        diff, batch = StateDiff(), RowBatch()
        try:
            batch.add(state.run_id, diff.changes(state))
            given = [] if conversation else history_rows(state)
            batch.add(state.run_id, given)
            row: dict[str, Any] = {"head": head_json(state), "state": batch.state}
        except (PydanticSerializationError, TypeError, ValueError) as error:
            raise StoreError(f"the run cannot be written as JSON: {type(error).__name__}") from None
        is_new = blueprint is not None and self._needs_blueprint_write(blueprint)
        lease = self._leases.new()

        def work(connection: sa.Connection) -> tuple[int, bool]:
            if conversation is not None:
                row["turn"] = sql_runs.claim_conversation(connection, conversation, state)
            if blueprint is not None and is_new:
                sql_runs.insert_blueprint(connection, blueprint)
            sql_runs.insert_run(connection, self._database, state, row, lease, self.lease_seconds)
            batch.insert(connection, self._statements)
            return 1, False

        record = await self._claim(state, diff, lease, work)
        if blueprint is not None and is_new:
            self._known_blueprints[blueprint.digest] = time.monotonic()
        return record

    async def take(self, state: RunState, decisions: Mapping[str, Decision], by: str | None = None) -> RunRecord:
        """One transaction: the run claimed, the decisions inserted."""
        decided = {key: decision.model_dump_json() for key, decision in decisions.items()}
        lease = self._leases.new()

        claim = sql_runs.Claim(lease, self.lease_seconds, self._leases, by)

        def work(connection: sa.Connection) -> tuple[int, bool]:
            return sql_runs.take_run(connection, self._database, state, decided, claim)

        diff = StateDiff()
        record = await self._claim(state, diff, lease, work)
        diff.mark_written(state)
        return record

    async def load_run(self, run_id: str) -> RunState:
        """A run as it was last written."""
        return await self._database.read(lambda connection: sql_runs.load_run(connection, run_id))

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """All runs, or some."""
        wanted = query or RunQuery()
        return await self._database.read(
            lambda connection: sql_runs.list_runs(connection, self._database, self._leases, wanted)
        )

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """What a run has told."""
        return await self._database.read(lambda connection: sql_runs.load_events(connection, run_id, after))

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """The run's trace."""
        pieces = await self._database.read(lambda connection: sql_runs.load_spans(connection, run_id))
        return decode_spans(pieces)

    async def request_cancel(self, run_id: str) -> bool:
        """Persist the request for the process that holds the run."""

        def work(connection: sa.Connection) -> bool:
            holder = find_owner(connection, self._database, self._leases, run_id)
            if holder is None and not connection.execute(sa.select(runs.c.no).where(runs.c.id == run_id)).one_or_none():
                raise RunNotFound(f"there is no run {run_id!r}")
            if holder is None or not holder.is_held:
                return False
            asked = sa.update(runs).where(runs.c.id == run_id, runs.c.owner == holder.name, runs.c.status == "running")
            return connection.execute(asked.values(cancel_requested=True)).rowcount > 0

        return await self._database.write(work)

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Sign of life for all of them in one statement."""
        mine = sa.update(runs).where(
            runs.c.id.in_(sorted(run_ids)), runs.c.owner.startswith(self._leases.name, autoescape=True)
        )
        lease_seconds = {
            "lease_until": self._database.now + self.lease_seconds,
            "lease_boot": self._leases.boot_lease(self.lease_seconds),
        }
        renewed = mine.values(**lease_seconds).returning(runs.c.id, runs.c.cancel_requested)
        rows = await self._database.write(lambda connection: connection.execute(renewed).all())
        return {run_id: bool(cancelled) for run_id, cancelled in rows}

    async def blueprint(self, digest: str) -> Blueprint | None:
        """What was kept of an agent."""
        found = sa.select(blueprints.c.files).where(blueprints.c.digest == digest)
        files = await self._database.read(lambda connection: connection.execute(found).scalar_one_or_none())
        return Blueprint(digest, orjson.loads(files)) if files else None

    async def conversation(self, conversation_id: str) -> Conversation:
        """A conversation with the messages of its turns that ended well."""
        while True:
            found = await self._database.read(
                lambda connection: sql_conversations.load_conversation(connection, conversation_id)
            )
            if found is not None:
                return found
            await self._database.write(lambda c: sql_conversations.delete_expired(c, time.time(), conversation_id))

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """All conversations, or some."""
        wanted = query or ConversationQuery()
        return await self._database.read(lambda connection: sql_conversations.list_conversations(connection, wanted))

    async def replace_session(self, conversation: Conversation) -> None:
        """Compare-and-set on the number of turns."""
        await self._database.write(lambda connection: sql_conversations.replace_session(connection, conversation))

    async def delete_conversation(self, conversation_id: str) -> int:
        """One transaction: the conversation, its runs, and all that is on record of them."""
        return await self._database.write(
            lambda connection: sql_conversations.delete_conversation(
                connection, self._database, self._leases, conversation_id
            )
        )

    async def prune(self, before: float | None, now: float, *, dry_run: bool = False) -> Pruned:
        """In many small transactions: runs go on meanwhile."""
        if dry_run:
            return await self._database.read(lambda c: sql_conversations.count_prunable(c, before, now))
        pruned = await self._repeat(lambda c: sql_conversations.delete_expired(c, now))
        if before is not None:
            ended = await self._repeat(lambda c: sql_conversations.delete_ended(c, before))
            pruned = Pruned(pruned.runs + ended.runs, pruned.conversations)
        await self._database.write(lambda c: sql_conversations.delete_unused_blueprints(c, now))
        return replace(pruned, freed_bytes=await shrink(self._database, self._is_idle))

    async def _is_idle(self) -> bool:
        """Whether no run is in progress, so that a longer write disturbs none."""
        in_progress = RunQuery(statuses=frozenset[Status](("running",)))
        return not any(info.held for info in await self.runs(in_progress))

    async def _repeat(self, forget: Work[Pruned]) -> Pruned:
        """Repeat a piece of work until it finds nothing more to do."""
        total = Pruned()
        while (some := await self._database.write(forget)) != Pruned():
            total = Pruned(total.runs + some.runs, total.conversations + some.conversations)
        return total

    async def close(self) -> None:
        """Close the connections."""
        await self._database.close()

    def _needs_blueprint_write(self, blueprint: Blueprint) -> bool:
        """Is a blueprint to be put on record: for the first time, or once more, so that it is not deleted as unused?"""
        written = self._known_blueprints.get(blueprint.digest)
        return written is None or time.monotonic() > written + sql_conversations.UNUSED_BLUEPRINT_SECONDS / 4

    async def _claim(
        self, state: RunState, diff: StateDiff, lease: RunLease, work: Work[tuple[int, bool]]
    ) -> SqlRecord:
        """The record of a run that a transaction brings under a hold.

        The transaction gives the run's version, and whether somebody wants the run to end.
        """

        def committed(connection: sa.Connection) -> tuple[int, bool] | None:
            held = sa.select(runs.c.version, runs.c.cancel_requested)
            row = connection.execute(held.where(runs.c.id == state.run_id, runs.c.owner == lease.name)).one_or_none()
            return row and (row[0], bool(row[1]))

        try:
            state.version, cancelled = await self._database.write(work, committed)
        except BaseException:
            lease.end()
            raise
        record = SqlRecord(self._database, self._statements, state, diff, lease, self.lease_seconds)
        record.cancel_requested = cancelled
        return record
