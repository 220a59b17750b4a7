"""Conversations in a database: read, listed, deleted, pruned. Functions over one connection, in one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from pydantic import TypeAdapter

from framework.store.protocol import Conversation, ConversationInfo, ConversationQuery, Pruned
from framework.store.sql import runs as sql_runs
from framework.store.sql.database import Database
from framework.store.sql.leases import RunLeases
from framework.store.sql.owners import find_owner
from framework.store.sql.schema import (
    blueprints,
    conversations,
    decisions,
    events,
    messages,
    packed,
    parts,
    runs,
    spans,
)
from framework.types.errors import ConversationBusy, RequestError
from framework.types.messages import Message
from framework.types.transcript import Summary

_MESSAGES = TypeAdapter(list[Message])
BATCH_SIZE = 200
"""Conversations, or runs, that one transaction deletes: others must be able to write meanwhile."""
UNUSED_BLUEPRINT_SECONDS = 3600.0
"""Since a blueprint was last put on record."""


def load_conversation(connection: sa.Connection, conversation_id: str) -> Conversation | None:
    """A conversation with the messages of its turns that ended well; none once it has expired."""
    row = connection.execute(sa.select(conversations).where(conversations.c.id == conversation_id)).one_or_none()
    if row is None:
        return Conversation(conversation_id)
    if row.expires_at is not None and row.expires_at <= time.time() and row.open_run is None:
        return None
    bodies = sql_runs.load_history(connection, conversation_id)
    return Conversation(
        conversation_id,
        tuple(_MESSAGES.validate_json(f"[{','.join(bodies)}]")),
        agent=row.agent,
        open_run=row.open_run,
        session=json.loads(row.session),
        turns=row.turns,
        user=row.user_id,
        tenant=row.tenant,
        summary=Summary.model_validate_json(row.summary) if row.summary else None,
    )


def list_conversations(connection: sa.Connection, query: ConversationQuery) -> list[ConversationInfo]:
    """Conversations as lists show them, the one with the latest turn first."""
    columns = [column for column in conversations.c if column.name not in ("session", "summary", "summary_upto")]
    found = sa.select(*columns).order_by(conversations.c.updated_at.desc(), conversations.c.id)
    wanted = {
        conversations.c.agent: query.agent,
        conversations.c.user_id: query.user,
        conversations.c.tenant: query.tenant,
    }
    for column, value in wanted.items():
        if value is not None:
            found = found.where(column == value)
    if query.before is not None:
        found = found.where(conversations.c.updated_at < query.before)
    rows = connection.execute(found.limit(query.limit))
    return [
        ConversationInfo(
            id=row.id,
            agent=row.agent,
            turns=row.turns,
            created_at=row.created_at,
            updated_at=row.updated_at,
            expires_at=row.expires_at,
            open_run=row.open_run,
            user=row.user_id,
            tenant=row.tenant,
        )
        for row in rows
    ]


def replace_session(connection: sa.Connection, conversation: Conversation) -> None:
    """Keep a conversation's session values; raises ConversationBusy if a run is open, or began since it was loaded."""
    unchanged = (conversations.c.open_run.is_(None), conversations.c.turns == conversation.turns)
    which = sa.update(conversations).where(conversations.c.id == conversation.id, *unchanged)
    if not connection.execute(which.values(session=json.dumps(conversation.session))).rowcount:
        raise ConversationBusy(f"conversation {conversation.id!r} is busy: another run of it began first")


def delete_conversation(connection: sa.Connection, database: Database, leases: RunLeases, conversation_id: str) -> int:
    """Delete a conversation and its runs; returns how many those were. Raises RequestError, ConversationBusy."""
    whose = runs.c.conversation_id == conversation_id
    owned = sa.select(runs.c.id).where(whose, runs.c.owner.is_not(None))
    owners = [find_owner(connection, database, leases, run_id) for run_id in connection.execute(owned).scalars()]
    if any(owner.is_held for owner in owners if owner is not None):
        raise ConversationBusy(f"conversation {conversation_id!r} is busy: a run of it is in progress")
    gone = connection.execute(sa.delete(conversations).where(conversations.c.id == conversation_id))
    if not gone.rowcount:
        raise RequestError(f"there is no conversation {conversation_id!r}")
    ids = list(connection.execute(sa.select(runs.c.id).where(whose)).scalars())
    _delete_runs(connection, ids)
    return len(ids)


