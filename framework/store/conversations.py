"""SQL for conversations, their messages, and the files in messages: save, load, list, delete."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping

import sqlalchemy as sa
from pydantic import TypeAdapter

from framework.store import runs as sql_runs
from framework.store.database import Database
from framework.store.limits import delete_counters
from framework.store.lists import owner_conditions
from framework.store.notes import delete_notes_of
from framework.store.processes import RunLeases, find_owner
from framework.store.run_links import delete_case_results_of
from framework.store.runs import overtaken
from framework.store.schema import (
    blueprints,
    contains_text,
    conversation_id_of,
    conversation_key,
    conversations,
    decisions,
    events,
    id_in_key,
    idempotency_keys,
    insert_into,
    is_owned,
    is_waiting,
    media,
    messages,
    packed,
    parts,
    pushes,
    run_media,
    runs,
    runs_containing,
    spans,
    starts_with_key,
)
from framework.store.types import (
    OPEN_STATUSES,
    SEARCHED_CONVERSATIONS,
    Conversation,
    ConversationCursor,
    ConversationInfo,
    ConversationQuery,
    Pruned,
    RunQuery,
)
from framework.types.errors import ConversationBusy, RequestError
from framework.types.messages import Message, Summary
from framework.types.text import to_sql_text

UNUSED_SECONDS = 3600.0
"""A file that no run refers to is deleted this long after it was saved: its run may be about to start."""


def insert_media(connection: sa.Connection, run_id: str, files: Mapping[str, bytes], now: float) -> None:
    """Save files by digest, and that the run refers to them."""
    for digest, body in sorted(files.items()):  # in one order, so that two transactions do not wait for each other
        row = insert_into(media, connection.dialect.name).values(digest=digest, body=body, used_at=now)
        connection.execute(row.on_conflict_do_update(index_elements=["digest"], set_={"used_at": row.excluded.used_at}))
        link = insert_into(run_media, connection.dialect.name).values(run_id=run_id, digest=digest)
        connection.execute(link.on_conflict_do_nothing())


def select_media(connection: sa.Connection, digests: Collection[str], of: RunQuery | None) -> dict[str, bytes]:
    """Return the stored files with these digests, by digest; `of`: those that a run with this owner refers to."""
    select = sa.select(media.c.digest, media.c.body).where(media.c.digest.in_(sorted(digests)))
    if of is not None:
        refers = (run_media.c.digest == media.c.digest, run_media.c.run_id == runs.c.id)
        select = select.where(sa.exists().where(*refers, *owner_conditions(of)))
    return {digest: bytes(body) for digest, body in connection.execute(select)}


def delete_media_of(connection: sa.Connection, run_ids: Collection[str]) -> int:
    """Delete the references of runs, and the files that no other run refers to; return the number of these files."""
    digests = set(connection.execute(sa.select(run_media.c.digest).where(run_media.c.run_id.in_(run_ids))).scalars())
    if not digests:
        return 0
    connection.execute(sa.delete(run_media).where(run_media.c.run_id.in_(run_ids)))
    return _delete_unreferenced(connection, media.c.digest.in_(sorted(digests)))


def delete_unused_media(connection: sa.Connection, now: float) -> int:
    """Delete files that were saved for a run that never started, because its process ended; return their number."""
    is_old = media.c.used_at < now - UNUSED_SECONDS
    old = sa.select(media.c.digest).where(is_old)
    started = sa.exists().where(runs.c.id == run_media.c.run_id)
    connection.execute(sa.delete(run_media).where(run_media.c.digest.in_(old), ~started))
    return _delete_unreferenced(connection, is_old)


def _delete_unreferenced(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    # Locked first: the DELETE then sees references by transactions that were committed while this one waited.
    connection.execute(sa.select(media.c.digest).where(condition).order_by(media.c.digest).with_for_update())
    is_used = sa.exists().where(run_media.c.digest == media.c.digest)
    return connection.execute(sa.delete(media).where(condition, ~is_used)).rowcount


_MESSAGES = TypeAdapter(list[Message])
BATCH_SIZE = 200
"""Number of conversations or runs that one transaction deletes, so that other processes can write in between."""
UNUSED_BLUEPRINT_SECONDS = 3600.0
"""An unused blueprint is deleted this long after it was last written: a run may be about to start with it."""


_IS_WAITING = is_waiting(conversations.c.id)
_HAS_DATA = sa.or_(
    runs.c.turn.is_(None),
    sa.exists().where(events.c.run_id == runs.c.id),
    sa.exists().where(packed.c.run_id == runs.c.id),
)
"""The condition that pruning deletes data of a run."""
_WAITING = sa.select(sa.func.count()).where(_IS_WAITING).correlate(conversations).scalar_subquery()
_SELECT = sa.select(conversations, _WAITING.label("waiting")).where(conversations.c.id == sa.bindparam("key"))
"""Built once, because every turn of a conversation executes it."""


def select_conversation(
    connection: sa.Connection, conversation_id: str, tenant: str | None, user: str | None, now: float
) -> Conversation | None:
    """Return a conversation with the messages of its answered turns, or None if it has expired by `now`."""
    key = conversation_key(conversation_id, tenant, user)
    row = connection.execute(_SELECT, {"key": key}).one_or_none()
    if row is None:
        return Conversation(conversation_id, tenant=tenant, user=user)
    if row.expires_at is not None and row.expires_at <= now and row.open_run is None and not row.waiting:
        return None
    bodies = sql_runs.load_history(connection, key)
    return Conversation(
        conversation_id,
        tuple(_MESSAGES.validate_json(f"[{','.join(bodies)}]")),
        agent=row.agent,
        open_run=row.open_run,
        session=json.loads(row.session),
        turns=row.turns,
        user=user,
        tenant=tenant,
        waiting=row.waiting,
        summary=Summary.model_validate_json(row.summary) if row.summary else None,
        forked_from=row.forked_from,
        handed_to=row.handed_to,
    )


def list_conversations(connection: sa.Connection, query: ConversationQuery) -> list[ConversationInfo]:
    """Return the matching conversations, latest turn first; raises RequestError for an invalid cursor."""
    columns = [column for column in conversations.c if column.name not in ("session", "summary", "summary_upto")]
    dialect = connection.dialect.name
    conditions = [*_conditions(query, dialect)]
    if query.search is not None:
        conditions.append(_is_found(query.search, conditions, dialect))
    matching = sa.select(*columns).where(*conditions, *_after(query))
    latest_first = matching.order_by(conversations.c.updated_at.desc(), conversations.c.id)
    # Looked up for the page only: SQLite would otherwise look them up for all conversations, before it sorts them.
    page = latest_first.limit(query.limit).subquery()
    turns = sa.select(runs.c.message, runs.c.status).where(runs.c.conversation_id == page.c.id).limit(1)
    title = turns.with_only_columns(runs.c.message).order_by(runs.c.no).scalar_subquery()
    status = turns.with_only_columns(runs.c.status).order_by(runs.c.no.desc()).scalar_subquery()
    select = sa.select(page, title.label("title"), status.label("status"))
    rows = connection.execute(select.order_by(page.c.updated_at.desc(), page.c.id))
    return [
        ConversationInfo(
            id=conversation_id_of(row.id),
            agent=row.agent,
            turns=row.turns,
            created_at=row.created_at,
            updated_at=row.updated_at,
            expires_at=row.expires_at,
            open_run=row.open_run,
            user=row.user_id,
            tenant=row.tenant,
            title=row.title or "",
            status=row.status,
            forked_from=row.forked_from,
            handed_to=row.handed_to,
        )
        for row in rows
    ]


def _conditions(query: ConversationQuery, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    if query.id is not None and query.tenant is not None and query.user is not None:
        yield conversations.c.id == conversation_key(query.id, query.tenant, query.user)
    elif query.id is not None:
        yield starts_with_key(conversations.c.id, conversation_key(query.id, query.tenant, None), dialect)
    yield from is_owned(query, conversations)
    if query.agent is not None:
        yield conversations.c.agent == to_sql_text(query.agent)
    if query.agents is not None:
        yield conversations.c.agent.in_([to_sql_text(agent) for agent in query.agents])
    if query.before is not None:
        yield conversations.c.updated_at < query.before


def _is_found(text: str, conditions: list[sa.ColumnElement[bool]], dialect: str) -> sa.ColumnElement[bool]:
    """Return the condition that one of the latest conversations contains a text."""
    latest = sa.select(conversations.c.id).where(*conditions)
    latest = latest.order_by(conversations.c.updated_at.desc(), conversations.c.id).limit(SEARCHED_CONVERSATIONS)
    turns = sa.select(runs.c.message).where(runs.c.conversation_id == conversations.c.id).order_by(runs.c.no).limit(1)
    title = turns.correlate(conversations).scalar_subquery()
    is_found = contains_text(text, conversations.c.agent, id_in_key(conversations.c.id, dialect), title)
    found = sa.select(runs.c.conversation_id).where(runs.c.id.in_(runs_containing(text, dialect)))
    return sa.or_(sa.and_(conversations.c.id.in_(latest), is_found), conversations.c.id.in_(found))


def _after(query: ConversationQuery) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the condition on the place in the list."""
    if query.cursor is not None:
        last = ConversationCursor.decode(query.cursor)
        key = conversation_key(last.id, last.tenant, last.user)
        is_tie = sa.and_(conversations.c.updated_at == last.updated_at, conversations.c.id > key)
        yield sa.or_(conversations.c.updated_at < last.updated_at, is_tie)


