"""Large projects and stores: 10,000 agents, conversations of 10,000 messages, 1,000,000 stored runs.

What should not grow with the total is compared with a hundredth of it, in turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.copied_runs import DAY_SECONDS, MODELS, Filled, fill, note
from benchmarks.harness import NotMeasured, Row, Table, figure, paired, resident_mb
from benchmarks.reload import frozen, write
from examples.scale_demo.postgres import new_database, programs, server
from framework import Approve, Runtime
from framework.cli.location import runs_of, store_as_turn
from framework.cli.terminal import as_json_text
from framework.cli.transcripts import conversation_lines, find_conversation
from framework.config.settings import Settings
from framework.llm.message_formats import exported
from framework.store.store import Store
from framework.store.types import ConversationQuery, RunQuery
from framework.store.usage import Period
from framework.types.messages import Message
from framework.types.state import RunState

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
