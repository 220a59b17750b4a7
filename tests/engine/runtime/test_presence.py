"""What a process reports about itself, and when."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime, StoreError
from framework.engine.runtime.background import EmbeddedSource
from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.store.types import WorkScope
from framework.testing import ScriptedModel
from framework.types.installation import installed_version
from framework.types.report import FleetProcess
from tests.support.projects import agent, write

PATIENCE = 30
"""Timeout in seconds, for waits that should be short."""


class WatchedStore(MemoryStore):
    """A store that tells the test about each report, and fails while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self.error: Exception | None = None

    async def keep_alive(self, name: str, info: Mapping[str, Any]) -> None:
        self.reports.put_nowait(info)
        if self.error is not None:
            raise self.error
        await super().keep_alive(name, info)

    async def next_report(self) -> Mapping[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await self.reports.get()


def project(root: Path) -> Path:
    return write(root, {"agents.d/a.yaml": agent("a", model="offline"), "agents.d/broken.yaml": "name: [\n"})


async def only_process(store: Store) -> FleetProcess:
    (process,) = (await store.fleet()).processes
    return process


def test_a_process_is_listed_from_its_announcement_until_it_closes(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        store, other = [await Store.open(file_url, tmp_path) for _ in range(2)]
        work = EmbeddedSource(7, WorkScope(agents=frozenset(("b", "a")), queues=frozenset(("night",))))
        models = {"scripted": ScriptedModel("hi")}
        async with Runtime.open(project(tmp_path), store=store, models=models, work=work, watch=False) as runtime:
            assert (await store.fleet()).processes == (), "a program that is not announced reports nothing"
            await runtime.presence.announce("worker", "w1")
            process = await only_process(store)
            assert (process.name, process.kind, process.pid, process.alive) == ("w1", "worker", os.getpid(), True)
            assert (process.version, process.generation, process.problems) == (installed_version(), 1, 1)
            assert (process.works, process.capacity, process.running) == (True, 7, 0)
            assert (process.queues, process.only_agents) == (("night",), ("a", "b"))
            assert process.agents == {"a": runtime.catalog.current.agents["a"].digest}
            presence = runtime.presence
        assert len((await other.fleet()).processes) == 1, "until its runs are released"
        await presence.close()
        await store.close()
        assert (await other.fleet()).processes == ()
        await other.close()

    asyncio.run(main())


def test_a_reload_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.engine.runtime.presence.REPORT_SECONDS", 3600.0)

    async def main() -> None:
        store = WatchedStore()
        async with Runtime.open(project(tmp_path), store=store, watch=False) as runtime:
            await runtime.presence.announce("serve")
            first = await store.next_report()
            write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", instructions="New.")})
            await runtime.reload()
            second = await store.next_report()
            assert first["agents"]["a"] != second["agents"]["a"] == runtime.catalog.current.agents["a"].digest
            assert (first["generation"], second["generation"]) == (1, 2)
            (tmp_path / "agents.d/broken.yaml").write_text("name: [[\n", "utf-8")
            await runtime.reload()
            assert (await store.next_report())["problems"] == 1
            await runtime.presence.close()

    asyncio.run(main())


def test_reports_are_repeated_and_a_failing_store_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("framework.engine.runtime.presence.REPORT_SECONDS", 0.001)

    async def main() -> None:
        store = WatchedStore()
        async with Runtime.open(project(tmp_path), store=store, watch=False) as runtime:
            await runtime.presence.announce("serve", "api")
            scarce = OSError(errno.EMFILE, "Too many open files")
            for error in (StoreError("store x: refused"), None, StoreError("store x: gone"), None, scarce):
                store.error = error
                for _ in range(4):  # the first may have begun before
                    await store.next_report()
            await runtime.presence.close()
        logged = [record.message for record in caplog.records if "could not report itself" in record.message]
        reasons = ("store x: refused", "store x: gone", "[Errno 24] Too many open files")
        assert logged == [f"this process could not report itself: {reason}" for reason in reasons]

    asyncio.run(main())


def test_begun_runs_are_counted_but_not_resumed_ones(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"scripted": ScriptedModel("hi", "hi")}
        async with Runtime.open(project(tmp_path), models=models, watch=False) as runtime:
            runtime.presence.details()
            await runtime.run("hello", agent="a")
            await runtime.run("hello", agent="a")
            assert runtime.presence.details().begun_per_second > 0

    asyncio.run(main())