def insert_fork(connection: sa.Connection, fork: Conversation, now: float, ttl: float | None) -> str:
    """Insert a conversation whose turns are inserted next, and return its key; raises ConversationBusy if it exists."""
    key = conversation_key(fork.id, fork.tenant, fork.user)
    delete_expired(connection, now, key)
    row = {
        "id": key,
        "user_id": to_sql_text(fork.user),
        "tenant": to_sql_text(fork.tenant),
        "agent": to_sql_text(fork.agent),
        "turns": fork.turns,
        "session": json.dumps(fork.session),
        "summary": fork.summary.model_dump_json() if fork.summary else None,
        "summary_upto": fork.summary.upto if fork.summary else 0,
        "created_at": now,
        "updated_at": now,
        "expires_at": None if ttl is None else now + ttl,
        "forked_from": to_sql_text(fork.forked_from),
        "handed_to": to_sql_text(fork.handed_to),
    }
    insert = insert_into(conversations, connection.dialect.name).values(row)
    added = insert.on_conflict_do_nothing(index_elements=["id"]).returning(conversations.c.id)
    if connection.execute(added).one_or_none() is None:
        raise ConversationBusy(f"conversation {fork.id!r} exists already: choose another id for the fork")
    return key


def replace_session(connection: sa.Connection, conversation: Conversation) -> None:
    """Save session values; raises ConversationBusy if a run is open, or started since the conversation was loaded."""
    key = conversation_key(conversation.id, conversation.tenant, conversation.user)
    is_unchanged = (conversations.c.open_run.is_(None), conversations.c.turns == conversation.turns)
    update = sa.update(conversations).where(conversations.c.id == key, *is_unchanged)
    if not connection.execute(update.values(session=json.dumps(conversation.session))).rowcount:
        raise overtaken(conversation)


