"""URLs of stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from framework import Runtime
from framework.store import open_store
from framework.store.memory import MemoryStore
from framework.testing import ScriptedModel
from framework.types.errors import ConfigError
from tests.support.clocks import MovableClock
from tests.support.projects import agent, write
from tests.support.queues import request


def test_memory_opens_a_store_without_files(tmp_path: Path) -> None:
    store = asyncio.run(open_store("memory:", tmp_path))
    assert isinstance(store, MemoryStore)
    assert store.files == ()
    assert not list(tmp_path.iterdir())


def test_stores_in_memory_have_their_own_data_and_clock() -> None:
    async def run() -> None:
        stores = []
        for moment in (1000.0, 2000.0):
            clock = MovableClock()
            clock.at = moment
            stores.append(MemoryStore(clock=clock))
        ids = [await store.enqueue(request()) for store in stores]
        for store, run_id, moment in zip(stores, ids, (1000.0, 2000.0), strict=True):
            (info,) = await store.runs()
            assert (info.run_id, info.created_at) == (run_id, moment)

    asyncio.run(run())


def test_a_runtime_with_a_store_in_memory_lists_its_runs_with_their_traces(tmp_path: Path) -> None:
    async def run() -> None:
        models = {"scripted": ScriptedModel("hello")}
        async with Runtime.open(tmp_path, models=models, store="memory:", watch=False) as runtime:
            result = await runtime.run("hello")
            assert [info.run_id for info in await runtime.store.runs()] == [result.run_id]
            assert await runtime.store.spans(result.run_id)

    write(tmp_path, {"agents.d/greeter.yaml": agent("greeter")})
    asyncio.run(run())


def test_an_unsupported_url_names_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use sqlite, postgresql or memory:"):
        asyncio.run(open_store("mysql://host/database", tmp_path))
