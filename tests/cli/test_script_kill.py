"""A script survives the kill of its process: at an approval, between its calls and in a call."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import agentsd, agentsd_process, read_until, terminal
from tests.support.projects import write

TOOLS = """
import os, signal
from framework import tool

def noted(line):
    with open("log", "a") as log:
        log.write(line + "\\n")

@tool(risk="low", idempotent=True)
async def read(name: str) -> int:
    "Read a number."
    noted("read " + name)
    if name == "c" and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return len(name)

@tool(risk="low")
async def pay(name: str) -> str:
    "Pay a bill."
    noted("pay " + name)
    return "paid " + name
"""
AGENT = """
description: Pays.
model: offline
mode: code
instructions: Pay.
tools: {ask: [{tool: work.pay, when: {name: a}}], allow: ["work.*"]}
"""
CODE = (
    "paid = [work__pay(name) for name in 'ab' if work__read(name)]; paid.append(work__pay(str(work__read('c')))); paid"
)


def test_a_script_goes_on_after_kills_of_its_processes(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/clerk.yaml": AGENT, "plugins/work.py": TOOLS})
    with terminal("run", f"script: {CODE}", cwd=root) as (process, master):
        read_until(master, "[a]pprove")
        process.kill()
        assert process.wait() == -9
    assert (root / "log").read_text() == "read a\n"
    (info,) = json.loads(agentsd("runs", "list", "--json", cwd=root).stdout)
    assert info["status"] == "paused"

    assert agentsd_process("runs", "decide", "last", "--approve-all", cwd=root).returncode == -9, (
        "the tool kills its process"
    )
    assert (root / "log").read_text().split("\n")[1:-1] == ["pay a", "read b", "pay b", "read c"]

    resumed = agentsd_process("runs", "resume", "last", cwd=root)
    assert resumed.returncode == 0, resumed
    assert 'value: ["paid a", "paid b", "paid 1"]' in resumed.stdout
    assert (root / "log").read_text().split("\n")[4:-1] == ["read c", "read c", "pay 1"], "only what was in flight"
