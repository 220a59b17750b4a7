"""A process that lacks an agent, a tool or a hook leaves the run to one that has it, and says what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from framework import RunSuspended, Runtime, StoreError
from framework.engine.runtime.background import EmbeddedSource
from framework.engine.runtime.presence import RunReleaser
from framework.store.store import Store
from framework.store.types import RunQuery, RunRecord
from framework.testing import ScriptedModel, Turn, calls
from framework.types.state import RunState
from tests.support.projects import agent, write
from tests.support.waiting import until

PATIENCE = 50
"""Timeout in seconds, for waits that should be short."""
HERE, THERE = "worker-2", "worker-1"
REFUND = '''
import asyncio
from pathlib import Path

from framework import tool


@tool(risk="low", idempotent=True)
async def refund() -> str:
    """Refund an order: hang, unless a file says that it was done."""
    Path("began").touch()
    while not Path("done").exists():
        await asyncio.sleep(0.01)
    return "refunded"
'''
GUARD = "from framework import hook\n\n@hook\ndef look(context, call):\n    return None\n"


class CountingStore(Store):
    """A store that counts how often a process takes over runs or claims them, and keeps the delays."""

    taken = 0
    delays: tuple[float, ...] = ()

    async def acquire(self, state: RunState, *arguments: Any, **options: Any) -> RunRecord:
        self.taken += 1
        return await super().acquire(state, *arguments, **options)

    async def claim(self, *arguments: Any, **options: Any) -> Any:
        found = await super().claim(*arguments, **options)
        self.taken += len(found)
        return found

    async def release_for_others(self, run_id: str, reason: str, delay: float) -> None:
        self.delays += (delay,)
        await super().release_for_others(run_id, reason, delay)


@asynccontextmanager
async def worker(
    root: Path, url: str, *turns: Turn, announced: bool = True
) -> AsyncIterator[tuple[Runtime, CountingStore]]:
    """Open a runtime as a worker does; the test says when it looks for runs."""
    store = await CountingStore.open(url, root)
    assert isinstance(store, CountingStore)
    models = {"scripted": ScriptedModel(*turns)}
    async with asyncio.timeout(PATIENCE):
        async with Runtime.open(root, store=store, models=models, watch=False, grace=0) as runtime:
            if announced:
                await runtime.presence.announce("worker", HERE)
            yield runtime, store
        await runtime.presence.close()
    await store.close()


@asynccontextmanager
async def elsewhere(url: str, *agents: str) -> AsyncIterator[Store]:
    """Report another process that has these agents."""
    store = await Store.open(url, Path("/"))
    details: Mapping[str, Any] = {"kind": "worker", "works": True, "pid": 1, "agents": dict.fromkeys(agents, "d")}
    await store.keep_alive(THERE, details)
    yield store
    await store._database.close()  # as if it was killed: its report stays


async def submitted(root: Path, url: str, name: str) -> str:
    """Return the id of a queued run that was accepted by a process which has its agent."""
    accepting = write(root / "accepting", {"agents.d/it.yaml": agent(name, model="offline")})
    store = await Store.open(url, root)
    async with Runtime.open(accepting, store=store, work=EmbeddedSource(0), watch=False) as runtime:
        run_id = (await runtime.submit("hello", agent=name)).run_id
    await store.close()
    return run_id


async def look(runtime: Runtime) -> None:
    """Begin and continue what the process can, and wait until it has decided about each run."""
    await runtime.start_queued()
    await runtime._background.close()  # while the queue is looked at, no place is free
    await runtime.resume_orphans()
    await runtime._background.close()


async def reasons(runtime: Runtime) -> dict[str, dict[str, str]]:
    return {one.run_id: one.reasons for one in (await runtime.store.fleet()).handed_on}


async def status(runtime: Runtime, run_id: str) -> str:
    return (await runtime.store.load_run(run_id)).status


@pytest.fixture(autouse=True)
def long_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no delay pass during a test."""
    monkeypatch.setattr("framework.engine.runtime.presence.FIRST_DELAY_SECONDS", 1000.0)
    monkeypatch.setattr("framework.engine.runtime.presence.LONGEST_DELAY_SECONDS", 60_000.0)


