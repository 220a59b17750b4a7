"""Texts as columns contain them: without characters that a database rejects, and ids of conversations with owner."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from framework.store.protocol import SEARCHED_TEXTS
from framework.store.sql.schema import messages, runs

SEPARATOR = "\x1f"
"""Ids, tenants and users are printable, so none contains this control character."""
_NEXT = " "
"""The character after the separator."""


def storable(value: str) -> str:
    """Replace characters that SQLite or PostgreSQL reject in text."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def to_sql_text(value: str | None) -> str | None:
    """Return the value of a column that may be null, without characters that SQLite or PostgreSQL reject."""
    return None if value is None else storable(value)


def conversation_key(conversation_id: str, tenant: str | None, user: str | None) -> str:
    """Return the text that identifies a conversation in the database: its id, and its tenant and user if it has them.

    The number of separators tells which it has: 0 none, 1 a tenant, 2 both, 3 a user.
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


def begins_with_key(column: sa.ColumnElement[str], key: str, dialect: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a key of a conversation, or a longer one that begins with it."""
    # Compared byte by byte: by the rules of a language, PostgreSQL would ignore the separator.
    least, below = (">=", "<") if dialect == "sqlite" else ("~>=~", "~<~")
    is_longer = sa.and_(column.op(least)(f"{key}{SEPARATOR}"), column.op(below)(f"{key}{_NEXT}"))
    return sa.or_(column == key, is_longer)


def said(text: str, dialect: str) -> sa.Select[tuple[str]]:
    """Return the ids of the newest runs in which a message of the user or the model contains a text."""
    body = messages.c.body
    if dialect == "sqlite":  # a damaged row must not hide the others
        content: Any = sa.case((sa.func.json_valid(body), sa.func.json_extract(body, "$.content")))
    else:  # PostgreSQL cannot read the character U+0000 from JSON
        content = sa.cast(sa.func.replace(body, "\\u0000", "\\ufffd"), sa.JSON)["content"].as_string()
    newest = runs.c.no > sa.select(sa.func.max(runs.c.no) - SEARCHED_TEXTS).scalar_subquery()
    found = sa.select(messages.c.run_id).join(runs, runs.c.id == messages.c.run_id)
    is_said = (messages.c.path == "", ~body.startswith('{"role":"tool"'))
    return found.where(newest, *is_said, contains_text(text, content))
