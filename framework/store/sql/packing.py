"""Ended runs, packed: the parts, events and spans of a run become one compressed row.

A tool's result is in a run's calls, trace and events, and every span repeats its run's attributes, so these shrink to a
tenth. Nothing is left out: what is read is what was written. Runs that an older version has written, or that are too
large to be compressed within a transaction, stay as rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.prepared_statement import PreparedStatement
from framework.store.sql.schema import events, packed, parts, spans
from framework.store.sql.state_rows import RowKind

MAX_PACKED_CHARS = 2_000_000
"""A run with more text than that is not packed: other runs of the database wait meanwhile."""
LEVEL, WINDOW, MEMORY = 3, 14, 7
"""Of zlib: a third of the time that its defaults take, for a result that is a fifth larger."""

_ROWS = (
    sa.select(parts.c.path, parts.c.kind, parts.c.body)
    .where(parts.c.run_id == sa.bindparam("run"))
    .order_by(parts.c.path, parts.c.kind, parts.c.n),
    sa.select(events.c.seq, events.c.body).where(events.c.run_id == sa.bindparam("run")).order_by(events.c.seq),
    sa.select(spans.c.body).where(spans.c.run_id == sa.bindparam("run")).order_by(spans.c.version),
)
_TABLES = (parts, events, spans)


@dataclass(frozen=True, slots=True)
class PackedRun:
    """What a packed row contains."""

    parts: Sequence[tuple[str, RowKind, str]]
    """Path, kind and body; those of a kind in their order."""
    events: Sequence[tuple[int, str]]
    """Number and body."""
    spans: Sequence[str]
    """Pieces of the trace."""


class Packer:
    """Packs runs of one database."""

    def __init__(self, database: Database) -> None:
        def prepared(statement: sa.Executable, columns: Sequence[str] | None = None) -> PreparedStatement:
            return PreparedStatement(statement, database.dialect, columns)

        self._rows = [prepared(rows) for rows in _ROWS]
        self._delete = [prepared(sa.delete(t).where(t.c.run_id == sa.bindparam("run"))) for t in _TABLES]
        self._insert = prepared(sa.insert(packed), [column.name for column in packed.columns])

    def pack(self, connection: sa.Connection, run_id: str) -> None:
        """Replace the rows of a run that has ended, in the connection's transaction."""
        row = {"run": run_id}
        found = [rows.fetch_all(connection, row) for rows in self._rows]
        if not any(found) or sum(len(body) for rows in found for *_, body in rows) > MAX_PACKED_CHARS:
            return
        whole = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW, MEMORY)
        body = whole.compress(orjson.dumps(dict(zip(("parts", "events", "spans"), found, strict=True)))) + whole.flush()
        for delete in self._delete:
            delete.execute(connection, row)
        self._insert.execute(connection, {"run_id": run_id, "body": body})


def load_packed(connection: sa.Connection, run_id: str) -> PackedRun | None:
    """What was packed of a run, if it was."""
    body = connection.execute(sa.select(packed.c.body).where(packed.c.run_id == run_id)).scalar_one_or_none()
    if body is None:
        return None
    found: dict[str, Any] = orjson.loads(zlib.decompress(body))
    return PackedRun(
        [(path, kind, text) for path, kind, text in found["parts"]],
        [(seq, text) for seq, text in found["events"]],
        [text for (text,) in found["spans"]],
    )
