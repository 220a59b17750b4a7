"""SQL for runs that wait: enqueue, claim and start them; take over, release and resume those of other processes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from framework.store.conversations import delete_expired
from framework.store.database import Database
from framework.store.limits import (
    OFFERED_COLUMNS,
    RELEASED,
    REOFFER_SECONDS,
    UNCOUNTED,
    RunOffers,
    block_run,
    select_unblocked,
    wake,
)
from framework.store.processes import (
    ProcessLease,
    RunLeases,
    delete_old,
    find_dead,
    find_owner,
    find_unfinished,
    is_held_under,
    lock_dead,
)
from framework.store.run_links import insert_grants
from framework.store.runs import HELD_COLUMNS, UNMEASURED, HeldRow, held_row, insert_run, run_columns
from framework.store.schema import (
    CLAIM_ORDER,
    RELEASED_ORDER,
    conversation_key,
    conversations,
    decisions,
    has_status,
    idempotency_keys,
    insert_into,
    is_claimed_or_running,
    is_next,
    is_waiting,
    runs,
)
from framework.store.types import EVERYTHING, OPEN_STATUSES, Allowed, Deciders, OfferedRun, RunLimits, WorkScope
from framework.types.errors import ConversationBusy, DecisionRefused, IdempotencyConflict, QueueFull, RunBusy, RunTaken
from framework.types.grant import Grant
from framework.types.state import Decision, IdempotencyKey, RunRequest, RunState
from framework.types.text import content_digest, storable, to_sql_text


class Takeover:
    """A run that is not held and has not changed since it was loaded, to be given another holder."""

    def __init__(
        self,
        database: Database,
        leases: RunLeases,
        offers: RunOffers,
        state: RunState,
        made: Mapping[str, Decision],
        by: Deciders,
        grants: Sequence[Grant],
    ) -> None:
        self._database, self._leases, self._offers = database, leases, offers
        self._run_id, self._version = state.run_id, state.version
        self._made, self._by, self._grants = made, by, grants

    def acquire(self, connection: sa.Connection, lease_name: str) -> HeldRow:
        """Claim the run under a lease of this process.

        Raises:
            RunBusy: the run is held, or another process took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        status = sa.case((has_status("queued"), "queued"), else_="running")
        holder = {"owner": lease_name, "process": self._leases.name, "ready": False}
        values = {**holder, "status": status, "attempts": runs.c.attempts + 1}
        return held_row(self._update(connection, runs.c.status.in_(OPEN_STATUSES), values))

    def save_decisions(self, connection: sa.Connection) -> None:
        """Offer the run to any process.

        Raises:
            RunBusy: the run is held or queued, or another process took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        values = {**RELEASED, "status": "running", "offered_at": self._offers.offered_at}
        row = self._update(connection, runs.c.status.in_(("paused", "running")), values)
        self._offers.offer(connection, [row[: len(OFFERED_COLUMNS)]])

    def block(self, connection: sa.Connection, limits: RunLimits) -> None:
        """Let the run wait for a slot, or offer it if each limit has one by now; raises as `save_decisions` does."""
        self._update(connection, runs.c.status.in_(("paused", "running")), {**RELEASED, "status": "running"})
        block_run(connection, self._offers, self._database, runs.c.id == self._run_id, limits)

    def was_handed_over(self, connection: sa.Connection) -> bool | None:
        """Return True if `save_decisions` was committed, else None."""
        is_mine = (runs.c.id == self._run_id, runs.c.version == self._version + 1, runs.c.owner.is_(None))
        is_saved = connection.execute(sa.select(runs.c.no).where(*is_mine)).one_or_none() is not None
        columns = (decisions.c.confirmation_id, decisions.c.decision, decisions.c.decided_by)
        found = {
            tuple(row) for row in connection.execute(sa.select(*columns).where(decisions.c.run_id == self._run_id))
        }
        made = {(row["confirmation_id"], row["decision"], row["decided_by"]) for row in self._rows()}
        return (is_saved and made <= found) or None

    def _update(self, connection: sa.Connection, may_change: sa.ColumnElement[bool], values: Mapping[str, Any]) -> Any:
        free = self._release(connection)
        row = None
        if free is not None:
            is_unchanged = (runs.c.id == self._run_id, runs.c.version == self._version, may_change, free)
            taken = {"version": runs.c.version + 1, "expires_at": None, "blocked_by": None, **values, **UNMEASURED}
            update = sa.update(runs).where(*is_unchanged).values(taken)
            row = connection.execute(update.returning(*OFFERED_COLUMNS, *HELD_COLUMNS)).one_or_none()
        if row is None:
            raise RunBusy(f"run {self._run_id} is already in progress in another process")
        self._insert_decisions(connection)
        return row

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of the decisions."""
        now = self._database.clock()
        return [
            {
                "run_id": self._run_id,
                "confirmation_id": to_sql_text(key),
                "decision": decision.model_dump_json(),
                "decided_by": to_sql_text(self._by.get(key)),
                "decided_at": now,
            }
            for key, decision in self._made.items()
        ]

    def _insert_decisions(self, connection: sa.Connection) -> None:
        if rows := self._rows():
            try:
                connection.execute(sa.insert(decisions), rows)
            except IntegrityError:
                raise DecisionRefused(f"already decided: {', '.join(sorted(self._made))}") from None
        insert_grants(connection, self._grants)

    def _release(self, connection: sa.Connection) -> sa.ColumnElement[bool] | None:
        """Release the run if its process has ended, with all others of that process, or has left it.

        Return the condition that nobody has taken it over since; None if a process holds it.
        """
        owner = find_owner(connection, self._database, self._leases, self._run_id)
        if owner is None:
            return runs.c.owner.is_(None)
        if owner.is_held:
            return None
        if owner.process is None or owner.process == self._leases.name:  # a write failed: this was nobody else
            is_left = sa.and_(runs.c.id == self._run_id, runs.c.owner == owner.name)
            connection.execute(sa.update(runs).where(is_left).values(**RELEASED, crashes=runs.c.crashes + 1))
        elif lock_dead(connection, self._database, self._leases, [owner.process]):
            self._offers.release_dead(connection, [owner.process])
        else:
            return None
        return runs.c.owner.is_(None)


