"""The memory of a process reaches a plateau under edits, runs and approvals that nobody decides."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from framework import Runtime
from framework.config.generations.generation import Generation
from framework.llm.client import ModelRequest, Turn
from framework.testing import ScriptedModel, calls
from tests.support.cases import FACTOR
from tests.support.projects import agent, write
from tests.support.served import Served, served

KEPT = 20
"""Generations that are archived for rollbacks: until there are so many, memory grows with each edit."""
ROUNDS = 8
HOURS = 2


def edit(root: Path, number: int, *, lines: int, plugin: bool = True) -> None:
    """Change one agent and, if it is to be edited, the plugin, whose size depends on `lines`."""
    padding = "".join(f"D{line} = 'version {number} of line {line} ' * 50\n" for line in range(lines))
    text = f"""\
from framework import tool
{padding}
@tool(risk="low")
def look(text: str) -> str:
    '''Look at a text.'''
    return "version {number} of " + text

@tool(risk="high")
def act(text: str) -> str:
    '''Act on a text.'''
    return "acted"
"""
    name = f"a{number % 5}"
    policy = {"skill_policy": '{allow: ["p.*"]}', "runtime_policy": "{risk_level: critical}"}
    edited = agent(name, instructions=f"Version {number}.", **policy)
    write(root, {f"agents.d/{name}.yaml": edited, **({"plugins/p.py": text} if plugin else {})})


def project(root: Path, *, lines: int) -> Path:
    for number in range(5):
        edit(root, number, lines=lines)
    return root


def test_neither_edits_nor_runs_nor_paused_runs_leave_objects_behind(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Turn:
        last = request.messages[-1]
        return "done" if last.role == "tool" else calls((str(last.content), {"text": "it"}))

    model = ScriptedModel(script=script)

    async def round_of(runtime: Runtime, number: int) -> None:
        edit(tmp_path, number, lines=10, plugin=number % 3 == 0)  # each is first loaded in a process of its own
        await runtime.reload()
        for called, status in (("p.look", "completed"), ("p.look", "completed"), ("p.act", "paused")):
            assert (await runtime.run(called, agent=f"a{number % 5}")).status == status
        model.requests.clear()

    async def main() -> None:
        project(tmp_path, lines=10)
        store = f"sqlite:///{tmp_path}/state.db"
        async with Runtime.open(tmp_path, models={"scripted": model}, store=store, watch=False) as runtime:
            gc.collect()
            gc.freeze()  # what other tests of this process have left is neither searched nor counted
            counts, generations = [], []
            for number in range(5, KEPT + 5 + 2 * ROUNDS):
                await round_of(runtime, number)
                if number >= KEPT + 5:
                    gc.collect()
                    kinds = Counter(map(type, gc.get_objects()))
                    counts.append(kinds.total())
                    generations.append(kinds[Generation])
            assert max(generations) - min(generations) <= 3, "no paused run keeps its generation in memory"
            first, second = median(counts[:ROUNDS]), median(counts[ROUNDS:])
            assert second - first < 20 * ROUNDS, "an edit and three runs create thousands of objects"

    asyncio.run(main())


@pytest.mark.skipif(FACTOR == 1, reason=f"it takes {HOURS} hours; `make test-long` runs it")
@pytest.mark.timeout((HOURS + 1) * 3600)
def test_the_memory_of_a_server_reaches_a_plateau_within_hours(tmp_path: Path) -> None:
    """The second half hour is compared with the last one: the caches of libraries are full by then."""
    project(tmp_path, lines=2000)
    for file in (tmp_path / "agents.d").iterdir():
        file.write_text(file.read_text().replace("scripted", "offline"))
    with served(tmp_path) as server:
        began, sizes, number = time.monotonic(), list[tuple[float, int]](), 5
        while (hours := (time.monotonic() - began) / 3600) < HOURS:
            edit(tmp_path, number, lines=2000)
            file = tmp_path / f"agents.d/a{number % 5}.yaml"
            file.write_text(file.read_text().replace("scripted", "offline"))
            for asked in range(20):
                body = {"message": "act on: it" if not asked else f"look at: text {asked}", "agent": f"a{asked % 5}"}
                assert server.request("POST", "/agent/chat", json=body).status_code == (200 if asked else 202)
            if not number % 7 and (live := server.get("/agent/config")["generation"]) > 1:
                server.post("/agent/config/rollback", {"generation": live - 1})
            sizes.append((hours, resident_bytes(server)))
            number += 1
    early = median(size for hours, size in sizes if HOURS / 4 <= hours < HOURS / 2)
    late = median(size for hours, size in sizes if hours >= 3 * HOURS / 4)
    assert late < 1.05 * early, f"{early / 2**20:.0f} MiB, then {late / 2**20:.0f} MiB, after {number} edits"


def resident_bytes(server: Served) -> int:
    """Return the memory of the server's process, as Linux counts it."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096
