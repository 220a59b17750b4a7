"""The tables of a store, and the migrations between their versions, for SQLite and PostgreSQL.

A released migration is never changed: later changes are new migrations at the end of the list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from framework.store.sql.texts import SEPARATOR
from framework.types.errors import StoreTooNew
from framework.types.status import Status

metadata = sa.MetaData()
_Long = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_MIGRATION_LOCK = 0x6167656E7473

versions = sa.Table(
    "agentsd_schema",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("applied_at", sa.Double, nullable=False),
)

conversations = sa.Table(
    "agentsd_conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("user_id", sa.Text),
    sa.Column("tenant", sa.Text),
    sa.Column("agent", sa.Text),
    sa.Column("open_run", sa.Text),
    sa.Column("turns", sa.Integer, nullable=False, server_default="0"),
    sa.Column("session", sa.Text, nullable=False, server_default="{}"),
    sa.Column("summary", sa.Text),
    sa.Column("summary_upto", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, index=True),
)
"""One row per conversation. `id` contains the tenant: see `texts.conversation_key`."""

runs = sa.Table(
    "agentsd_runs",
    metadata,
    sa.Column("no", _Long, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("conversation_id", sa.Text),
    sa.Column("turn", sa.Integer),
    sa.Column("user_id", sa.Text),
    sa.Column("tenant", sa.Text),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("blueprint", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, index=True),
    sa.Column("finish_reason", sa.Text, nullable=False, server_default=""),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("lease_until", sa.Double),
    sa.Column("lease_boot", sa.Double),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("steps", sa.Integer, nullable=False, server_default="0"),
    sa.Column("tokens", _Long, nullable=False, server_default="0"),
    sa.Column("expires_at", sa.Double),
    sa.Column("trace_id", sa.Text),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False, index=True),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double, index=True),
    sa.Column("head", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("request", sa.Text),
    sa.UniqueConstraint("conversation_id", "turn"),
)
"""One row per run. `head` is written once, `state` with every step. The other columns are used in queries.

`request` is set while the run is queued. `turn` is set when it begins.

`lease_until` is on the database's clock. `lease_boot`, for SQLite only, is on the machine's monotonic clock: processes
of the boot that `owner` names use it, because it does not depend on the time of day.
"""


def _run_table(name: str, *columns: sa.Column[Any]) -> sa.Table:
    """Return a table of rows that belong to a run, stored in the order of their key."""
    run = sa.Column("run_id", sa.Text, primary_key=True)
    return sa.Table(name, metadata, run, *columns, sqlite_with_rowid=False)


def _body() -> sa.Column[str]:
    return sa.Column("body", sa.Text, nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=True)


def _time(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=False)


messages = _run_table("agentsd_messages", _name("path"), _number("n"), _body())
"""Messages of runs and sub-runs. A conversation consists of the root messages of its answered turns."""

parts = _run_table("agentsd_parts", _name("path"), _name("kind"), _number("n"), _body())
"""Everything else that a run needs to resume: calls with their results, the trace, plans, sub-runs."""

events = _run_table("agentsd_events", _number("seq"), _time("at"), _body())

decisions = _run_table(
    "agentsd_decisions",
    _name("confirmation_id"),
    sa.Column("decision", sa.Text, nullable=False),
    sa.Column("decided_by", sa.Text),
    _time("decided_at"),
)

blueprints = sa.Table(
    "agentsd_blueprints",
    metadata,
    _name("digest"),
    sa.Column("files", sa.Text, nullable=False),
    _time("created_at"),
    sqlite_with_rowid=False,
)

spans = _run_table("agentsd_spans", _number("version"), _body())
"""Spans of a run that ended before the write of this version, as a JSON list."""

packed = _run_table("agentsd_packed", sa.Column("body", sa.LargeBinary, nullable=False))
"""Compressed parts, events and spans of an ended run; see `packing`."""

media = sa.Table(
    "agentsd_media",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    _time("used_at"),
)
"""Files in messages, each once. `used_at` is when a run last began to refer to the file."""

run_media = _run_table("agentsd_run_media", _name("digest"))
"""The files that a run's messages refer to. A file without a row here is deleted."""

sa.Index("ix_agentsd_run_media_digest", run_media.c.digest)

budget_counters = sa.Table(
    "agentsd_budget_counters",
    metadata,
    _name("budget"),
    _name("scope"),
    _name("period"),
    sa.Column("owner", sa.Text, index=True),
    sa.Column("tokens", _Long, nullable=False),
    sa.Column("cost_usd", sa.Double, nullable=False),
    sa.Column("ends_at", sa.Double),
    sqlite_with_rowid=False,
)
"""Use of shared budgets. `owner` is the conversation or run with which a row is deleted, `ends_at` its period's end."""

idempotency_keys = sa.Table(
    "agentsd_idempotency_keys",
    metadata,
    _name("key"),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    sa.Column("created_at", sa.Double, nullable=False, index=True),
    sqlite_with_rowid=False,
)
"""Requests that were sent with an idempotency key. `key` is a digest of the key and its scope."""


def has_status(status: Status) -> sa.ColumnElement[bool]:
    """Return the condition that a run has a status. It is a literal, because partial indexes need one."""
    return runs.c.status == sa.literal_column(f"'{status}'")