def release_for_others(
    connection: sa.Connection, database: Database, run_id: str, process: tuple[str, str], reason: str, delay: float
) -> str | None:
    """Release a run that a process cannot execute, and save the reason. It is offered after `delay` seconds.

    Return the name of the lease under which the process (id and name) held the run; None if it did not.
    """
    held = sa.and_(runs.c.id == storable(run_id), is_claimed_or_running(), runs.c.process == process[0])
    row = connection.execute(sa.select(runs.c.owner, runs.c.refusals).where(held).with_for_update()).one_or_none()
    if row is None:
        return None
    refusals = {**json.loads(row.refusals or "{}"), process[1]: reason}
    values = {
        **RELEASED,
        "refusals": json.dumps(refusals),
        "offered_at": database.now + (delay - REOFFER_SECONDS),  # the sweep waits this long after an offer
        "attempts": sa.case((has_status("queued"), runs.c.attempts), else_=UNCOUNTED),
    }
    connection.execute(sa.update(runs).where(held).values(values))
    return str(row.owner)


MAX_WAITING_RUNS = 20
"""Maximum number of runs of one conversation that wait in the queue."""
IDEMPOTENCY_SECONDS = 24 * 3600.0
"""How long an idempotency key is valid after its time. Longer ones have a later time than their request."""


def next_rank(connection: sa.Connection, tenant: str | None, priority: int) -> float:
    """Return the rank of a run that is added now, by indexes. Runs without a tenant are ranked as those of one."""
    same = sa.select(runs.c.rank).where(has_status("queued"), runs.c.priority == priority)
    is_own = runs.c.tenant.is_(None) if tenant is None else runs.c.tenant == tenant
    own = same.where(is_own).order_by(runs.c.tenant.desc(), runs.c.priority.desc(), runs.c.rank.desc()).limit(1)
    ready = same.where(runs.c.ready).order_by(runs.c.status, *CLAIM_ORDER).limit(1)
    blocked = sa.select(sa.func.min(same.where(runs.c.blocked_by.is_not(None)).subquery().c.rank))
    served = sa.func.coalesce(ready.scalar_subquery(), blocked.scalar_subquery(), 0.0)  # blocked: only if none is ready
    row = connection.execute(sa.select(own.scalar_subquery().label("own"), served.label("served"))).one()
    return float(row.served) if row.own is None else max(row.own + 1.0, row.served)


