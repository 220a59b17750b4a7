"""SQL for runs: insert, load. Each function works within the transaction of its connection."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from framework.store.protocol import ANSWERED_STATUSES, OPEN_STATUSES, PREVIEW_CHARS, Blueprint, Conversation
from framework.store.queue_rules import overtaken
from framework.store.sql.leases import RunLease
from framework.store.sql.packing import PackedRun, load_packed
from framework.store.sql.schema import (
    blueprints,
    conversations,
    decisions,
    events,
    is_waiting,
    messages,
    parts,
    runs,
    spans,
)
from framework.store.sql.state_rows import RowKind, assemble_state
from framework.store.sql.texts import conversation_key, storable, to_sql_text
from framework.store.sql.upserts import insert_into
from framework.types.errors import RunNotFound, RunTaken, StoreError
from framework.types.state import Decision, MadeDecision, Rating, RunState

_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)


@dataclass(frozen=True, slots=True)
class HeldRow:
    """The row of a run that this process holds."""

    version: int
    cancel_requested: bool
    conversation: str | None
    """Key of its conversation."""
    is_queued: bool = False
    """Whether it was taken out of the queue without beginning it, to end it."""
    slots: Collection[str] = ()
    """Keys of the limits of which it holds a slot."""


HELD_COLUMNS = (runs.c.version, runs.c.cancel_requested, runs.c.conversation_id, runs.c.status)
"""The columns of `held_row`."""


def held_row(row: Any) -> HeldRow:
    """Return a row from its columns."""
    return HeldRow(row.version, bool(row.cancel_requested), row.conversation_id, row.status == "queued")


_CLAIM = (
    sa.update(conversations)
    .where(
        conversations.c.id == sa.bindparam("key"),
        conversations.c.open_run.is_(None),
        conversations.c.turns == sa.bindparam("turns_before"),
    )
    .values(open_run=sa.bindparam("run"), turns=conversations.c.turns + 1, updated_at=sa.bindparam("now"))
    .returning(conversations.c.turns)
)
_CLAIM_UNQUEUED = _CLAIM.where(~sa.exists().where(is_waiting(conversations.c.id)))
"""Built once, because every turn of a conversation executes one of them."""
_INSERT = sa.insert(runs).inline()


def claim_conversation(
    connection: sa.Connection, conversation: Conversation, state: RunState, now: float, *, is_queued: bool = False
) -> int:
    """Make the run the conversation's next turn, and return the turn's number; raises ConversationBusy.

    A run that is not queued is rejected while others wait.
    """
    key = conversation_key(conversation.id, conversation.tenant, conversation.user)
    if not conversation.turns:
        owner = {"user_id": to_sql_text(conversation.user), "tenant": to_sql_text(conversation.tenant)}
        new = insert_into(conversations, connection.dialect).values(id=key, created_at=now, updated_at=now, **owner)
        connection.execute(new.on_conflict_do_nothing(index_elements=["id"]))
    row = {"key": key, "turns_before": conversation.turns, "run": state.run_id, "now": now}
    claimed = connection.execute(_CLAIM if is_queued else _CLAIM_UNQUEUED, row).scalar_one_or_none()
    if claimed is None:
        raise overtaken(conversation)
    return int(claimed)


def insert_run(connection: sa.Connection, state: RunState, row: Mapping[str, Any], now: float) -> None:
    """Insert a run. `row` contains the columns that `run_columns` does not; raises RunTaken if the run is stored."""
    _insert(connection, state, sa.insert(runs).values({**_new_run(state, now), **row}))


def insert_held(
    connection: sa.Connection,
    state: RunState,
    row: Mapping[str, Any],
    lease: RunLease,
    process: str,
    now: float,
) -> HeldRow:
    """Insert a run that begins now, held by a process under `lease`. Raises as `insert_run`."""
    held = {"status": "running", "owner": lease.name, "process": process}
    _insert(connection, state, _INSERT, {**_new_run(state, now), **row, **held})
    return HeldRow(version=1, cancel_requested=False, conversation=row.get("conversation_id"))


def _insert(
    connection: sa.Connection, state: RunState, insert: sa.Insert, row: Mapping[str, Any] | None = None
) -> None:
    try:
        connection.execute(insert, row)
    except IntegrityError:
        message = f"run {state.run_id} is stored already, and this process has not claimed it"
        raise RunTaken(message) from None


def _new_run(state: RunState, now: float) -> dict[str, Any]:
    return {"id": state.run_id, "version": 1, "created_at": now, **run_columns(state, now)}


def run_columns(state: RunState, now: float) -> dict[str, Any]:
    """Return the columns of a run that are known when it begins."""
    return {
        "user_id": to_sql_text(state.user),
        "tenant": to_sql_text(state.tenant),
        "agent": to_sql_text(state.agent),
        "generation": state.generation,
        "digest": state.digest,
        "blueprint": state.blueprint,
        "message": to_sql_text(state.messages[0].description[:PREVIEW_CHARS]),
        "updated_at": now,
    }


def insert_blueprint(connection: sa.Connection, blueprint: Blueprint, now: float) -> None:
    """Save a blueprint, or refresh its time if it exists, so that it is not deleted as unused."""
    files = orjson.dumps(dict(blueprint.files)).decode()
    row = insert_into(blueprints, connection.dialect).values(digest=blueprint.digest, files=files, created_at=now)
    upsert = row.on_conflict_do_update(index_elements=["digest"], set_={"created_at": row.excluded.created_at})
    connection.execute(upsert)


def load_run(connection: sa.Connection, run_id: str) -> RunState:
    """Return the last saved state of a run; raises RunNotFound, or StoreError if the rows are damaged."""
    columns = (runs.c.head, runs.c.state, runs.c.version, runs.c.status, runs.c.conversation_id, runs.c.turn)
    row = connection.execute(sa.select(*columns).where(runs.c.id == to_sql_text(run_id))).one_or_none()
    if row is None:
        raise RunNotFound(f"there is no run {run_id!r}")
    is_turn = row.conversation_id is not None and row.turn is not None
    earlier = load_history(connection, row.conversation_id, row.turn) if is_turn else []
    try:
        state = assemble_state(_parts(connection, run_id, row), earlier, row.version)
        state.decisions |= _load_decisions(connection, run_id)
    except (ValidationError, ValueError, KeyError, LookupError) as error:
        raise StoreError(f"run {run_id} cannot be read: {type(error).__name__}") from None
    if row.status in OPEN_STATUSES:  # the saved state may contain an end that was not committed to the row
        state.status = row.status
    if row.status == "running":  # taken over: its confirmations are decided, or will be requested again
        state.pending = []
    return state


def _load_decisions(connection: sa.Connection, run_id: str) -> dict[str, Decision]:
    """Return the decisions, including those of a process that ended before it saved a step."""
    query = sa.select(decisions.c.confirmation_id, decisions.c.decision).where(decisions.c.run_id == run_id)
    return {key: _DECISION.validate_json(body) for key, body in connection.execute(query)}


def load_decisions(connection: sa.Connection, run_id: str) -> list[MadeDecision]:
    """Return the decisions about a run with who made them, in order; raises RunNotFound."""
    found = latest_decisions(connection, [run_id])
    if not found:
        _check_exists(connection, run_id)
    return found[::-1]


def latest_decisions(
    connection: sa.Connection, run_ids: Collection[str], limit: int | None = None
) -> list[MadeDecision]:
    """Return the decisions about runs, the latest first."""
    query = sa.select(decisions).where(decisions.c.run_id.in_(run_ids)).limit(limit)
    return [
        MadeDecision(
            run_id=row.run_id,
            confirmation_id=row.confirmation_id,
            decision=_DECISION.validate_json(row.decision),
            by=row.decided_by,
            at=datetime.fromtimestamp(row.decided_at, UTC),
        )
        for row in connection.execute(query.order_by(decisions.c.decided_at.desc(), decisions.c.confirmation_id.desc()))
    ]


def rate_run(connection: sa.Connection, run_id: str, rating: Rating | None) -> None:
    """Save a rating of a run, or delete it; raises RunNotFound."""
    values: dict[str, str | float | None] = {"rating": None, "rating_comment": None, "rated_by": None, "rated_at": None}
    if rating is not None:
        values |= {"rating": rating.value, "rating_comment": storable(rating.comment)}
        values |= {"rated_by": to_sql_text(rating.by), "rated_at": rating.at.timestamp()}
    if not connection.execute(sa.update(runs).where(runs.c.id == run_id).values(values)).rowcount:
        raise RunNotFound(f"there is no run {run_id!r}")


def _check_exists(connection: sa.Connection, run_id: str) -> None:
    """Raise RunNotFound if a run is not stored."""
    if connection.execute(sa.select(runs.c.no).where(runs.c.id == run_id)).one_or_none() is None:
        raise RunNotFound(f"there is no run {run_id!r}")


def _parts(connection: sa.Connection, run_id: str, row: Any) -> Iterator[tuple[str, RowKind, str]]:
    yield "", "head", row.head
    yield "", "state", row.state
    if row.status not in OPEN_STATUSES and (found := load_packed(connection, run_id)) is not None:
        yield from found.parts
    said = sa.select(messages.c.path, messages.c.body).where(messages.c.run_id == run_id)
    for path, body in connection.execute(said.order_by(messages.c.path, messages.c.n)):
        yield path, "message", body
    rest = sa.select(parts.c.path, parts.c.kind, parts.c.body).where(parts.c.run_id == run_id)
    for path, kind, body in connection.execute(rest.order_by(parts.c.path, parts.c.kind, parts.c.n)):
        yield path, kind, body


def load_history(connection: sa.Connection, key: str, before_turn: int | None = None) -> list[str]:
    """Return the messages of a conversation's answered turns as JSON, in order."""
    query = (
        sa.select(messages.c.body)
        .join(runs, runs.c.id == messages.c.run_id)
        .where(runs.c.conversation_id == key, runs.c.status.in_(ANSWERED_STATUSES), messages.c.path == "")
        .order_by(runs.c.turn, messages.c.n)
    )
    if before_turn is not None:
        query = query.where(runs.c.turn < before_turn)
    return list(connection.execute(query).scalars())


