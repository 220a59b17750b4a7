"""SQL for the rows of one run: its state, figures, events, spans; packed once it has ended."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import orjson
import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from framework.store.schema import (
    as_json,
    blueprints,
    conversation_key,
    conversations,
    decisions,
    events,
    insert_into,
    is_waiting,
    messages,
    packed,
    parts,
    runs,
    spans,
)
from framework.store.types import ANSWERED_STATUSES, OPEN_STATUSES, PREVIEW_CHARS, Blueprint, Conversation
from framework.types.errors import ConversationBusy, RunNotFound, RunTaken, StoreError
from framework.types.events import dump_json
from framework.types.messages import ModelUse
from framework.types.plan import Plan
from framework.types.report import SpanRecord
from framework.types.state import CallRecord, Decision, MadeDecision, Rating, RunState
from framework.types.text import storable, to_sql_text

log = logging.getLogger(__name__)


DEFERRED = ConfigDict(defer_build=True)
"""For types that few processes read from a store."""
_SPANS = TypeAdapter(list[SpanRecord], config=DEFERRED)


def encode_spans(spans: Sequence[SpanRecord]) -> str | None:
    """Return the spans as a JSON list; None if there are none, or they cannot be serialized (logged, not raised)."""
    if not spans:
        return None
    try:
        return orjson.dumps(spans).decode()
    except TypeError as error:
        log.warning("some spans of a run were not stored: %s", error)
        return None


def decode_spans(bodies: Iterable[str]) -> list[SpanRecord]:
    """Return the spans of several JSON lists, sorted by start."""
    spans = [span for body in bodies for span in _SPANS.validate_json(body)]
    return sorted(spans, key=lambda span: span.start_ns)


RowKind = Literal["message", "call", "trace", "plan", "session", "decisions", "history", "head", "state"]

_HEAD = frozenset(
    {
        "schema_version",
        "run_id",
        "path",
        "agent",
        "generation",
        "digest",
        "blueprint",
        "conversation_id",
        "conversation_ttl",
        "copied_from",
        "user",
        "tenant",
        "locale",
        "inputs",
        "metadata",
        "base_path",
        "limits",
        "model_settings",
        "caller_instructions",
        "client",
        "output_schema",
    }
)
_DECISIONS: TypeAdapter[dict[str, Decision]] = TypeAdapter(dict[str, Decision], config=DEFERRED)
_GROWING = frozenset({"history", "messages", "calls", "trace", "children", "plan", "session", "decisions", "version"})


class StateRow(NamedTuple):
    """One row of a run's state."""

    path: str
    """Path of the sub-run as a JSON list; empty for the root run."""
    kind: RowKind
    n: int
    """Position among the rows of its kind."""
    body: str
    """JSON."""


@dataclass(slots=True)
class _Written:
    """The parts of a run or sub-run that were written so far."""

    messages: list[BaseModel] = field(default_factory=list)
    trace: list[BaseModel] = field(default_factory=list)
    calls: dict[str, CallRecord] = field(default_factory=dict)
    plan: Plan | None = None
    session: str = "{}"
    decisions: bytes = b"{}"
    state: str = ""