def insert_queued(
    connection: sa.Connection,
    offers: RunOffers,
    request: RunRequest,
    state: RunState,
    row: Mapping[str, Any],
    now: float,
) -> None:
    """Insert a queued run at the end of the queue of its conversation, and offer it if it can start by `now`.

    Raises:
        ConversationBusy: a run of the conversation is open or waits, and the request may not wait.
        QueueFull: too many runs of the conversation wait.
    """
    key, is_ready = None, True
    if request.conversation_id is not None:
        key = conversation_key(request.conversation_id, request.tenant, request.user)
        delete_expired(connection, now, key)
        open_run = _lock_conversation(connection, key, request, now)
        waiting = connection.execute(sa.select(sa.func.count()).where(is_waiting(key))).scalar_one()
        if not request.queue and (open_run or waiting):
            reason = f"run {open_run} is open" if open_run else f"{waiting} of its runs wait"
            problem = f"conversation {request.conversation_id!r} is busy: {reason}"
            raise ConversationBusy(f"{problem}; set `queue`, and the message waits for its turn", run_id=open_run or "")
        if waiting >= MAX_WAITING_RUNS:
            problem = f"conversation {request.conversation_id!r} has {waiting} waiting runs, the maximum"
            raise QueueFull(f"{problem}: wait for one to start")
        is_ready = open_run is None and not waiting
    queue = to_sql_text(request.queue_name)
    columns: dict[str, Any] = {"conversation_id": key, "priority": request.priority, "queue": queue, "ready": is_ready}
    columns["rank"] = next_rank(connection, to_sql_text(request.tenant), request.priority)
    offered_at = offers.offered_at if is_ready else None
    insert_run(connection, state, {**row, "status": "queued", **columns, "offered_at": offered_at}, now)
    if is_ready:
        agent = to_sql_text(state.agent)
        offers.offer(connection, [(state.run_id, queue, agent, request.priority)])


def _lock_conversation(connection: sa.Connection, key: str, request: RunRequest, now: float) -> str | None:
    """Insert the conversation if it is new, lock it until the transaction ends, and return its open run."""
    owner = {"user_id": to_sql_text(request.user), "tenant": to_sql_text(request.tenant)}
    row = insert_into(conversations, connection.dialect.name).values(id=key, created_at=now, updated_at=now, **owner)
    upsert = row.on_conflict_do_update(index_elements=["id"], set_={"turns": conversations.c.turns})
    open_run: str | None = connection.execute(upsert.returning(conversations.c.open_run)).scalar_one()
    return open_run


def insert_key(connection: sa.Connection, idempotency: IdempotencyKey, run_id: str, now: float) -> str:
    """Save an idempotency key, and return the id of its run: this one, or an earlier one with the same request.

    Raises:
        IdempotencyConflict: the key was used for a different request.
    """
    columns = idempotency_keys.c
    created_at = now + idempotency.seconds - IDEMPOTENCY_SECONDS
    row = {"digest": idempotency.digest, "run_id": run_id, "created_at": created_at}
    key = _key_digest(idempotency)
    is_expired = columns.created_at <= now - IDEMPOTENCY_SECONDS
    upsert = insert_into(idempotency_keys, connection.dialect.name).values(key=key, **row)
    upsert = upsert.on_conflict_do_update(index_elements=["key"], set_=row, where=is_expired)
    if connection.execute(upsert.returning(columns.run_id)).one_or_none() is not None:
        return run_id
    earlier = find_key(connection, idempotency, now)
    assert earlier is not None, "the key that was not inserted is valid"
    return earlier


def find_key(connection: sa.Connection, idempotency: IdempotencyKey, now: float) -> str | None:
    """Return the id of the run of an idempotency key; None if there is no valid one.

    Raises:
        IdempotencyConflict: the key was used for a different request.
    """
    columns = idempotency_keys.c
    is_valid = (columns.key == _key_digest(idempotency), columns.created_at > now - IDEMPOTENCY_SECONDS)
    earlier = connection.execute(sa.select(columns.digest, columns.run_id).where(*is_valid)).one_or_none()
    if earlier is None:
        return None
    if earlier.digest != idempotency.digest:
        problem = "the idempotency key was used for a different request in the last 24 hours"
        raise IdempotencyConflict(f"{problem}: use a new key for a new request")
    return str(earlier.run_id)


def _key_digest(idempotency: IdempotencyKey) -> str:
    return content_digest(f"{len(idempotency.scope)}:{idempotency.scope}{idempotency.key}")


