"""An ended run reads the same before and after it is packed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given

from framework import Runtime
from framework.store import runs as packing
from framework.store.memory import MemoryStore
from framework.store.runs import pack
from framework.store.store import Store
from framework.types.messages import Message
from framework.types.report import SpanRecord
from framework.types.state import RunState
from tests.support.cases import cases
from tests.support.worlds import Turns, World, project, turns_of

Read = tuple[RunState, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], Sequence[SpanRecord]]
ROWS = ("parts", "events", "spans")


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("trusting"), ask=False)


async def read(store: Store, run_id: str) -> Read:
    later = await store.events(run_id, after=2)
    return await store.load_run(run_id), await store.events(run_id), later, await store.spans(run_id)


async def run_of(root: Path, world: World, url: str) -> str:
    options: dict[str, Any] = {"tools": world.tools(), "models": {"scripted": world.model()}, "watch": False}
    async with Runtime.open(root, store=url, **options) as runtime:
        return (await runtime.run("0", agent="root")).run_id


def test_packing_is_lossless(trusting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @cases(3)
    @given(turns=turns_of(2))
    def one(turns: Turns) -> None:
        with TemporaryDirectory() as folder:
            asyncio.run(_same(trusting, World(turns), f"sqlite:///{folder}/state.db", monkeypatch))

    one()


def test_packing_is_lossless_in_a_database(
    trusting: Path, new_store: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_same(trusting, World(()), new_store(), monkeypatch))


async def _same(root: Path, world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(packing, "MAX_PACKED_CHARS", 0)  # every run is too large
        run_id = await run_of(root, world, url)
    store = await Store.open(url, root)
    before = await read(store, run_id)
    await store._database.write(lambda connection: pack(connection, run_id))
    assert await read(store, run_id) == before
    assert before[1][-1]["event"] == "done"
    await store.close()


def test_an_ended_run_is_one_row_in_addition_to_its_messages(trusting: Path, tmp_path: Path) -> None:
    asyncio.run(run_of(trusting, World(()), f"sqlite:///{tmp_path}/state.db"))
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        (packed,) = database.execute("SELECT count(*) FROM agentsd_packed").fetchone()
        left = [database.execute(f"SELECT count(*) FROM agentsd_{table}").fetchone()[0] for table in ROWS]
    assert (packed, left) == (1, [0, 0, 0])


def test_a_run_in_memory_is_read_as_it_ended() -> None:
    """It is packed with its first rows, some of which have changed since."""

    async def main() -> None:
        store, said = MemoryStore(), [Message(role=role, content=role) for role in ("user", "assistant")]
        state = RunState(agent="a", session={"todo": 1}, history=said, messages=said[:1])
        record = await store.start(state, None, None)
        state.session, state.messages = {"todo": 2}, said
        state.status, state.finish_reason = "completed", "final"
        await record.write(state, last=True)
        assert await store.load_run(state.run_id) == state

    asyncio.run(main())