class StateDiff:
    """Tracks the written parts of a run, and returns the rows that changed since the last write."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], _Written] = {}

    def changes(self, state: RunState) -> list[StateRow]:
        """Return the rows that changed since the last call, including sub-runs. The root `state` row always counts."""
        path = orjson.dumps(state.path).decode() if state.path else ""
        rows: list[StateRow] = []
        written = self._written.get(state.path)
        if written is None:
            written = self._written[state.path] = _Written()
            head = state.model_dump_json(exclude_defaults=True, include=set(_HEAD))  # what callers gave is not repaired
            rows.append(StateRow(path, "head", 0, head))
        rows += _appended(path, "message", written.messages, state.messages)
        rows += _appended(path, "trace", written.trace, state.trace)
        for n, (key, record) in enumerate(state.calls.items()):
            if written.calls.get(key) is not record:
                written.calls[key] = record
                rows.append(StateRow(path, "call", n, _json(record)))
        if state.plan is not written.plan:
            written.plan = state.plan
            rows.append(StateRow(path, "plan", 0, _json(state.plan) if state.plan else "null"))
        if (state.session or written.session != "{}") and (session := json.dumps(state.session)) != written.session:
            written.session = session
            rows.append(StateRow(path, "session", 0, session))
        if state.decisions and (decisions := _DECISIONS.dump_json(state.decisions)) != written.decisions:
            written.decisions = decisions
            rows.append(StateRow(path, "decisions", 0, decisions.decode()))
        rest = _json(state, exclude=_REST)
        if rest != written.state or not state.path:
            written.state = rest
            rows.append(StateRow(path, "state", 0, rest))
        for child in state.children.values():
            rows += self.changes(child)
        return rows


_REST = set(_HEAD | _GROWING)  # pydantic accepts no frozenset


def history_rows(state: RunState) -> list[StateRow]:
    """Return the rows of the history that the caller passed with a run."""
    return [StateRow("", "history", n, _json(message)) for n, message in enumerate(state.history)]


def is_progress(row: StateRow) -> bool:
    """Return whether the row means progress of the run: a message, or the result of a call."""
    return row.kind in ("message", "trace")


def assemble_state(parts: Iterable[tuple[str, RowKind, str]], history: Sequence[str], version: int) -> RunState:
    """Rebuild a run's state from its rows; raises ValueError if rows are missing or damaged.

    `history` has the earlier messages of its conversation as JSON.
    """
    runs: dict[str, dict[str, list[str]]] = {}
    for path, kind, body in parts:
        runs.setdefault(path, {}).setdefault(kind, []).append(body)
    below: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(filter(None, runs), key=lambda path: -len(orjson.loads(path))):
        *above, key = orjson.loads(path)
        text = _run_json(runs[path], below.get(path, ()), {})
        below.setdefault(orjson.dumps(above).decode() if above else "", []).append((key, text))
    rest = {"version": str(version)}
    if history:
        summary = orjson.loads(runs[""]["state"][0]).get("summary") or {}
        rest["history"] = _json_array(history[summary.get("upto", 0) :])
    return RunState.model_validate_json(_run_json(runs[""], below.get("", ()), rest))


def _run_json(bodies: Mapping[str, list[str]], children: Iterable[tuple[str, str]], rest: Mapping[str, str]) -> str:
    """Join the JSON texts of a run's rows. They are not parsed, because not every parser keeps every number."""
    calls = ((orjson.loads(body)["call"]["id"], body) for body in bodies.get("call", ()))
    fields = {
        "messages": _json_array(bodies.get("message", ())),
        "history": _json_array(bodies.get("history", ())),
        "trace": _json_array(bodies.get("trace", ())),
        "calls": _json_object(calls),
        "plan": bodies.get("plan", ["null"])[0],
        "session": bodies.get("session", ["{}"])[0],
        "decisions": bodies.get("decisions", ["{}"])[0],
        "children": _json_object(children),
        **rest,
    }
    own_fields = (bodies[kind][0].strip()[1:-1] for kind in ("head", "state"))
    return "{" + ",".join([*filter(None, own_fields), _json_object(fields.items())[1:-1]]) + "}"


def _json_array(bodies: Iterable[str]) -> str:
    return f"[{','.join(bodies)}]"


def _json_object(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{orjson.dumps(key).decode()}:{body}" for key, body in members) + "}"


def _appended(path: str, kind: RowKind, written: list[BaseModel], now: Sequence[BaseModel]) -> list[StateRow]:
    """Return rows for items appended since the last write, and for the last written item if it was replaced."""
    start = len(written)
    if start and now[start - 1] is not written[-1]:
        start -= 1
    if start == len(now):
        return []
    written[start:] = now[start:]
    return [StateRow(path, kind, n, _json(now[n])) for n in range(start, len(now))]


def _json(model: BaseModel, **options: Any) -> str:
    return dump_json(model, exclude_defaults=True, **options)


MAX_PACKED_CHARS = 2_000_000
"""Runs with more text are not packed, because other runs of the database wait for the transaction."""
_LEVEL, _WINDOW, _MEMORY = 3, 14, 7
"""zlib parameters: a third of the time of the defaults, for output that is a fifth larger."""

_ROWS = (
    sa.select(parts.c.path, parts.c.kind, parts.c.body)
    .where(parts.c.run_id == sa.bindparam("run"))
    .order_by(parts.c.path, parts.c.kind, parts.c.n),
    sa.select(events.c.seq, events.c.body).where(events.c.run_id == sa.bindparam("run")).order_by(events.c.seq),
    sa.select(spans.c.body).where(spans.c.run_id == sa.bindparam("run")).order_by(spans.c.version),
)
_DELETE = [sa.delete(table).where(table.c.run_id == sa.bindparam("run")) for table in (parts, events, spans)]
_INSERT_PACKED = sa.insert(packed)