def delete_expired_keys(connection: sa.Connection, now: float) -> None:
    """Delete idempotency keys that are no longer valid."""
    connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.created_at <= now - IDEMPOTENCY_SECONDS))


_READY = (
    sa.select(runs.c.no)
    .where(has_status("queued"), runs.c.ready, runs.c.owner.is_(None), is_next())
    .order_by(*CLAIM_ORDER)
)
"""The runs that can be claimed. Whether they can start is checked again: a run that was not queued may have started."""


def select_ready(
    connection: sa.Connection, limit: int, scope: WorkScope, run_id: str | None = None, *, lock: bool = False
) -> list[int]:
    """Return the numbers of the runs that can start, in the order in which they are claimed.

    With `lock`, they are locked until the transaction ends, and those that are locked already are skipped.
    """
    select = _READY.limit(limit)
    if run_id is not None:
        select = select.where(runs.c.id == storable(run_id))
    if scope != EVERYTHING:
        select = select.where(_is_in(scope))
    if lock:
        select = select.with_for_update(skip_locked=True, of=runs)
    return list(connection.execute(select).scalars())


def _is_in(scope: WorkScope) -> sa.ColumnElement[bool]:
    agents = [to_sql_text(agent) for agent in sorted(scope.agents or ())]
    queues = [to_sql_text(queue) for queue in sorted(scope.queues or ())]
    is_of_agent = sa.and_(runs.c.queue.is_(None), runs.c.agent.in_(agents))
    return sa.or_(is_of_agent, runs.c.queue.in_(queues))


def claim_ready(connection: sa.Connection, number: int, lease: str, process: str) -> RunRequest | None:
    """Claim a run that is ready; return None if another process was faster."""
    is_free = sa.and_(runs.c.ready, runs.c.owner.is_(None))
    claim = sa.update(runs).where(runs.c.no == number, has_status("queued"), is_free)
    values = {"owner": lease, "process": process, "ready": False}
    row = connection.execute(claim.values(values).returning(runs.c.request, runs.c.attempts)).one_or_none()
    return None if row is None else _request(row)


def claimed_by(connection: sa.Connection, lease_names: Collection[str]) -> Iterator[tuple[str, RunRequest]]:
    """Yield the queued runs that are claimed under these leases, with the name of the lease, in order."""
    claimed = sa.select(runs.c.owner, runs.c.request, runs.c.attempts).where(has_status("queued"))
    for row in connection.execute(claimed.where(runs.c.owner.in_(lease_names)).order_by(*CLAIM_ORDER)):
        yield row.owner, _request(row)


def find_claims(connection: sa.Connection, dead: Collection[str]) -> list[int]:
    """Return the numbers of the queued runs that these processes hold."""
    held = sa.select(runs.c.no, runs.c.status).where(is_claimed_or_running(), runs.c.process.in_(dead))
    return [row.no for row in connection.execute(held) if row.status == "queued"]


def start_queued(connection: sa.Connection, state: RunState, row: Mapping[str, Any], lease: str, now: float) -> HeldRow:
    """Start a run that is claimed under `lease`; raises RunTaken if another process has claimed it since."""
    claimed = sa.update(runs).where(runs.c.id == state.run_id, has_status("queued"), runs.c.owner == lease)
    values = {
        **run_columns(state, now),
        "status": "running",
        "request": None,
        "refusals": None,
        "attempts": 0,
        "crashes": 0,
        "version": runs.c.version + 1,
        **row,
    }
    started = connection.execute(claimed.values(values).returning(*HELD_COLUMNS)).one_or_none()
    if started is None:
        raise RunTaken(f"another process has claimed run {state.run_id}; this process does not start it")
    return held_row(started)


def _request(row: Any) -> RunRequest:
    return RunRequest.model_validate_json(row.request).model_copy(update={"attempts": row.attempts})


