"""The durable store: SQLAlchemy Core over SQLite or PostgreSQL, with the same code for both."""

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
from framework.store.sql import budgets as sql_budgets
from framework.store.sql import conversations as sql_conversations
from framework.store.sql import media as sql_media
from framework.store.sql import runs as sql_runs
from framework.store.sql.database import DEFAULT_RETRY_SECONDS, Database, Work
from framework.store.sql.leases import RunLease, RunLeases
from framework.store.sql.owners import find_owner
from framework.store.sql.record import LEASE_SECONDS, RowBatch, SqlRecord, Statements
from framework.store.sql.schema import blueprints, runs
from framework.store.sql.shrinking import shrink
from framework.store.sql.span_rows import decode_spans
from framework.store.sql.state_rows import StateDiff, head_json, history_rows
from framework.types.budget import BudgetUse, CounterKey
from framework.types.errors import RunNotFound, StoreError
from framework.types.state import Decision, RunState
from framework.types.status import Status
from framework.types.trace import SpanRecord


class SqlStore:
    """A store in a database, which several processes may share. Create one with `SqlStore.open`."""

    durable = True
    keeps_spans = True

    def __init__(self, database: Database, lease_seconds: float, files: tuple[Path, ...] = ()) -> None:
        self.lease_seconds, self.files = lease_seconds, files
        self._database, self._statements = database, Statements(database)
        self._leases = RunLeases(local=database.is_sqlite)
        self._known_blueprints: dict[str, float] = {}
        """When each blueprint was last written, by digest, in seconds on the monotonic clock."""

    @classmethod
    async def open(
        cls, url: str, root: Path, *, lease_seconds: float = LEASE_SECONDS, retry_seconds: float = DEFAULT_RETRY_SECONDS
    ) -> SqlStore:
        """Open a database, and migrate its tables to the current version.

        Args:
            url: `sqlite:///state.db` (relative to `root`; absolute with four slashes) or `postgresql://…`.
            root: base folder for a relative path.
            lease_seconds: how long after the last renewal another process may take over a run.
            retry_seconds: how long to retry while PostgreSQL is unreachable or a SQLite file is locked.

        Raises:
            ConfigError: the URL is invalid.
            StoreError: the database cannot be opened (StoreTooNew: a newer version of agentsd wrote it).
        """
        return cls(
            await Database.open(url, root, retry_seconds=retry_seconds), lease_seconds, database_paths(url, root)
        )

    async def begin(self, state: RunState, conversation: Conversation | None, blueprint: Blueprint | None) -> RunRecord:
        """Claim the conversation and insert the run with the user's message, in one transaction."""
        diff, batch = StateDiff(), RowBatch()
        try:
            batch.add(state.run_id, diff.changes(state))
            batch.add(state.run_id, [] if conversation else history_rows(state))
            row: dict[str, Any] = {"head": head_json(state), "state": batch.state}
        except (PydanticSerializationError, TypeError, ValueError) as error:
            raise StoreError(f"the run cannot be serialized as JSON: {type(error).__name__}") from None
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
        """Claim the run and insert the decisions, in one transaction."""
        bodies = {key: decision.model_dump_json() for key, decision in decisions.items()}
        lease = self._leases.new()

        claim = sql_runs.Claim(lease, self.lease_seconds, self._leases, by)

        def work(connection: sa.Connection) -> tuple[int, bool]:
            return sql_runs.take_run(connection, self._database, state, bodies, claim)

        diff = StateDiff()
        record = await self._claim(state, diff, lease, work)
        diff.mark_written(state)
        return record

    async def load_run(self, run_id: str) -> RunState:
        """Return the last saved state of a run."""
        return await self._database.read(lambda connection: sql_runs.load_run(connection, run_id))

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first."""
        run_filter = query or RunQuery()
        return await self._database.read(
            lambda connection: sql_runs.list_runs(connection, self._database, self._leases, run_filter)
        )

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the events of a run."""
        return await self._database.read(lambda connection: sql_runs.load_events(connection, run_id, after))

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """Return the spans of a run."""
        bodies = await self._database.read(lambda connection: sql_runs.load_spans(connection, run_id))
        return decode_spans(bodies)

    async def request_cancel(self, run_id: str) -> bool:
        """Save the request for the holder of the run."""

        def work(connection: sa.Connection) -> bool:
            owner = find_owner(connection, self._database, self._leases, run_id)
            if owner is None and not connection.execute(sa.select(runs.c.no).where(runs.c.id == run_id)).one_or_none():
                raise RunNotFound(f"there is no run {run_id!r}")
            if owner is None or not owner.is_held:
                return False
            request = sa.update(runs).where(runs.c.id == run_id, runs.c.owner == owner.name, runs.c.status == "running")
            return connection.execute(request.values(cancel_requested=True)).rowcount > 0

        return await self._database.write(work)

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Renew all leases in one statement."""
        own_runs = sa.update(runs).where(
            runs.c.id.in_(sorted(run_ids)), runs.c.owner.startswith(self._leases.name, autoescape=True)
        )
        lease_seconds = {
            "lease_until": self._database.now + self.lease_seconds,
            "lease_boot": self._leases.boot_lease(self.lease_seconds),
        }
        renewed = own_runs.values(**lease_seconds).returning(runs.c.id, runs.c.cancel_requested)
        rows = await self._database.write(lambda connection: connection.execute(renewed).all())
        return {run_id: bool(cancelled) for run_id, cancelled in rows}

    async def blueprint(self, digest: str) -> Blueprint | None:
        """Return a stored blueprint, or None."""
        select = sa.select(blueprints.c.files).where(blueprints.c.digest == digest)
        files = await self._database.read(lambda connection: connection.execute(select).scalar_one_or_none())
        return Blueprint(digest, orjson.loads(files)) if files else None

    async def save_media(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Save files by digest, each once."""
        await self._database.write(lambda connection: sql_media.insert_media(connection, run_id, files))

    async def load_media(self, digests: Collection[str]) -> Mapping[str, bytes]:
        """Return the stored files with these digests."""
        return await self._database.read(lambda connection: sql_media.select_media(connection, digests))

    async def conversation(self, conversation_id: str) -> Conversation:
        """Return a conversation with the messages of its answered turns. Delete it first if it has expired."""
        while True:
            conversation = await self._database.read(
                lambda connection: sql_conversations.load_conversation(connection, conversation_id)
            )
            if conversation is not None:
                return conversation
            await self._database.write(lambda c: sql_conversations.delete_expired(c, time.time(), conversation_id))

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first."""
        filters = query or ConversationQuery()
        return await self._database.read(lambda connection: sql_conversations.list_conversations(connection, filters))

    async def replace_session(self, conversation: Conversation) -> None:
        """Save session values, compare-and-set on the number of turns."""
        await self._database.write(lambda connection: sql_conversations.replace_session(connection, conversation))

    async def delete_conversation(self, conversation_id: str) -> int:
        """Delete a conversation and its runs, in one transaction."""
        return await self._database.write(
            lambda connection: sql_conversations.delete_conversation(
                connection, self._database, self._leases, conversation_id
            )
        )

    async def count_use(self, uses: Sequence[BudgetUse]) -> None:
        """Add to the counters of shared budgets, in one transaction."""
        await self._database.write(lambda connection: self._statements.counters.add(connection, uses))

    async def budget_uses(self, keys: Collection[CounterKey] | None = None) -> Sequence[BudgetUse]:
        """Return the counters of shared budgets."""
        if keys is None:
            return await self._database.read(sql_budgets.load_all)
        wanted = list(keys)
        return await self._database.read(lambda connection: self._statements.counters.load(connection, wanted))

    async def prune(self, before: float | None, now: float, *, dry_run: bool = False) -> Pruned:
        """Delete old data in many small transactions, so that runs can write between them."""
        if dry_run:
            return await self._database.read(lambda c: sql_conversations.count_prunable(c, before, now))
        pruned = await self._repeat(lambda c: sql_conversations.delete_expired(c, now))
        if before is not None:
            ended = await self._repeat(lambda c: sql_conversations.delete_ended(c, before))
            pruned = Pruned(pruned.runs + ended.runs, pruned.conversations)
            await self._database.write(lambda c: sql_budgets.delete_ended_counters(c, before))
        await self._database.write(lambda c: sql_conversations.delete_unused_blueprints(c, now))
        await self._database.write(lambda c: sql_media.delete_unused_media(c, now))
        return replace(pruned, freed_bytes=await shrink(self._database, self._is_idle))

    async def _is_idle(self) -> bool:
        """Return whether no run is in progress, so that a longer write delays none."""
        in_progress = RunQuery(statuses=frozenset[Status](("running",)))
        return not any(info.held for info in await self.runs(in_progress))

    async def _repeat(self, delete: Work[Pruned]) -> Pruned:
        """Repeat a transaction until it deletes nothing more; return the totals."""
        total = Pruned()
        while (some := await self._database.write(delete)) != Pruned():
            total = Pruned(total.runs + some.runs, total.conversations + some.conversations)
        return total

    async def close(self) -> None:
        """Close the connections."""
        await self._database.close()

    def _needs_blueprint_write(self, blueprint: Blueprint) -> bool:
        """Return whether to write a blueprint: it is new, or it may soon be deleted as unused."""
        written = self._known_blueprints.get(blueprint.digest)
        return written is None or time.monotonic() > written + sql_conversations.UNUSED_BLUEPRINT_SECONDS / 4

    async def _claim(
        self, state: RunState, diff: StateDiff, lease: RunLease, work: Work[tuple[int, bool]]
    ) -> SqlRecord:
        """Execute a transaction that claims a run, and return the run's record.

        `work` returns the run's version, and whether a cancel request exists. If it fails, the lease ends.
        """

        def committed(connection: sa.Connection) -> tuple[int, bool] | None:
            columns = sa.select(runs.c.version, runs.c.cancel_requested)
            row = connection.execute(columns.where(runs.c.id == state.run_id, runs.c.owner == lease.name)).one_or_none()
            return row and (row[0], bool(row[1]))

        try:
            state.version, cancelled = await self._database.write(work, committed)
        except BaseException:
            lease.end()
            raise
        record = SqlRecord(self._database, self._statements, state, diff, lease, self.lease_seconds)
        record.cancel_requested = cancelled
        return record
