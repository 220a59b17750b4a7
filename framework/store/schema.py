"""The tables and their indexes, the migrations to them, and INSERT statements with ON CONFLICT."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateColumn

from framework.store.types import SEARCHED_TEXTS, OwnerQuery
from framework.types.errors import ConfigError, StoreTooNew
from framework.types.report import Status
from framework.types.text import storable, to_sql_text

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql


metadata = sa.MetaData()
_Long = sa.BigInteger().with_variant(sa.Integer, "sqlite")

versions = sa.Table(
    "agentsd_versions",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("applied_at", sa.Double, nullable=False),
    sa.Column("min_version", sa.Integer),
)
"""One row per migration. `min_version` is the oldest schema version of code that may use the database after it."""

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
    sa.Column("forked_from", sa.Text),
    sa.Column("handed_to", sa.Text),
)
"""One row per conversation. `id` contains the tenant and user: see `conversation_key`.

`forked_from` is the id of the conversation, of the same tenant and user, whose first turns were copied to this one.
`handed_to` is the agent that answers instead of `agent`, which has handed the conversation over.
"""

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
    sa.Column("input_tokens", _Long),
    sa.Column("output_tokens", _Long),
    sa.Column("cached_tokens", _Long),
    sa.Column("cost_usd", sa.Double),
    sa.Column("elapsed_ms", sa.Double),
    sa.Column("tool_calls", sa.Integer),
    sa.Column("unpriced_calls", sa.Integer),
    sa.Column("model_uses", sa.Text),
    sa.Column("head", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("request", sa.Text),
    sa.Column("process", sa.Text),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("rank", sa.Double, nullable=False, server_default="0"),
    sa.Column("queue", sa.Text),
    sa.Column("ready", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("blocked_by", sa.Text),
    sa.Column("refusals", sa.Text),
    sa.Column("offered_at", sa.Double),
    sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("copied_from", sa.Text),
    sa.Column("rating", sa.Text),
    sa.Column("rating_comment", sa.Text),
    sa.Column("rated_by", sa.Text),
    sa.Column("rated_at", sa.Double),
    sa.UniqueConstraint("conversation_id", "turn"),
)
"""One row per run. `head` is written once, `state` with every step. The other columns are used in queries.

`request` is set while the run is queued. `turn` is set when it starts. The columns from `input_tokens` to `model_uses`
are set while the run is paused, and once it has ended; see `figure_columns`. `ended_at` is set from the end of the run
until its data is pruned.

`owner` is the name of the lease under which a run is held, and `process` the process that holds it: see `processes`.
Both are null while no process holds the run.

`ready` is set while a queued run can be claimed: it is the first of its conversation, no run of that is open, no
process has claimed it, and no limit blocks it. `blocked_by` names the limit that does, as in `agent:support`. Ready
runs are claimed in the order of `priority` (higher first), `rank` and `no`. `offered_at` is when the run was last
offered, on the database's clock. `refusals` has the reasons of processes that could not execute the run, as JSON by the
name of the process.

`attempts` is how often the run was taken over since its last saved step, and `crashes` how many of the processes that
ended in that time held no other run: only these ended because of it, as far as can be known.

`copied_from` is the id of the run that a turn of a forked conversation is a copy of. The columns from `rating` to
`rated_at` are a person's rating of the answer; they are null without one.
"""


processes = sa.Table(
    "agentsd_processes",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    sa.Column("lease_boot", sa.Double),
    sa.Column("info", sa.Text, nullable=False, server_default="{}"),
)
"""One row per process that holds runs or reports itself. A run is held as long as the lease of its process is valid.

