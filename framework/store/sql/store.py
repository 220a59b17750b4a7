"""The durable store: SQLAlchemy Core over SQLite or PostgreSQL, with the same code for both."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic_core import PydanticSerializationError

from framework.store.clock import StoreClock
from framework.store.database_files import database_paths
from framework.store.protocol import (
    EMPTY_FORK_SECONDS,
    NOBODY,
    Blueprint,
    Conversation,
    CopiedTurn,
    Deciders,
    Pruned,
)
from framework.store.run_record import RunRecord
from framework.store.signals import Signal
from framework.store.sql import budgets as sql_budgets
from framework.store.sql import conversations as sql_conversations
from framework.store.sql import media as sql_media
from framework.store.sql import queue as sql_queue
from framework.store.sql import runs as sql_runs
from framework.store.sql.claims import Claims
from framework.store.sql.connections import Work
from framework.store.sql.database import DEFAULT_RETRY_SECONDS, Database
from framework.store.sql.leases import RunLease
from framework.store.sql.offering import RunOffers
from framework.store.sql.owners import find_owner
from framework.store.sql.processes import ProcessLease, held_runs, is_held_under, set_clock
from framework.store.sql.pruning import ClockCheck, check_clock, prune
from framework.store.sql.reader import SqlReader
from framework.store.sql.record import RowBatch, SqlRecord, Statements, copied_columns
from framework.store.sql.schema import conversations, has_status, runs
from framework.store.sql.signals import SqlSignals
from framework.store.sql.slots import take_slots
from framework.store.sql.state_rows import StateDiff, history_rows
from framework.store.sql.sweep import Sweep
from framework.store.sql.takeover import NewDecisions, Takeover, release_for_others
from framework.store.sql.texts import conversation_key, storable
from framework.store.work import (
    DEFAULT_LEASE_SECONDS,
    EVERYTHING,
    UNLIMITED,
    Allowed,
    OfferedRun,
    Offers,
    RunLimits,
    WorkScope,
)
from framework.types.budget import BudgetUse, CounterKey
from framework.types.errors import RunBlocked, RunNotFound, RunTaken, StoreError
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import Decision, Rating, RunState

_IS_RUNNING = has_status("running")
MIN_IDLE_SECONDS = 1.0
"""Shortest time after which PostgreSQL ends a transaction of a process that stands still, in seconds."""


class SqlStore(SqlReader, SqlSignals):
    """A store in a database, which several processes may share. Create one with `SqlStore.open`."""

    durable = True
    keeps_spans = True

    def __init__(self, database: Database, lease_seconds: float, files: tuple[Path, ...] = ()) -> None:
        SqlReader.__init__(self, database)
        SqlSignals.__init__(self, database)
        self.files = files
        self._process = ProcessLease(database, self._leases, lease_seconds)
        self._offers = RunOffers(database)
        self._statements = Statements(database, self._offers)
        self._claims = Claims(database, self._leases, self._process, self._offers)
        self._sweep = Sweep(database, self._leases, self._offers)
        self._clock_check = ClockCheck(database.clock(), None)
        self._known_blueprints: dict[str, float] = {}
        """When each blueprint was last written, by digest, in seconds on the monotonic clock."""

    @classmethod
    async def open(
        cls,
        url: str,
        root: Path,
        *,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        clock: StoreClock | None = None,
    ) -> SqlStore:
        """Open a database, and migrate its tables to the current version.

        Args:
            url: `sqlite:///state.db` (relative to `root`; absolute with four slashes) or `postgresql://…`.
            root: base folder for a relative path.
            lease_seconds: how long after the last renewal other processes may take over the runs of this one.
            retry_seconds: how long to retry while PostgreSQL is unreachable or a SQLite file is locked.
            clock: begins with the time of this machine, and is set to that of PostgreSQL, or of the other processes of
                a SQLite file.

        Raises:
            ConfigError: the URL is invalid.
            StoreError: the database cannot be opened (StoreTooNew: a newer version of agentsd wrote it).
        """
        idle_seconds = max(lease_seconds, MIN_IDLE_SECONDS)
        database = await Database.open(url, root, retry_seconds=retry_seconds, idle_seconds=idle_seconds, clock=clock)
        store = cls(database, lease_seconds, database_paths(url, root))
        try:
            store._clock_check = await database.read(store._check_clock)
        except BaseException:
            await database.close()
            raise
        return store

    @property
    def lease_seconds(self) -> float:
        """How long the lease of this process lasts without renewal, in seconds."""
        return self._process.seconds

    @lease_seconds.setter
    def lease_seconds(self, seconds: float) -> None:
        self._process.seconds = seconds

    def offer_through(self, offers: Offers) -> None:
        """Offer runs in the transactions that make them ready or release them."""
        self._offers.offer_through(offers)

    async def begin(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Claim the conversation and insert or begin the run with the user's message, in one transaction."""
        diff = StateDiff()
        batch, row = _first_rows(state, diff, keeps_history=conversation is None)
        is_new = blueprint is not None and self._needs_blueprint_write(blueprint)
        claim = self._claims.lease(state.run_id)
        lease = claim or self._leases.new()

        def work(connection: sa.Connection) -> sql_runs.HeldRow:
            if conversation is not None:
                row["turn"] = sql_runs.claim_conversation(
                    connection, conversation, state, self.now(), is_queued=claim is not None
                )
                row["conversation_id"] = conversation_key(conversation.id, conversation.tenant, conversation.user)
            if blueprint is not None and is_new:
                sql_runs.insert_blueprint(connection, blueprint, self.now())
            if claim is None:
                held = sql_runs.insert_held(connection, state, row, lease, self._leases.name, self.now())
            else:
                held = sql_queue.begin_queued(connection, state, row, lease, self.now())
            batch.insert(connection, self._statements)
            return held

        try:
            record = await self._hold(state, diff, lease, work, _IS_RUNNING, limits, has_rows=bool(batch.parts))
        except RunBlocked:
            await self._claims.block(state.run_id, limits)
            raise
        except RunTaken:
            self._claims.drop(state.run_id, lease)
            lease.end()
            raise
        except BaseException:
            if claim is None:
                lease.end()  # a claim lasts until `unclaim`
            raise
        self._claims.drop(state.run_id, lease)
        if blueprint is not None and is_new:
            self._known_blueprints[blueprint.digest] = time.monotonic()
        return record

    async def take(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Claim the run and insert the decisions, in one transaction."""
        lease, takeover = self._leases.new(), self._takeover(state, decisions, by)
        diff = StateDiff()

        def block(connection: sa.Connection) -> bool:
            takeover.block(connection, limits)
            return True

        try:
            taken = partial(takeover.take, lease_name=lease.name)
            record = await self._hold(state, diff, lease, taken, sa.true(), limits, is_request=True)
        except RunBlocked:
            lease.end()
            await self._database.write(block, takeover.was_handed_over)
            raise
        except BaseException:
            lease.end()
            raise
        diff.changes(state)  # it was just loaded, so it is written
        return record

    async def save_decisions(self, state: RunState, decisions: Mapping[str, Decision], by: Deciders = NOBODY) -> None:
        """Insert the decisions, and offer the run to any process, in one transaction."""
        takeover = self._takeover(state, decisions, by)

        def work(connection: sa.Connection) -> bool:
            takeover.save_decisions(connection)
            return True

        await self._database.write(work, takeover.was_handed_over, is_request=True)

    async def release_for_others(self, run_id: str, reason: str, delay: float) -> None:
        """Release a run that this process cannot execute, and save the reason."""
        if claim := self._claims.lease(run_id):
            self._claims.drop(run_id, claim)
        process = (self._leases.name, self._process.name)
        owner = await self._database.write(
            lambda c: release_for_others(c, self._database, run_id, process, reason, delay)
        )
        if owner is not None:
            self._leases.end(owner)

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Insert a queued run and its idempotency key, in one transaction."""
        state, batch = request.queued_state(), RowBatch()
        with _serializing():
            batch.add(state.run_id, StateDiff().changes(state))
            row = {"head": batch.head, "state": batch.state}
            row["request"] = request.model_dump_json(exclude={"attempts"}, exclude_defaults=True)

        def work(connection: sa.Connection) -> str:
            if idempotency is not None:
                run_id = sql_queue.insert_key(connection, idempotency, request.run_id, self.now())
                if run_id != request.run_id:
                    return run_id
            sql_queue.insert_queued(connection, self._offers, request, state, row, self.now())
            batch.insert(connection, self._statements)
            return request.run_id

        def committed(connection: sa.Connection) -> str | None:
            return connection.execute(sa.select(runs.c.id).where(runs.c.id == request.run_id)).scalar_one_or_none()

        return await self._database.write(work, committed, is_request=True)

    async def claim(
        self, limit: int, *, run_id: str | None = None, scope: WorkScope = EVERYTHING
    ) -> Sequence[RunRequest]:
        """Claim queued runs, in one transaction."""
        return await self._claims.claim(limit, run_id, scope)

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims, in one transaction."""
        await self._claims.unclaim(run_ids)

    async def sweep(self, limit: int, allowed: Allowed | None = None) -> Sequence[OfferedRun]:
        """Offer runs again that need a process."""
        return await self._sweep.sweep(limit, allowed)

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
            is_requested = connection.execute(request.values(cancel_requested=True)).rowcount > 0
            if is_requested:
                self._notify(connection, Signal("cancel", run_id=key))
            return is_requested

        return await self._database.write(work, is_request=True)

    async def rate(self, run_id: str, rating: Rating | None) -> None:
        """Save a rating, in one transaction. It does not depend on the state of the run."""
        await self._database.write(lambda c: sql_runs.rate_run(c, storable(run_id), rating), is_request=True)

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Renew the lease of this process, and read its runs."""
        held = await self._process.write(self._read_held, renew=True)
        return {run_id: held[run_id] for run_id in run_ids if run_id in held}

    async def keep_alive(self, name: str, info: Mapping[str, Any]) -> None:
        """Save what this process reports, and renew its lease."""
        await self._process.keep_alive(name, info, self._read_held)

    def _read_held(self, connection: sa.Connection) -> Mapping[str, bool]:
        """Return whether a cancel request exists, by id of the runs of this process; release those it has left.

        A run whose write failed is left in its row, although the process is alive.
        """
        rows = held_runs(connection, self._leases.name)
        alive = self._leases.alive()  # read after the rows: a lease begins before its row is written
        left = [row.owner for row in rows if row.owner not in alive]
        if left:
            is_left = is_held_under(self._leases.name, left)
            self._offers.release(connection, is_left, crashes=runs.c.crashes + 1)
        return {row.id: bool(row.cancel_requested) for row in rows if row.owner in alive}

    async def save_media(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Save files by digest, each once."""
        await self._database.write(lambda c: sql_media.insert_media(c, run_id, files, self.now()), is_request=True)

    async def conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> Conversation:
        """Return a conversation with the messages of its answered turns. Delete it first if it has expired."""
        key = conversation_key(conversation_id, tenant, user)
        while True:
            conversation = await self._database.read(
                lambda connection: sql_conversations.select_conversation(
                    connection, conversation_id, tenant, user, self.now()
                )
            )
            if conversation is not None:
                return conversation
            await self._database.write(lambda c: sql_conversations.delete_expired(c, self.now(), key), is_request=True)

    async def fork(self, conversation: Conversation, turns: Sequence[CopiedTurn]) -> None:
        """Insert the conversation and its turns, each packed, in one transaction."""
        with _serializing():
            batches = [RowBatch.of_copy(turn, self.now()) for turn in turns]
        ttl = turns[-1].state.conversation_ttl if turns else EMPTY_FORK_SECONDS
        key = conversation_key(conversation.id, conversation.tenant, conversation.user)

        def work(connection: sa.Connection) -> bool:
            sql_conversations.insert_fork(connection, conversation, self.now(), ttl)
            for number, (turn, batch) in enumerate(zip(turns, batches, strict=True), 1):
                row = {**copied_columns(turn.state, self.now()), "head": batch.head, "state": batch.state}
                sql_runs.insert_run(connection, turn.state, {**row, "conversation_id": key, "turn": number}, self.now())
                batch.insert(connection, self._statements)
                batch.insert_packed(connection, turn.state.run_id)
            return True

        def committed(connection: sa.Connection) -> bool | None:
            is_fork = (conversations.c.id == key, conversations.c.forked_from == conversation.forked_from)
            ids = [turn.state.run_id for turn in turns[:1]]
            copied = sa.select(runs.c.no).where(runs.c.id.in_(ids))
            select = sa.select(conversations.c.turns).where(*is_fork, sa.exists(copied) if ids else sa.true())
            return connection.execute(select).one_or_none() is not None or None

        await self._database.write(work, committed, is_request=True)

    async def replace_session(self, conversation: Conversation) -> None:
        """Save session values, compare-and-set on the number of turns."""
        await self._database.write(lambda c: sql_conversations.replace_session(c, conversation), is_request=True)

    async def delete_conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> int:
        """Delete a conversation and its runs, in one transaction."""
        return await self._database.write(
            lambda connection: sql_conversations.delete_conversation(
                connection, self._database, self._leases, conversation_id, tenant, user
            ),
            is_request=True,
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

    async def prune(
        self, before: float | None, now: float, *, dry_run: bool = False, trust_clock: bool = False
    ) -> Pruned:
        """Delete old data in many small transactions, so that runs can write between them."""
        if dry_run:
            return await self._database.read(lambda c: sql_conversations.count_prunable(c, before, now))
        if not trust_clock:
            self._clock_check.check(now)
        return await prune(self._database, before, now)

    async def close(self) -> None:
        """Close the connections."""
        await self._stop_listening()
        with suppress(StoreError):
            await self._process.leave()
        await self._database.close()

    def _run_ended(self, connection: sa.Connection, state: RunState) -> None:
        """Do nothing. Called in the transaction that saves the end or the pause of a run."""

    def _check_clock(self, connection: sa.Connection) -> ClockCheck:
        set_clock(connection, self._database, self._leases)
        return check_clock(connection, self.now())

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
        limits: RunLimits,
        *,
        has_rows: bool = True,
        is_request: bool = False,
    ) -> SqlRecord:
        """Execute a transaction that makes this process the holder of a run, and return the run's record.

        After a lost connection, the transaction was committed if the run is held under the lease and `has_changed`.
        """

        def committed(connection: sa.Connection) -> sql_runs.HeldRow | None:
            select = sa.select(*sql_runs.HELD_COLUMNS).where(runs.c.id == state.run_id, runs.c.owner == lease.name)
            row = connection.execute(select.where(has_changed)).one_or_none()
            return row and sql_runs.held_row(row)

        def limited(connection: sa.Connection) -> sql_runs.HeldRow:
            take_slots(connection, self._offers, limits, self._leases.name, state.run_id)
            return work(connection)

        whole = limited if limits else work
        held = await self._process.write(whole, committed, is_request=is_request)
        held = replace(held, slots=frozenset(limits))
        state.version = held.version
        return SqlRecord(
            self._database,
            self._statements,
            state,
            diff,
            lease,
            held,
            self.is_followed,
            self._run_ended,
            has_rows=has_rows,
        )

    def _takeover(self, state: RunState, made: Mapping[str, Decision], by: Deciders) -> Takeover:
        bodies = {key: decision.model_dump_json() for key, decision in made.items()}
        return Takeover(self._database, self._leases, self._offers, state, NewDecisions(bodies, by))


def _first_rows(state: RunState, diff: StateDiff, *, keeps_history: bool) -> tuple[RowBatch, dict[str, Any]]:
    """Return the rows of a run that begins, and the columns of its own row; raises StoreError."""
    batch = RowBatch()
    with _serializing():
        batch.add(state.run_id, diff.changes(state))
        batch.add(state.run_id, history_rows(state) if keeps_history else [])
        return batch, {"head": batch.head, "state": batch.state}


@contextmanager
def _serializing() -> Iterator[None]:
    """Raise StoreError if a run cannot be serialized."""
    try:
        yield
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise StoreError(f"the run cannot be serialized as JSON: {type(error).__name__}") from None
