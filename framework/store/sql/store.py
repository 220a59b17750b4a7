"""The durable store: SQLAlchemy Core over SQLite or PostgreSQL, with the same code for both."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
from framework.store.sql import queue as sql_queue
from framework.store.sql import runs as sql_runs
from framework.store.sql.database import DEFAULT_RETRY_SECONDS, Database, Work
from framework.store.sql.leases import RunLease, RunLeases
from framework.store.sql.owners import find_owner
from framework.store.sql.record import LEASE_SECONDS, RowBatch, SqlRecord, Statements
from framework.store.sql.run_lists import count_waiting, list_runs
from framework.store.sql.schema import blueprints, has_status, runs
from framework.store.sql.shrinking import shrink
from framework.store.sql.span_rows import decode_spans
from framework.store.sql.state_rows import StateDiff, head_json, history_rows
from framework.store.sql.texts import conversation_key, storable
from framework.types.budget import BudgetUse, CounterKey
from framework.types.errors import RunNotFound, RunTaken, StoreError
from framework.types.run_request import IdempotencyKey, RunRequest
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
        self._claims: dict[str, RunLease] = {}
        """Leases of the queued runs that this store has claimed, by run id."""
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
        """Claim the conversation and insert or begin the run with the user's message, in one transaction."""
        diff, batch = StateDiff(), RowBatch()
        with _serializing():
            batch.add(state.run_id, diff.changes(state))
            batch.add(state.run_id, [] if conversation else history_rows(state))
            row: dict[str, Any] = {"head": head_json(state), "state": batch.state}
        is_new = blueprint is not None and self._needs_blueprint_write(blueprint)
        claim = self._claims.get(state.run_id)
        lease = claim or self._leases.new()

        def work(connection: sa.Connection) -> sql_runs.HeldRow:
            if conversation is not None:
                row["turn"] = sql_runs.claim_conversation(connection, conversation, state, is_queued=claim is not None)
                row["conversation_id"] = conversation_key(conversation.id, conversation.tenant)
            if blueprint is not None and is_new:
                sql_runs.insert_blueprint(connection, blueprint)
            if claim is None:
                held = sql_runs.insert_held(connection, self._database, state, row, lease, self.lease_seconds)
            else:
                held = sql_queue.begin_queued(connection, self._database, state, row, lease, self.lease_seconds)
            batch.insert(connection, self._statements)
            return held

        try:
            record = await self._hold(state, diff, lease, work, has_status("running"))
        except RunTaken:
            self._claims.pop(state.run_id, lease).end()
            raise
        except BaseException:
            if claim is None:
                lease.end()  # a claim lasts until `unclaim`
            raise
        self._claims.pop(state.run_id, None)
        if blueprint is not None and is_new:
            self._known_blueprints[blueprint.digest] = time.monotonic()
        return record

    async def take(self, state: RunState, decisions: Mapping[str, Decision], by: str | None = None) -> RunRecord:
        """Claim the run and insert the decisions, in one transaction."""
        bodies = {key: decision.model_dump_json() for key, decision in decisions.items()}
        lease = self._leases.new()
        claim = sql_runs.Claim(lease, self.lease_seconds, self._leases, by)

        def work(connection: sa.Connection) -> sql_runs.HeldRow:
            return sql_runs.take_run(connection, self._database, state, bodies, claim)

        diff = StateDiff()
        try:
            record = await self._hold(state, diff, lease, work, sa.true())
        except BaseException:
            lease.end()
            raise
        diff.mark_written(state)
        return record

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Insert a queued run and its idempotency key, in one transaction."""
        state, batch = request.queued_state(), RowBatch()
        with _serializing():
            batch.add(state.run_id, StateDiff().changes(state))
            row = {"head": head_json(state), "state": batch.state}
            row["request"] = request.model_dump_json(exclude={"attempts"}, exclude_defaults=True)

        def work(connection: sa.Connection) -> str:
            if idempotency is not None:
                run_id = sql_queue.insert_key(connection, idempotency, request.run_id)
                if run_id != request.run_id:
                    return run_id
            sql_queue.insert_queued(connection, request, state, row)
            batch.insert(connection, self._statements)
            return request.run_id

        def committed(connection: sa.Connection) -> str | None:
            return connection.execute(sa.select(runs.c.id).where(runs.c.id == request.run_id)).scalar_one_or_none()

        return await self._database.write(work, committed)

    async def claim(self, limit: int, *, run_id: str | None = None) -> Sequence[RunRequest]:
        """Claim queued runs, in one transaction."""
        search = partial(sql_queue.select_claimable, database=self._database, leases=self._leases, run_id=run_id)
        if run_id is None and not await self._database.read(partial(search, limit=1)):
            return []  # without a transaction that writes, because processes look for runs every second
        leases: dict[str, RunLease] = {}

        def work(connection: sa.Connection) -> list[tuple[str, RunRequest]]:
            claimed = []
            for number, lease_until in search(connection, limit=limit, lock=True):
                lease = self._leases.new()
                leases[lease.name] = lease
                claim = (number, lease_until, lease, self.lease_seconds)
                if request := sql_queue.claim_queued(connection, self._database, *claim):
                    claimed.append((lease.name, request))
            return claimed

        def committed(connection: sa.Connection) -> list[tuple[str, RunRequest]] | None:
            return list(sql_queue.claimed_by(connection, leases)) or None

        try:
            claimed = await self._database.write(work, committed)
        except BaseException:
            claimed = []
            raise
        finally:
            self._claims.update({request.run_id: leases.pop(name) for name, request in claimed})
            for unused in leases.values():
                unused.end()
        return [request for _, request in claimed]

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims, in one transaction."""
        claims = [self._claims.pop(run_id) for run_id in set(run_ids) & self._claims.keys()]
        names = [lease.name for lease in claims]
        try:
            if names:
                await self._database.write(lambda connection: sql_queue.release_claims(connection, names))
        finally:
            for lease in claims:
                lease.end()

    async def load_run(self, run_id: str) -> RunState:
        """Return the last saved state of a run."""
        return await self._database.read(lambda connection: sql_runs.load_run(connection, run_id))

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first."""
        run_filter = query or RunQuery()
        return await self._database.read(
            lambda connection: list_runs(connection, self._database, self._leases, run_filter)
        )

    async def count_waiting(self) -> Mapping[Status, int]:
        """Count the queued and the paused runs."""
        return await self._database.read(count_waiting)

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the events of a run."""
        return await self._database.read(lambda connection: sql_runs.load_events(connection, storable(run_id), after))

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """Return the spans of a run."""
        bodies = await self._database.read(lambda connection: sql_runs.load_spans(connection, storable(run_id)))
        return decode_spans(bodies)

    async def request_cancel(self, run_id: str) -> bool:
        """Save the request for the holder of the run."""
        key = storable(run_id)

        def work(connection: sa.Connection) -> bool:
            owner = find_owner(connection, self._database, self._leases, key)
            if owner is None and not connection.execute(sa.select(runs.c.no).where(runs.c.id == key)).one_or_none():
                raise RunNotFound(f"there is no run {run_id!r}")
            if owner is None or not owner.is_held:
                return False
            is_active = runs.c.status.in_(("queued", "running"))
            request = sa.update(runs).where(runs.c.id == key, runs.c.owner == owner.name, is_active)
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

    async def conversation(self, conversation_id: str, tenant: str | None = None) -> Conversation:
        """Return a conversation with the messages of its answered turns. Delete it first if it has expired."""
        key = conversation_key(conversation_id, tenant)
        while True:
            conversation = await self._database.read(
                lambda connection: sql_conversations.select_conversation(connection, conversation_id, tenant)
            )
            if conversation is not None:
                return conversation
            await self._database.write(lambda c: sql_conversations.delete_expired(c, time.time(), key))

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first."""
        filters = query or ConversationQuery()
        return await self._database.read(lambda connection: sql_conversations.list_conversations(connection, filters))

    async def replace_session(self, conversation: Conversation) -> None:
        """Save session values, compare-and-set on the number of turns."""
        await self._database.write(lambda connection: sql_conversations.replace_session(connection, conversation))

    async def delete_conversation(self, conversation_id: str, tenant: str | None = None) -> int:
        """Delete a conversation and its runs, in one transaction."""
        return await self._database.write(
            lambda connection: sql_conversations.delete_conversation(
                connection, self._database, self._leases, conversation_id, tenant
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
        await self._database.write(lambda c: sql_queue.delete_expired_keys(c, now))
        return replace(pruned, freed_bytes=await shrink(self._database, self._is_idle))

    async def _is_idle(self) -> bool:
        """Return whether no run is in progress, so that a longer write delays none."""
        in_progress = RunQuery(statuses=frozenset[Status](("queued", "running")))
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

    async def _hold(
        self,
        state: RunState,
        diff: StateDiff,
        lease: RunLease,
        work: Work[sql_runs.HeldRow],
        has_changed: sa.ColumnElement[bool],
    ) -> SqlRecord:
        """Execute a transaction that makes this process the holder of a run, and return the run's record.

        After a lost connection, the transaction was committed if the run is held under the lease and `has_changed`.
        """

        def committed(connection: sa.Connection) -> sql_runs.HeldRow | None:
            select = sa.select(*sql_runs.HELD_COLUMNS).where(runs.c.id == state.run_id, runs.c.owner == lease.name)
            row = connection.execute(select.where(has_changed)).one_or_none()
            return row and sql_runs.held_row(row)

        held = await self._database.write(work, committed)
        state.version = held.version
        return SqlRecord(self._database, self._statements, state, diff, lease, self.lease_seconds, held)


@contextmanager
def _serializing() -> Iterator[None]:
    """Raise StoreError if a run cannot be serialized."""
    try:
        yield
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise StoreError(f"the run cannot be serialized as JSON: {type(error).__name__}") from None
