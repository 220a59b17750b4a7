"""`agentsd fleet`: a table of processes, the agents of which they have different versions, and what waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from framework.store.store import Store
from framework.types.state import RunRequest
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.queues import request

WORKER: dict[str, Any] = {
    "kind": "worker", "version": "1.1", "works": True, "capacity": 50, "generation": 2, "agents": {"a": "d1d1d1d1d1"},
}  # fmt: skip


def with_stores(root: Path, count: int, body: Callable[[list[Store]], Awaitable[None]]) -> None:
    """Open a project's store as so many processes do, and keep them open during the body."""

    async def main() -> None:
        stores = [await Store.open("sqlite:///state.db", root, lease_seconds=600) for _ in range(count)]
        await body(stores)
        for store in stores:
            await store.close()

    asyncio.run(main())


async def fleet(root: Path, *options: str) -> str:
    return (await asyncio.to_thread(agentsd, "fleet", *options, cwd=root)).stdout


def project(root: Path) -> Path:
    return write(root, {"agents.d/a.yaml": agent("a"), "agentsd.yaml": "store: {url: 'sqlite:///state.db'}\n"})


def named(name: str, **more: Any) -> RunRequest:
    return request(options={"agent": name}, **more)


def test_processes_are_listed_with_what_differs_and_what_waits(tmp_path: Path) -> None:
    async def body(stores: list[Store]) -> None:
        for name, store in zip(("worker-1", "worker-2"), stores, strict=False):
            await store.keep_alive(name, WORKER)
        await stores[2].keep_alive(
            "worker-3", {**WORKER, "version": "1.2", "agents": {"a": "d2d2d2d2d2"}, "problems": 1}
        )
        await stores[3].keep_alive("api", {"kind": "serve", "version": "1.2", "agents": {"a": "d1d1d1d1d1"}})
        for conversation in ("c", "c"):
            await stores[0].enqueue(named("a", conversation=conversation))
        run_id = await stores[0].enqueue(named("b"))
        await stores[0].claim(1, run_id=run_id)
        await stores[0].release_for_others(run_id, 'has no tool "refund" (plugins/refund.py)', 0)
        shown = await fleet(tmp_path)
        lines = shown.splitlines()
        assert lines[0].split()[:4] == ["api", "serve", "1.2", "-"]
        assert lines[1].startswith("worker-1  worker  1.1")
        assert "0 of 50  all runs  2  1 agent " in lines[1]
        assert "1 agent, 1 different, 1 problem" in lines[3]
        assert "versions differ: 1.1 (worker-1, worker-2), 1.2 (api, worker-3)" in lines
        assert "agent a: 3 of 4 processes have d1d1d1d1; worker-3 has d2d2d2d2" in lines
        assert "0 runs in progress, 0 paused, 3 waiting" in lines
        assert f'{run_id}: worker-1 has no tool "refund" (plugins/refund.py)' in lines
        for why in (
            "for a process with free capacity",
            "for another run of their conversation",
            "handed on: see below",
        ):
            assert any(line.endswith(why) for line in lines), shown
        run = (await asyncio.to_thread(agentsd, "runs", "show", run_id, cwd=tmp_path)).stdout.splitlines()
        assert '  worker-1 has no tool "refund" (plugins/refund.py)' in run
        data = json.loads(await fleet(tmp_path, "--json"))
        assert data["digests"] == {"a": {"d1d1d1d1d1": 3, "d2d2d2d2d2": 1}}
        assert [one["run_id"] for one in data["handed_on"]] == [run_id]

    with_stores(project(tmp_path), 4, body)


def test_a_process_that_has_ended_and_one_with_few_tasks_are_shown_as_such(tmp_path: Path) -> None:
    async def body(stores: list[Store]) -> None:
        await stores[0].keep_alive("night", {**WORKER, "queues": ["night"], "only_agents": ["a", "b"]})
        await stores[0].enqueue(named("c", queue_name="day"))
        line, *rest = (await fleet(tmp_path)).splitlines()
        assert "queues night; agents a, b" in line
        assert rest[-1].endswith(
            "no live process takes them: start `agentsd worker`, or check its --agents and --queues"
        )

    with_stores(project(tmp_path), 1, body)


def test_a_store_without_processes_says_what_to_start(tmp_path: Path) -> None:
    done = agentsd("fleet", cwd=project(tmp_path))
    assert (done.returncode, done.stdout) == (0, "no process: start `agentsd serve` or `agentsd worker`\n")


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    done = agentsd("fleet", "nowhere", cwd=tmp_path)
    assert (done.returncode, "no such file or folder: nowhere" in done.stderr) == (2, True)
