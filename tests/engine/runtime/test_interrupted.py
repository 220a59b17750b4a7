"""The error for a conversation with an interrupted run names the command that resumes it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from framework import ConversationBusy, Runtime
from framework.store.store import Store
from framework.testing import ScriptedModel
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.stored_runs import start_slow_turn


def test_the_busy_error_distinguishes_interrupted_runs_and_names_the_command_that_resumes_them(tmp_path: Path) -> None:
    with start_slow_turn(tmp_path) as process:
        live = agentsd("run", "--conversation", "c1", "more", cwd=tmp_path)
        assert live.returncode == 2
        assert "is in progress; wait for it, or cancel it: agentsd runs cancel run_" in live.stderr
        chatting = agentsd("chat", "-c", "c1", cwd=tmp_path, stdin="")
        assert "its last run is in progress in another process" in chatting.stderr
        process.kill()
        process.wait()
    dead = agentsd("run", "--conversation", "c1", "more", cwd=tmp_path)
    assert dead.returncode == 2
    named = re.search(r"was interrupted when its process ended; resume it: agentsd (runs resume run_\w+)", dead.stderr)
    assert named, dead.stderr
    for asked in ("chat -c c1", "conversations show c1"):
        shown = agentsd(*asked.split(), cwd=tmp_path)
        assert f"agentsd {named[1]}" in shown.stdout + shown.stderr
    write(tmp_path, {"flag": ""})
    done = agentsd(*named[1].split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "it came\n"), done.stderr
    assert agentsd("run", "--conversation", "c1", "echo more", cwd=tmp_path).stdout == "more\n"


def test_conversation_busy_contains_the_interrupted_run(tmp_path: Path, file_url: str) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one")})

    async def main() -> None:
        store = await Store.open(file_url, root)
        state = RunState(agent="one", conversation_id="c", messages=[Message(role="user", content="go")])
        record = await store.start(state, await store.conversation("c"), None)
        async with Runtime.open(
            root, models={"scripted": ScriptedModel("first", "second")}, store=file_url, watch=False
        ) as runtime:
            with pytest.raises(ConversationBusy, match="is in progress; wait") as busy:
                await runtime.run("more", conversation="c")
            assert (busy.value.run_id, busy.value.interrupted) == (state.run_id, False)
            await record.release()
            with pytest.raises(ConversationBusy, match=f"agentsd runs resume {state.run_id}$") as busy:
                await runtime.run("more", conversation="c")
            assert (busy.value.run_id, busy.value.interrupted) == (state.run_id, True)
            assert (await runtime.resume(busy.value.run_id, {})).output == "first"
            assert (await runtime.run("more", conversation="c")).output == "second"
        await store.close()

    asyncio.run(main())