class Claims:
    """Claims queued runs of a store, each under a lease."""

    def __init__(self, database: Database, leases: RunLeases, process: ProcessLease, offers: RunOffers) -> None:
        self._database, self._leases, self._process, self._offers = database, leases, process, offers
        self.leases: dict[str, str] = {}
        """The names of the leases of the claimed runs, by run id."""

    def drop(self, run_id: str, lease: str) -> None:
        """Forget a claimed run that has started or was lost, unless it was claimed again since, under another lease."""
        if self.leases.get(run_id) == lease:
            del self.leases[run_id]

    async def claim(self, limit: int, run_id: str | None, scope: WorkScope) -> Sequence[RunRequest]:
        """Claim runs that are ready, in one transaction. Those that dead processes have claimed are released first."""
        if run_id is None and self._database.is_sqlite and not await self._may_find(scope):
            return []
        leases: set[str] = set()

        def work(connection: sa.Connection) -> list[tuple[str, RunRequest]]:
            self._release_dead(connection)
            claimed = []
            for number in select_ready(connection, limit, scope, run_id, lock=True):
                lease = self._leases.new()
                leases.add(lease)
                if request := claim_ready(connection, number, lease, self._leases.name):
                    claimed.append((lease, request))
            return claimed

        def committed(connection: sa.Connection) -> list[tuple[str, RunRequest]] | None:
            return list(claimed_by(connection, leases)) or None

        try:
            claimed = await self._process.write(work, committed)
        except BaseException:
            claimed = []
            raise
        finally:
            self.leases.update({request.run_id: name for name, request in claimed})
            for unused in leases.difference(name for name, _ in claimed):
                self._leases.end(unused)
        return [request for _, request in claimed]

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims, and offer their runs, in one transaction."""
        claims = [self.leases.pop(run_id) for run_id in set(run_ids) & self.leases.keys()]
        is_claimed = is_held_under(self._leases.name, claims)
        try:
            if claims:
                await self._database.write(lambda connection: self._offers.release(connection, is_claimed))
        finally:
            for lease in claims:
                self._leases.end(lease)

    async def block(self, run_id: str, limits: RunLimits) -> None:
        """Release a claim whose run waits for one of these limits."""
        lease = self.leases.pop(run_id, None)  # first: once it is released, this process may claim it again
        if lease is None:
            return
        is_claimed = is_held_under(self._leases.name, [lease])
        try:
            await self._database.write(lambda c: block_run(c, self._offers, self._database, is_claimed, limits))
        finally:
            self._leases.end(lease)

    async def _may_find(self, scope: WorkScope) -> bool:
        """Return whether there may be a run to claim, without locking the file: processes look every second."""

        def work(connection: sa.Connection) -> bool:
            if select_ready(connection, 1, scope):
                return True
            dead = find_dead(connection, self._database, self._leases)
            return bool(dead and find_claims(connection, dead))

        return await self._database.read(work)

    def _release_dead(self, connection: sa.Connection) -> None:
        """Release the runs of dead processes that have claimed queued ones."""
        dead = find_dead(connection, self._database, self._leases)
        if dead and find_claims(connection, dead):
            self._offers.release_dead(connection, lock_dead(connection, self._database, self._leases, dead))


_WINDOW = 100
"""Number of queued runs of each kind that one sweep checks."""


class _Findings(NamedTuple):
    dead: Sequence[str]
    """Dead processes that hold runs, or whose rows are old."""
    wrong: Sequence[int]
    """Numbers of runs to offer, or that are wrongly marked as ready."""
    blocked: Sequence[int]
    """Numbers of runs that wait for a limit although it has a free slot."""


class Sweep:
    """Sweeps a store. Of the queued runs, each sweep checks the first ones, and some after those it checked before."""

    def __init__(self, database: Database, leases: RunLeases, offers: RunOffers) -> None:
        self._database, self._leases, self._offers = database, leases, offers
        self._position = 0
        """Number of the last queued run that was checked."""
        self._limit = ""
        """The last limit that was checked."""

    async def sweep(self, limit: int, allowed: Allowed | None) -> list[OfferedRun]:
        """Release the runs of dead processes, and offer up to `limit` others that need a process; return all."""
        found = await self._database.read(lambda connection: self._find(connection, limit, allowed))
        if not (found.dead or found.wrong or found.blocked):
            return []

        def work(connection: sa.Connection) -> list[OfferedRun]:
            offered = self._release(connection, found.dead)
            offered += self._correct(connection, found.wrong, limit - len(offered))
            return offered + wake(connection, self._offers, found.blocked[: max(0, limit - len(offered))])

        return await self._database.write(work)

    def _find(self, connection: sa.Connection, limit: int, allowed: Allowed | None) -> _Findings:
        dead = find_dead(connection, self._database, self._leases)
        numbers = set(self._next_waiting(connection))
        for select in self._windows:
            numbers.update(connection.execute(select, {"limit": limit}).scalars())
        checked = sa.select(runs.c.no).where(runs.c.no.in_(sorted(numbers)), self._is_wrong).order_by(runs.c.no)
        blocked: Sequence[int] = ()
        if allowed is not None:
            blocked, self._limit = select_unblocked(connection, self._database, allowed, self._limit)
        return _Findings(
            find_unfinished(connection, self._database, dead) if dead else (),
            list(connection.execute(checked).scalars()) if numbers else (),
            blocked,
        )

    @cached_property
    def _is_wrong(self) -> sa.ColumnElement[bool]:
        return sa.or_(self._needs_process(), _is_wrongly_ready())

    @cached_property
    def _windows(self) -> Sequence[sa.Select[int]]:
        return tuple(self._select_windows())

    def _select_windows(self) -> Iterator[sa.Select[int]]:
        """Yield what selects the numbers of the runs to check, each by its partial index."""
        number, limit = sa.select(runs.c.no), sa.bindparam("limit", type_=sa.Integer)
        ready = number.where(has_status("queued"), runs.c.ready)
        yield ready.order_by(*CLAIM_ORDER).limit(_WINDOW)
        handed_on = number.where(has_status("queued"), runs.c.refusals.is_not(None), self._was_offered_long_ago())
        yield handed_on.order_by(runs.c.offered_at).limit(limit)
        released = number.where(_is_released(), self._is_late())
        yield released.order_by(*RELEASED_ORDER).limit(limit)
        expired = number.where(self._has_expired(), self._is_late())
        yield expired.order_by(runs.c.expires_at).limit(limit)

    def _next_waiting(self, connection: sa.Connection) -> Sequence[int]:
        """Return the numbers of the queued runs after those of the sweep before."""
        waiting = sa.select(runs.c.no).where(has_status("queued"), runs.c.no > self._position)
        numbers = list(connection.execute(waiting.order_by(runs.c.no).limit(_WINDOW)).scalars())
        self._position = numbers[-1] if len(numbers) == _WINDOW else 0
        return numbers

    def _is_late(self) -> sa.ColumnElement[bool]:
        return sa.or_(runs.c.offered_at.is_(None), self._was_offered_long_ago())

    def _was_offered_long_ago(self) -> sa.ColumnElement[bool]:
        return runs.c.offered_at <= self._database.statement_start - REOFFER_SECONDS

    def _needs_process(self) -> sa.ColumnElement[bool]:
        """Return the condition that a run needs a process, has none, and was not offered lately."""
        can_start = sa.and_(has_status("queued"), runs.c.owner.is_(None), runs.c.blocked_by.is_(None), is_next())
        return sa.and_(self._is_late(), sa.or_(can_start, _is_released(), self._has_expired()))

    def _has_expired(self) -> sa.ColumnElement[bool]:
        return sa.and_(has_status("paused"), runs.c.expires_at <= self._database.statement_start)

    def _release(self, connection: sa.Connection, dead: Sequence[str]) -> list[OfferedRun]:
        """Release the runs of dead processes, and delete their rows if they are old."""
        if not dead:
            return []
        locked = lock_dead(connection, self._database, self._leases, dead)
        delete_old(connection, self._database)
        return self._offers.release_dead(connection, locked)

    def _correct(self, connection: sa.Connection, numbers: Sequence[int], limit: int) -> list[OfferedRun]:
        """Offer up to `limit` of these runs that need a process, and mark those as not ready that cannot start."""
        if not numbers:
            return []
        connection.execute(sa.update(runs).where(runs.c.no.in_(numbers), _is_wrongly_ready()).values(ready=False))
        needing = sa.select(runs.c.no).where(runs.c.no.in_(numbers), self._needs_process()).order_by(runs.c.no)
        locked = connection.execute(needing.limit(max(0, limit)).with_for_update(skip_locked=True, of=runs)).scalars()
        update = sa.update(runs).where(runs.c.no.in_(list(locked)))
        offered = update.values(ready=has_status("queued"), offered_at=self._database.now)
        return self._offers.offer(connection, connection.execute(offered.returning(*OFFERED_COLUMNS)))


def _is_released() -> sa.ColumnElement[bool]:
    """Return the condition that a run in progress can be resumed by any process."""
    return sa.and_(has_status("running"), runs.c.process.is_(None), runs.c.blocked_by.is_(None))


def _is_wrongly_ready() -> sa.ColumnElement[bool]:
    can_start = sa.and_(runs.c.owner.is_(None), is_next())
    return sa.and_(has_status("queued"), runs.c.ready, ~can_start)
