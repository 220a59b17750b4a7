"""Projects whose runs wait for an approval or for a file, and commands that start and list them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from subprocess import PIPE
from typing import Any

from framework.store import open_store
from framework.types.messages import Message
from framework.types.state import RunRequest
from tests.support.commands import ENVIRONMENT, agentsd
from tests.support.forks import Fork
from tests.support.projects import agent, write

ASK_BEFORE_ECHO = '{ask: [{tool: echo, reason: be careful}], allow: ["*"]}'
"""A policy that requires approval of calls to echo."""
STORE = "sqlite:///.agentsd/state.db"
"""URL of the store that `agentsd` uses by default, from the project's directory."""
SLOW_PLUGIN = """
    import asyncio, pathlib
    from framework import tool

    @tool(risk="low", idempotent=True)
    async def wait(name: str) -> str:
        '''Wait for a file.'''
        pathlib.Path("began").write_text(name)
        while not pathlib.Path(name).exists():
            await asyncio.sleep(0.01)
        return "it came"
"""
"""A plugin whose tool waits until a file exists."""


def approval_project(root: Path, **keys: str) -> Path:
    """Create a project whose agent `one` needs approval to call echo."""
    return write(
        root, {"agents.d/one.yaml": agent("one", **{"model": "offline", "skill_policy": ASK_BEFORE_ECHO, **keys})}
    )


def start_paused_run(root: Path, message: str = "echo hello") -> str:
    """Start a run that pauses for an approval; return its id."""
    assert agentsd("run", message, cwd=root).returncode == 3
    return str(list_runs(root)[0]["run_id"])


def list_runs(root: Path, *options: str) -> list[dict[str, Any]]:
    """Return the stored runs as `agentsd runs list --json` prints them."""
    records: list[dict[str, Any]] = json.loads(agentsd("runs", "list", "--json", *options, cwd=root).stdout)
    return records


def start_slow_run(root: Path) -> Fork:
    """Start a process whose run waits for the file `flag`; return when its tool call has started."""
    write(root, {"agents.d/one.yaml": agent("one", model="offline"), "plugins/slow.py": SLOW_PLUGIN})
    process = Fork(["run", "wait for 'flag'"], cwd=root, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE, text=True)
    assert process.stderr
    while "→ slow.wait" not in (line := process.stderr.readline()):
        assert line, "the process ended early"
    return process


def start_slow_turn(root: Path) -> Fork:
    """Start a process like `start_slow_run` whose run is a turn of conversation `c1`."""
    write(root, {"agents.d/one.yaml": agent("one", model="offline"), "plugins/slow.py": SLOW_PLUGIN})
    arguments = ["run", "--conversation", "c1", "wait for 'flag'"]
    process = Fork(arguments, cwd=root, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE, text=True)
    assert process.stderr
    while "→ slow.wait" not in (line := process.stderr.readline()):
        assert line, "the process ended early"
    return process


def store_queued_run(root: Path) -> str:
    """Create a project with a queued run of the message `hi there` in conversation `c`; return the run's id."""
    write(root, {"agents.d/one.yaml": agent("one", model="offline")})

    async def enqueue() -> str:
        store = await open_store(STORE, root)
        message = Message(role="user", content="hi there")
        run_id = await store.enqueue(RunRequest(message=message, options={"agent": "one"}, conversation_id="c"))
        await store.close()
        return run_id

    return asyncio.run(enqueue())