The times are on the database's clock. `lease_boot`, for SQLite only, is on the machine's monotonic clock: processes of
the boot that `id` names use it, because it does not depend on the time of day.
"""

slots = sa.Table(
    "agentsd_slots",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("process", sa.Text),
    sa.Column("run_id", sa.Text),
    sqlite_with_rowid=False,
)
"""The slots of limits on runs in progress, such as those of an agent. A slot of a dead process is free."""


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
"""Compressed parts, events and spans of an ended run; see `runs.pack`."""

media = sa.Table(
    "agentsd_media",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    _time("used_at"),
)
"""Files in messages, each once. `used_at` is when a run last started to refer to the file."""

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

notes = sa.Table(
    "agentsd_notes",
    metadata,
    sa.Column("no", _Long, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text),
    sa.Column("user_id", sa.Text),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("conversation", sa.Text, index=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("words", sa.Text, nullable=False),
    sa.Column("untrusted", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("used_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, index=True),
    sa.Column("embedder", sa.Text),
    sa.Column("vector", sa.LargeBinary),
)
"""Notes that agents keep across conversations. `owner` is `NoteOwner.key`; runs with the same one share notes.

`conversation` is the key of the conversation with which a note is deleted, `words` the text as it is indexed. `vector`
has 32-bit numbers, as the function `embedder` of a plugin returned them.
"""
sa.Index("ix_agentsd_notes_of_owners", notes.c.owner, notes.c.used_at)

grants = sa.Table(
    "agentsd_grants",
    metadata,
    _name("id"),
    sa.Column("tenant", sa.Text),
    sa.Column("user_id", sa.Text),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    _time("created_at"),
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
    sa.Column("revoked_at", sa.Double),
    sa.Column("revoked_by", sa.Text),
    sa.Column("uses", sa.Integer, nullable=False, server_default="0"),
    sa.Column("last_used_at", sa.Double),
)
"""Approvals that are remembered. `body` is the grant as JSON, without the columns after `created_at`."""

sa.Index("ix_agentsd_grants_of_agents", grants.c.agent, grants.c.tool)

call_counts = sa.Table(
    "agentsd_call_counts",
    metadata,
    _name("key"),
    _name("period"),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("ends_at", sa.Double, nullable=False, index=True),
    sqlite_with_rowid=False,
)
"""Number of calls in a period that count for an `at_most` of a grant or rule."""

triggers = sa.Table(
    "agentsd_triggers",
    metadata,
    _name("name"),
    sa.Column("schedule", sa.Text, nullable=False, server_default=""),
    sa.Column("handled_until", sa.Double, nullable=False),
    sa.Column("paused_at", sa.Double),
    sa.Column("paused_by", sa.Text),
    sa.Column("last_run", sa.Text),
    sa.Column("last_at", sa.Double),
    sa.Column("note", sa.Text),
    sqlite_with_rowid=False,
)
"""One row per trigger that a process has had. Times of its schedule up to `handled_until` start no run any more.

`last_at` is when the trigger last started a run, `last_run`, or did not, because of `note`.
"""

case_results = sa.Table(
    "agentsd_case_results",
    metadata,
    _name("id"),
    sa.Column("agent", sa.Text, nullable=False),
    _time("at"),
    sa.Column("body", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
"""Results of test cases and of scored runs. `body` is the result as JSON, without the time; `id` is that of the run."""

sa.Index("ix_agentsd_case_results_of_agents", case_results.c.agent, case_results.c.at)

pushes = _run_table(
    "agentsd_pushes",
    _name("id"),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("delivered", sa.Integer, nullable=False, server_default="0"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("due_at", sa.Double, index=True),
)
"""Receivers of notifications of a run's pauses and end. `delivered` is the version of the run that was last sent.

Before an attempt to send a later version, `attempts` and `due_at`, the time of the next attempt, are increased.
`due_at` is null once the end of the run was sent.
"""


def is_owned(query: OwnerQuery, table: sa.Table) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions of a query on the owner, for a table with the columns `user_id` and `tenant`."""
    owner = ((table.c.user_id, query.user, query.without_user), (table.c.tenant, query.tenant, query.without_tenant))
    for column, value, is_missing in owner:
        if value is not None:
            yield column == to_sql_text(value)
        if is_missing:
            yield column.is_(None)


def has_status(status: Status) -> sa.ColumnElement[bool]:
    """Return the condition that a run has a status. It is a literal, because partial indexes need one."""
    return runs.c.status == sa.literal_column(f"'{status}'")