class PackedRun(NamedTuple):
    """The contents of a packed row."""

    parts: Sequence[tuple[str, RowKind, str]]
    """Path, kind and body, in order within each kind."""
    events: Sequence[tuple[int, str]]
    """Event number and body."""
    spans: Sequence[str]
    """JSON lists of spans."""


def pack(
    connection: sa.Connection,
    run_id: str,
    last_events: Sequence[tuple[int, str]] = (),
    last_spans: Sequence[tuple[str]] = (),
    only_parts: Sequence[tuple[str, RowKind, str]] | None = None,
) -> bool:
    """Replace the rows of an ended run by one packed row, in the connection's transaction.

    `only_parts` are all parts of a run that has no rows yet. Return whether the run was packed; otherwise, its last
    events and spans need rows.
    """
    run, has_rows = {"run": run_id}, only_parts is None
    tables: list[list[Any]] = [[*(only_parts or ())], [], []]
    if has_rows:
        tables = [[tuple(row) for row in connection.execute(rows, run)] for rows in _ROWS]
    tables[1] += last_events
    tables[2] += last_spans
    if not any(tables) or sum(len(found[-1]) for rows in tables for found in rows) > MAX_PACKED_CHARS:
        return False
    body = _compressed(dict(zip(("parts", "events", "spans"), tables, strict=True)))
    for delete in _DELETE if has_rows else ():
        connection.execute(delete, run)
    connection.execute(_INSERT_PACKED, {"run_id": run_id, "body": body})
    return True


def _compressed(tables: Mapping[str, Any]) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
    return compressor.compress(orjson.dumps(tables)) + compressor.flush()


def add_spans(connection: sa.Connection, run_id: str, spans_of_run: Sequence[SpanRecord]) -> None:
    """Add spans to the trace of a run that has ended; raises RunNotFound, or StoreError if it has not."""
    row = connection.execute(sa.select(runs.c.status).where(runs.c.id == run_id).with_for_update()).one_or_none()
    if row is None:
        raise RunNotFound(f"there is no run {run_id!r}")
    if row.status in OPEN_STATUSES:
        raise StoreError(f"run {run_id} has not ended: its trace is still being written")
    text = encode_spans(spans_of_run)
    body = connection.execute(sa.select(packed.c.body).where(packed.c.run_id == run_id)).scalar_one_or_none()
    if body is None:
        last = sa.select(sa.func.max(spans.c.version)).where(spans.c.run_id == run_id)
        version = (connection.execute(last).scalar_one_or_none() or 0) + 1
        connection.execute(sa.insert(spans), {"run_id": run_id, "version": version, "body": text})
        return
    tables: dict[str, Any] = orjson.loads(zlib.decompress(body))
    tables["spans"].append([text])
    connection.execute(sa.update(packed).where(packed.c.run_id == run_id).values(body=_compressed(tables)))


def load_packed(connection: sa.Connection, run_id: str) -> PackedRun | None:
    """Return the packed rows of a run, or None if it is not packed."""
    body = connection.execute(sa.select(packed.c.body).where(packed.c.run_id == run_id)).scalar_one_or_none()
    if body is None:
        return None
    tables: dict[str, Any] = orjson.loads(zlib.decompress(body))
    return PackedRun(
        [(path, kind, text) for path, kind, text in tables["parts"]],
        [(seq, text) for seq, text in tables["events"]],
        [text for (text,) in tables["spans"]],
    )


_PATHS: Mapping[str, tuple[str, ...]] = {
    "input_tokens": ("usage", "prompt_tokens"),
    "output_tokens": ("usage", "completion_tokens"),
    "cached_tokens": ("usage", "cached_tokens"),
    "cost_usd": ("usage", "cost_usd"),
    "elapsed_ms": ("elapsed_ms",),
    "tool_calls": ("tool_calls",),
}
"""Where a run's state contains the value of a column. The state leaves out what is 0."""
_MODEL_USES: TypeAdapter[dict[str, ModelUse]] = TypeAdapter(dict[str, ModelUse], config=DEFERRED)
UNMEASURED = dict.fromkeys((*_PATHS, "unpriced_calls", "model_uses"))
"""The columns of a run in progress."""