def is_waiting(key: sa.ColumnElement[str] | str) -> sa.ColumnElement[bool]:
    """Return the condition that a run waits in the queue of the conversation with this key."""
    # The comparison of numbers makes SQLite choose the index of waiting runs, not that of the status.
    return sa.and_(runs.c.conversation_id == key, runs.c.no > 0, has_status("queued"))


def _partial_index(name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool], **options: Any) -> sa.Index:
    return sa.Index(name, *columns, sqlite_where=where, postgresql_where=where, **options)


_PARTIAL_INDEXES = (
    _partial_index("ix_agentsd_runs_queued", runs.c.no, where=has_status("queued")),
    _partial_index("ix_agentsd_runs_waiting", runs.c.conversation_id, runs.c.no, where=has_status("queued")),
    _partial_index("ix_agentsd_runs_paused", runs.c.expires_at, where=has_status("paused")),
    _partial_index(
        "ix_agentsd_conversations_of_tenants",
        conversations.c.id,
        where=conversations.c.tenant.is_not(None),
        postgresql_ops={"id": "text_pattern_ops"},
    ),
)
"""Indexes of few rows. There is none on `lease_until`, which each step changes: a step would then update all indexes
of its row in PostgreSQL."""

Migration = Callable[[sa.Connection], None]


def _first(connection: sa.Connection) -> None:
    tables = (conversations, runs, messages, parts, events, decisions, blueprints)
    metadata.create_all(connection, tables=tables, checkfirst=False)


def _traces(connection: sa.Connection) -> None:
    spans.create(connection)


def _packed_runs(connection: sa.Connection) -> None:
    packed.create(connection)
    _add_column_of_runs(connection, runs.c.lease_boot)


def _version_4(connection: sa.Connection) -> None:
    for table in (media, run_media, budget_counters):
        table.create(connection)


def _version_5(connection: sa.Connection) -> None:
    _add_column_of_runs(connection, runs.c.request)
    idempotency_keys.create(connection)
    for index in _PARTIAL_INDEXES:
        index.create(connection, checkfirst=True)
    _move_conversations_to_tenants(connection)


def _add_column_of_runs(connection: sa.Connection, column: sa.Column[Any]) -> None:
    columns = {column["name"] for column in sa.inspect(connection).get_columns(runs.name)}
    if column.name not in columns:  # a new database has it: `_first` creates the current table
        kind = column.type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {runs.name} ADD COLUMN {column.name} {kind}")


def _move_conversations_to_tenants(connection: sa.Connection) -> None:
    """Add the tenant to the ids of conversations that have one, and to the scopes of their budget counters."""
    has_tenant = conversations.c.tenant.is_not(None)
    tenants = sa.select(conversations.c.id, conversations.c.tenant).where(has_tenant)
    for conversation_id, tenant in connection.execute(tenants).all():
        _move_counters(connection, conversation_id, tenant)
    key = conversations.c.id + SEPARATOR + conversations.c.tenant
    is_turn = sa.and_(has_tenant, conversations.c.id == runs.c.conversation_id)
    turns = sa.update(runs).where(sa.exists().where(is_turn))
    connection.execute(turns.values(conversation_id=sa.select(key).where(is_turn).scalar_subquery()))
    connection.execute(sa.update(conversations).where(has_tenant).values(id=key))


def _move_counters(connection: sa.Connection, conversation_id: str, tenant: str) -> None:
    owned = sa.select(budget_counters).where(budget_counters.c.owner == f"conversation:{conversation_id}")
    for row in connection.execute(owned).all():
        scope = json.dumps(json.loads(row.scope) | {"tenant": tenant}, ensure_ascii=False, sort_keys=True)
        tokens, cost = row.tokens, row.cost_usd
        is_counter = [budget_counters.c[name] == getattr(row, name) for name in ("budget", "scope", "period")]
        if scope != row.scope:  # a counter with the new scope is of an earlier definition of the budget: add it
            other = (is_counter[0], budget_counters.c.scope == scope, is_counter[2])
            returned = sa.delete(budget_counters).where(*other)
            for merged in connection.execute(returned.returning(budget_counters)).all():
                tokens, cost = tokens + merged.tokens, cost + merged.cost_usd
        values = {"scope": scope, "owner": f"conversation:{conversation_id}{SEPARATOR}{tenant}"}
        update = sa.update(budget_counters).where(*is_counter)
        connection.execute(update.values(tokens=tokens, cost_usd=cost, **values))


MIGRATIONS: Sequence[Migration] = (_first, _traces, _packed_runs, _version_4, _version_5)
"""The n-th migrates a database to version n. All run in one transaction."""


def upgrade(connection: sa.Connection) -> int:
    """Migrate a database to the newest version in the connection's transaction, and return its earlier version.

    Raises:
        StoreTooNew: the schema version is newer than this code supports.
    """
    if connection.dialect.name == "postgresql":  # two processes that start concurrently must not both create tables
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    versions.create(connection, checkfirst=True)
    version: int = connection.execute(sa.select(sa.func.coalesce(sa.func.max(versions.c.version), 0))).scalar_one()
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"the store has schema version {version}; this version of agentsd supports up to {len(MIGRATIONS)}: "
            "upgrade agentsd"
        )
    for number, migrate in enumerate(MIGRATIONS[version:], start=version + 1):
        migrate(connection)
        connection.execute(versions.insert().values(version=number, applied_at=time.time()))
    return version