def load_events(connection: sa.Connection, run_id: str, after: int, name: str = "") -> list[dict[str, Any]]:
    """Return a run's events with a number above `after`, or those of one name; raises RunNotFound."""
    query = sa.select(events.c.body).where(events.c.run_id == run_id, events.c.seq > after).order_by(events.c.seq)
    bodies = list(connection.execute(query).scalars())
    if not bodies:
        bodies = [body for seq, body in _load_packed(connection, run_id).events if seq > after]
    if name:  # it begins the body: see `record`
        bodies = [body for body in bodies if body.startswith(f'{{"event":"{name}"')]
    return [json.loads(body) for body in bodies]  # unlike orjson, accepts integers of any size


def load_spans(connection: sa.Connection, run_id: str) -> list[str]:
    """Return a run's spans as JSON lists; raises RunNotFound."""
    bodies = list(connection.execute(sa.select(spans.c.body).where(spans.c.run_id == run_id)).scalars())
    return bodies or [*_load_packed(connection, run_id).spans]


def _load_packed(connection: sa.Connection, run_id: str) -> PackedRun:
    """Return the packed rows of a run, or empty ones if it is not packed; raises RunNotFound."""
    if (packed := load_packed(connection, run_id)) is not None:
        return packed
    _check_exists(connection, run_id)
    return PackedRun((), (), ())
