"""Writes one run that this process holds. Each step is one transaction, compare-and-set on the run's version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import sqlalchemy as sa
from pydantic_core import PydanticSerializationError

from framework.store.conversations import delete_without_turns
from framework.store.database import Database, Work
from framework.store.limits import RELEASED, UNCOUNTED, CounterStatements, RunOffers, free_slots
from framework.store.processes import RunLeases, notification, payload
from framework.store.runs import (
    UNMEASURED,
    HeldRow,
    StateDiff,
    StateRow,
    encode_spans,
    figure_columns,
    is_progress,
    pack,
)
from framework.store.schema import (
    conversations,
    events,
    insert_into,
    messages,
    parts,
    runs,
)
from framework.store.schema import spans as spans_table
from framework.store.types import ANSWERED_STATUSES, CancelAccepted, CopiedTurn, Signal
from framework.types.budget import BudgetUse
from framework.types.errors import RunTaken, StoreError
from framework.types.events import Event, dump_json, wire_json
from framework.types.report import SpanRecord, Status
from framework.types.state import RunState
from framework.types.text import to_sql_text

_HELD_BY_ME = (
    runs.c.id == sa.bindparam("run"),
    runs.c.version == sa.bindparam("was"),
    runs.c.owner == sa.bindparam("me"),
)
_INSERT_EVENTS, _INSERT_SPANS = sa.insert(events), sa.insert(spans_table)


class Statements:
    """The statements of records for one kind of database: SQLAlchemy finds what it compiled by the statement."""

    def __init__(self, dialect: str) -> None:
        sent = () if dialect == "sqlite" else (notification("news"),)
        step = sa.update(runs).where(*_HELD_BY_ME).returning(runs.c.cancel_requested, *sent)
        progress = {"version": sa.bindparam("is"), **_named("state", "steps", "tokens", "trace_id", "updated_at")}
        ended = _named("status", "finish_reason", "ended_at", "expires_at", *UNMEASURED)
        close_turn = sa.update(conversations).where(
            conversations.c.id == sa.bindparam("conversation"), conversations.c.open_run == sa.bindparam("run")
        )
        closed = {"open_run": None, **_named("updated_at", "expires_at")}
        save_summary = sa.update(conversations).where(conversations.c.id == sa.bindparam("conversation"))

        def upsert(table: sa.Table) -> sa.Insert:
            add, key = insert_into(table, dialect), [column.name for column in table.primary_key]
            return add.on_conflict_do_update(index_elements=key, set_={"body": add.excluded.body})

        self.step = step.values(**progress)
        self.progress = step.values(attempts=0, crashes=0, refusals=None, **progress)
        unoffered = {"attempts": 0, "crashes": 0, "refusals": None, "offered_at": None, "request": None}
        self.end = step.values(**RELEASED, **unoffered, **progress, **ended)
        self.counters = CounterStatements(dialect)
        self.message, self.part = upsert(messages), upsert(parts)
        self.close_turn = close_turn.values(**closed)
        self.close_answered_turn = close_turn.values(**closed, **_named("agent", "handed_to", "session"))
        summary: dict[str, Any] = {"summary": sa.bindparam("text"), "summary_upto": sa.bindparam("upto")}
        self.save_summary = save_summary.values(**summary)


@cache
def statements_of(dialect: str) -> Statements:
    """Return the statements for a dialect of SQL. Building them takes longer than opening a store in memory."""
    return Statements(dialect)


def _named(*columns: str) -> dict[str, Any]:
    return {name: sa.bindparam(name) for name in columns}


@dataclass(slots=True)
class RowBatch:
    """The rows that one write inserts, as values by column."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    uses: Sequence[BudgetUse] = ()
    """Added to the counters of shared budgets."""
    spans: str | None = None
    """Spans as JSON."""
    head: str = ""
    state: str = ""
    progress: bool = False

    @classmethod
    def of_copy(cls, turn: CopiedTurn, now: float) -> RowBatch:
        """Return all rows of a run that has ended."""
        batch, run_id = cls(), turn.state.run_id
        batch.add(run_id, StateDiff().changes(turn.state))
        batch.add_events(run_id, turn.events, now)
        return batch

    def add(self, run_id: str, changes: Sequence[StateRow]) -> None:
        """Add changed rows of the run's state, sorted by table."""
        for part in changes:
            path, kind, n, body = part
            self.progress = self.progress or is_progress(part)
            if kind == "message":
                self.messages.append({"run_id": run_id, "path": path, "n": n, "body": body})
            elif kind == "state" and not path:
                self.state = body
            elif kind == "head" and not path:
                self.head = body
            else:
                self.parts.append({"run_id": run_id, "path": path, "kind": kind, "n": n, "body": body})

    def add_events(self, run_id: str, events: Sequence[Event], now: float) -> None:
        """Add events that were emitted until now."""
        self.events = [{"run_id": run_id, "seq": event.seq, "at": now, "body": wire_json(event)} for event in events]

    def insert(self, connection: sa.Connection, statements: Statements, *, is_packed: bool = False) -> None:
        """Insert or update the rows of the state and of counters, except parts that are packed."""
        if self.messages:
            connection.execute(statements.message, self.messages)
        if self.parts and not is_packed:
            connection.execute(statements.part, self.parts)
        if self.uses:
            statements.counters.add(connection, self.uses)

    def insert_events(self, connection: sa.Connection, run_id: str, version: int) -> None:
        """Insert the events, and the spans with the version that the run has after this write."""
        if self.events:
            connection.execute(_INSERT_EVENTS, self.events)
        if self.spans:
            connection.execute(_INSERT_SPANS, {"run_id": run_id, "version": version, "body": self.spans})

    def insert_packed(self, connection: sa.Connection, run_id: str) -> None:
        """Insert the events, packed with the rows that were inserted, unless these are too large."""
        if not pack(connection, run_id, [(row["seq"], row["body"]) for row in self.events]):
            self.insert_events(connection, run_id, 1)


