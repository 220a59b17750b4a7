"""The store of runs and conversations: SQLAlchemy Core over SQLite, in a file or in memory, or PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from pydantic_core import PydanticSerializationError

from framework.store import conversations as sql_conversations
from framework.store import queue as sql_queue
from framework.store import runs as sql_runs
from framework.store.database import DEFAULT_RETRY_SECONDS, Database, StoreClock, Work
from framework.store.limits import RunOffers, acquire_slots, load_counters
from framework.store.lists import (
    count_runs,
    count_waiting,
    decided_calls,
    list_runs,
    queue_size,
    select_fleet,
)
from framework.store.notes import Notes
from framework.store.processes import (
    ProcessLease,
    RunLeases,
    StoreSignals,
    find_owner,
    held_runs,
    is_held_under,
    list_processes,
    set_clock,
)
from framework.store.pruning import ClockCheck, check_clock, prune
from framework.store.queue import Claims, Sweep, Takeover, release_for_others
from framework.store.record import RowBatch, SqlRecord, copied_columns, statements_of
from framework.store.run_links import StoredCaseResults, StoredGrants, StoredPushes, StoredTriggers, note_use
from framework.store.runs import StateDiff, decode_spans, history_rows
from framework.store.schema import (
    blueprints,
    conversation_key,
    conversations,
    has_status,
    runs,
)
from framework.store.types import (
    DEFAULT_LEASE_SECONDS,
    EMPTY_FORK_SECONDS,
    EVERYTHING,
    NOBODY,
    UNLIMITED,
    Allowed,
    Blueprint,
    Conversation,
    ConversationInfo,
    ConversationQuery,
    CopiedTurn,
    DecidedCalls,
    Deciders,
    OfferedRun,
    Offers,
    ProcessInfo,
    Pruned,
    QueueSize,
    RunInfo,
    RunLimits,
    RunQuery,
    RunRecord,
    Signal,
    StoredRun,
    WorkScope,
    database_paths,
)
from framework.store.usage import Grouping, Period, UsageReport, select_usage
from framework.types.budget import BudgetUse, CounterKey
from framework.types.errors import RequestError, RunBlocked, RunNotFound, RunTaken, StoreError
from framework.types.grant import Grant
from framework.types.report import Fleet, SpanRecord, Status
from framework.types.state import Decision, IdempotencyKey, MadeDecision, Rating, RunRequest, RunState
from framework.types.text import storable

_IS_RUNNING = has_status("running")
MIN_IDLE_SECONDS = 1.0
"""Shortest time after which PostgreSQL ends a transaction of a process that stands still, in seconds."""


class Store(StoreSignals):
    """A store in a database, which several processes may share. Create one with `Store.open`."""

    durable = True
    keeps_spans = True

    def __init__(self, database: Database, lease_seconds: float, files: tuple[Path, ...] = ()) -> None:
        super().__init__(database)
        self._leases = RunLeases(local=database.is_sqlite)
        self.files = files
        self._process = ProcessLease(database, self._leases, lease_seconds)
        self._offers = RunOffers(database)
        self._statements = statements_of(database.dialect.name)
        self.grants = StoredGrants(database)
        """Approvals that are remembered."""
        self.case_results = StoredCaseResults(database)
        """Results of test cases."""
        self.pushes = StoredPushes(database)
        """Receivers of push notifications."""
        self.triggers = StoredTriggers(database)
        """What each trigger has started."""
        self._claims = Claims(database, self._leases, self._process, self._offers)
        self._sweep = Sweep(database, self._leases, self._offers)
        self._clock_check = ClockCheck(database.clock(), None)
        self.notes = Notes(database)
        """Notes that agents keep across conversations."""
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
    ) -> Store:
        """Open a database, and migrate its tables to the current version.

        Args:
            url: `sqlite:///state.db` (relative to `root`; absolute with four slashes) or `postgresql://…`.
            root: base folder for a relative path.
            lease_seconds: how long after the last renewal other processes may take over the runs of this one.
            retry_seconds: how long to retry while PostgreSQL is unreachable or a SQLite file is locked.
            clock: starts with the time of this machine, and is set to that of PostgreSQL, or of the other processes of
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
        """Offer each run that becomes ready, or is released, in the same transaction.

        Without offers, processes find such runs by `claim`, and by `runs` with `orphaned`. A store in memory offers
        nothing.
        """
        self._offers.offer_through(offers)

    async def start(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Save a new run with the user's message, before any of its work starts.

        If the run is queued and claimed by this store, it leaves the queue.

        Args:
            state: the first state.
            conversation: the conversation as loaded; the run becomes its next turn.
            blueprint: the files of the agent; only durable stores need them.
            limits: limits of which a queued run must have a slot. It keeps them until it ends, pauses or is released.

        Returns:
            Its record. If `cancel_requested` is set, which only a queued run can have, the caller must end the run.

        Raises:
            ConversationBusy: another run of the conversation is open, or started since it was loaded. Runs that are not
                queued also wait for those in the queue.
            RunBlocked: a limit is reached. The run is released and waits in its place, until a slot is free.
            RunTaken: the run is queued, and this store has no claim on it.
        """
        diff = StateDiff()
        batch, row = _first_rows(state, diff, keeps_history=conversation is None)
        first, later = (batch, RowBatch()) if self.durable else (RowBatch(), batch)
        is_new = blueprint is not None and self._needs_blueprint_write(blueprint)
        claim = self._claims.leases.get(state.run_id)
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
                held = sql_queue.start_queued(connection, state, row, lease, self.now())
            first.insert(connection, self._statements)
            return held

        has_rows = bool(first.parts)
        try:
            record = await self._hold(state, diff, lease, work, _IS_RUNNING, limits, has_rows=has_rows, unsaved=later)
        except RunBlocked:
            await self._claims.block(state.run_id, limits)
            raise
        except BaseException as error:
            if claim is None or isinstance(error, RunTaken):  # else a claim lasts until `unclaim`
                self._claims.drop(state.run_id, lease)
                self._leases.end(lease)
            raise
        if claim is not None:
            self._claims.drop(state.run_id, claim)
        if blueprint is not None and is_new:
            self._known_blueprints[blueprint.digest] = time.monotonic()
        return record

    async def acquire(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        limits: RunLimits = UNLIMITED,
        grants: Sequence[Grant] = (),
    ) -> RunRecord:
        """Claim a paused or orphaned run that has not changed since it was loaded, and save decisions.

        A queued run can be taken too, to end it: it stays queued until its last write.

        Args:
            state: the state that `load_run` returned.
            decisions: decisions by confirmation id; each confirmation may be decided once.
            by: who made them.
            limits: limits of which the run must have a slot, as for `start`.
            grants: approvals among the decisions that are remembered.

        Returns:
            Its record. If `cancel_requested` is set, the caller must end the run instead of resuming it.

        Raises:
            RunBlocked: a limit is reached. The decisions are saved, and the run waits for a slot as for a process.
            RunBusy: another process holds the run, or took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        lease, takeover = self._leases.new(), self._takeover(state, decisions, by, grants)
        diff = StateDiff()

        def block(connection: sa.Connection) -> bool:
            takeover.block(connection, limits)
            return True

        try:
            taken = partial(takeover.acquire, lease_name=lease)
            record = await self._hold(state, diff, lease, taken, sa.true(), limits, is_request=True)
        except RunBlocked:
            self._leases.end(lease)
            await self._database.write(block, takeover.was_handed_over)
            raise
        except BaseException:
            self._leases.end(lease)
            raise
        diff.changes(state)  # it was just loaded, so it is written
        return record

    async def save_decisions(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        grants: Sequence[Grant] = (),
    ) -> None:
        """Save decisions about a paused run, and offer the run, so that any process resumes it.

        The arguments are those of `acquire`. Then the run is in progress, and no process holds it.

        Raises:
            RunBusy: a process holds the run, or took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        takeover = self._takeover(state, decisions, by, grants)

        def work(connection: sa.Connection) -> bool:
            takeover.save_decisions(connection)
            return True

        await self._database.write(work, takeover.was_handed_over, is_request=True)

    async def release_for_others(self, run_id: str, reason: str, delay: float) -> None:
        """Release a run that this process holds or has claimed, and cannot execute.

        The reason is stored by the name of the process. The first sweep after `delay` seconds offers the run again.
        """
        process, owner = (self._leases.name, self._process.name), self._claims.leases.pop(run_id, None)
        try:
            released = await self._database.write(
                lambda c: release_for_others(c, self._database, run_id, process, reason, delay)
            )
            owner = released or owner
        finally:  # a claim that could not be released here is released with the next renewal
            if owner is not None:
                self._leases.end(owner)

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Save a request as a queued run, and return the run's id. If the run can start, it is ready, and offered.

        Args:
            request: the request. Its conversation exists, and belongs to its user and tenant, from now on.
            idempotency: if a request with the same scope, key and digest is stored already, nothing is saved, and the
                id of the earlier run is returned.

        Raises:
            ConversationBusy: a run of the conversation is open or waits, and `request.queue` is not set.
            QueueFull: too many runs of the conversation wait.
            IdempotencyConflict: the key was used for a different request, or the time of a trigger was handled.
            TriggerBusy: the last run of the key's trigger has not ended, and it starts one run at a time.
            TriggerPaused: the key's trigger is paused.
        """
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
                if idempotency.trigger is not None:
                    note_use(connection, idempotency.trigger, request.run_id, self.now())
            sql_queue.insert_queued(connection, self._offers, request, state, row, self.now())
            batch.insert(connection, self._statements)
            return request.run_id

        def committed(connection: sa.Connection) -> str | None:
            return connection.execute(sa.select(runs.c.id).where(runs.c.id == request.run_id)).scalar_one_or_none()

        return await self._database.write(work, committed, is_request=True)

    async def run_of_key(self, idempotency: IdempotencyKey) -> str | None:
        """Return the id of the run that was saved with an idempotency key; raises IdempotencyConflict."""
        return await self._database.read(lambda connection: sql_queue.find_key(connection, idempotency, self.now()))

    async def claim(
        self, limit: int, *, run_id: str | None = None, scope: WorkScope = EVERYTHING
    ) -> Sequence[RunRequest]:
        """Claim queued runs that are ready. Renew the lease of this process, and start or unclaim each run.

        Runs with a higher priority come first, then those with a lower fair rank, then the oldest. A run is ready if no
        living process holds it, if it is the first of its conversation and no run of the conversation is open, and if
        no limit blocks it. If a process ends before it starts a run, the run can be claimed again.

        Args:
            limit: the maximum number of runs.
            run_id: claim only this run, if it is ready.
            scope: claim only these runs.
        """
        return await self._claims.claim(limit, run_id, scope)

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims of this store, and offer the runs to any process. Runs that have started are skipped."""
        await self._claims.unclaim(run_ids)

    async def sweep(self, limit: int, allowed: Allowed | None = None) -> Sequence[OfferedRun]:
        """Offer runs again that need a process and have none, and return them; call it every few seconds.

        These are ready and released runs that were not offered in the last 5 seconds, runs of processes that have
        ended, and paused runs of which a confirmation has expired. A store in memory has none.

        Args:
            limit: the maximum number of runs, such as those that the process could execute.
            allowed: the limits on runs in progress as they are now. Runs whose limit has a free slot may try again.
        """
        return await self._sweep.sweep(limit, allowed)

    async def request_cancel(self, run_id: str) -> bool:
        """Request cancellation from the holder of a run. Return False if no process holds it; raises RunNotFound.

        A queued run is held while it is claimed.
        """
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
        """Save a rating of a run in place of an earlier one; None deletes it. Raises RunNotFound."""
        await self._database.write(lambda c: sql_runs.rate_run(c, storable(run_id), rating), is_request=True)

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Renew the lease of this process, which covers its runs and those that it claimed.

        A run whose record failed to write is released.

        Returns:
            Whether a cancel request exists, by run id. Contains only runs that this store still holds: a run that is
            missing has paused or ended, or was taken over by another process.
        """
        held = await self._process.write(self._read_held, renew=True)
        return {run_id: held[run_id] for run_id in run_ids if run_id in held}

    async def keep_alive(self, name: str, info: Mapping[str, Any]) -> None:
        """Save what this process reports about itself, and renew its lease."""
        await self._process.keep_alive(name, info, self._read_held)

    def _read_held(self, connection: sa.Connection) -> Mapping[str, bool]:
        """Return whether a cancel request exists, by id of the runs of this process; release those it has left.

        A run whose write failed is left in its row, although the process is alive.
        """
        rows = held_runs(connection, self._leases.name)
        alive = self._leases.alive()  # read after the rows: a lease starts before its row is written
        left = [row.owner for row in rows if row.owner not in alive]
        if left:
            is_left = is_held_under(self._leases.name, left)
            self._offers.release(connection, is_left, crashes=runs.c.crashes + 1)
        return {row.id: bool(row.cancel_requested) for row in rows if row.owner in alive}

    async def save_media(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Save files by digest, before messages of the run refer to them.

        A file is stored once. It is deleted with the last run that refers to it, or, if the run never starts, by
        `prune` after an hour.
        """
        await self._database.write(
            lambda c: sql_conversations.insert_media(c, run_id, files, self.now()), is_request=True
        )

    async def conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> Conversation:
        """Return the conversation of a tenant and user; for an unknown id, or one that has expired, a new one."""
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
        """Save a new conversation with copies of ended runs as its turns, in one transaction.

        Without turns it expires after `EMPTY_FORK_SECONDS`, unless a run starts.

        Raises:
            ConversationBusy: a conversation with this id exists.
        """
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
        """Save the session values of a conversation that has not changed since it was loaded.

        Raises:
            ConversationBusy: a run of it is open, or started since it was loaded.
        """
        await self._database.write(lambda c: sql_conversations.replace_session(c, conversation), is_request=True)

    async def delete_conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> int:
        """Delete a conversation with all its runs, also those that wait, and return the number of runs.

        Raises:
            RequestError: the conversation does not exist.
            ConversationBusy: a run of it is in progress, or about to start.
        """
        return await self._database.write(
            lambda connection: sql_conversations.delete_conversation(
                connection, self._database, self._leases, conversation_id, tenant, user
            ),
            is_request=True,
        )

    async def count_use(self, uses: Sequence[BudgetUse]) -> None:
        """Add to the counters of shared budgets, for a run that is not stored. A stored run's record does it."""
        if uses:
            await self._database.write(lambda connection: self._statements.counters.add(connection, uses))

    async def budget_uses(self, keys: Collection[CounterKey] | None = None) -> Sequence[BudgetUse]:
        """Return the counters of shared budgets, as all processes of the store have written them until now.

        Args:
            keys: the counters to return; those that are still 0 may be missing. None: all counters.
        """
        if keys is None:
            return await self._database.read(load_counters)
        wanted = list(keys)
        return await self._database.read(lambda connection: self._statements.counters.load(connection, wanted))

    async def prune(
        self, before: float | None, now: float, *, dry_run: bool = False, trust_clock: bool = False
    ) -> Pruned:
        """Delete old runs, expired conversations and idempotency keys, and return how much was deleted.

        Args:
            before: delete runs that ended before this Unix time, with their events and traces. If a run is a turn of a
                conversation that remains, its messages remain too. The counters of budgets whose day or month ended
                before are deleted too. None: delete no runs.
            now: delete conversations that have expired by this Unix time: that of the store, see `now`.
            dry_run: delete nothing, and return how much would be deleted.
            trust_clock: delete although the clock may be wrong.

        Raises:
            ClockRefused: `now` is more than a day ahead of the store's clock; or nothing was saved for more than a day
                before this process opened the store, at most a day ago, so that its clock may be wrong.
        """
        if dry_run:
            return await self._database.read(lambda c: sql_conversations.count_prunable(c, before, now))
        if not trust_clock:
            self._clock_check.check(now)
        return await prune(self._database, before, now)

    @property
    def clock(self) -> StoreClock:
        """The database's clock, as this process knows it."""
        return self._database.clock

    def now(self) -> float:
        """Return the time of the store as Unix time, by which everything in it expires or is old.

        All processes of a store agree on it, whatever the time of day of their machines.
        """
        return self._database.clock()

    async def load_run(self, run_id: str) -> RunState:
        """Return the last saved state of a run; raises RunNotFound. A queued run has its message, but no history."""
        return await self._database.read(lambda connection: sql_runs.load_run(connection, run_id))

    async def stored_run(self, state: RunState) -> StoredRun:
        """Return a loaded run with its events and files.

        Raises:
            RequestError: the run has not started, or its calls were pruned.
        """
        if state.status == "queued":
            raise RequestError(f"run {state.run_id} is queued: it has not started")
        events = await self.events(state.run_id)
        if not events and state.status not in ("running", "paused"):
            raise RequestError(f"only the messages of run {state.run_id} are left: its calls were pruned")
        blueprint = await self.blueprint(state.blueprint) if state.blueprint else None
        infos = await self.runs(RunQuery(run_id=state.run_id))
        return StoredRun(state, events, blueprint, infos[0].rating if infos else None)

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first; raises RequestError if `before` names no such run."""
        run_filter = query or RunQuery()
        return await self._database.read(
            lambda connection: list_runs(connection, self._database, self._leases, run_filter)
        )

    async def count_runs(self, query: RunQuery) -> int:
        """Return the number of runs that match. `orphaned`, `before` and `limit` have no effect."""
        return await self._database.read(lambda connection: count_runs(connection, query))

    async def usage(self, query: RunQuery, by: Grouping, period: Period) -> UsageReport:
        """Return figures of the matching runs that were added in a period: in total, over time and by group.

        The store counts without loading states. `since`, `until` and the paging of the query have no effect.
        """
        return await self._database.read(lambda connection: select_usage(connection, query, by, period))

    async def count_waiting(self) -> Mapping[Status, int]:
        """Return the numbers of queued and of paused runs, including those of other processes."""
        return await self._database.read(count_waiting)

    async def fleet(self, query: RunQuery | None = None) -> Fleet:
        """Return the processes that share the store and report themselves, and the runs that wait.

        Agents that the query leaves out are left out of the processes, too.
        """
        scope = query or RunQuery()
        return await self._database.read(
            lambda connection: select_fleet(connection, self._database, self._leases, scope, self.now())
        )

    async def queue_size(self) -> QueueSize:
        """Return how many runs wait in the queue, those of other processes included, by a count that is cheap."""
        return await self._database.read(queue_size)

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return a run's events with a number above `after`, in their wire format; raises RunNotFound."""
        return await self._database.read(lambda connection: sql_runs.load_events(connection, storable(run_id), after))

    async def events_named(self, run_id: str, name: str) -> Sequence[Mapping[str, Any]]:
        """Return a run's events of one name, such as `plan`, in their wire format; raises RunNotFound."""
        key = storable(run_id)
        return await self._database.read(lambda connection: sql_runs.load_events(connection, key, 0, name))

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """Return the stored spans of a run, sorted by start; raises RunNotFound."""
        bodies = await self._database.read(lambda connection: sql_runs.load_spans(connection, storable(run_id)))
        return decode_spans(bodies)

    async def add_spans(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Add spans to the trace of a run that has ended, such as its evaluation; raises RunNotFound or StoreError."""
        key = storable(run_id)
        await self._database.write(lambda connection: sql_runs.add_spans(connection, key, spans))

    async def decisions(self, run_id: str) -> Sequence[MadeDecision]:
        """Return the decisions about a run, in the order they were made; raises RunNotFound."""
        return await self._database.read(lambda connection: sql_runs.load_decisions(connection, storable(run_id)))

    async def latest_decisions(self, run_ids: Collection[str], limit: int) -> Sequence[MadeDecision]:
        """Return the latest decisions about these runs, the latest first. Unknown runs have none."""
        keys = [storable(run_id) for run_id in run_ids]
        return await self._database.read(lambda connection: sql_runs.latest_decisions(connection, keys, limit))

    async def decided_calls(self, query: RunQuery) -> DecidedCalls:
        """Return the calls of the matching runs that rules or people decided about; the newest runs up to its limit."""
        return await self._database.read(lambda connection: decided_calls(connection, query))

    async def blueprint(self, digest: str) -> Blueprint | None:
        """Return a stored blueprint, or None."""
        select = sa.select(blueprints.c.files).where(blueprints.c.digest == digest)
        files = await self._database.read(lambda connection: connection.execute(select).scalar_one_or_none())
        return Blueprint(digest, orjson.loads(files)) if files else None

    async def load_media(self, digests: Collection[str], of: RunQuery | None = None) -> Mapping[str, bytes]:
        """Return the stored files with these digests, by digest. Those that are not stored are missing.

        Args:
            digests: the digests of the files.
            of: only files that a run with this owner refers to; its other fields are ignored. None: of any owner.
        """
        return await self._database.read(lambda connection: sql_conversations.select_media(connection, digests, of))

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first; raises RequestError for an invalid cursor."""
        filters = query or ConversationQuery()
        return await self._database.read(lambda connection: sql_conversations.list_conversations(connection, filters))

    async def processes(self) -> Sequence[ProcessInfo]:
        """Return the processes that hold runs or report themselves, in the order in which they started.

        Those that have ended are listed for an hour.
        """
        return await self._database.read(lambda c: list_processes(c, self._database, self._leases))

    async def close(self) -> None:
        """Close the store's connections and files."""
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
        lease: str,
        work: Work[sql_runs.HeldRow],
        has_changed: sa.ColumnElement[bool],
        limits: RunLimits,
        *,
        has_rows: bool = True,
        unsaved: RowBatch | None = None,
        is_request: bool = False,
    ) -> SqlRecord:
        """Execute a transaction that makes this process the holder of a run, and return the run's record.

        After a lost connection, the transaction was committed if the run is held under the lease and `has_changed`.
        """

        def committed(connection: sa.Connection) -> sql_runs.HeldRow | None:
            select = sa.select(*sql_runs.HELD_COLUMNS).where(runs.c.id == state.run_id, runs.c.owner == lease)
            row = connection.execute(select.where(has_changed)).one_or_none()
            return row and sql_runs.held_row(row)

        def limited(connection: sa.Connection) -> sql_runs.HeldRow:
            acquire_slots(connection, self._offers, limits, self._leases.name, state.run_id)
            return work(connection)

        whole = limited if limits else work
        held = await self._process.write(whole, committed, is_request=is_request)
        held = replace(held, slots=frozenset(limits))
        state.version = held.version
        return SqlRecord(
            self._database,
            self._offers,
            state,
            diff,
            self._leases,
            lease,
            held,
            self.is_followed,
            self._run_ended,
            has_rows=has_rows,
            unsaved=unsaved,
        )

    def _takeover(
        self, state: RunState, made: Mapping[str, Decision], by: Deciders, grants: Sequence[Grant]
    ) -> Takeover:
        return Takeover(self._database, self._leases, self._offers, state, made, by, grants)


def _first_rows(state: RunState, diff: StateDiff, *, keeps_history: bool) -> tuple[RowBatch, dict[str, Any]]:
    """Return the rows of a run that starts, and the columns of its own row; raises StoreError."""
    batch = RowBatch()
    with _serializing():
        batch.add(state.run_id, diff.changes(state))
        batch.add(state.run_id, history_rows(state) if keeps_history else [])
        return batch, {"head": batch.head, "state": batch.state}


@contextmanager
def _serializing() -> Iterator[None]:
    try:
        yield
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise StoreError(f"the run cannot be serialized as JSON: {type(error).__name__}") from None