def delete_conversation(
    connection: sa.Connection,
    database: Database,
    leases: RunLeases,
    conversation_id: str,
    tenant: str | None,
    user: str | None,
) -> int:
    """Delete a conversation and its runs, and return their number; raises RequestError, ConversationBusy."""
    key = conversation_key(conversation_id, tenant, user)
    # Locked first: the owners are then those of runs that have just started or been resumed, too.
    deleted = connection.execute(sa.delete(conversations).where(conversations.c.id == key))
    if not deleted.rowcount:
        raise RequestError(f"there is no conversation {conversation_id!r}")
    ids = list(
        connection.execute(sa.select(runs.c.id).where(runs.c.conversation_id == key).with_for_update()).scalars()
    )
    owned = sa.select(runs.c.id).where(runs.c.conversation_id == key, runs.c.owner.is_not(None))
    owners = [find_owner(connection, database, leases, run_id) for run_id in connection.execute(owned).scalars()]
    if any(owner.is_held for owner in owners if owner is not None):
        raise ConversationBusy(f"conversation {conversation_id!r} is busy: a run of it is in progress")
    _delete_runs(connection, ids)
    delete_notes_of(connection, key)
    delete_counters(connection, "conversation", [key])
    return len(ids)


def delete_expired(connection: sa.Connection, now: float, key: str | None = None) -> Pruned | None:
    """Delete a batch of expired conversations with their runs, or the one with this key; None if none has expired."""
    batch = sa.select(conversations.c.id).where(_expired(now)).limit(BATCH_SIZE)
    selected = conversations.c.id.in_(batch) if key is None else conversations.c.id == key
    # Checked again by the DELETE itself, in case a new run has started.
    delete = sa.delete(conversations).where(selected, _expired(now)).returning(conversations.c.id)
    ids = list(connection.execute(delete).scalars())
    if not ids:
        return None
    turns = list(connection.execute(sa.select(runs.c.id).where(runs.c.conversation_id.in_(ids))).scalars())
    files = _delete_runs(connection, turns)
    delete_counters(connection, "conversation", ids)
    return Pruned(len(turns), len(ids), files)