class SqlRecord:
    """A run that this process holds under a lease."""

    def __init__(
        self,
        database: Database,
        offers: RunOffers,
        state: RunState,
        diff: StateDiff,
        leases: RunLeases,
        lease: str,
        held: HeldRow,
        is_followed: Callable[[str], bool],
        on_end: Callable[[sa.Connection, RunState], object],
        *,
        has_rows: bool,
        unsaved: RowBatch | None = None,
    ) -> None:
        self.cancel_requested = held.cancel_requested
        self._database, self._offers, self._leases, self._lease = database, offers, leases, lease
        self._statements = statements_of(database.dialect.name)
        self._run_id, self._version, self._diff = state.run_id, held.version, diff
        self._conversation, self._is_queued, self._is_followed = held.conversation, held.is_queued, is_followed
        self._on_end = on_end
        self._has_rows = has_rows
        """Whether parts, events or spans of the run are stored."""
        self._slots = held.slots
        self._attempts_are_reset = False
        """Whether this record has set the run's failed attempts back to 0, so that later steps need not."""
        self._unsaved = unsaved or RowBatch()
        """Rows that the next write contains: the first ones, or those of a last write that a cancel request prevented.
        """

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Write changed rows, events and spans in one transaction. The last write also closes the conversation's turn.

        After a failure the record must not be used any more: any process may take over the run immediately.
        """
        with self._failing():
            batch = self._batch(state, events, spans, uses)
            try:
                committed = partial(self._committed, end=state.status if last else None)
                cancelled = await self._database.write(self._work(state, batch, last=last), committed)
            except CancelAccepted:
                self._unsaved = batch
                raise
            self._saved(state, batch, cancelled=cancelled, last=last)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Release the lease after a write that fails."""
        is_held = False
        try:
            yield
            is_held = True
        except CancelAccepted:
            is_held = True
            raise
        except RunTaken:
            raise
        except StoreError as error:
            raise StoreError(f"run {self._run_id} stopped: {error.message}") from None
        finally:
            if not is_held:
                self._leases.end(self._lease)

    def _batch(
        self, state: RunState, events: Sequence[Event], spans: Sequence[SpanRecord], uses: Sequence[BudgetUse]
    ) -> RowBatch:
        """Return the rows to write: what has changed, and those of a last write that was prevented."""
        now, earlier = self._database.clock(), self._unsaved
        batch = RowBatch(uses=uses, spans=encode_spans(spans), progress=earlier.progress)
        batch.messages, batch.parts = earlier.messages, earlier.parts
        self._unsaved = RowBatch()
        try:
            batch.add(self._run_id, self._diff.changes(state))
            batch.add_events(self._run_id, events, now)
        except (PydanticSerializationError, TypeError, ValueError) as error:
            raise StoreError(f"its state cannot be serialized as JSON: {type(error).__name__}") from None
        return batch

    def _work(self, state: RunState, batch: RowBatch, *, last: bool) -> Work[bool]:
        """Return the function that writes the rows, in a transaction, and returns whether a cancel request exists."""
        now = self._database.clock()
        row = {
            "run": self._run_id,
            "was": self._version,
            "is": self._version + 1,
            "news": self._news(batch),
            "me": self._lease,
            "state": batch.state,
            "steps": state.steps,
            "tokens": state.usage.total_tokens,
            "trace_id": state.trace_id,
            "updated_at": now,
        }
        if last:
            row |= _end_columns(state, now)
        statement = (
            self._statements.progress if batch.progress and not self._attempts_are_reset else self._statements.step
        )
        statement = self._statements.end if last else statement

        def work(connection: sa.Connection) -> bool:
            cancelled = self._compare_and_set(connection, statement, row)
            if cancelled and last and state.status in ANSWERED_STATUSES:
                raise CancelAccepted
            has_ended = last and state.status != "paused"
            is_packed = has_ended and not self._has_rows and self._pack(connection, batch)
            batch.insert(connection, self._statements, is_packed=is_packed)
            if not (is_packed or (has_ended and self._has_rows and self._pack(connection, batch))):
                batch.insert_events(connection, self._run_id, self._version + 1)
            if last:
                self._end(connection, state, now)
                self._on_end(connection, state)
            return cancelled

        return work

    def _pack(self, connection: sa.Connection, batch: RowBatch) -> bool:
        """Pack a run that has ended, with its last events and spans; return False if it is too large."""
        events = [(row["seq"], row["body"]) for row in batch.events]
        spans, only_parts = [(batch.spans,)] if batch.spans else [], None
        if not self._has_rows:
            last = {(row["path"], row["kind"], row["n"]): row["body"] for row in batch.parts}
            only_parts = [(path, kind, body) for (path, kind, _), body in sorted(last.items())]
        return pack(connection, self._run_id, events, spans, only_parts)

    def _end(self, connection: sa.Connection, state: RunState, now: float) -> None:
        """Free the slots of a run that has ended or pauses, and close its turn."""
        if self._slots:
            free_slots(connection, self._offers, self._slots, self._run_id)
        if self._conversation is not None and state.status != "paused":
            self._close_turn(connection, self._conversation, state, now)

    def _saved(self, state: RunState, batch: RowBatch, *, cancelled: bool, last: bool) -> None:
        self.cancel_requested = cancelled
        self._version += 1
        self._has_rows = self._has_rows or bool(batch.parts or batch.events or batch.spans)
        self._attempts_are_reset = self._attempts_are_reset or batch.progress
        state.version = self._version
        if last:
            self._leases.end(self._lease)

    def _news(self, batch: RowBatch) -> str | None:
        """Return the notification of new events; None if there are none, or nobody follows the run."""
        if not batch.events or not self._is_followed(self._run_id):
            return None
        return payload(Signal("events", self._run_id, batch.events[-1]["seq"]))

    async def release(self) -> None:
        """Release the run in its last saved state, and offer it. Its slots are free for itself, so nobody is woken."""
        is_held = (runs.c.id == self._run_id, runs.c.version == self._version, runs.c.owner == self._lease)

        def work(connection: sa.Connection) -> None:
            self._offers.release(connection, sa.and_(*is_held), attempts=UNCOUNTED)

        try:
            await self._database.write(work)
        finally:
            self._leases.end(self._lease)

    def _compare_and_set(self, connection: sa.Connection, statement: sa.Executable, row: dict[str, Any]) -> bool:
        """Update the row if its version and owner are unchanged. Return whether a cancel request exists.

        Raises:
            RunTaken: another process has taken over the run.
        """
        returned = connection.execute(statement, row).one_or_none()
        if returned is None:
            raise RunTaken(f"another process has taken over run {self._run_id}; this process stops working on it")
        return bool(returned[0])

    def _committed(self, connection: sa.Connection, end: Status | None) -> bool | None:
        """Check, after a lost connection, whether the write was committed; `end` is the status of a last one.

        Return whether a cancel request exists, or None if the write must be repeated. Another process that has taken
        over the run, and released it, has left the same version, without an owner.
        """
        row = connection.execute(
            sa.select(runs.c.version, runs.c.owner, runs.c.status, runs.c.cancel_requested).where(
                runs.c.id == self._run_id
            )
        ).one_or_none()
        written = (self._version + 1, self._lease, "running") if end is None else (self._version + 1, None, end)
        return None if row is None or row[:3] != written else bool(row.cancel_requested)

    def _close_turn(self, connection: sa.Connection, conversation: str, state: RunState, now: float) -> None:
        if self._is_queued:  # no turn has started
            delete_without_turns(connection, conversation)
            self._offers.make_next_ready(connection, conversation)
            return
        if (summary := state.summary) is not None:
            summary_row = {
                "conversation": conversation,
                "text": dump_json(summary),
                "upto": summary.upto,
            }
            connection.execute(self._statements.save_summary, summary_row)
        expires = None if state.conversation_ttl is None else now + state.conversation_ttl
        row = {"conversation": conversation, "run": self._run_id, "updated_at": now, "expires_at": expires}
        if state.status in ANSWERED_STATUSES:
            session = json.dumps(state.session)
            answer = {"agent": state.agent, "handed_to": state.handed_to, "session": session}
            connection.execute(self._statements.close_answered_turn, row | answer)
        else:
            connection.execute(self._statements.close_turn, row)
        self._offers.make_next_ready(connection, conversation)


def copied_columns(state: RunState, now: float) -> dict[str, Any]:
    """Return the columns of a copy of a run that has ended, besides those of every run that starts."""
    figures = {"steps": state.steps, "tokens": state.usage.total_tokens, "trace_id": state.trace_id}
    return {**figures, **_end_columns(state, now), "copied_from": to_sql_text(state.copied_from)}


def _end_columns(state: RunState, now: float) -> dict[str, Any]:
    expiries = [one.expires_at.timestamp() for one in state.pending if one.expires_at]
    return {
        "status": state.status,
        "finish_reason": state.finish_reason,
        "ended_at": None if state.status == "paused" else now,
        "expires_at": min(expiries, default=None),
        **figure_columns(state),
    }
