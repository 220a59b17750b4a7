"""SQL for queued runs: add, claim, begin. Each function works within the transaction of its connection."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from framework.store.queue_rules import IDEMPOTENCY_SECONDS, check_queue, check_same_request
from framework.store.sql.conversations import delete_expired
from framework.store.sql.leases import RunLease
from framework.store.sql.offering import RunOffers
from framework.store.sql.ranks import next_rank
from framework.store.sql.runs import HELD_COLUMNS, HeldRow, held_row, insert_run, run_columns
from framework.store.sql.schema import (
    CLAIM_ORDER,
    conversations,
    has_status,
    idempotency_keys,
    is_claimed_or_running,
    is_next,
    is_waiting,
    runs,
)
from framework.store.sql.texts import conversation_key, storable, to_sql_text
from framework.store.sql.upserts import insert_into
from framework.store.work import EVERYTHING, WorkScope
from framework.types.errors import RunTaken
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import RunState
from framework.types.strict_json import content_digest


def insert_queued(
    connection: sa.Connection,
    offers: RunOffers,
    request: RunRequest,
    state: RunState,
    row: Mapping[str, Any],
    now: float,
) -> None:
    """Insert a queued run at the end of the queue of its conversation, and offer it if it can begin by `now`.

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
        check_queue(request, open_run, waiting)
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
    row = insert_into(conversations, connection.dialect).values(id=key, created_at=now, updated_at=now, **owner)
    upsert = row.on_conflict_do_update(index_elements=["id"], set_={"turns": conversations.c.turns})
    open_run: str | None = connection.execute(upsert.returning(conversations.c.open_run)).scalar_one()
    return open_run


def insert_key(connection: sa.Connection, idempotency: IdempotencyKey, run_id: str, now: float) -> str:
    """Save an idempotency key, and return the id of its run: this one, or an earlier one with the same request.

    Raises:
        IdempotencyConflict: the key was used for a different request.
    """
    columns = idempotency_keys.c
    row = {"digest": idempotency.digest, "run_id": run_id, "created_at": now}
    key = content_digest(f"{len(idempotency.scope)}:{idempotency.scope}{idempotency.key}")
    is_expired = columns.created_at <= now - IDEMPOTENCY_SECONDS
    upsert = insert_into(idempotency_keys, connection.dialect).values(key=key, **row)
    upsert = upsert.on_conflict_do_update(index_elements=["key"], set_=row, where=is_expired)
    if connection.execute(upsert.returning(columns.run_id)).one_or_none() is not None:
        return run_id
    earlier = connection.execute(sa.select(columns.digest, columns.run_id).where(columns.key == key)).one()
    check_same_request(idempotency, earlier.digest)
    return str(earlier.run_id)


def delete_expired_keys(connection: sa.Connection, now: float) -> None:
    """Delete idempotency keys that are no longer valid."""
    connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.created_at <= now - IDEMPOTENCY_SECONDS))


_READY = (
    sa.select(runs.c.no)
    .where(has_status("queued"), runs.c.ready, runs.c.owner.is_(None), is_next())
    .order_by(*CLAIM_ORDER)
)
"""The runs that can be claimed. Whether they can begin is checked again: a run that was not queued may have begun."""


def select_ready(
    connection: sa.Connection, limit: int, scope: WorkScope, run_id: str | None = None, *, lock: bool = False
) -> list[int]:
    """Return the numbers of the runs that can begin, in the order in which they are claimed.

    Args:
        connection: the connection.
        limit: the maximum number of runs.
        scope: return only these runs.
        run_id: return only this run.
        lock: lock the runs until the transaction ends, and skip those that are locked.
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


def claim_ready(connection: sa.Connection, number: int, lease: RunLease, process: str) -> RunRequest | None:
    """Claim a run that is ready; return None if another process was faster."""
    is_free = sa.and_(runs.c.ready, runs.c.owner.is_(None))
    claim = sa.update(runs).where(runs.c.no == number, has_status("queued"), is_free)
    values = {"owner": lease.name, "process": process, "ready": False}
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


def begin_queued(
    connection: sa.Connection, state: RunState, row: Mapping[str, Any], lease: RunLease, now: float
) -> HeldRow:
    """Begin a run that is claimed under `lease`; raises RunTaken if another process has claimed it since."""
    claimed = sa.update(runs).where(runs.c.id == state.run_id, has_status("queued"), runs.c.owner == lease.name)
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
    begun = connection.execute(claimed.values(values).returning(*HELD_COLUMNS)).one_or_none()
    if begun is None:
        raise RunTaken(f"another process has claimed run {state.run_id}; this process does not begin it")
    return held_row(begun)


def _request(row: Any) -> RunRequest:
    return RunRequest.model_validate_json(row.request).model_copy(update={"attempts": row.attempts})
