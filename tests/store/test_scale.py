"""Claims, sweeps, pruning and lists read a few rows, however many runs wait, are in progress or were pruned."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from framework.store.schema import conversation_key, conversations, processes, runs
from framework.store.store import Store
from framework.store.types import ConversationQuery, Pruned, RunQuery
from tests.support.cases import FACTOR
from tests.support.queues import request

FEW, MANY = 150, 2000 * FACTOR
"""Numbers of runs that wait, of those in progress, and of paused ones; `make test-long` has 40,000 of each."""
MAX_GROWTH, ROWS = 3, 60
"""How much more work a look may be with `MANY` runs than with `FEW`: this factor, and a few rows."""
LOOKS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "claim": lambda store: store.claim(1),
    "orphans": lambda store: store.runs(RunQuery(orphaned=True, limit=10)),
    "expired": lambda store: store.runs(RunQuery(expired_at=time.time(), limit=10)),
    "sweep": lambda store: store.sweep(10),
    "conversation": lambda store: store.runs(RunQuery(conversation_id="own7", newest_first=True, limit=10)),
    "conversation of a tenant": lambda store: store.runs(RunQuery(conversation_id="theirs7", limit=10)),
    "renew": lambda store: store.renew([]),
}


def rows(prefix: str, number: int, status: str, **more: Callable[[int], object]) -> list[dict[str, Any]]:
    """Return rows of `agentsd_runs`. `more`: functions from the number of a row to the value of a column."""
    now = time.time()
    texts = dict.fromkeys(("agent", "digest", "blueprint", "message"), "") | {"head": "{}", "state": "{}"}
    row = {"status": status, "generation": 0, "version": 1, "created_at": now, "updated_at": now, **texts}
    return [{"id": f"{prefix}{n}", **row, **{name: of(n) for name, of in more.items()}} for n in range(number)]


def fill(connection: sa.Connection, number: int) -> None:
    """Add runs in progress in 20 processes, runs that wait behind others, paused runs and ended runs."""
    now, later, body = time.time(), time.time() + 3600, request().model_dump_json()
    holders = [f"elsewhere/1:1/{n}" for n in range(20)]
    alive = {"name": "w", "started_at": now, "seen_at": now, "lease_until": later}
    connection.execute(sa.insert(processes), [{"id": holder, **alive} for holder in holders])
    keys = [f"c{n}" for n in range(number // 20)]
    busy = {"open_run": "r0", "created_at": now, "updated_at": now}
    connection.execute(sa.insert(conversations), [{"id": key, **busy} for key in keys])
    connection.execute(sa.insert(conversations), [{"id": f"own{n}", **busy} for n in range(number)])
    waits = {"request": lambda _: body, "offered_at": lambda _: now, "conversation_id": lambda n: keys[n % len(keys)]}
    held = {
        "conversation_id": lambda n: f"own{n}",
        "owner": lambda n: f"{holders[n % 20]}.{n}",
        "process": lambda n: holders[n % 20],
    }
    theirs = {"conversation_id": lambda n: conversation_key(f"theirs{n}", "t", None), "tenant": lambda _: "t"}
    for table in (
        rows("running", number, "running", **held),
        rows("queued", number, "queued", **waits),
        rows("paused", number, "paused", expires_at=lambda _: later),
        rows("ended", number, "completed", **theirs),
    ):
        connection.execute(sa.insert(runs), table)


async def filled(url: str, number: int) -> Store:
    store = await Store.open(url, Path("/"))
    await store._database.write(lambda connection: fill(connection, number))
    for turn in range(5):
        await store.enqueue(request(conversation=f"free{turn}"))
    await analyze(store)
    return store


async def analyze(store: Store) -> None:
    """Let PostgreSQL count the rows, as autovacuum does: it would read small tables whole."""
    if not store._database.is_sqlite:
        await store._database.maintain(lambda driver: driver.execute("ANALYZE"))


@contextmanager
def measured(store: Store) -> Iterator[Callable[[], int]]:
    """Count the steps that SQLite executes, or the rows that PostgreSQL reads for queries."""
    steps: Counter[str] = Counter()
    engines = [threads.engine for threads in (store._database._writer, store._database._reader)]

    def before(connection: sa.Connection, _: Any, statement: str, values: Any, *__: Any) -> None:
        driver: Any = connection.connection.dbapi_connection
        if store._database.is_sqlite:
            driver.set_progress_handler(lambda: steps.update(all=1), 1)
        elif statement.startswith("SELECT"):
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
            ((plan,),) = driver.execute(explain, values).fetchone()
            steps.update(all=_rows_of(plan["Plan"]))

    for engine in engines:
        sa.event.listen(engine, "before_cursor_execute", before)
    yield lambda: steps["all"]
    for engine in engines:
        sa.event.remove(engine, "before_cursor_execute", before)


def _rows_of(node: Mapping[str, Any]) -> int:
    """Return how many rows a part of an executed plan has read."""
    own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(own * node["Actual Loops"]) + sum(_rows_of(part) for part in node.get("Plans", ()))


def test_the_work_of_a_look_does_not_grow_with_the_number_of_runs(new_store: Callable[[], str]) -> None:
    async def work(number: int) -> dict[str, int]:
        store, found = await filled(new_store(), number), {}
        with measured(store) as steps:
            await store.sweep(10)
            found["sweep that finds runs"] = steps()
        for name, look in LOOKS.items():
            await look(store)  # the first one also prepares this process
            with measured(store) as steps:
                await look(store)
                found[name] = steps()
        await store.close()
        return found

    async def main() -> None:
        few, many = await work(FEW), await work(MANY)
        grown = {name: (few[name], many[name]) for name in many if many[name] > MAX_GROWTH * few[name] + ROWS}
        assert not grown

    asyncio.run(main())


def turns(connection: sa.Connection, prefix: str, number: int) -> None:
    """Add a conversation with answered turns that ended long ago, and of which only the rows of the runs remain."""
    now = time.time()
    connection.execute(
        sa.insert(conversations), [{"id": prefix, "turns": number, "created_at": now, "updated_at": now}]
    )
    values = {"conversation_id": lambda _: prefix, "turn": lambda n: n + 1, "ended_at": lambda _: 1.0}
    connection.execute(sa.insert(runs), rows(f"{prefix}.", number, "completed", **values))


def test_pruning_does_not_read_turns_that_were_pruned_before(new_store: Callable[[], str]) -> None:
    async def work(number: int) -> int:
        store = await Store.open(new_store(), Path("/"))
        await store._database.write(lambda connection: turns(connection, "kept", number))
        assert await store.prune(2.0, 0) == Pruned(), "nothing remains to delete"
        await analyze(store)
        with measured(store) as steps:
            assert await store.prune(2.0, 0) == await store.prune(2.0, 0, dry_run=True) == Pruned()
            found = steps()
        assert await store.count_runs(RunQuery()) == number
        await store.close()
        return found

    async def main() -> None:
        few, many = await work(FEW), await work(MANY)
        assert many <= MAX_GROWTH * few + ROWS

    asyncio.run(main())


def test_a_list_of_conversations_looks_up_the_runs_of_its_page_only(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open("sqlite:///conversations.db", tmp_path)
        query = ConversationQuery(limit=1)

        async def work() -> int:
            await store.conversations(query)  # the first one also prepares this process
            with measured(store) as steps:
                await store.conversations(query)
            return steps()

        async def add(turns_of_each: int) -> None:
            for number in range(FEW):
                await store._database.write(
                    partial(turns, prefix=f"with-{turns_of_each}-{number}", number=turns_of_each)
                )

        await add(1)
        few = await work()
        await add(20)
        assert await work() < 3 * few, "there are twice as many conversations"
        await store.close()

    asyncio.run(main())
