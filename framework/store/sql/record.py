"""One run that this process holds in a database: a step is one transaction, compared and set on the run's version."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from pydantic_core import PydanticSerializationError
from sqlalchemy.dialects import postgresql, sqlite

from framework.store.sql.database import Database
from framework.store.sql.leases import RunLease
from framework.store.sql.packing import Packer
from framework.store.sql.prepared_statement import PreparedStatement
from framework.store.sql.schema import conversations, events, messages, parts, runs
from framework.store.sql.schema import spans as spans_table
from framework.store.sql.span_rows import encode_spans
from framework.store.sql.state_rows import StateDiff, StateRow, is_progress
from framework.types.errors import RunTaken, StoreError
from framework.types.events import WIRE_NAMES, Event
from framework.types.state import RunState
from framework.types.trace import SpanRecord

LEASE_SECONDS = 10.0
"""After so long without a sign of life anybody may take a run over."""

_MINE = (
    runs.c.id == sa.bindparam("run"),
    runs.c.version == sa.bindparam("was"),
    runs.c.owner == sa.bindparam("me"),
)


class Statements:
    """What a record executes, built once for a database."""

    def __init__(self, database: Database) -> None:
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        lease_seconds = database.now + sa.bindparam("lease", type_=sa.Double)
        step = sa.update(runs).where(*_MINE).returning(runs.c.cancel_requested)
        kept = {"version": sa.bindparam("is"), **_named("state", "steps", "tokens", "trace_id", "updated_at")}
        ended = _named("status", "finish_reason", "ended_at", "expires_at")
        free = sa.update(conversations).where(
            conversations.c.id == sa.bindparam("conversation"), conversations.c.open_run == sa.bindparam("run")
        )
        freed = {"open_run": None, **_named("updated_at", "expires_at")}
        summed_up = sa.update(conversations).where(conversations.c.id == sa.bindparam("conversation"))

        def prepared(statement: sa.Executable, table: sa.Table | None = None) -> PreparedStatement:
            columns = None if table is None else [column.name for column in table.columns]
            return PreparedStatement(statement, database.dialect, columns)

        def upsert(table: sa.Table) -> PreparedStatement:
            add, key = insert(table), [column.name for column in table.primary_key]
            return prepared(add.on_conflict_do_update(index_elements=key, set_={"body": add.excluded.body}), table)

        held = {"lease_until": lease_seconds, **_named("lease_boot")}
        let_go = {"owner": None, "lease_until": None, "lease_boot": None}
        self.step = prepared(step.values(**held, **kept))
        self.progress = prepared(step.values(**held, attempts=0, **kept))
        self.end = prepared(step.values(**let_go, attempts=0, **kept, **ended))
        self.release = prepared(sa.update(runs).where(*_MINE).values(**let_go))
        self.packer = Packer(database)
        self.message, self.part = upsert(messages), upsert(parts)
        self.event, self.spans = prepared(sa.insert(events), events), prepared(sa.insert(spans_table), spans_table)
        self.close_turn = prepared(free.values(**freed))
        self.close_answered_turn = prepared(free.values(**freed, **_named("agent", "session")))
        summary: dict[str, Any] = {"summary": sa.bindparam("text"), "summary_upto": sa.bindparam("upto")}
        self.save_summary = prepared(summed_up.values(**summary))


def _named(*columns: str) -> dict[str, Any]:
    return {name: sa.bindparam(name) for name in columns}


@dataclass(slots=True)
class RowBatch:
    """The rows of one write."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    state: str = ""
    progress: bool = False

    def add(self, run_id: str, changes: Sequence[StateRow]) -> None:
        """Sort what has changed by table."""
        for part in changes:
            self.progress = self.progress or is_progress(part)
            if part.kind == "state" and not part.path:
                self.state = part.body
            elif part.kind == "message":
                self.messages.append({"run_id": run_id, "path": part.path, "n": part.n, "body": part.body})
            elif part.kind != "head" or part.path:
                row = {"run_id": run_id, "path": part.path, "kind": part.kind, "n": part.n, "body": part.body}
                self.parts.append(row)

    def insert(self, connection: sa.Connection, statements: Statements) -> None:
        """Write the rows that are added to others."""
        statements.message.execute_many(connection, self.messages)
        statements.part.execute_many(connection, self.parts)
        statements.event.execute_many(connection, self.events)


