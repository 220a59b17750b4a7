"""Housekeeping of the runs in the store of a server."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from framework import Runtime
from framework.config.settings import Settings
from framework.engine.runtime.background import BackgroundWork
from framework.server.startup import ProcessFailed, Stopping, housekeeping
from framework.store import open_store
from framework.store.database import ConnectionThreads
from framework.telemetry.metrics import ServerMetrics
from framework.types.errors import RunSuspended, StoreLost
from framework.types.report import Status
from framework.types.state import RunState
from tests.support.held_calls import HELD_TOOL, write_held_project
from tests.support.projects import agent, write
from tests.support.served import served
from tests.support.waiting import until_status

STORE = "sqlite:///.agentsd/state.db"


BLOCKING = '''
import socket
from pathlib import Path

from framework import tool


@tool(risk="low", idempotent=True)
def hello() -> str:
    """Say hello in a thread, which cannot be cancelled. Ends when the other side closes the connection."""
    with socket.create_connection(("127.0.0.1", int(Path("port").read_text()))) as connection:
        connection.recv(1)
    return "hello"
'''


async def left_behind(root: Path, gate: socket.socket, plugin: str = HELD_TOOL) -> None:
    """Create a project with a run whose process ended during a call."""
    write_held_project(root, gate, plugin)
    async with Runtime.open(root, store=STORE, watch=False, grace=0) as runtime:
        asked = asyncio.create_task(runtime.run("say hello", agent="one"))
        connection, _ = await asyncio.to_thread(gate.accept)
    connection.close()
    with pytest.raises(RunSuspended):
        await asked


async def only_run(root: Path, status: Status) -> RunState:
    """Return the only stored run, once it has this status."""
    store = await open_store(STORE, root)
    try:
        (info,) = await store.runs()
        return await until_status(store, info.run_id, status)
    finally:
        await store.close()


def test_an_orphaned_run_is_resumed_automatically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gate:
            await left_behind(tmp_path, gate)
            with served(tmp_path) as server:
                connection, _ = await asyncio.to_thread(gate.accept)
                connection.close()
                run = await only_run(tmp_path, "completed")
                assert run.tool_calls == 1
                assert server.stop() == 0
            assert any(f"resumed orphaned runs: {run.run_id}" in line for line in server.output)

    asyncio.run(main())


@pytest.mark.parametrize(("number", "plugin"), [(signal.SIGTERM, HELD_TOOL), (signal.SIGINT, BLOCKING)])
def test_a_signal_leaves_runs_in_progress_to_the_next_process_and_ends_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, plugin: str
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gate:
            await left_behind(tmp_path, gate, plugin)
            with served(tmp_path) as server, server.event_stream() as events:
                connection, _ = await asyncio.to_thread(gate.accept)  # the call continues until long after the signal
                assert server.stop(number) == 0
                assert list(events) == []
                assert connection.recv(1) == b"", "the call has ended with the process"
                connection.close()
            assert not any("Traceback" in line or "ERROR" in line for line in server.output)
            await only_run(tmp_path, "running")
            with served(tmp_path) as server:
                connection, _ = await asyncio.to_thread(gate.accept)
                connection.close()
                assert (await only_run(tmp_path, "completed")).tool_calls == 1
                assert server.stop(number) == 0

    asyncio.run(main())


def test_a_process_that_has_lost_its_store_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor starts another, which can open the store."""
    monkeypatch.setattr("framework.server.startup.LOST_SECONDS", 0.0)
    write(tmp_path, {"agents.d/one.yaml": agent("one")})

    async def main() -> None:
        store = await open_store(STORE, tmp_path)
        settings = Settings()
        async with Runtime.open(tmp_path, store=store, watch=False) as runtime:
            with Stopping() as stopping:
                stopped = asyncio.Event()
                stopping.call_on_stop(stopped.set)
                for file in (tmp_path / ".agentsd").glob("state.db*"):
                    file.unlink()
                async with housekeeping(runtime, ServerMetrics(), settings.store.retention):
                    await stopped.wait()
            with pytest.raises(
                ProcessFailed, match=r"housekeeping has ended: .* deleted or replaced .*; the process ends"
            ):
                stopping.check()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a bug")])
def test_a_process_whose_background_work_finds_no_memory_ends(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    async def main() -> bool:
        stopped: list[bool] = []
        with Stopping() as stopping:
            stopping.call_on_stop(lambda: stopped.append(True))
            background = BackgroundWork()
            background.start("the queue", fail())
            await background.close()
        return bool(stopped)

    assert asyncio.run(main()) == isinstance(error, MemoryError)
    assert f"the queue failed: {type(error).__name__}" in caplog.text


def test_a_process_without_memory_for_its_connections_ends() -> None:
    async def main() -> list[bool]:
        stopped: list[bool] = []
        with Stopping() as stopping:
            stopping.call_on_stop(lambda: stopped.append(True))
            for error in (ValueError("a bug"), MemoryError()):  # as asyncio's transports report them
                context = {"message": "Fatal read error on socket transport", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
                with suppress(ProcessFailed):
                    stopping.check()
                    assert not stopped
            with pytest.raises(ProcessFailed, match="no memory is left; the process ends"):
                stopping.check()
        return stopped

    assert asyncio.run(main()) == [True]


def test_a_store_whose_threads_cannot_be_started_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as closed."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = ConnectionThreads(sa.create_engine("sqlite://"), 1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(StoreLost, match="no thread for the store can be started: can't start new thread"):
            threads.submit(lambda _: None)
