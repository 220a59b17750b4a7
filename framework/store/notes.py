"""Notes that agents keep across conversations: save, find, list, forget.

SQLite finds notes by an FTS5 index of their words, PostgreSQL by its own full text search; both compare English words
by their stems. Queries consist of plain words only, so that no text can contain an operator. Every function takes the
key of the owner or the conditions of a query: there is no other way to a note.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from math import sqrt
from operator import mul
from typing import Any

import sqlalchemy as sa

from framework.store.database import Database
from framework.store.schema import (
    conversation_id_of,
    conversation_key,
    insert_into,
    is_owned,
    notes,
)
from framework.store.types import NoteQuery
from framework.types.errors import RequestError
from framework.types.memory import Embedding, Note, NoteOwner, index_words, query_words
from framework.types.text import storable, to_sql_text

MAX_VECTORS = 2000
"""Number of notes of an owner, those used last, whose vectors are compared."""
_INDEX = "agentsd_notes_index"
_INDEX_SQL = (
    f"CREATE VIRTUAL TABLE IF NOT EXISTS {_INDEX} USING fts5(owner, words, content='{notes.name}', content_rowid='no', "
    "tokenize='porter unicode61')",
    f"CREATE TRIGGER IF NOT EXISTS {_INDEX}_added AFTER INSERT ON {notes.name} BEGIN "
    f"INSERT INTO {_INDEX}(rowid, owner, words) VALUES (new.no, new.owner, new.words); END",
    f"CREATE TRIGGER IF NOT EXISTS {_INDEX}_deleted AFTER DELETE ON {notes.name} BEGIN "
    f"INSERT INTO {_INDEX}({_INDEX}, rowid, owner, words) VALUES ('delete', old.no, old.owner, old.words); END",
)
"""Created with the first note. The triggers keep the index complete, whatever deletes notes."""
_COLUMNS = [column for column in notes.c if column.name not in ("no", "owner", "words", "embedder", "vector")]


class Notes:
    """The notes in a store. Each method is one transaction; notes that have expired are never returned."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, note: Note, limit: int, embedding: Embedding | None = None) -> Note:
        """Save a note, unless its owner has one with this id or text, and return the stored one.

        Beyond `limit` notes of the owner, those are deleted that were not used for longest.
        """
        return await self._database.write(lambda connection: _save(connection, note, limit, embedding))

    async def search(self, owner: NoteOwner, text: str, limit: int, embedding: Embedding | None = None) -> list[Note]:
        """Return the notes of an owner that fit a text best: by their vectors, if it has one, then by its words."""
        now, words = self._database.clock(), query_words(text)

        def find(connection: sa.Connection) -> list[Note]:
            alive = (notes.c.owner == owner.key, _is_kept(now))
            near = _nearest(connection, alive, embedding, limit) if embedding else []
            found = [*near, *_select(connection, _by_words(connection, owner.key, words, alive, limit))]
            return list({note.id: note for note in found}.values())[:limit]

        return await self._database.read(find)

    async def newest(self, owner: NoteOwner, limit: int) -> list[Note]:
        """Return the notes of an owner that were saved last."""
        alive = (notes.c.owner == owner.key, _is_kept(self._database.clock()))
        select = sa.select(*_COLUMNS).where(*alive).order_by(notes.c.no.desc()).limit(limit)
        return await self._database.read(lambda connection: _select(connection, select))

    async def mark_used(self, ids: Collection[str]) -> None:
        """Save that a run has received these notes."""
        now = self._database.clock()
        update = sa.update(notes).where(notes.c.id.in_(sorted(ids))).values(used_at=now)
        await self._database.write(lambda connection: connection.execute(update))

    async def owned(self, owner: NoteOwner, note_id: str) -> Note | None:
        """Return a note of an owner, or None."""
        select = sa.select(*_COLUMNS).where(notes.c.owner == owner.key, notes.c.id == storable(note_id))
        kept = select.where(_is_kept(self._database.clock()))
        return next(iter(await self._database.read(lambda connection: _select(connection, kept))), None)

    async def list(self, query: NoteQuery) -> list[Note]:
        """Return the matching notes, the newest first; raises RequestError if `before` names none of them."""
        now = self._database.clock()

        def find(connection: sa.Connection) -> list[Note]:
            select = sa.select(*_COLUMNS).where(*_conditions(query), _is_kept(now))
            if query.before is not None:
                place = sa.select(notes.c.no).where(notes.c.id == storable(query.before), *_conditions(query))
                if (no := connection.execute(place).scalar_one_or_none()) is None:
                    raise RequestError(f"there is no note {query.before!r} in this list")
                select = select.where(notes.c.no < no)
            return _select(connection, select.order_by(notes.c.no.desc()).limit(query.limit))

        return await self._database.read(find)

    async def forget(self, query: NoteQuery) -> int:
        """Delete the matching notes, and return their number. `before` and `limit` have no effect."""
        delete = sa.delete(notes).where(*_conditions(query))
        return await self._database.write(lambda connection: connection.execute(delete).rowcount, is_request=True)

    async def forget_owned(self, owner: NoteOwner, note_id: str) -> bool:
        """Delete a note of an owner; return whether there was one."""
        delete = sa.delete(notes).where(notes.c.owner == owner.key, notes.c.id == storable(note_id))
        return await self._database.write(lambda connection: connection.execute(delete).rowcount) > 0


def delete_notes_of(connection: sa.Connection, conversation: str) -> None:
    """Delete the notes that runs of the conversation with this key have saved."""
    connection.execute(sa.delete(notes).where(notes.c.conversation == conversation))


