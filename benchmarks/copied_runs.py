"""Fills the tables of a store with copies of a few real runs, by SQL, for SQLite and PostgreSQL.

The oldest half of the runs are turns of conversations that were pruned: they keep their messages only. In the newer
half, every other run is such a turn with all of its data, and the others belong to no conversation. Of a thousand of
these, two are paused and two wait in the queue; of ten thousand, two were left by a process that ended.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg

from framework import Runtime, tool
from framework.llm.client import ModelRequest
from framework.store.schema import metadata
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Message
from framework.types.state import RunRequest

AGENTS, USERS, TENANTS, TURNS = 100, 10_000, 100, 10
"""Names among the copies, and turns of a conversation."""
DAYS = 100
"""The copies were added in this many days, the last one now."""
DAY_SECONDS = 86_400
GONE = "elsewhere/1:1/1"
"""A process that has ended."""
PROJECT = {
    "ended": "skill_policy: {allow: [note]}",
    "paused": "skill_policy: {ask: [note], allow: [note]}",
}
MODELS = {"scripted": ScriptedModel(script=lambda request: _turn(request))}


class Connection(Protocol):
    """A connection of sqlite3 or psycopg that commits each statement."""

    def execute(self, statement: Any, /) -> Any:
        """Execute a statement."""
        ...


@dataclass(frozen=True)
class Filled:
    """A filled store."""

    url: str
    runs: int
    seconds: float
    """Time that copying took."""
    bytes: int
    """Size of the database."""

    @property
    def half(self) -> float:
        """Unix time at which the newer half of the runs begins."""
        return time.time() - DAYS / 2 * DAY_SECONDS


@tool(risk="low")
async def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


def _turn(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    return "It is noted." if last.role == "tool" else calls(("note", {"text": "the parcel is late"}))


async def fill(root: Path, url: str, number: int) -> Filled:
    """Execute a run of each kind in a new store, and copy them by SQL until there are `number` runs more."""
    (root / "agents.d").mkdir(exist_ok=True)
    for name, policy in PROJECT.items():
        text = f"version: 1\nname: {name}\ndescription: Notes.\nmodel: scripted\ninstructions: Note.\n{policy}\n"
        (root / f"agents.d/{name}.yaml").write_text(text, "utf-8")
    async with Runtime.open(root, store=url, models=MODELS, tools=[note], watch=False) as runtime:
        ended = await runtime.run("Where is my parcel?", agent="ended")
        turn = await runtime.run("Where is my parcel?", agent="ended", conversation="first")
        paused = await runtime.run("Where is my parcel?", agent="paused")
        waiting = RunRequest(message=Message(role="user", content="Where is my parcel?"))
        await runtime.store.enqueue(waiting)
    assert (ended.status, turn.status, paused.status) == ("completed", "completed", "paused")
    templates = {"ended": ended.run_id, "turn": turn.run_id, "paused": paused.run_id, "queued": waiting.run_id}
    started = time.perf_counter()
    with connected(root, url) as connection:
        _copy(connection, templates, number, is_sqlite=url.startswith("sqlite"))
        seconds = time.perf_counter() - started
        query = (
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            if url.startswith("sqlite")
            else "SELECT pg_database_size(current_database())"
        )
        (size,) = connection.execute(query).fetchone()
    return Filled(url, number, seconds, size)


@contextmanager
def connected(root: Path, url: str) -> Iterator[Connection]:
    """Connect to the database of a store."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(root / url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            yield file
    else:
        with psycopg.connect(url, autocommit=True) as server:
            yield server


