"""SQL for lists of runs: filters and pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from framework.store.paging import unknown_position
from framework.store.protocol import RunInfo, RunQuery
from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.owners import is_leased
from framework.store.sql.schema import has_status, runs
from framework.store.sql.texts import conversation_id_of, conversation_key, has_tenants_id, to_sql_text
from framework.types.status import Status

_LISTED = [column for column in runs.c if column.name not in ("head", "state", "request")]


def list_runs(connection: sa.Connection, database: Database, leases: RunLeases, query: RunQuery) -> list[RunInfo]:
    """Return the matching runs, by default oldest first; raises RequestError if `before` names no such run."""
    select = sa.select(*_LISTED, is_leased(database)).order_by(runs.c.no.desc() if query.newest_first else runs.c.no)
    select = select.where(*_owner_conditions(query), *_conditions(query, connection.dialect.name))
    if query.before is not None:
        position = sa.select(runs.c.no).where(runs.c.id == to_sql_text(query.before), *_owner_conditions(query))
        number = connection.execute(position).scalar_one_or_none()
        if number is None:
            raise unknown_position(query.before)
        select = select.where(runs.c.no < number)
    if query.limit is not None and not query.orphaned:
        select = select.limit(query.limit)
    infos = [
        _run_info(row, held=leases.is_held(row.owner, row.lease_boot, leased=bool(row.leased)))
        for row in connection.execute(select)
    ]
    return [info for info in infos if info.orphaned][: query.limit] if query.orphaned else infos


def count_waiting(connection: sa.Connection) -> dict[Status, int]:
    """Return the numbers of queued and of paused runs, each from its partial index."""
    count = sa.select(sa.func.count()).select_from(runs)
    statuses: tuple[Status, ...] = ("queued", "paused")
    return {status: connection.execute(count.where(has_status(status))).scalar_one() for status in statuses}


def _owner_conditions(query: RunQuery) -> Iterator[sa.ColumnElement[bool]]:
    if query.user is not None:
        yield runs.c.user_id == to_sql_text(query.user)
    if query.tenant is not None:
        yield runs.c.tenant == to_sql_text(query.tenant)
    if query.without_tenant:
        yield runs.c.tenant.is_(None)
    if query.agents is not None:
        yield runs.c.agent.in_([to_sql_text(agent) for agent in query.agents])


def _conditions(query: RunQuery, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    if query.statuses:
        yield sa.or_(*(has_status(status) for status in sorted(query.statuses)))
    if query.orphaned:
        yield has_status("running")
    if query.expired_at is not None:
        yield sa.and_(has_status("paused"), runs.c.expires_at <= query.expired_at)
    if query.agent is not None:
        yield runs.c.agent == to_sql_text(query.agent)
    if query.conversation_id is not None and query.tenant is None:
        key = conversation_key(query.conversation_id, None)
        of_tenant = has_tenants_id(runs.c.conversation_id, query.conversation_id, dialect)
        yield sa.or_(runs.c.conversation_id == key, of_tenant)
    elif query.conversation_id is not None:
        keys = (conversation_key(query.conversation_id, tenant) for tenant in (query.tenant, None))
        yield runs.c.conversation_id.in_(list(keys))


def _run_info(row: Any, *, held: bool) -> RunInfo:
    return RunInfo(
        run_id=row.id,
        status=row.status,
        finish_reason=row.finish_reason,
        agent=row.agent,
        generation=row.generation,
        digest=row.digest,
        message=row.message,
        created_at=row.created_at,
        updated_at=row.updated_at,
        conversation_id=row.conversation_id and conversation_id_of(row.conversation_id),
        turn=row.turn or 0,
        user=row.user_id,
        tenant=row.tenant,
        trace_id=row.trace_id,
        steps=row.steps,
        tokens=row.tokens,
        expires_at=row.expires_at,
        held=held,
        attempts=row.attempts,
    )