# --- queued runs


def test_a_queued_run_of_an_unknown_agent_is_left_to_a_process_that_has_it(
    tmp_path: Path, file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        run_id = await submitted(tmp_path, file_url, "billing")
        root = write(tmp_path / "here", {"agents.d/a.yaml": agent("a")})
        async with elsewhere(file_url, "billing"), worker(root, file_url) as (runtime, store):
            for _ in range(50):
                await look(runtime)
            assert store.taken == 1, "it is not claimed again before the delay has passed"
            assert await status(runtime, run_id) == "queued"
            assert await reasons(runtime) == {run_id: {HERE: "has no agent 'billing'"}}
            (logged,) = [record.message for record in caplog.records if "left to other processes" in record.message]
            assert logged == f"run {run_id} is left to other processes: {HERE} has no agent 'billing'"

    asyncio.run(main())


@pytest.mark.parametrize("agents", [(), ("a", "c")])
def test_a_queued_run_of_an_agent_that_no_process_has_fails(
    tmp_path: Path, file_url: str, agents: tuple[str, ...]
) -> None:
    async def main() -> None:
        run_id = await submitted(tmp_path, file_url, "billing")
        root = write(tmp_path / "here", {"agents.d/a.yaml": agent("a")})
        async with elsewhere(file_url, *agents), worker(root, file_url) as (runtime, _):
            await look(runtime)
            state = await runtime.store.load_run(run_id)
            assert state.error is not None
            assert (state.status, state.error.code) == ("failed", "agent_not_found")

    asyncio.run(main())


def test_a_program_that_is_not_announced_hands_nothing_on(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        run_id = await submitted(tmp_path, file_url, "billing")
        root = write(tmp_path / "here", {"agents.d/a.yaml": agent("a")})
        async with elsewhere(file_url, "billing"), worker(root, file_url, announced=False) as (runtime, _):
            await look(runtime)
            assert await status(runtime, run_id) == "failed"

    asyncio.run(main())


def test_a_process_whose_files_are_all_broken_does_not_fail_the_runs_of_others(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        run_id = await submitted(tmp_path, file_url, "billing")
        root = write(tmp_path / "here", {"agents.d/billing.yaml": "name: [\n"})
        async with elsewhere(file_url, "billing"), worker(root, file_url) as (runtime, _):
            await look(runtime)
            assert await status(runtime, run_id) == "queued"
            assert await reasons(runtime) == {run_id: {HERE: "cannot start it: no valid agent"}}

    asyncio.run(main())


# --- interrupted runs


async def interrupted(root: Path, url: str) -> str:
    """Return the id of a run whose process ended while the tool of a plugin was in progress."""
    store = await Store.open(url, root)
    models = {"scripted": ScriptedModel(calls(("refund.refund", {})))}
    async with Runtime.open(root, models=models, store=store, watch=False, grace=0) as runtime:
        task = asyncio.create_task(runtime.run("refund", agent="shop"))
        await until(Path("began").exists, "the tool has begun")
        (info,) = await store.runs(RunQuery(statuses=frozenset({"running"})))
    with pytest.raises(RunSuspended):
        await task
    await store.close()
    return info.run_id


def shop(root: Path, **keys: str) -> Path:
    keys = {"skill_policy": "{allow: [refund.refund]}", **keys}
    return write(root, {"agents.d/shop.yaml": agent("shop", **keys), "plugins/refund.py": REFUND})


def without(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).unlink()
    return root


@pytest.mark.parametrize("agents", [(), ("shop",)], ids=["nobody else", "another process"])
@pytest.mark.parametrize("allow", ["refund.refund", '"refund.*"'])
def test_an_interrupted_run_waits_for_a_process_with_its_plugin(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch, agents: tuple[str, ...], allow: str
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        root = shop(tmp_path / "project", skill_policy=f"{{allow: [{allow}]}}")
        run_id = await interrupted(root, file_url)
        without(root, "plugins/refund.py")
        async with elsewhere(file_url, *agents), worker(root, file_url) as (runtime, store):
            for _ in range(50):
                await look(runtime)
            assert store.taken == 1, "it is not taken again before the delay has passed"
            (orphan,) = await runtime.orphans()
            assert (orphan.run_id, orphan.attempts) == (run_id, 0)
            assert await reasons(runtime) == {run_id: {HERE: 'has no tool "refund.refund" (plugins/refund.py)'}}
        shop(root)
        (tmp_path / "done").touch()
        async with worker(root, file_url, "all done") as (runtime, _):
            await look(runtime)
            state = await runtime.store.load_run(run_id)
            assert (state.status, state.messages[-1].content) == ("completed", "all done")
            assert await reasons(runtime) == {}

    asyncio.run(main())


def test_an_interrupted_run_that_cannot_be_left_because_the_store_fails_is_not_kept(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def fail(*_: object) -> None:
        raise StoreError("the store is unreachable")

    async def main() -> None:
        root = shop(tmp_path / "project")
        run_id = await interrupted(root, file_url)
        without(root, "plugins/refund.py")
        async with worker(root, file_url) as (runtime, store):
            monkeypatch.setattr(store, "release_for_others", fail)
            await look(runtime)
            assert store.taken == 1
            assert [orphan.run_id for orphan in await runtime.orphans()] == [run_id]

    asyncio.run(main())


def test_an_interrupted_run_whose_agent_is_missing_here_waits_if_another_process_has_it(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        root = shop(tmp_path / "project")
        run_id = await interrupted(root, file_url)
        without(root, "agents.d/shop.yaml")
        async with elsewhere(file_url, "shop"), worker(root, file_url) as (runtime, _):
            await look(runtime)
            assert await reasons(runtime) == {run_id: {HERE: "has no agent 'shop'"}}
        (tmp_path / "done").touch()
        async with worker(root, file_url, "it was deleted everywhere") as (runtime, _):
            await look(runtime)
            assert await status(runtime, run_id) == "running", "the other process may be about to start again"

    asyncio.run(main())


def test_an_interrupted_run_whose_hook_is_missing_waits_with_the_reason(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        root = shop(tmp_path / "project", hooks="{before_tool: [guard.look]}")
        write(root, {"plugins/guard.py": GUARD})
        run_id = await interrupted(root, file_url)
        without(shop(root), "plugins/guard.py")
        async with worker(root, file_url) as (runtime, store):
            for _ in range(10):
                await look(runtime)
            (found,) = (await reasons(runtime)).items()
            assert found == (run_id, {HERE: "agent 'shop' needs guard.look: no plugin defines it any longer"})
            assert (store.taken, await status(runtime, run_id)) == (1, "running")

    asyncio.run(main())


def test_a_person_may_resume_a_run_without_its_tool(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        root = shop(tmp_path / "project")
        run_id = await interrupted(root, file_url)
        without(root, "plugins/refund.py")
        async with elsewhere(file_url, "shop"), worker(root, file_url, "without it") as (runtime, _):
            assert (await runtime.resume(run_id, {})).output == "without it"

    asyncio.run(main())


# --- delays


def test_each_time_the_delay_is_twice_as_long_up_to_a_limit(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        async with worker(tmp_path, file_url) as (runtime, store):
            releaser = RunReleaser(store, runtime.presence)
            for _ in range(9):
                await releaser.leave("run_1", "has no agent 'b'")
            assert store.delays == (1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000)
            assert not releaser.is_due("run_1")
            assert releaser.is_due("run_2")
            for number in range(1100):
                await releaser.leave(f"run_{number + 10}", "has no agent 'b'")
            assert releaser.remembered == 1000

    asyncio.run(main())