def figure_columns(state: RunState) -> dict[str, Any]:
    """Return the columns of a run that pauses or ends."""
    usage, uses = state.usage, state.model_uses
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost_usd": usage.cost_usd,
        "elapsed_ms": state.elapsed_ms,
        "tool_calls": state.tool_calls,
        "unpriced_calls": sum(use.unpriced_calls for use in uses.values()),
        "model_uses": _uses_json(uses) if uses else None,
    }


def _uses_json(uses: dict[str, ModelUse]) -> str:
    """Return JSON that PostgreSQL accepts, whatever the names of the models contain."""
    return storable(_MODEL_USES.dump_json(uses, exclude_defaults=True).decode()).replace("\\u0000", "\\ufffd")


def figure(name: str, dialect: str) -> sa.ColumnElement[Any]:
    """Return a figure of a run as a number, whether it is in its column or in its state."""
    value = _state(dialect)[_PATHS[name]].as_float()
    column = runs.c[name]
    return sa.func.coalesce(column, sa.cast(value, column.type), sa.literal_column("0"))


def has_unknown_cost(dialect: str) -> sa.ColumnElement[bool]:
    """Return the condition that a call of a run has an unknown price; without the column, a cost of 0 means that."""
    unpriced, is_free = runs.c.unpriced_calls, figure("cost_usd", dialect) == 0
    return sa.case((unpriced.is_not(None), unpriced > 0), else_=sa.and_(is_free, runs.c.tokens > 0))


def known_cost(dialect: str) -> sa.ColumnElement[Any]:
    """Return the cost of the calls of a run whose cost is known, or null if that is none of them."""
    cost, unpriced = figure("cost_usd", dialect), runs.c.unpriced_calls
    if dialect == "sqlite":
        kind: Any = sa.func.json_type(_valid_state(), "$.usage.cost_usd")
    else:
        kind = sa.func.json_typeof(_state(dialect)["usage", "cost_usd"])
    in_progress = sa.and_(unpriced.is_(None), sa.func.coalesce(kind, "") == "null")
    return sa.case((sa.or_(sa.and_(unpriced > 0, cost == 0), in_progress), None), else_=cost)


def model_uses(dialect: str) -> sa.ColumnElement[Any]:
    """Return what a run has used of each model as JSON, or null if that is unknown."""
    return sa.func.coalesce(runs.c.model_uses, _state(dialect)["model_uses"].as_string())


def _state(dialect: str) -> Any:
    if dialect == "sqlite":  # reads JSON from text; a damaged state must not hide the other runs
        return sa.type_coerce(_valid_state(), sa.JSON)
    return as_json(runs.c.state)


def _valid_state() -> sa.ColumnElement[Any]:
    return sa.case((sa.func.json_valid(runs.c.state), runs.c.state))


_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision, config=DEFERRED)


@dataclass(frozen=True, slots=True)
class HeldRow:
    """The row of a run that this process holds."""

    version: int
    cancel_requested: bool
    conversation: str | None
    """Key of its conversation."""
    is_queued: bool = False
    """Whether it was taken out of the queue without start it, to end it."""
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
        new = insert_into(conversations, connection.dialect.name).values(
            id=key, created_at=now, updated_at=now, **owner
        )
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
    lease: str,
    process: str,
    now: float,
) -> HeldRow:
    """Insert a run that starts now, held by a process under `lease`. Raises as `insert_run`."""
    held = {"status": "running", "owner": lease, "process": process}
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
    """Return the columns of a run that are known when it starts."""
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
    row = insert_into(blueprints, connection.dialect.name).values(digest=blueprint.digest, files=files, created_at=now)
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
    if connection.execute(sa.select(runs.c.no).where(runs.c.id == run_id)).one_or_none() is None:
        raise RunNotFound(f"there is no run {run_id!r}")


def _parts(connection: sa.Connection, run_id: str, row: Any) -> Iterator[tuple[str, RowKind, str]]:
    yield "", "head", row.head
    yield "", "state", row.state
    if row.status not in OPEN_STATUSES and (found := load_packed(connection, run_id)) is not None:
        yield from found.parts
    rows = sa.select(messages.c.path, messages.c.body).where(messages.c.run_id == run_id)
    for path, body in connection.execute(rows.order_by(messages.c.path, messages.c.n)):
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
    if name:  # it starts the body: see `record`
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


def overtaken(conversation: Conversation) -> ConversationBusy:
    """Return the error of a run whose conversation has changed since it was loaded."""
    return ConversationBusy(f"conversation {conversation.id!r} is busy: another run of it started first or waits")
