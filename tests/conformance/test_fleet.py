"""A fleet on one PostgreSQL keeps its promises: an API and two workers, kills, signals and edits, in real processes.

What runs did is read from a log outside the store.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from examples.scale_demo.facts import take_overs
from examples.scale_demo.fleet import Fleet
from examples.scale_demo.load import client_of, conversations
from examples.scale_demo.model import Work
from examples.scale_demo.postgres import new_database
from examples.scale_demo.project import edit_agent
from examples.scale_demo.scenario import digests, end_one, kill_under_load
from tests.support.cases import FACTOR
from tests.support.fleets import PATIENCE, check, facts_of, fleet_on
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(4 * PATIENCE if FACTOR == 1 else 3600)
LEASE = 1.0
"""Lease of the processes in seconds, where a test waits for its end."""
LONG = 3600.0
"""Lease in seconds, where nothing may wait for its end."""
KILLS, EVERY = (2 if FACTOR == 1 else 200), 2.0
"""Number of kills, and the seconds between two: more than a lease, so that each take-over lasts for a step."""
POISON = {
    "plugins/poison.py": """\
import os
from framework import tool

@tool(risk="low", idempotent=True)
def step(run: str, step: int, seconds: float) -> str:
    \"\"\"End the process.\"\"\"
    os.kill(os.getpid(), 9)
    return ""
""",
    "agents.d/poisoner.yaml": """\
version: 1
name: poisoner
description: Ends its process.
model: scripted
instructions: Do the steps.
skill_policy: {allow: [poison.step]}
""",
}


def start(fleet: Fleet, lease: float, files: Mapping[str, str] | None = None) -> None:
    """Start an API and two workers."""
    for name in ("api", "worker-1", "worker-2"):
        fleet.add(name, lease=lease, files=files)
    asyncio.run(fleet.ready())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Fleet]:
    """A fleet that most tests of this module share; each leaves all of its processes ready."""
    with fleet_on(tmp_path_factory.mktemp("fleet"), new_database(postgres)) as made:
        start(made, LEASE, POISON)
        yield made


def test_runs_of_killed_workers_complete_once_and_in_order(fleet: Fleet) -> None:
    async def main() -> None:
        async with client_of(fleet.api.url) as client:
            kills = 0
            while kills < KILLS:
                load = conversations(16, 8, name=f"after-{kills}-kills-", model_seconds=0.4)
                kills += len(await kill_under_load(fleet, client, load, every=EVERY, seconds=PATIENCE, say=print))
            await check(fleet, client)

    asyncio.run(main())


def test_a_worker_that_gets_sigterm_hands_its_runs_over_without_waiting_for_its_lease(
    tmp_path: Path, postgres: str
) -> None:
    async def main(fleet: Fleet) -> None:
        async with client_of(fleet.api.url) as client:
            taken = await end_one(fleet, client, "c", signal.SIGTERM, runs=8, seconds=PATIENCE)
            assert len(taken) >= 4, "the worker executed at least half of the runs"
            await check(fleet, client)

    with fleet_on(tmp_path, new_database(postgres)) as fleet:
        start(fleet, LONG)
        asyncio.run(main(fleet))


def test_a_run_that_ends_its_worker_three_times_fails_and_the_others_complete(fleet: Fleet) -> None:
    async def main() -> None:
        async with fleet.supervised(), client_of(fleet.api.url) as client, client_of(fleet.api.url) as other:
            poison = await other.submit(Work("poison.1", 1, 0, 0), agent="poisoner")
            await client.submit(Work("poison.2", 1, 0, 0))
            await client.submit_all(conversations(8, 4, name="beside-poison-", steps=6))
            await check(fleet, client)
            detail = await client.get(f"/agent/runs/{poison}")
            assert (detail["status"], detail["finish_reason"]) == ("failed", "crashed")

    asyncio.run(main())


def test_a_worker_that_was_stopped_for_longer_than_its_lease_leaves_its_runs_to_others(fleet: Fleet) -> None:
    """It was about to act, and may do so once: a call of an idempotent tool, or of the model, is not written before."""

    async def main() -> None:
        async with client_of(fleet.api.url) as client:
            for number in range(8):
                await client.submit(Work(f"stopped{number}.1", steps=6, model_seconds=0.5, tool_seconds=0.05))
            stopped = await fleet.busiest("stopped", 8)
            stop = stopped.signal(signal.SIGSTOP)
            try:
                ended = {entry.run for entry in fleet.entries if entry.what == "answered"}
                acting = fleet.processes("stopped")
                held = {run for run in acting.keys() - ended if acting[run] == stopped.process}
                await until(
                    lambda: len(take_overs(fleet.entries, stop)) >= len(held), "the other process takes all its runs"
                )
            finally:
                woken = stopped.signal(signal.SIGCONT)
            await client.until_ended(PATIENCE)
            found = facts_of(fleet, client)
            assert (found.answered, found.repeated, found.disordered) == (8, (), ())
            acts = [entry for entry in fleet.entries if entry.is_act and entry.process == stopped.process]
            late = Counter(entry.run for entry in acts if entry.at > woken.at and entry.run in held)
            assert set(late.values()) <= {1}
            assert stopped.is_up

    asyncio.run(main())


def test_an_edit_on_one_worker_concerns_only_runs_that_begin_there(fleet: Fleet) -> None:
    """Two versions of an agent work at the same time, and a run that is continued elsewhere keeps its own."""

    async def main() -> None:
        async with client_of(fleet.api.url) as client:
            first = await client.submit(Work("first.1", steps=20, model_seconds=0.1, tool_seconds=0.05))
            edit_agent(fleet.workers[0].folder)
            number, before = 0, await digests(client)
            async with asyncio.timeout(PATIENCE):
                while len(await digests(client)) <= len(before):
                    await client.submit(Work(f"edited{number}.1", steps=0, model_seconds=0, tool_seconds=0))
                    number += 1
            digest = (await client.get(f"/agent/runs/{first}"))["digest"]
            for worker in fleet.workers:
                worker.kill()
                await fleet.restart(worker)
            await check(fleet, client)
            assert (await client.get(f"/agent/runs/{first}"))["digest"] == digest

    asyncio.run(main())
