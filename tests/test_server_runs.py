"""A server looks after the runs in its store, whoever began them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from framework import Runtime
from framework.memory.urls import open_store
from framework.types.errors import RunSuspended
from tests.projects import agent, write
from tests.served import PATIENCE, served

STORE = "sqlite:///.agentsd/state.db"
TOOL = '''
import asyncio
from pathlib import Path

from framework import tool


@tool(risk="low", idempotent=True)
async def hello() -> str:
    """Say hello. Ends when whoever it calls hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(Path("port").read_text()))
    try:
        await reader.read()
    finally:
        writer.close()
    return "hello"
'''


def test_a_run_that_another_process_has_left_is_resumed_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gate:
            one = agent("one", model="offline", skill_policy="{allow: [say.hello]}")
            port = str(gate.getsockname()[1])
            write(tmp_path, {"agents.d/one.yaml": one, "plugins/say.py": TOOL, "port": port})
            async with Runtime.open(tmp_path, store=STORE, watch=False, grace=0) as runtime:
                asked = asyncio.create_task(runtime.run("say hello", agent="one"))
                connection, _ = await asyncio.to_thread(gate.accept)
            connection.close()
            with pytest.raises(RunSuspended):
                await asked
            with served(tmp_path) as server:
                connection, _ = await asyncio.to_thread(gate.accept)
                connection.close()
                store = await open_store(STORE, tmp_path)
                async with asyncio.timeout(PATIENCE):
                    while (await store.runs())[0].status == "running":
                        pass
                (run,) = await store.runs()
                assert (run.status, (await store.load_run(run.run_id)).tool_calls) == ("completed", 1)
                await store.close()
                assert server.stop() == 0
            assert any(f"resumed what another process has left: {run.run_id}" in line for line in server.said)

    asyncio.run(main())
