"""SQL for queued runs: add, claim, begin. Each function works within the transaction of its connection."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from framework.store.queue_rules import IDEMPOTENCY_SECONDS, check_queue, check_same_request
from framework.store.sql.conversations import delete_expired
from framework.store.sql.database import Database
from framework.store.sql.leases import RunLease, RunLeases
from framework.store.sql.owners import is_leased
from framework.store.sql.runs import HELD_COLUMNS, HeldRow, held_row, insert_run, lease_columns, run_columns
from framework.store.sql.schema import conversations, has_status, idempotency_keys, is_waiting, runs
from framework.store.sql.texts import conversation_key, storable, to_sql_text
from framework.types.digest import content_digest
from framework.types.errors import RunTaken
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import RunState


def insert_queued(connection: sa.Connection, request: RunRequest, state: RunState, row: Mapping[str, Any]) -> None:
    """Insert a queued run at the end of the queue of its conversation; raises ConversationBusy, QueueFull."""
    key = None
    if request.conversation_id is not None:
        key = conversation_key(request.conversation_id, request.tenant)
        delete_expired(connection, time.time(), key)
        open_run = _lock_conversation(connection, key, request)
        waiting = sa.select(sa.func.count()).where(is_waiting(key))
        check_queue(request, open_run, connection.execute(waiting).scalar_one())
    insert_run(connection, state, {**row, "status": "queued", "conversation_id": key})


def _lock_conversation(connection: sa.Connection, key: str, request: RunRequest) -> str | None:
    """Insert the conversation if it is new, lock it until the transaction ends, and return its open run."""
    now, insert = time.time(), sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    owner = {"user_id": to_sql_text(request.user), "tenant": to_sql_text(request.tenant)}
    row = insert(conversations).values(id=key, created_at=now, updated_at=now, **owner)
    upsert = row.on_conflict_do_update(index_elements=["id"], set_={"turns": conversations.c.turns})
    open_run: str | None = connection.execute(upsert.returning(conversations.c.open_run)).scalar_one()
    return open_run


def insert_key(connection: sa.Connection, idempotency: IdempotencyKey, run_id: str) -> str:
    """Save an idempotency key, and return the id of its run: this one, or an earlier one with the same request.

    Raises:
        IdempotencyConflict: the key was used for a different request.
    """
    now, insert = time.time(), sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    columns = idempotency_keys.c
    row = {"digest": idempotency.digest, "run_id": run_id, "created_at": now}
    key = content_digest(f"{len(idempotency.scope)}:{idempotency.scope}{idempotency.key}")
    is_expired = columns.created_at <= now - IDEMPOTENCY_SECONDS
    upsert = insert(idempotency_keys).values(key=key, **row)
    upsert = upsert.on_conflict_do_update(index_elements=["key"], set_=row, where=is_expired)
    if connection.execute(upsert.returning(columns.run_id)).one_or_none() is not None:
        return run_id
    earlier = connection.execute(sa.select(columns.digest, columns.run_id).where(columns.key == key)).one()
    check_same_request(idempotency, earlier.digest)
    return str(earlier.run_id)


def delete_expired_keys(connection: sa.Connection, now: float) -> None:
    """Delete idempotency keys that are no longer valid."""
    connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.created_at <= now - IDEMPOTENCY_SECONDS))


def select_claimable(
    connection: sa.Connection,
    database: Database,
    leases: RunLeases,
    limit: int,
    run_id: str | None = None,
    *,
    lock: bool = False,
) -> list[tuple[int, float | None]]:
    """Return the queued runs that can begin, oldest first: their numbers, and the ends of earlier leases.

    Args:
        connection: the connection.
        database: the database.
        leases: leases of this store, to determine which runs are held.
        limit: the maximum number of runs.
        run_id: return only this run.
        lock: lock the runs until the transaction ends, and skip those that are locked.
    """
    wanted = has_status("queued")
    if run_id is not None:
        wanted = sa.and_(wanted, runs.c.id == storable(run_id))
    claimed = sa.select(runs.c.no, runs.c.owner, runs.c.lease_boot, is_leased(database))
    abandoned = [
        row.no
        for row in connection.execute(claimed.where(wanted, runs.c.owner.is_not(None)))
        if not leases.is_held(row.owner, row.lease_boot, leased=bool(row.leased))
    ]
    is_free = sa.or_(runs.c.owner.is_(None), runs.c.no.in_(abandoned))
    select = sa.select(runs.c.no, runs.c.lease_until).where(wanted, is_free, _is_next())
    if lock:
        select = select.with_for_update(skip_locked=True, of=runs)
    return [(row.no, row.lease_until) for row in connection.execute(select.order_by(runs.c.no).limit(limit))]


def _is_next() -> sa.ColumnElement[bool]:
    """Return the condition that a queued run is the first of its conversation, and no run of it is open."""
    other = runs.alias()
    waits = other.c.status == sa.literal_column("'queued'")
    is_behind = sa.exists().where(other.c.conversation_id == runs.c.conversation_id, other.c.no < runs.c.no, waits)
    is_open = conversations.c.open_run.is_not(None)
    is_busy = sa.exists().where(conversations.c.id == runs.c.conversation_id, is_open)
    return sa.or_(runs.c.conversation_id.is_(None), sa.and_(~is_behind, ~is_busy))


def claim_queued(
    connection: sa.Connection,
    database: Database,
    number: int,
    lease_until: float | None,
    lease: RunLease,
    seconds: float,
) -> RunRequest | None:
    """Claim a queued run; return None if its earlier lease was renewed since it was read."""
    is_free = runs.c.owner.is_(None) if lease_until is None else runs.c.lease_until == lease_until
    claim = sa.update(runs).where(runs.c.no == number, has_status("queued"), is_free)
    values = {
        **lease_columns(database, lease, seconds),
        "attempts": sa.case((runs.c.owner.is_(None), runs.c.attempts), else_=runs.c.attempts + 1),
    }
    row = connection.execute(claim.values(values).returning(runs.c.request, runs.c.attempts)).one_or_none()
    return None if row is None else _request(row)


def claimed_by(connection: sa.Connection, lease_names: Collection[str]) -> Iterator[tuple[str, RunRequest]]:
    """Yield the queued runs that are claimed under these leases, with the name of the lease, oldest first."""
    columns = (runs.c.owner, runs.c.request, runs.c.attempts)
    claimed = sa.select(*columns).where(has_status("queued"), runs.c.owner.in_(lease_names)).order_by(runs.c.no)
    for row in connection.execute(claimed):
        yield row.owner, _request(row)


def release_claims(connection: sa.Connection, lease_names: Collection[str]) -> None:
    """Release the queued runs that are claimed under these leases."""
    claimed = sa.update(runs).where(has_status("queued"), runs.c.owner.in_(lease_names))
    connection.execute(claimed.values(owner=None, lease_until=None, lease_boot=None))


def begin_queued(
    connection: sa.Connection,
    database: Database,
    state: RunState,
    row: Mapping[str, Any],
    lease: RunLease,
    lease_seconds: float,
) -> HeldRow:
    """Begin a run that is claimed under `lease`; raises RunTaken if another process has claimed it since."""
    claimed = sa.update(runs).where(runs.c.id == state.run_id, has_status("queued"), runs.c.owner == lease.name)
    values = {
        **run_columns(state),
        **lease_columns(database, lease, lease_seconds),
        "status": "running",
        "request": None,
        "attempts": 0,
        "version": runs.c.version + 1,
        **row,
    }
    begun = connection.execute(claimed.values(values).returning(*HELD_COLUMNS)).one_or_none()
    if begun is None:
        raise RunTaken(f"another process has claimed run {state.run_id}; this process does not begin it")
    return held_row(begun)


def _request(row: Any) -> RunRequest:
    return RunRequest.model_validate_json(row.request).model_copy(update={"attempts": row.attempts})
