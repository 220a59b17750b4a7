"""The migrations between the versions of a store's tables. A released migration is never changed.

Later changes are new migrations at the end of the list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from framework.store.sql.schema import (
    INDEXES_OF_VERSION_5,
    INDEXES_OF_VERSION_7,
    INDEXES_OF_VERSION_10,
    budget_counters,
    complete_for_postgresql,
    conversations,
    has_status,
    idempotency_keys,
    is_next,
    media,
    metadata,
    packed,
    processes,
    run_media,
    runs,
    slots,
    spans,
    versions,
)
from framework.store.sql.texts import SEPARATOR, conversation_id_of, conversation_key
from framework.types.errors import StoreTooNew

_MIGRATION_LOCK = 0x6167656E7473

Migration = Callable[[sa.Connection], None]


def _traces(connection: sa.Connection) -> None:
    spans.create(connection)


def _packed_runs(connection: sa.Connection) -> None:
    packed.create(connection)  # and a column of leases, which version 7 removes


def _version_4(connection: sa.Connection) -> None:
    for table in (media, run_media, budget_counters):
        table.create(connection)


def _version_5(connection: sa.Connection) -> None:
    _add_column(connection, runs, runs.c.request)
    idempotency_keys.create(connection)
    for index in INDEXES_OF_VERSION_5:  # and two that versions 7 and 10 replace
        index.create(connection, checkfirst=True)
    _move_conversations_to_tenants(connection)


def _version_6(connection: sa.Connection) -> None:
    for name in ("input_tokens", "output_tokens", "cached_tokens", "cost_usd", "elapsed_ms", "tool_calls"):
        _add_column(connection, runs, runs.c[name])
    for column in (runs.c.unpriced_calls, runs.c.model_uses):
        _add_column(connection, runs, column)


def _version_7(connection: sa.Connection) -> None:
    processes.create(connection)
    slots.create(connection)
    if not _has_column(connection, versions, "min_version"):
        connection.exec_driver_sql(f"ALTER TABLE {versions.name} ADD COLUMN min_version INTEGER")
    for name in ("process", "priority", "rank", "queue", "ready", "blocked_by", "refusals", "offered_at"):
        _add_column(connection, runs, runs.c[name])
    for name in ("lease_until", "lease_boot"):
        if _has_column(connection, runs, name):
            connection.exec_driver_sql(f"ALTER TABLE {runs.name} DROP COLUMN {name}")
    connection.exec_driver_sql("DROP INDEX IF EXISTS ix_agentsd_runs_paused")
    for index in INDEXES_OF_VERSION_7:
        index.create(connection, checkfirst=True)
    # Processes of earlier versions can no longer write: their runs are released.
    connection.execute(sa.update(runs).where(runs.c.owner.is_not(None)).values(owner=None))
    connection.execute(sa.update(runs).where(has_status("queued"), is_next()).values(ready=True))


def _version_8(connection: sa.Connection) -> None:
    """Do nothing: it created an index that version 10 replaces."""


def _version_9(connection: sa.Connection) -> None:
    _add_column(connection, runs, runs.c.crashes)


def _version_10(connection: sa.Connection) -> None:
    _move_conversations_to_users(connection)
    for name in ("ix_agentsd_conversations_of_tenants", "ix_agentsd_runs_of_tenants_conversations"):
        connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
    for index in INDEXES_OF_VERSION_10:
        index.create(connection, checkfirst=True)


def _version_11(connection: sa.Connection) -> None:
    for name in ("copied_from", "rating", "rating_comment", "rated_by", "rated_at"):
        _add_column(connection, runs, runs.c[name])
    _add_column(connection, conversations, conversations.c.forked_from)


def _has_column(connection: sa.Connection, table: sa.Table, name: str) -> bool:
    return name in {column["name"] for column in sa.inspect(connection).get_columns(table.name)}


def _add_column(connection: sa.Connection, table: sa.Table, column: sa.Column[Any]) -> None:
    if not _has_column(connection, table, column.name):  # tests make an old store of a new one
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")


def _move_conversations_to_tenants(connection: sa.Connection) -> None:
    """Add the tenant to the ids of conversations that have one, and to the scopes of their budget counters."""
    has_tenant = conversations.c.tenant.is_not(None)
    tenants = sa.select(conversations.c.id, conversations.c.tenant).where(has_tenant)
    for conversation_id, tenant in connection.execute(tenants).all():
        _move_counters(connection, conversation_id, f"{conversation_id}{SEPARATOR}{tenant}", {"tenant": tenant})
    key = conversations.c.id + SEPARATOR + conversations.c.tenant
    is_turn = sa.and_(has_tenant, conversations.c.id == runs.c.conversation_id)
    turns = sa.update(runs).where(sa.exists().where(is_turn))
    connection.execute(turns.values(conversation_id=sa.select(key).where(is_turn).scalar_subquery()))
    connection.execute(sa.update(conversations).where(has_tenant).values(id=key))


def _move_conversations_to_users(connection: sa.Connection) -> None:
    """Add the user to the ids of conversations that have one, and to the scopes of their budget counters."""
    has_user = conversations.c.user_id.is_not(None)
    is_owner = budget_counters.c.owner == sa.literal("conversation:") + conversations.c.id
    owners = sa.select(conversations.c.id, conversations.c.tenant, conversations.c.user_id).where(has_user)
    for key, tenant, user in connection.execute(owners.where(sa.exists().where(is_owner))).all():
        new_key = conversation_key(conversation_id_of(key), tenant, user)
        _move_counters(connection, key, new_key, {"user": user})
    # First: runs that ended while they waited may have left no conversation.
    is_left = ~sa.exists().where(conversations.c.id == runs.c.conversation_id)
    left = sa.update(runs).where(runs.c.conversation_id.is_not(None), runs.c.user_id.is_not(None), is_left)
    connection.execute(left.values(conversation_id=_with_user(runs.c.conversation_id, runs)))
    is_turn = sa.and_(has_user, conversations.c.id == runs.c.conversation_id)
    new_id = _with_user(conversations.c.id, conversations)
    turns = sa.update(runs).where(sa.exists().where(is_turn))
    connection.execute(turns.values(conversation_id=sa.select(new_id).where(is_turn).scalar_subquery()))
    connection.execute(sa.update(conversations).where(has_user).values(id=new_id))


def _with_user(key: sa.Column[Any], owner: sa.Table) -> sa.ColumnElement[str]:
    """Return the key of a conversation with the user in a row: see `conversation_key`."""
    separators = sa.case((owner.c.tenant.is_(None), SEPARATOR * 3), else_=SEPARATOR)
    return key.concat(separators).concat(sa.func.replace(owner.c.user_id, SEPARATOR, "\ufffd"))


def _move_counters(connection: sa.Connection, key: str, new_key: str, owner: Mapping[str, str]) -> None:
    """Give the counters of a conversation its new key, and their scopes the tenant or user in `owner`."""
    owned = sa.select(budget_counters).where(budget_counters.c.owner == f"conversation:{key}")
    for row in connection.execute(owned).all():
        scope = json.dumps({**json.loads(row.scope), **owner}, ensure_ascii=False, sort_keys=True)
        tokens, cost = row.tokens, row.cost_usd
        is_counter = [budget_counters.c[name] == getattr(row, name) for name in ("budget", "scope", "period")]
        if scope != row.scope:  # a counter with the new scope is of an earlier definition of the budget: add it
            other = (is_counter[0], budget_counters.c.scope == scope, is_counter[2])
            returned = sa.delete(budget_counters).where(*other)
            for merged in connection.execute(returned.returning(budget_counters)).all():
                tokens, cost = tokens + merged.tokens, cost + merged.cost_usd
        values = {"scope": scope, "owner": f"conversation:{new_key}"}
        update = sa.update(budget_counters).where(*is_counter)
        connection.execute(update.values(tokens=tokens, cost_usd=cost, **values))


MIGRATIONS: Mapping[int, Migration] = {
    2: _traces,
    3: _packed_runs,
    4: _version_4,
    5: _version_5,
    6: _version_6,
    7: _version_7,
    8: _version_8,
    9: _version_9,
    10: _version_10,
    11: _version_11,
}
"""Migrates a database from the version before to this one. All run in one transaction."""
SCHEMA_VERSION = max(MIGRATIONS)
"""The version of the tables that this code uses."""
_MIN_VERSIONS: Mapping[int, int] = {number: number for number in range(1, 8)} | {8: 7, 9: 7, 10: 10, 11: 10}
"""The oldest schema version of code that may use a database of this version."""


def upgrade(connection: sa.Connection) -> int:
    """Migrate a database to the newest version in the connection's transaction, and return its earlier version.

    A newer database is left as it is, if this code may still use it.

    Raises:
        StoreTooNew: the schema version is newer than this code supports.
    """
    if connection.dialect.name == "postgresql":
        complete_for_postgresql()
        # Two processes that start concurrently must not both create tables.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    versions.create(connection, checkfirst=True)
    version: int = connection.execute(sa.select(sa.func.coalesce(sa.func.max(versions.c.version), 0))).scalar_one()
    if version > SCHEMA_VERSION:
        _check_newer(connection, version)
    if version == 0:
        metadata.create_all(connection)
    else:
        for number in range(version + 1, SCHEMA_VERSION + 1):
            MIGRATIONS[number](connection)
    rows = [
        {"version": number, "applied_at": time.time(), "min_version": _MIN_VERSIONS[number]}
        for number in range(version + 1, SCHEMA_VERSION + 1)
    ]
    if rows:
        connection.execute(versions.insert(), rows)
    return version


def _check_newer(connection: sa.Connection, version: int) -> None:
    """Raise StoreTooNew if a migration of a newer version of agentsd allows only newer code."""
    oldest = sa.func.max(sa.func.coalesce(versions.c.min_version, versions.c.version))
    min_version: int = connection.execute(sa.select(oldest)).scalar_one()
    if min_version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"the store has schema version {version}; this version of agentsd supports up to {SCHEMA_VERSION}, and "
            f"the store requires at least {min_version}: upgrade agentsd"
        )