def delete_expired_notes(connection: sa.Connection, now: float) -> None:
    """Delete the notes that have expired."""
    connection.execute(sa.delete(notes).where(~_is_kept(now)))


def _save(connection: sa.Connection, note: Note, limit: int, embedding: Embedding | None) -> Note:
    owner = NoteOwner(note.scope, note.tenant, note.user, note.agent).key
    text = storable(note.text)
    if connection.dialect.name == "sqlite":
        for statement in _INDEX_SQL:
            connection.exec_driver_sql(statement)
    same = sa.and_(notes.c.owner == owner, notes.c.text == text, _is_kept(note.created_at))
    known = _select(connection, sa.select(*_COLUMNS).where(sa.or_(notes.c.id == note.id, same)))
    if known:
        return known[0]
    row = note_row(note, embedding)
    connection.execute(insert_into(notes, connection.dialect.name).values(row).on_conflict_do_nothing())
    others = sa.select(notes.c.id).where(notes.c.owner == owner, notes.c.id != note.id)
    surplus = others.order_by(notes.c.used_at.desc(), notes.c.no.desc()).offset(limit - 1)
    connection.execute(sa.delete(notes).where(notes.c.id.in_(surplus)))
    return note


def note_row(note: Note, embedding: Embedding | None = None) -> dict[str, Any]:
    """Return the columns of a note."""
    text = storable(note.text)
    return {
        **note.model_dump(exclude={"conversation_id", "user"}),
        "text": text,
        "tenant": to_sql_text(note.tenant),
        "user_id": to_sql_text(note.user),
        "conversation": note.conversation_id and conversation_key(note.conversation_id, note.tenant, note.user),
        "owner": NoteOwner(note.scope, note.tenant, note.user, note.agent).key,
        "words": index_words(text),
        "embedder": embedding and embedding.embedder,
        "vector": embedding and array("f", embedding.vector).tobytes(),
    }


def _is_kept(now: float) -> sa.ColumnElement[bool]:
    return sa.or_(notes.c.expires_at.is_(None), notes.c.expires_at > now)


def _by_words(
    connection: sa.Connection, owner: str, words: Sequence[str], alive: tuple[sa.ColumnElement[bool], ...], limit: int
) -> sa.Select[Any] | None:
    """Return the query for the notes that contain some of the words, those that fit best first; None without words."""
    if not words:
        return None
    select = sa.select(*_COLUMNS).where(*alive)
    if connection.dialect.name != "sqlite":
        english: sa.ColumnElement[Any] = sa.literal_column("'english'")
        vector = sa.func.to_tsvector(english, notes.c.words)
        query = sa.func.to_tsquery(english, " | ".join(f"'{word}'" for word in words))
        rank = sa.func.ts_rank(vector, query)
        return select.where(vector.op("@@")(query)).order_by(rank.desc(), notes.c.no.desc()).limit(limit)
    if not connection.execute(sa.select(notes.c.no).where(*alive).limit(1)).all():
        return None  # there may be no index yet
    index = sa.table(_INDEX, sa.column("rowid", sa.Integer), sa.column("rank", sa.Double))
    any_word = " OR ".join(f'"{word}"' for word in words)
    match = f'owner: "{owner}" AND words: ({any_word})'
    is_match = sa.text(f"{_INDEX} MATCH :words").bindparams(words=match)
    return (
        select.join_from(notes, index, index.c.rowid == notes.c.no)
        .where(is_match)
        .order_by(index.c.rank, notes.c.no.desc())
        .limit(limit)
    )


def _nearest(
    connection: sa.Connection, alive: tuple[sa.ColumnElement[bool], ...], wanted: Embedding, limit: int
) -> list[Note]:
    """Return the notes whose vectors have the smallest angles to a vector."""
    own = (notes.c.embedder == wanted.embedder, sa.func.length(notes.c.vector) == 4 * len(wanted.vector))
    latest = sa.select(notes.c.id, notes.c.vector).where(*alive, *own).order_by(notes.c.used_at.desc())
    scores: dict[str, float] = {}
    for id, body in connection.execute(latest.limit(MAX_VECTORS)):
        vector = array("f", bytes(body))
        scores[id] = sum(map(mul, vector, wanted.vector)) / (sqrt(sum(map(mul, vector, vector))) or 1.0)
    best = sorted(scores, key=lambda id: -scores[id])[:limit]
    found = {note.id: note for note in _select(connection, sa.select(*_COLUMNS).where(notes.c.id.in_(best)))}
    return [found[id] for id in best if id in found]


def _select(connection: sa.Connection, select: sa.Select[Any] | None) -> list[Note]:
    rows = connection.execute(select).mappings() if select is not None else ()
    return [
        Note(
            conversation_id=row["conversation"] and conversation_id_of(row["conversation"]),
            user=row["user_id"],
            **{name: value for name, value in row.items() if name not in ("conversation", "user_id")},
        )
        for row in rows
    ]


def _conditions(query: NoteQuery) -> Iterator[sa.ColumnElement[bool]]:
    if query.ids is not None:
        yield notes.c.id.in_([storable(one) for one in query.ids])
    yield from is_owned(query, notes)
    if query.scope is not None:
        yield notes.c.scope == query.scope
    if query.agents is not None:
        yield notes.c.agent.in_([storable(agent) for agent in query.agents])
    if query.search is not None:
        yield notes.c.text.icontains(storable(query.search), autoescape=True)