def delete_ended(connection: sa.Connection, before: float, limit: int = BATCH_SIZE) -> Pruned | None:
    """Delete the runs that ended first, at most `limit`, if they ended before a time; None if there are none.

    Turns of conversations keep their messages.
    """
    oldest = sa.select(runs.c.id, runs.c.turn, _HAS_DATA.label("has_data")).where(*_ended(before))
    batch = connection.execute(oldest.order_by(runs.c.ended_at, runs.c.no).limit(limit)).all()
    if not batch:
        return None
    # A run without a turn has no conversation, or ended while it waited for one.
    files = _delete_runs(connection, [row.id for row in batch if row.turn is None])
    turns = [row for row in batch if row.turn is not None]
    _strip_runs(connection, [row.id for row in turns if row.has_data])
    # Otherwise each later batch would read all turns that were ever stripped.
    connection.execute(sa.update(runs).where(runs.c.id.in_([row.id for row in turns])).values(ended_at=None))
    return Pruned(sum(bool(row.has_data) for row in batch), files=files)


def delete_without_turns(connection: sa.Connection, key: str) -> None:
    """Delete a conversation of which no run ever started and none waits, after a queued run has ended."""
    # Locked first: the DELETE then sees runs that were added while this transaction waited.
    connection.execute(sa.select(conversations.c.id).where(conversations.c.id == key).with_for_update())
    waits = sa.exists().where(is_waiting(key))
    connection.execute(sa.delete(conversations).where(conversations.c.id == key, conversations.c.turns == 0, ~waits))


def delete_unused_blueprints(connection: sa.Connection, now: float) -> int:
    """Delete blueprints that no run refers to, except recent ones: a run may be about to start with them."""
    is_used = sa.exists().where(runs.c.blueprint == blueprints.c.digest)
    is_old = blueprints.c.created_at < now - UNUSED_BLUEPRINT_SECONDS
    return connection.execute(sa.delete(blueprints).where(~is_used, is_old)).rowcount


def count_prunable(connection: sa.Connection, before: float | None, now: float) -> Pruned:
    """Return how much `delete_expired` and `delete_ended` would delete."""
    expired = sa.select(conversations.c.id).where(_expired(now))
    prunable = [sa.select(runs.c.no).where(runs.c.conversation_id.in_(expired))]
    if before is not None:
        prunable.append(sa.select(runs.c.no).where(*_ended(before), _HAS_DATA))

    def count(query: sa.SelectBase) -> int:
        return connection.execute(sa.select(sa.func.count()).select_from(query.subquery())).scalar_one()

    # A union, of which each part reads an index. With `OR`, all runs would be read.
    return Pruned(count(sa.union(*prunable)), count(expired))


def _expired(now: float) -> sa.ColumnElement[bool]:
    waits = sa.exists().where(_IS_WAITING)
    return sa.and_(conversations.c.expires_at <= now, conversations.c.open_run.is_(None), ~waits)


def _ended(before: float) -> Iterator[sa.ColumnElement[bool]]:
    """Select runs that ended before a time, except turns that are stripped already: these have no `ended_at`."""
    yield from (runs.c.ended_at < before, runs.c.status.not_in(OPEN_STATUSES))


def _delete_runs(connection: sa.Connection, ids: Iterable[str]) -> int:
    """Delete runs with all their data; return the number of files that were deleted with them."""
    files = 0
    for batch in _batches([*ids]):
        for table in (messages, parts, events, decisions, spans, packed, idempotency_keys, pushes):
            connection.execute(sa.delete(table).where(table.c.run_id.in_(batch)))
        delete_case_results_of(connection, batch)
        files += delete_media_of(connection, batch)
        connection.execute(sa.delete(runs).where(runs.c.id.in_(batch)))
        delete_counters(connection, "run", batch)
    return files


def _strip_runs(connection: sa.Connection, ids: Iterable[str]) -> None:
    """Delete all data of a conversation's turns except the messages of the root runs and files in messages."""
    for batch in _batches([*ids]):
        for table in (parts, events, decisions, spans, packed, pushes):
            connection.execute(sa.delete(table).where(table.c.run_id.in_(batch)))
        delete_case_results_of(connection, batch)
        connection.execute(sa.delete(messages).where(messages.c.run_id.in_(batch), messages.c.path != ""))


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + BATCH_SIZE] for start in range(0, len(ids), BATCH_SIZE))