def delete_expired(connection: sa.Connection, now: float, conversation_id: str | None = None) -> Pruned:
    """Delete conversations that have expired, some of them or the one, with their runs."""
    some = sa.select(conversations.c.id).where(_expired(now)).limit(BATCH_SIZE)
    which = conversations.c.id.in_(some) if conversation_id is None else conversations.c.id == conversation_id
    gone = sa.delete(conversations).where(which, _expired(now)).returning(conversations.c.id)  # not if it goes on again
    ids = list(connection.execute(gone).scalars())
    turns = list(connection.execute(sa.select(runs.c.id).where(runs.c.conversation_id.in_(ids))).scalars())
    _delete_runs(connection, turns)
    return Pruned(len(turns), len(ids))


def delete_ended(connection: sa.Connection, before: float) -> Pruned:
    """Delete some runs that ended before a time; of those that are turns of conversations what was said stays."""
    alone = list(connection.execute(sa.select(runs.c.id).where(*_alone(before)).limit(BATCH_SIZE)).scalars())
    _delete_runs(connection, alone)
    turns = list(connection.execute(sa.select(runs.c.id).where(*_turns(before)).limit(BATCH_SIZE)).scalars())
    _strip_runs(connection, turns)
    return Pruned(len(alone) + len(turns))


def delete_unused_blueprints(connection: sa.Connection, now: float) -> None:
    """Delete what no run is made of, unless a run may just be beginning with it."""
    used = sa.exists().where(runs.c.blueprint == blueprints.c.digest)
    connection.execute(sa.delete(blueprints).where(~used, blueprints.c.created_at < now - UNUSED_BLUEPRINT_SECONDS))


def count_prunable(connection: sa.Connection, before: float | None, now: float) -> Pruned:
    """How much `forget_expired` and `forget_ended` have to do."""
    expired = sa.select(conversations.c.id).where(_expired(now))
    which: list[sa.ColumnElement[bool]] = [runs.c.conversation_id.in_(expired)]
    if before is not None:
        which += [sa.and_(*_alone(before)), sa.and_(*_turns(before))]

    def count(found: sa.Select[tuple[str]]) -> int:
        return connection.execute(sa.select(sa.func.count()).select_from(found.subquery())).scalar_one()

    return Pruned(count(sa.select(runs.c.id).where(sa.or_(*which))), count(expired))


def _expired(now: float) -> sa.ColumnElement[bool]:
    return sa.and_(conversations.c.expires_at <= now, conversations.c.open_run.is_(None))


def _alone(before: float) -> Iterator[sa.ColumnElement[bool]]:
    yield from (runs.c.ended_at < before, runs.c.status.not_in(sql_runs.OPEN), runs.c.conversation_id.is_(None))


def _turns(before: float) -> Iterator[sa.ColumnElement[bool]]:
    yield from (runs.c.ended_at < before, runs.c.status.not_in(sql_runs.OPEN), runs.c.conversation_id.is_not(None))
    # others are stripped already
    yield sa.or_(sa.exists().where(events.c.run_id == runs.c.id), sa.exists().where(packed.c.run_id == runs.c.id))


def _delete_runs(connection: sa.Connection, ids: Iterable[str]) -> None:
    for batch in _batches([*ids]):
        for table in (messages, parts, events, decisions, spans, packed):
            connection.execute(sa.delete(table).where(table.c.run_id.in_(batch)))
        connection.execute(sa.delete(runs).where(runs.c.id.in_(batch)))


def _strip_runs(connection: sa.Connection, ids: Iterable[str]) -> None:
    """Leave of a conversation's turns what was said in it: no sub-runs, calls, traces or events."""
    for batch in _batches([*ids]):
        for table in (parts, events, decisions, spans, packed):
            connection.execute(sa.delete(table).where(table.c.run_id.in_(batch)))
        connection.execute(sa.delete(messages).where(messages.c.run_id.in_(batch), messages.c.path != ""))


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + BATCH_SIZE] for start in range(0, len(ids), BATCH_SIZE))