def is_waiting(key: sa.ColumnElement[str] | str) -> sa.ColumnElement[bool]:
    """Return the condition that a run waits in the queue of the conversation with this key."""
    # The comparison of numbers makes SQLite choose the index of waiting runs, not that of the status.
    return sa.and_(runs.c.conversation_id == key, runs.c.no > 0, has_status("queued"))


def is_claimed_or_running() -> sa.ColumnElement[bool]:
    """Return the condition that a process may hold a run. It is a literal, for the partial index of held runs."""
    return runs.c.status.in_([sa.literal_column("'queued'"), sa.literal_column("'running'")])


def is_next() -> sa.ColumnElement[bool]:
    """Return the condition that a queued run is the first of its conversation, and no run of it is open.

    Looked up for each run: PostgreSQL would read all open conversations to answer `NOT EXISTS` for one run.
    """
    other = runs.alias()
    is_earlier = (other.c.conversation_id == runs.c.conversation_id, other.c.no < runs.c.no)
    earlier = sa.select(other.c.no).where(*is_earlier, other.c.status == sa.literal_column("'queued'"))
    opened = sa.select(conversations.c.open_run).where(conversations.c.id == runs.c.conversation_id)
    looked_up = (one.limit(sa.literal_column("1")).correlate(runs).scalar_subquery() for one in (earlier, opened))
    return sa.or_(runs.c.conversation_id.is_(None), sa.and_(*(one.is_(None) for one in looked_up)))


def _partial_index(name: str, *keys: sa.ColumnElement[Any], where: sa.ColumnElement[bool]) -> sa.Index:
    return sa.Index(name, *keys, sqlite_where=where, info={"where": where})


def _index_of_bytes(name: str, column: sa.Column[Any]) -> sa.Index:
    """Return an index for ranges of texts that are compared byte by byte, as SQLite does in any index."""
    ops = {column.name: "text_pattern_ops"}
    return sa.Index(name, column, info={"ops": ops}).ddl_if(dialect="postgresql")


CLAIM_ORDER = (runs.c.priority.desc(), runs.c.rank, runs.c.no)
"""The order in which ready runs are claimed."""
RELEASED_ORDER = (runs.c.status, runs.c.process, runs.c.no)
"""The order of released runs in their index. In another order, PostgreSQL would read all runs."""
_INDEXES = (
    _partial_index("ix_agentsd_runs_queued", runs.c.no, where=has_status("queued")),
    _partial_index("ix_agentsd_runs_waiting", runs.c.conversation_id, runs.c.no, where=has_status("queued")),
    _partial_index(
        "ix_agentsd_runs_ready", runs.c.status, *CLAIM_ORDER, where=sa.and_(has_status("queued"), runs.c.ready)
    ),
    _partial_index(
        "ix_agentsd_runs_held", runs.c.process, where=sa.and_(is_claimed_or_running(), runs.c.process.is_not(None))
    ),
    _partial_index(
        "ix_agentsd_runs_released",
        *RELEASED_ORDER,
        where=sa.and_(has_status("running"), runs.c.process.is_(None)),
    ),
    _partial_index(
        "ix_agentsd_runs_handed_on",
        runs.c.status,
        runs.c.offered_at,
        where=sa.and_(has_status("queued"), runs.c.refusals.is_not(None)),
    ),
    _partial_index("ix_agentsd_runs_expiring", runs.c.status, runs.c.expires_at, where=has_status("paused")),
    _partial_index(
        "ix_agentsd_runs_of_tenants", runs.c.tenant, runs.c.priority, runs.c.rank, where=has_status("queued")
    ),
    _partial_index(
        "ix_agentsd_runs_blocked",
        runs.c.blocked_by,
        *CLAIM_ORDER,
        where=sa.and_(has_status("queued"), runs.c.blocked_by.is_not(None)),
    ),
    # For the keys that start with the id of a conversation.
    _index_of_bytes("ix_agentsd_conversations_of_owners", conversations.c.id),
    _index_of_bytes("ix_agentsd_runs_of_conversations", runs.c.conversation_id),
)
"""Indexes of few rows. Some start with the status, so that SQLite does not choose the index of all statuses instead.

There is none on a column that each step changes: a step would then update all indexes of its row in PostgreSQL.
"""


