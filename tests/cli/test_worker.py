"""`agentsd worker` in processes of its own: it executes what others submitted, and releases what it cannot finish."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from framework import Runtime
from framework.config.settings import Settings
from framework.server.startup import open_work
from framework.store import open_store
from framework.types.state import RunState
from tests.support.commands import agentsd
from tests.support.held_calls import write_held_project
from tests.support.projects import agent, write
from tests.support.waiting import until_status
from tests.support.workers import working


def project(root: Path, url: str, gate: socket.socket) -> Path:
    return write(write_held_project(root, gate), {"agentsd.yaml": f'store: {{url: "{url}"}}\n'})


async def submit(root: Path, number: int = 1) -> list[str]:
    """Submit runs as a server that executes none does."""
    settings = Settings.load(root)
    store = await open_store(settings.store.url.get_secret_value(), root)
    async with open_work(settings, root, 0) as work, Runtime.open(root, store=store, work=work, watch=False) as runtime:
        ids = [(await runtime.submit("say hello", agent="one")).run_id for _ in range(number)]
    await store.close()
    return ids


async def ended(root: Path, run_id: str) -> RunState:
    """Return a run, once it has ended."""
    store = await open_store(Settings.load(root).store.url.get_secret_value(), root)
    try:
        return await until_status(store, run_id, "completed")
    finally:
        await store.close()


def test_a_worker_executes_runs_and_releases_those_in_progress_to_another(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gate:
            root = project(tmp_path, store_url, gate)
            with working(root, "--name", "first", "--concurrency", "3") as first:
                (run_id,) = await submit(root)
                connection, _ = await asyncio.to_thread(gate.accept)
                with working(root, "--name", "second") as second:
                    assert await asyncio.to_thread(first.stop) == 0
                    again, _ = await asyncio.to_thread(gate.accept)
                    again.close()
                    state = await ended(root, run_id)
                    assert (state.status, state.tool_calls) == ("completed", 1)
                    assert await asyncio.to_thread(second.stop, signal.SIGINT) == 0
                connection.close()
        assert first.output[-1] == "agentsd worker first has stopped; 1 run in progress"
        (ready,) = [line for line in first.output if "executes runs" in line]
        assert "1 agent of " in ready
        assert "; 3 at once; all queues; store " in ready
        assert second.output[-1] == "agentsd worker second has stopped"
        assert not any("Traceback" in line or "ERROR" in line for line in (*first.output, *second.output))

    asyncio.run(main())


def test_a_second_signal_ends_a_worker_at_once(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gate:
            root = project(tmp_path, store_url, gate)
            with working(root) as worker:
                await submit(root)
                connection, _ = await asyncio.to_thread(gate.accept)
                worker.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(worker.stop) == 0
                assert connection.recv(1) == b""
                connection.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("words", "settings", "code", "message"),
    [
        ((), "store: {url: 'memory:'}", 78, "store.url: a worker finds no runs in a store in memory"),
        ((), "work: {engine: procrastinate}", 78, "work.engine: procrastinate needs a store in PostgreSQL"),
        ((), "work: {concurrency: 0}", 78, "agentsd.yaml:1:21: must be greater than or equal to 1"),
        (("--agents", "two"), "model: offline", 2, "no agent named 'two'"),
        (("--agents", "one,"), "model: offline", 2, "--agents: an empty name in 'one,'"),
        (("--concurrency", "0"), "model: offline", 2, "0 is not in the range"),
    ],
)
def test_bad_input_says_what_to_do(
    tmp_path: Path, words: tuple[str, ...], settings: str, code: int, message: str
) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), "agentsd.yaml": f"{settings}\n"})
    done = agentsd("worker", ".", *words, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_a_server_without_work_needs_a_store_that_workers_can_see(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), "agentsd.yaml": "store: {url: 'memory:'}\n"})
    done = agentsd("serve", ".", "--no-work", "--port", "0", cwd=tmp_path)
    assert (done.returncode, "nothing would execute the runs" in done.stderr) == (78, True), done.stderr