class SqlRecord:
    """A run that this process holds in a database."""

    def __init__(
        self,
        database: Database,
        statements: Statements,
        state: RunState,
        diff: StateDiff,
        lease: RunLease,
        lease_seconds: float,
    ) -> None:
        self.cancel_requested = False
        self._database, self._statements, self._lease, self._lease_seconds = database, statements, lease, lease_seconds
        self._run_id, self._version, self._diff = state.run_id, state.version, diff

    async def write(
        self, state: RunState, events: Sequence[Event] = (), spans: Sequence[SpanRecord] = (), *, last: bool = False
    ) -> None:
        """One transaction: what has changed, the events, and at the end what the conversation is told.

        After a failure the record is not to be used any more: the run may be taken over at once, by this process too.
        """
        goes_on = False
        try:
            await self._write(state, events, spans, last=last)
            goes_on = not last
        except RunTaken:
            raise
        except StoreError as error:
            raise StoreError(f"the run {self._run_id} stops: {error.message}") from None
        finally:
            if not goes_on:
                self._lease.end()

    async def _write(
        self, state: RunState, events: Sequence[Event], spans: Sequence[SpanRecord], *, last: bool
    ) -> None:
        now = time.time()
        batch = RowBatch()
        try:
            batch.add(self._run_id, self._diff.changes(state))
            batch.events = [
                {"run_id": self._run_id, "seq": event.seq, "at": now, "body": _wire(event)} for event in events
            ]
        except (PydanticSerializationError, TypeError, ValueError) as error:
            raise StoreError(f"it cannot be written as JSON: {type(error).__name__}") from None
        row = {
            "run": self._run_id,
            "me": self._lease.name,
            "state": batch.state,
            "steps": state.steps,
            "tokens": state.usage.total_tokens,
            "trace_id": state.trace_id,
            "updated_at": now,
        }
        traced = encode_spans(spans)
        more = (
            _end_columns(state, now)
            if last
            else {"lease": self._lease_seconds, "lease_boot": self._lease.boot_lease(self._lease_seconds)}
        )
        statement = self._statements.progress if batch.progress else self._statements.step
        statement = self._statements.end if last else statement

        def work(connection: sa.Connection) -> bool:
            cancelled = self._compare_and_set(connection, statement, row | more)
            batch.insert(connection, self._statements)
            if traced:
                row_of_spans = {"run_id": self._run_id, "version": self._version + 1, "body": traced}
                self._statements.spans.execute(connection, row_of_spans)
            if last and state.status != "paused":
                self._statements.packer.pack(connection, self._run_id)
            if last and state.conversation_id and state.status != "paused":
                self._close_turn(connection, state, now)
            return cancelled

        self.cancel_requested = await self._database.write(work, self._committed)
        self._version += 1
        state.version = self._version

    async def release(self) -> None:
        """Let the run go as it was last written."""
        self._lease.end()
        mine = {"run": self._run_id, "was": self._version, "me": self._lease.name}
        await self._database.write(lambda connection: self._statements.release.execute(connection, mine))

    def _compare_and_set(self, connection: sa.Connection, statement: PreparedStatement, row: dict[str, Any]) -> bool:
        """Compare the version and set the row; returns whether a cancel request is on record.

        Raises:
            RunTaken: another process holds the run.
        """
        found = statement.execute(connection, row | {"was": self._version, "is": self._version + 1})
        if found is None:
            raise RunTaken(f"another process has taken over the run {self._run_id}: this one stops")
        return bool(found[0])

    def _committed(self, connection: sa.Connection) -> bool | None:
        """After the connection broke: whether a cancel request is on record, or None if the write is to be repeated.

        Only a retry may read a row without an owner as this record's last write. At a first attempt it means that the
        run was taken over and released meanwhile.
        """
        row = connection.execute(
            sa.select(runs.c.version, runs.c.owner, runs.c.cancel_requested).where(runs.c.id == self._run_id)
        ).one_or_none()
        if row is None or row.version != self._version + 1 or row.owner not in (self._lease.name, None):
            return None
        return bool(row.cancel_requested)

    def _close_turn(self, connection: sa.Connection, state: RunState, now: float) -> None:
        if (summary := state.summary) is not None:
            kept = {"conversation": state.conversation_id, "text": summary.model_dump_json(), "upto": summary.upto}
            self._statements.save_summary.execute(connection, kept)
        expires = None if state.conversation_ttl is None else now + state.conversation_ttl
        told = {"conversation": state.conversation_id, "run": self._run_id, "updated_at": now, "expires_at": expires}
        if state.status in ("completed", "stopped"):
            session = json.dumps(state.session)
            self._statements.close_answered_turn.execute(connection, told | {"agent": state.agent, "session": session})
        else:
            self._statements.close_turn.execute(connection, told)


def _wire(event: Event) -> str:
    """As `wire` has it, written by pydantic itself."""
    return f'{{"event":"{WIRE_NAMES[type(event)]}",{event.model_dump_json(exclude_none=True)[1:]}'


def _end_columns(state: RunState, now: float) -> dict[str, Any]:
    expiries = [asked.expires_at.timestamp() for asked in state.pending if asked.expires_at]
    return {
        "status": state.status,
        "finish_reason": state.finish_reason,
        "ended_at": None if state.status == "paused" else now,
        "expires_at": min(expiries, default=None),
    }
