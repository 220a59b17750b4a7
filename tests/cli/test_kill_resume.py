"""Kills `agentsd run` and `agentsd runs resume` repeatedly until the run has ended."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import Any

import pytest

from framework.store.store import Store
from framework.types.state import RunState
from tests.support.cases import FACTOR
from tests.support.commands import ENVIRONMENT, agentsd
from tests.support.forks import Fork
from tests.support.projects import agent, write
from tests.support.stored_runs import STORE

KILLS = 10 * FACTOR
"""200 in `make test-long`."""
MOST_LINES = 5
"""Largest number of progress lines after which a process is killed."""
TOOLS = """
import os
from framework import tool

def noted(line):
    file = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (line + "\\n").encode())
    os.close(file)

@tool(risk="low", idempotent=True)
async def step(name: str) -> str:
    "Do a step."
    noted("step " + name)
    return "did " + name

@tool(risk="low")
async def pay(name: str) -> str:
    "Pay a bill."
    noted("pay " + name)
    return "paid " + name
"""
NAMES = ("a1", "b2", "c3", "d4", "e5", "f6")
MESSAGE = ", then ".join(f"{'pay' if place % 2 else 'step'} '{name}'" for place, name in enumerate(NAMES))


@dataclass
class Observed:
    """The stored state of one run between two processes, and the calls that its tools executed."""

    root: Path
    run_id: str = ""
    status: str = ""
    finished: set[str] = field(default_factory=set)
    """Calls whose result is stored."""
    events: dict[int, dict[str, Any]] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    calls_made: list[str] = field(default_factory=list)

    def observe(self) -> None:
        """Read the store; check that nothing was lost and no finished call was executed again."""
        log = self.root / "log"
        calls_made = log.read_text().splitlines() if log.exists() else []
        again = {line.split()[1] for line in calls_made[len(self.calls_made) :]}
        assert not again & self.finished, "a finished call was executed again"
        self.calls_made = calls_made
        asyncio.run(self._read())

    async def _read(self) -> None:
        store = await Store.open(STORE, self.root)
        for info in await store.runs():
            self.run_id = info.run_id
            state: RunState = await store.load_run(info.run_id)
            now = {event["seq"]: dict(event) for event in await store.events(info.run_id)}
            assert self.events.items() <= now.items(), "an event was lost or changed"
            finished = {str(r.call.arguments["name"]) for r in state.calls.values() if r.result is not None}
            assert self.finished <= finished, "a result was lost"
            assert state.status in ("running", "paused", "completed"), "the run ended without cause"
            self.status, self.events, self.finished = state.status, now, finished
            self.pending = [question.id for question in state.pending]
        await store.close()

    def next_command(self) -> list[str]:
        """Return the command that continues the run."""
        if not self.run_id:
            return ["run", MESSAGE]
        if self.status == "paused":
            answers = [f"--respond={question}=done by hand" for question in self.pending]
            return ["runs", "decide", self.run_id, *answers]
        return ["runs", "resume", self.run_id]


def run_process(root: Path, arguments: list[str], lines: int | None) -> bool:
    """Run one process and kill it after `lines` lines of progress; return whether it was killed."""
    killed = False
    with Fork(arguments, cwd=root, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        output: list[str] = []
        while lines is None or len(output) < lines:
            if not (line := process.stderr.readline()):
                break
            output.append(line)
        else:
            process.kill()
            killed = True
        process.wait()
    assert killed or process.returncode in (0, 3), output
    return killed


def run_to_its_end(root: Path, kills: int, random: Random) -> int:
    """Start a run, kill its processes and resume it; return the number of killed processes."""
    write(root, {"agents.d/one.yaml": agent("one", model="offline"), "plugins/work.py": TOOLS})
    seen, killed = Observed(root), 0
    while seen.status != "completed":
        lines = random.randint(0, MOST_LINES) if killed < kills else None
        killed += run_process(root, seen.next_command(), lines)
        seen.observe()
    assert sorted(seen.events) == list(range(1, len(seen.events) + 1)), "events are numbered without a gap"
    last = seen.events[len(seen.events)]
    assert (last["event"], last["status"]) == ("done", "completed")
    results = [event["id"] for event in seen.events.values() if event["event"] == "tool_result"]
    assert len(results) == len(set(results)) == len(NAMES), "the result of each call is reported once"
    assert seen.finished == set(NAMES)
    paid = Counter(line for line in seen.calls_made if line.startswith("pay "))
    assert set(paid.values()) <= {1}, "a call that may have taken effect is not repeated without approval"
    (info,) = json.loads(agentsd("runs", "list", "--json", cwd=root).stdout)
    assert info["status"] == "completed"
    with closing(sqlite3.connect(root / ".agentsd/state.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return killed


@pytest.mark.timeout(800)
def test_a_run_survives_the_kill_of_every_process_that_starts_or_resumes_it(tmp_path: Path) -> None:
    total, random, numbers = 0, Random(20), count()
    while total < KILLS:
        total += run_to_its_end(tmp_path / f"work-{next(numbers)}", min(10, KILLS - total), random)
