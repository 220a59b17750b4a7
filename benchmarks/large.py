"""Large projects and stores: 10,000 agents, conversations of 10,000 messages, 1,000,000 stored runs.

What should not grow with the total is compared with a hundredth of it, in turn.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Protocol

import psycopg

from benchmarks.harness import NotMeasured, Row, Table, figure, paired, resident_mb
from benchmarks.reload import frozen, write
from examples.scale_demo.postgres import new_database, programs, server
from framework import Approve, Runtime, tool
from framework.cli.location import runs_of
from framework.cli.terminal import as_json_text
from framework.cli.transcripts import conversation_lines, find_conversation, store_as_turn
from framework.config.settings import Settings
from framework.llm.client import ModelRequest
from framework.llm.message_formats import exported
from framework.store.schema import metadata
from framework.store.store import Store
from framework.store.types import ConversationQuery, RunQuery
from framework.store.usage import Period
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Message
from framework.types.state import RunRequest, RunState

SHARE = 100
"""The sizes that are compared differ by this factor."""
GROWTH = 5
"""The most that a look may need, compared with a hundredth of the data. Caches of the database are part of it."""
PAGE = 50
EDIT_MS, KB_PER_AGENT = 400, 20
ROUNDS, SECONDS = 7, 2.0
"""At most so many rounds of a look, and no further one after so many seconds."""


@dataclass(frozen=True)
class Look:
    """One operation on a store, and how much more it may need than on a hundredth of the data."""

    name: str
    act: Callable[[], Awaitable[object]]
    at_most: float | None = GROWTH
    note: str = ""
    rounds: int = ROUNDS


async def timed(act: Callable[[], Awaitable[object]]) -> float:
    """Return how long an act takes, in milliseconds."""
    started = perf_counter()
    await act()
    return (perf_counter() - started) * 1000


async def compared(large: Look, small: Look) -> Row:
    """Measure a look at both sizes in turn. The first turn fills caches; it counts if it is the only one."""
    turns: list[tuple[float, float]] = []
    ends = perf_counter() + SECONDS
    while len(turns) < min(large.rounds, small.rounds) and (not turns or perf_counter() < ends):
        turns.append((await timed(large.act), await timed(small.act)))
    values, baseline = zip(*(turns[1:] or turns), strict=True)
    return Row(large.name, median(values), paired(values, baseline), large.note, at_most=large.at_most)


# --- agents


def project(root: Path, agents: int) -> Path:
    """Write a project of many agents."""
    (root / "agents.d").mkdir(parents=True)
    for number in range(agents):
        write(root, number, "Initial version.")
    return root


async def agents(root: Path, number: int, rounds: int) -> Iterator[Table]:
    """Measure starts with many agents and with a tenth of them, then edits of single files among many."""
    small, before = project(root / "small", number // 10), resident_mb()
    started = perf_counter()
    async with Runtime.open(project(root / "large", number), settings=Settings()) as runtime:
        start, memory = (perf_counter() - started) * 1000, resident_mb() - before
        edits, generation = list[float](), runtime.catalog.current.number
        for edit in range(rounds + 1):
            await asyncio.to_thread(write, root / "large", edit, f"Edit {edit}.")
            saved = perf_counter()
            generation = (await runtime.wait_generation(generation + 1)).number
            edits.append((perf_counter() - saved) * 1000)
    started = perf_counter()
    async with Runtime.open(small, watch=False):
        tenth = (perf_counter() - started) * 1000
    times = [
        Row(f"start with {number // 10:,} agents", tenth, 1),
        Row(f"start with {number:,} agents", start, start / tenth, at_most=15),
    ]
    live = [
        Row("median", median(edits[1:]), median(edits[1:]) / EDIT_MS, f"of {EDIT_MS}"),
        Row.limited("95th percentile", quantiles(edits[1:], n=20)[-1], EDIT_MS),
    ]
    per_agent = Row.limited("of each agent", memory / number * 1000, KB_PER_AGENT, f"{memory:,.0f} MB of all")
    return iter(
        [
            Table("From the start until a project is live", "ms", times),
            Table(f"Time until a saved file is live, of {number:,} agent files", "ms", live),
            Table(f"Memory of {number:,} agents", "kB", [per_agent]),
        ]
    )


# --- conversations


async def conversations(root: Path, messages: int) -> Table:
    """Measure runs in a long conversation, and commands that read it."""
    (root / "agents.d").mkdir(parents=True)
    (root / "agents.d/one.yaml").write_text(
        "version: 1\nname: one\ndescription: Answers.\nmodel: offline\ninstructions: Answer.\n", "utf-8"
    )
    async with Runtime.open(root, store="sqlite:///long.db", watch=False) as runtime:

        async def looks(number: int) -> Sequence[Look]:
            name = f"of-{number}"
            said = [Message(role="user" if n % 2 == 0 else "assistant", content=f"word {n}") for n in range(number)]
            state = RunState(agent="one", conversation_id=name, messages=said)
            await store_as_turn(runtime.store, await runtime.store.conversation(name), state, {})

            async def show() -> str:
                found = await find_conversation(runtime.store, name)
                return "\n".join(conversation_lines(found, await runs_of(runtime.store, found)))

            async def export() -> str:
                return as_json_text(exported((await find_conversation(runtime.store, name)).messages, "messages"))

            return [
                Look("one more run", lambda: runtime.run("What is 2 * 3?", conversation=name), SHARE),
                Look("conversations show", show, SHARE),
                Look("conversations export", export, SHARE),
            ]

        both = zip(await looks(messages), await looks(messages // SHARE), strict=True)
        rows = [await compared(*pair) for pair in both]
    title = f"A conversation of {messages:,} messages; ratio to one of {messages // SHARE:,}"
    return Table(title, "ms", rows)


# --- copies of runs
#
# The oldest half of the runs are turns of conversations that were pruned: they keep their messages only. In the newer
# half, every other run is such a turn with all of its data, and the others belong to no conversation. Of a thousand of
# these, two are paused and two wait in the queue; of ten thousand, two were left by a process that ended.

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


# --- stores


@asynccontextmanager
async def opened(root: Path, filled: Filled) -> AsyncIterator[tuple[Runtime, Store]]:
    """Open a filled store, and a runtime on it."""
    store = await Store.open(filled.url, root)
    try:
        async with Runtime.open(
            root, store=store, models=MODELS, tools=[note], watch=False, single_user=True
        ) as runtime:
            yield runtime, store
    finally:
        await store.close()


async def looks(runtime: Runtime, store: Store, filled: Filled) -> Sequence[Look]:
    """Return the operations on a store. Those at the end change it."""
    now, days = time.time(), count(1)
    oldest = await store.runs(RunQuery(limit=PAGE + 1))
    newest = await store.runs(RunQuery(limit=1, newest_first=True))
    waiting = await store.runs(RunQuery(statuses=["paused"], limit=ROUNDS, newest_first=True))
    paused = iter(waiting)

    def page(name: str, query: RunQuery, at_most: float | None = GROWTH, note: str = "") -> Look:
        one = replace(query, newest_first=True, limit=PAGE)
        return Look(f"list: {name}", lambda: store.runs(one), at_most, note)

    def usage(name: str, days: int) -> Look:
        period = Period.of(now - days * DAY_SECONDS, now, "1d", UTC)
        return Look(f"usage of {name}", lambda: store.usage(RunQuery(), "agent", period), None, "counts all of them")

    async def show() -> None:
        run_id = newest[0].run_id
        await store.load_run(run_id), await store.events(run_id), await store.spans(run_id)

    async def resume() -> None:
        run_id = next(paused).run_id
        (asked,) = await runtime.pending(run_id)
        result = await runtime.resume(run_id, {asked.id: Approve()})
        assert result.status == "completed", result

    async def claim() -> None:
        claimed = await store.claim(1)
        await store.unclaim([request.run_id for request in claimed])

    async def prune(*, dry_run: bool) -> None:
        day = 1 if dry_run else next(days)
        await store.prune(filled.half + day * DAY_SECONDS, now, dry_run=dry_run)

    day = f"{filled.runs // 100:,} runs"
    unindexed = "no index: reads runs until the page is full"
    return [
        page("the newest runs", RunQuery()),
        page("the oldest runs", RunQuery(before=oldest[-1].run_id)),
        page("failed runs", RunQuery(statuses=["failed"])),
        page("of an agent", RunQuery(agent="agent-7")),
        page("of a conversation", RunQuery(conversation_id="conversation-7")),
        page("of a user", RunQuery(user="user-70"), None, unindexed),
        page("of an unknown agent", RunQuery(agent="nobody"), None, unindexed),
        Look("list: interrupted runs", lambda: store.runs(RunQuery(orphaned=True, limit=PAGE))),
        Look("list: conversations", lambda: store.conversations(ConversationQuery(limit=PAGE)), None, "sorts all"),
        Look("show a run", show),
        Look("load a conversation", lambda: store.conversation("conversation-7")),
        usage("a day", 1),
        usage("30 days", 30),
        Look("claim a queued run", claim),
        Look("resume a paused run", resume, rounds=len(waiting)),
        Look("sweep", lambda: store.sweep(10), None, "offers up to 10 runs"),
        Look("count what a day's pruning deletes", lambda: prune(dry_run=True), None, day),
        Look("prune a day", lambda: prune(dry_run=False), None, day, rounds=1),
    ]


async def stored(root: Path, urls: tuple[str, str], number: int) -> Table:
    """Measure operations on a store of many runs, compared with a store of a hundredth."""
    roots = root / "large", root / "small"
    for one in roots:
        one.mkdir(parents=True)
    large, small = await fill(roots[0], urls[0], number), await fill(roots[1], urls[1], number // SHARE)
    async with opened(roots[0], large) as many, opened(roots[1], small) as few:
        both = zip(await looks(*many, large), await looks(*few, small), strict=True)
        rows = [await compared(*pair) for pair in both]
    kind = large.url.partition(":")[0]
    filled = f"{large.bytes / 1e9:,.2f} GB; copied in {figure(large.seconds)} s"
    return Table(f"{number:,} runs in {kind}; ratio to {number // SHARE:,} runs", "ms", rows, filled)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure agents, conversations and stores; PostgreSQL only if it is installed (else NotMeasured, at the end)."""
    number, messages, runs = (1000, 2000, 100_000) if quick else (10_000, 10_000, 1_000_000)
    with TemporaryDirectory(prefix="agentsd-bench-") as name:
        root = Path(name)
        with frozen():
            yield from asyncio.run(agents(root / "agents", number, 10 if quick else 40))
        yield asyncio.run(conversations(root / "conversations", messages))
        yield asyncio.run(stored(root / "sqlite", ("sqlite:///runs.db", "sqlite:///runs.db"), runs))
    if programs() is None:
        raise NotMeasured("there is no PostgreSQL")
    with TemporaryDirectory(prefix="agentsd-bench-") as name, server() as running:
        urls = new_database(running.url), new_database(running.url)
        yield asyncio.run(stored(Path(name) / "postgres", urls, runs))