def complete_for_postgresql() -> None:
    """Give the indexes their options for PostgreSQL. SQLAlchemy loads its dialect for them, 40 ms that SQLite saves."""
    for index in _INDEXES:
        for name, value in index.info.items():
            index.dialect_kwargs[f"postgresql_{name}"] = value


def insert_into(table: sa.Table, dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT for SQLite or PostgreSQL. The dialect of PostgreSQL is imported for PostgreSQL only."""
    if dialect == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects.postgresql import insert

    return insert(table)


SEPARATOR = "\x1f"
"""Ids, tenants and users are printable, so none contains this control character."""
_NEXT = " "
"""The character after the separator."""


def conversation_key(conversation_id: str, tenant: str | None, user: str | None) -> str:
    """Return the text that identifies a conversation in the database: its id, and its tenant and user if it has them.

    The number of separators shows which it has: 0 none, 1 a tenant, 2 both, 3 a user.
    """
    parts = [conversation_id, *(() if tenant is None else (tenant,))]
    if user is not None:
        parts += [user] if tenant is not None else ["", "", user]
    return SEPARATOR.join(storable(part).replace(SEPARATOR, "\ufffd") for part in parts)


def conversation_id_of(key: str) -> str:
    """Return the id of a conversation from its key."""
    return key.partition(SEPARATOR)[0]


def id_in_key(column: sa.ColumnElement[str], dialect: str) -> sa.ColumnElement[str]:
    """Return the expression of the id in a column with keys of conversations."""
    if dialect == "postgresql":
        return sa.func.split_part(column, SEPARATOR, 1)
    return sa.func.substr(column, 1, sa.func.instr(column + SEPARATOR, SEPARATOR) - 1)


def contains_text(text: str, *columns: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a text, in any case."""
    return sa.or_(*(column.icontains(storable(text), autoescape=True) for column in columns))


def starts_with_key(column: sa.ColumnElement[str], key: str, dialect: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a key of a conversation, or a longer one that starts with it."""
    # Compared byte by byte: by the rules of a language, PostgreSQL would ignore the separator.
    least, below = (">=", "<") if dialect == "sqlite" else ("~>=~", "~<~")
    is_longer = sa.and_(column.op(least)(f"{key}{SEPARATOR}"), column.op(below)(f"{key}{_NEXT}"))
    return sa.or_(column == key, is_longer)


def as_json(column: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Return a column with JSON as a value of PostgreSQL, which cannot read the character U+0000 from JSON."""
    return sa.cast(sa.func.replace(column, "\\u0000", "\\ufffd"), sa.JSON)


def runs_containing(text: str, dialect: str) -> sa.Select[tuple[str]]:
    """Return the ids of the newest runs in which a message of the user or the model contains a text."""
    body = messages.c.body
    if dialect == "sqlite":  # a damaged row must not hide the others
        content: Any = sa.case((sa.func.json_valid(body), sa.func.json_extract(body, "$.content")))
    else:
        content = as_json(body)["content"].as_string()
    newest = runs.c.no > sa.select(sa.func.max(runs.c.no) - SEARCHED_TEXTS).scalar_subquery()
    found = sa.select(messages.c.run_id).join(runs, runs.c.id == messages.c.run_id)
    is_of_person_or_model = (messages.c.path == "", ~body.startswith('{"role":"tool"'))
    return found.where(newest, *is_of_person_or_model, contains_text(text, content))


_MIGRATION_LOCK = 0x6167656E7473

_RATED = ("copied_from", "rating", "rating_comment", "rated_by", "rated_at")
MIGRATIONS: Mapping[int, Sequence[sa.Table | sa.Column[Any]]] = {
    2: [*(runs.c[name] for name in _RATED), conversations.c.forked_from],
    3: [notes],
    4: [grants, call_counts],
    5: [triggers],
    6: [conversations.c.handed_to],
    7: [pushes],
    8: [case_results],
}
"""The tables and columns that each version has added to the one before. All are added in one transaction."""
SCHEMA_VERSION = max(MIGRATIONS)
"""The version of the tables that this code uses."""
_DEVELOPMENT = sa.table("agentsd_schema", sa.column("version"))
"""The table of versions before their numbers started at 1 again."""
_DEVELOPMENT_VERSIONS: Mapping[int, int] = {10: 1, 11: 2}
"""The versions of that table whose other tables are those of a version of today."""
_MIN_VERSIONS: Mapping[int, int] = {1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1}
"""The oldest schema version of code that may use a database of this version."""


def upgrade(connection: sa.Connection) -> int:
    """Migrate a database to the newest version in the connection's transaction, and return its earlier version.

    A newer database is left as it is, if this code may still use it.

    Raises:
        StoreTooNew: the schema version is newer than this code supports.
        ConfigError: a development version from before the first release wrote it, which cannot be migrated.
    """
    if connection.dialect.name == "postgresql":
        complete_for_postgresql()
        # Two processes that start concurrently must not both create tables.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    versions.create(connection, checkfirst=True)
    saved: int = connection.execute(sa.select(sa.func.coalesce(sa.func.max(versions.c.version), 0))).scalar_one()
    if saved > SCHEMA_VERSION:
        _check_newer(connection, saved)
    version = saved or _development_version(connection)
    if version == 0:
        for statement in _create_statements(connection.dialect.name):
            connection.exec_driver_sql(statement)
    else:
        for number in range(version + 1, SCHEMA_VERSION + 1):
            for added in MIGRATIONS[number]:
                _add(connection, added)
    rows = [
        {"version": number, "applied_at": time.time(), "min_version": _MIN_VERSIONS[number]}
        for number in range(saved + 1, SCHEMA_VERSION + 1)
    ]
    if rows:
        connection.execute(versions.insert(), rows)
    return version


def _add(connection: sa.Connection, added: sa.Table | sa.Column[Any]) -> None:
    if isinstance(added, sa.Table):
        added.create(connection)
        return
    definition = CreateColumn(added).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {added.table.name} ADD COLUMN {definition}")


@cache
def _create_statements(dialect: str) -> Sequence[str]:
    """Return the SQL that creates all tables but that of the versions, with their indexes."""
    statements: list[str] = []

    def add(statement: sa.DDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = sa.create_mock_engine(f"{dialect}://", add)
    tables = [table for table in metadata.sorted_tables if table is not versions]
    metadata.create_all(engine, tables, checkfirst=False)
    return statements


def _check_newer(connection: sa.Connection, version: int) -> None:
    """Raise StoreTooNew if a migration of a newer version of agentsd allows only newer code."""
    oldest = sa.func.max(sa.func.coalesce(versions.c.min_version, versions.c.version))
    min_version: int = connection.execute(sa.select(oldest)).scalar_one()
    if min_version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"the store has schema version {version}; this version of agentsd supports up to {SCHEMA_VERSION}, and "
            f"the store requires at least {min_version}: upgrade agentsd"
        )


def _development_version(connection: sa.Connection) -> int:
    """Return the version of tables that a development version wrote, 0 without tables; raises ConfigError."""
    if not sa.inspect(connection).has_table(_DEVELOPMENT.name):
        return 0
    number: int = connection.execute(sa.select(sa.func.coalesce(sa.func.max(_DEVELOPMENT.c.version), 0))).scalar_one()
    if number and number not in _DEVELOPMENT_VERSIONS:
        raise ConfigError(
            f"store.url: a development version of agentsd wrote this store, with schema {number}, which cannot be "
            "migrated: move the store away, or set store.url to another one"
        )
    return _DEVELOPMENT_VERSIONS.get(number, 0)
