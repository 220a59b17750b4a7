"""Workers whose files differ: one was edited, or lacks a plugin. Runs keep what they began with."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from examples.scale_demo.postgres import new_database
from framework import Runtime
from framework.config.settings import Settings
from framework.server.startup import open_work
from framework.store import open_store
from framework.store.store import Store
from framework.types.report import Fleet
from tests.support.commands import agentsd
from tests.support.held_calls import write_held_project
from tests.support.projects import write
from tests.support.waiting import until, until_status
from tests.support.workers import PATIENCE, working

QUICK = {"AGENTSD_RELOAD__QUIET": "20ms"}


def project(root: Path, url: str, gate: socket.socket, **keys: str) -> Path:
    settings = f'store: {{url: "{url}", lease: 8s}}\n'
    return write(write_held_project(root, gate, **keys), {"agentsd.yaml": settings})


async def submitted(root: Path, store: Store) -> str:
    """Submit a run as a server that executes none does."""
    settings = Settings.load(root)
    async with open_work(settings, root, 0) as work, Runtime.open(root, store=store, work=work, watch=False) as runtime:
        return (await runtime.submit("say hello", agent="one")).run_id


async def seen(store: Store, holds: Callable[[Fleet], object]) -> Fleet:
    """Return the fleet once a condition holds for it."""

    async def look() -> Fleet | None:
        fleet = await store.fleet()
        return fleet if holds(fleet) else None

    fleet: Fleet = await until(look, "the condition for the fleet")
    return fleet


async def accepted(gate: socket.socket) -> socket.socket:
    """Return the connection of a call of the tool, once it is in progress."""
    connection, _ = await asyncio.to_thread(gate.accept)
    return connection


def test_a_run_keeps_its_files_when_it_continues_in_a_process_that_was_reloaded(tmp_path: Path, postgres: str) -> None:
    async def main() -> None:
        url = new_database(postgres)
        with socket.create_server(("127.0.0.1", 0)) as gate:
            gate.settimeout(PATIENCE)
            first, second = (project(tmp_path / name, url, gate) for name in ("first", "second"))
            with working(first, "--name", "first") as killed:
                store = await open_store(url, tmp_path)
                run_id = await submitted(first, store)
                call = await accepted(gate)
                with working(second, "--name", "second", environment=QUICK) as other:
                    before = await seen(store, lambda fleet: len(fleet.processes) == 2)
                    (digest,) = before.digests["one"]
                    project(second, url, gate, instructions="You are new.")
                    after = await seen(store, lambda fleet: len(fleet.digests["one"]) == 2)
                    assert after.digests["one"][digest] == 1
                    shown = await asyncio.to_thread(agentsd, "fleet", cwd=first)
                    assert "agent one: 1 of 2 processes have " in shown.stdout
                    began = await store.load_run(run_id)
                    killed.process.kill()
                    call.close()
                    (await accepted(gate)).close()
                    state = await until_status(store, run_id, "completed")
                    assert (state.status, state.blueprint, state.digest) == ("completed", began.blueprint, began.digest)
                    fleet = await store.fleet()
                    assert [(one.name, one.alive) for one in fleet.processes] == [("second", True), ("first", False)]
                    assert len(fleet.digests["one"]) == 1
                    next_id = await submitted(second, store)
                    (await accepted(gate)).close()
                    assert (await until_status(store, next_id, "completed")).blueprint != began.blueprint
                    assert await asyncio.to_thread(other.stop, signal.SIGTERM) == 0
                    assert [one.name for one in (await store.fleet()).processes] == ["first"]
                await store.close()

    asyncio.run(main())


def test_a_worker_without_the_plugin_leaves_an_interrupted_run_to_one_that_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/state.db"
        with socket.create_server(("127.0.0.1", 0)) as gate:
            gate.settimeout(PATIENCE)
            whole, lacking = (project(tmp_path / name, url, gate) for name in ("whole", "lacking"))
            shutil.rmtree(lacking / "plugins")
            store = await open_store(url, tmp_path)
            with working(whole, "--name", "whole") as killed:
                run_id = await submitted(whole, store)
                call = await accepted(gate)
                killed.process.kill()
                call.close()
            with working(lacking, "--name", "lacking", "--allow-empty") as left:
                fleet = await seen(store, lambda fleet: fleet.handed_on)
                (waiting,) = fleet.handed_on
                assert (waiting.run_id, waiting.reasons) == (
                    run_id,
                    {"lacking": 'has no tool "say.hello" (plugins/say.py)'},
                )
                (group,) = fleet.waiting
                assert (group.agent, group.reason, (await store.load_run(run_id)).status) == (
                    "one",
                    "handed_on",
                    "running",
                )
                with working(whole, "--name", "again"):
                    (await accepted(gate)).close()
                    await until_status(store, run_id, "completed")
                assert await asyncio.to_thread(left.stop) == 0
            (logged,) = [line for line in left.output if "left to other processes" in line]
            assert (
                f'run {run_id} is left to other processes: lacking has no tool "say.hello" (plugins/say.py)' in logged
            )
            await store.close()

    asyncio.run(main())