def _copy(connection: Connection, templates: Mapping[str, str], number: int, *, is_sqlite: bool) -> None:
    random_id = "lower(hex(randomblob(16)))" if is_sqlite else "md5(random()::text)"
    step, begin = DAYS * DAY_SECONDS / number, time.time() - DAYS * DAY_SECONDS
    connection.execute("BEGIN")
    connection.execute("CREATE TEMP TABLE copies (i INTEGER PRIMARY KEY, id TEXT, kind TEXT, at DOUBLE PRECISION)")
    connection.execute(
        f"WITH RECURSIVE series(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM series WHERE i < {number}) "
        f"INSERT INTO copies SELECT i, 'run_' || {random_id}, CASE WHEN i <= {number // 2} OR i % 2 = 1 THEN 'turn' "
        "WHEN i % 1000 = 0 THEN 'paused' WHEN i % 1000 = 2 THEN 'queued' WHEN i % 10000 = 4 THEN 'left' "
        f"ELSE 'ended' END, {begin} + i * {step} FROM series"
    )
    connection.execute("CREATE INDEX copies_by_id ON copies (id)")
    connection.execute("CREATE TEMP TABLE kinds (kind TEXT PRIMARY KEY, template TEXT)")
    kinds = {**templates, "left": templates["paused"]}
    values = ", ".join(f"('{kind}', '{template}')" for kind, template in kinds.items())
    connection.execute(f"INSERT INTO kinds VALUES {values}")
    connection.execute(f"INSERT INTO agentsd_processes VALUES ('{GONE}', 'gone', 0, 0, 0, NULL, '{{}}')")
    for table, changes in _changes(number).items():
        _copy_table(connection, table, changes)
    if not is_sqlite:
        connection.execute("SELECT setval('agentsd_runs_no_seq', (SELECT max(no) FROM agentsd_runs))")
    connection.execute("COMMIT")
    connection.execute("DROP TABLE copies")
    connection.execute("ANALYZE" if not is_sqlite else "PRAGMA wal_checkpoint(TRUNCATE)")


def _changes(number: int) -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """Return a condition on copies, and the values that differ from the template, for each table."""
    body = {"run_id": "c.id"}
    opened = "c.kind IN ('paused', 'queued', 'left')"
    of_runs = {
        "no": "c.i + 10",
        "id": "c.id",
        "conversation_id": f"CASE c.kind WHEN 'turn' THEN 'conversation-' || (c.i / {TURNS}) END",
        "turn": f"CASE c.kind WHEN 'turn' THEN c.i % {TURNS} + 1 END",
        "user_id": f"'user-' || (c.i % {USERS})",
        "tenant": f"CASE WHEN c.kind <> 'turn' THEN 'tenant-' || (c.i % {TENANTS}) END",
        "agent": f"'agent-' || (c.i % {AGENTS})",
        "status": "CASE WHEN c.kind = 'left' THEN 'running' WHEN c.kind = 'ended' AND c.i % 100 = 50 THEN 'failed' "
        "ELSE one.status END",
        "process": "CASE c.kind WHEN 'left' THEN '{GONE}' END",
        "owner": "CASE c.kind WHEN 'left' THEN '{GONE}.' || c.i END",
        "created_at": "c.at",
        "updated_at": "c.at + 5",
        "ended_at": f"CASE WHEN c.i > {number // 2} THEN one.ended_at - one.created_at + c.at END",
        "head": "replace(one.head, one.id, c.id)",
        "state": "replace(one.state, one.id, c.id)",
        "request": "replace(one.request, one.id, c.id)",
    }
    return {
        "agentsd_runs": ("c.i > 0 ORDER BY c.i", of_runs),
        "agentsd_messages": ("c.i > 0 ORDER BY c.id", body),
        "agentsd_packed": (f"c.kind = 'ended' OR (c.kind = 'turn' AND c.i > {number // 2}) ORDER BY c.id", body),
        "agentsd_parts": (f"{opened} ORDER BY c.id", body | {"body": "one.body"}),
        "agentsd_events": (f"{opened} ORDER BY c.id", body),
        "agentsd_conversations": (
            f"c.i % {TURNS} = 0",
            {
                "id": f"'conversation-' || (c.i / {TURNS})",
                "user_id": f"'user-' || (c.i % {USERS})",
                "agent": f"'agent-' || (c.i % {AGENTS})",
                "turns": str(TURNS),
                "updated_at": "c.at",
            },
        ),
    }


def _copy_table(connection: Connection, table: str, changes: tuple[str, Mapping[str, str]]) -> None:
    """Insert copies of the templates' rows of a table."""
    where, values = changes
    columns = [column.name for column in metadata.tables[table].columns]
    key = {"agentsd_runs": "one.id = k.template", "agentsd_conversations": "one.id = 'first'"}
    connection.execute(f"CREATE TEMP TABLE originals AS SELECT * FROM {table}")
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) "
        f"SELECT {', '.join(values.get(column, f'one.{column}') for column in columns)} "
        f"FROM copies c JOIN kinds k ON k.kind = c.kind JOIN originals one "
        f"ON {key.get(table, 'one.run_id = k.template')} WHERE {where}"
    )
    connection.execute("DROP TABLE originals")
