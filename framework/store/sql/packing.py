"""Compresses the parts, events and spans of an ended run into one row.

The rows shrink to a tenth, because a tool's result occurs in a run's calls, trace and events, and every span repeats
the run's attributes. Compression is lossless. Runs that are too large to compress within a transaction stay as rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from framework.store.sql.schema import events, packed, parts, spans
from framework.store.sql.state_rows import RowKind

MAX_PACKED_CHARS = 2_000_000
"""Runs with more text are not packed, because other runs of the database wait for the transaction."""
_LEVEL, _WINDOW, _MEMORY = 3, 14, 7
"""zlib parameters: a third of the time of the defaults, for output that is a fifth larger."""

_ROWS = (
    sa.select(parts.c.path, parts.c.kind, parts.c.body)
    .where(parts.c.run_id == sa.bindparam("run"))
    .order_by(parts.c.path, parts.c.kind, parts.c.n),
    sa.select(events.c.seq, events.c.body).where(events.c.run_id == sa.bindparam("run")).order_by(events.c.seq),
    sa.select(spans.c.body).where(spans.c.run_id == sa.bindparam("run")).order_by(spans.c.version),
)
_DELETE = [sa.delete(table).where(table.c.run_id == sa.bindparam("run")) for table in (parts, events, spans)]
_INSERT = sa.insert(packed)


@dataclass(frozen=True, slots=True)
class PackedRun:
    """The contents of a packed row."""

    parts: Sequence[tuple[str, RowKind, str]]
    """Path, kind and body, in order within each kind."""
    events: Sequence[tuple[int, str]]
    """Event number and body."""
    spans: Sequence[str]
    """JSON lists of spans."""


def pack(
    connection: sa.Connection,
    run_id: str,
    last_events: Sequence[tuple[int, str]] = (),
    last_spans: Sequence[tuple[str]] = (),
    only_parts: Sequence[tuple[str, RowKind, str]] | None = None,
) -> bool:
    """Replace the rows of an ended run by one packed row, in the connection's transaction.

    Args:
        connection: the connection.
        run_id: the id of the run.
        last_events: numbers and bodies of events that have no rows yet.
        last_spans: bodies of spans that have no rows yet.
        only_parts: path, kind and body of all parts of a run that has no rows yet, in order. None: it has.

    Returns:
        Whether the run was packed; otherwise, the last events and spans need rows.
    """
    run, has_rows = {"run": run_id}, only_parts is None
    tables: list[list[Any]] = [[*(only_parts or ())], [], []]
    if has_rows:
        tables = [[tuple(row) for row in connection.execute(rows, run)] for rows in _ROWS]
    tables[1] += last_events
    tables[2] += last_spans
    if not any(tables) or sum(len(found[-1]) for rows in tables for found in rows) > MAX_PACKED_CHARS:
        return False
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
    contents = orjson.dumps(dict(zip(("parts", "events", "spans"), tables, strict=True)))
    body = compressor.compress(contents) + compressor.flush()
    for delete in _DELETE if has_rows else ():
        connection.execute(delete, run)
    connection.execute(_INSERT, {"run_id": run_id, "body": body})
    return True


def load_packed(connection: sa.Connection, run_id: str) -> PackedRun | None:
    """Return the packed rows of a run, or None if it is not packed."""
    body = connection.execute(sa.select(packed.c.body).where(packed.c.run_id == run_id)).scalar_one_or_none()
    if body is None:
        return None
    tables: dict[str, Any] = orjson.loads(zlib.decompress(body))
    return PackedRun(
        [(path, kind, text) for path, kind, text in tables["parts"]],
        [(seq, text) for seq, text in tables["events"]],
        [text for (text,) in tables["spans"]],
    )
