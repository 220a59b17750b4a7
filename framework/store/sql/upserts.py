"""INSERT statements that may have an ON CONFLICT clause, in the dialect of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql


def insert_into(table: sa.Table, dialect: sa.Dialect) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT for SQLite or PostgreSQL. The dialect of PostgreSQL is imported for PostgreSQL only."""
    if dialect.name == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects.postgresql import insert

    return insert(table)
