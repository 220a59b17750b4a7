"""Pruning returns space of a SQLite file to the file system, while other processes use it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from framework.store import pruning
from framework.store.store import Store
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.commands import agentsd
from tests.support.projects import write

STORE = "sqlite:///state.db"
TEXT = "x" * 50_000
RUNS = 120
"""With a text of 50 kB each: 6 MB."""
LOCKING = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


async def fill(store: Store, number: int = RUNS) -> None:
    """Save ended runs."""
    for _ in range(number):
        state = RunState(agent="one", messages=[Message(role="user", content=TEXT)])
        record = await store.start(state, None, None)
        state.status = "completed"
        await record.write(state, last=True)


def size(root: Path) -> int:
    return (root / "state.db").stat().st_size


def is_whole(root: Path) -> bool:
    with closing(sqlite3.connect(root / "state.db")) as database:
        (found,) = database.execute("PRAGMA integrity_check").fetchone()
        return bool(found == "ok")


def test_pruning_shrinks_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(STORE, tmp_path)
        kept = RunState(agent="one", messages=[Message(role="user", content="stay")])
        record = await store.start(kept, None, None)
        await record.release()
        await fill(store)
        pruned = await store.prune(time.time() + 1, time.time(), trust_clock=True)
        assert pruned.freed_bytes > 4_000_000
        assert (await store.load_run(kept.run_id)).messages == kept.messages
        await fill(store, 1)
        await store.close()

    asyncio.run(main())
    assert size(tmp_path) < 2_000_000
    assert is_whole(tmp_path)


def test_the_command_prints_by_how_much_the_file_shrank(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open("sqlite:///.agentsd/state.db", write(tmp_path, {"agents.d/.keep": ""}))
        await fill(store)
        await store.close()

    asyncio.run(main())
    before = (tmp_path / ".agentsd/state.db").stat().st_size
    done = agentsd("runs", "prune", "--older-than", "1ms", cwd=tmp_path)
    assert "MB smaller" in done.stdout, done.stderr
    again = agentsd("runs", "prune", "--json", cwd=tmp_path)
    counts = dict.fromkeys(("runs", "conversations", "files", "versions", "freed_bytes"), 0)
    assert json.loads(again.stdout) == {**counts, "dry_run": False}
    assert (tmp_path / ".agentsd/state.db").stat().st_size < before / 3


def test_a_file_that_was_made_without_slices_is_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        database.execute("CREATE TABLE other (id INTEGER)")

    async def main() -> None:
        store = await Store.open(STORE, tmp_path)
        await fill(store)
        assert (await store.prune(time.time() + 1, time.time(), trust_clock=True)).freed_bytes == 0
        await store.close()

    asyncio.run(main())


def test_runs_begin_and_write_while_the_file_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SLICE_PAGES", 10)

    async def main() -> None:
        store, other = await Store.open(STORE, tmp_path), await Store.open(STORE, tmp_path)
        await fill(store)
        before = time.time()
        async with asyncio.TaskGroup() as group:
            shrunk = group.create_task(store.prune(before, before))
            group.create_task(fill(other, 20))
        assert shrunk.result().freed_bytes > 0
        assert len(await store.runs()) == 20
        await store.close()
        await other.close()

    asyncio.run(main())
    assert is_whole(tmp_path)


def test_a_temporarily_locked_file_ends_no_run(tmp_path: Path) -> None:
    """The file is locked for longer than SQLite waits, but less than the store retries."""

    async def main() -> None:
        store = await Store.open(f"{STORE}?timeout=0.01", tmp_path, retry_seconds=20)
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record = await store.start(state, None, None)
        command = [sys.executable, "-c", LOCKING, str(tmp_path / "state.db")]
        other = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert other.stdout is not None
        assert other.stdin is not None
        assert await other.stdout.readline()
        state.status = "completed"
        attempts, loop, tried = count(1), asyncio.get_running_loop(), asyncio.Event()

        def connected(*_: object) -> None:
            if next(attempts) == 3:
                loop.call_soon_threadsafe(tried.set)

        sa.event.listen(store._database._writer.engine, "connect", connected)
        writing = asyncio.create_task(record.write(state, last=True))
        trying = asyncio.create_task(tried.wait())
        await asyncio.wait([writing, trying], return_when=asyncio.FIRST_COMPLETED)
        assert not writing.done(), "it tries again"
        other.stdin.close()
        await writing
        await other.wait()
        assert (await store.load_run(state.run_id)).status == "completed"
        await store.close()

    asyncio.run(main())
