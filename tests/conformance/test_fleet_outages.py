"""Fleets whose database goes away, or is reached through a pooler, and whose clocks are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from examples.scale_demo.facts import take_overs
from examples.scale_demo.fleet import Fleet, Process, launch
from examples.scale_demo.load import client_of, conversations
from examples.scale_demo.postgres import Server, new_database, server
from tests.support.cases import FACTOR
from tests.support.fleets import PATIENCE, check, fleet_on, fork
from tests.support.pgbouncer import pooled
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(4 * PATIENCE)
LEASE = 1.0
"""Lease of the processes in seconds."""
AWAY = 3 if FACTOR == 1 else 10
"""Seconds without a server."""


@pytest.fixture(scope="module")
def outage() -> Iterator[Server]:
    """A server used only by this module."""
    try:
        with server() as made:
            yield made
    except LookupError as missing:
        pytest.skip(str(missing))


async def until_acting(fleet: Fleet, runs: int, step: int = 0) -> None:
    """Wait until this number of runs has reached a step."""
    await until(
        lambda: len({entry.run for entry in fleet.entries if entry.step >= step}) >= runs,
        f"{runs} runs have reached step {step}",
    )


@pytest.mark.parametrize("seconds", [0, AWAY])
def test_a_fleet_continues_by_itself_once_the_server_is_back(tmp_path: Path, outage: Server, seconds: float) -> None:
    async def main(fleet: Fleet) -> None:
        for name in ("api", "worker-1", "worker-2"):
            fleet.add(name, lease=LEASE)
        await fleet.ready()
        async with client_of(fleet.api.url) as client:
            await client.submit_all(conversations(16, 8, steps=6))
            await until_acting(fleet, 8)
            await asyncio.to_thread(outage.stop, "immediate" if seconds else "fast")
            await asyncio.sleep(seconds)
            await asyncio.to_thread(outage.start)
            await check(fleet, client)
            await client.submit_all(conversations(4, 4, name="later"))
            await check(fleet, client)
        assert all(member.is_up for member in fleet.members.values()), "nobody had to restart anything"

    with fleet_on(tmp_path, new_database(outage.url)) as fleet:
        asyncio.run(main(fleet))


def test_a_fleet_that_starts_before_its_server_waits_for_it(tmp_path: Path, outage: Server) -> None:
    async def main(fleet: Fleet) -> None:
        await asyncio.to_thread(outage.stop, "fast")
        for name in ("api", "worker-1"):
            fleet.add(name, lease=LEASE)
        await until(
            lambda: all("refused" in str(member.output) for member in fleet.members.values()),
            "all report that the server refuses them",
        )
        await asyncio.to_thread(outage.start)
        await fleet.ready()
        async with client_of(fleet.api.url) as client:
            await client.submit_all(conversations(4, 4))
            await check(fleet, client)

    with fleet_on(tmp_path, new_database(outage.url)) as fleet:
        asyncio.run(main(fleet))


AN_HOUR_AHEAD = """\
import time
now = time.time
time.time = lambda: now() + 3600
"""


def launch_one_ahead(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Process:
    """Start `agentsd`; in the folder of worker-1, its clock is an hour ahead, and that before its imports."""
    if folder.name != "worker-1":
        return fork(arguments, folder, environment)
    (folder / "clock").mkdir(exist_ok=True)
    (folder / "clock" / "sitecustomize.py").write_text(AN_HOUR_AHEAD, "utf-8")
    return launch(arguments, folder, {**environment, "PYTHONPATH": str(folder / "clock")})


def test_a_clock_that_is_wrong_by_an_hour_neither_takes_runs_nor_keeps_them(tmp_path: Path, postgres: str) -> None:
    async def main(fleet: Fleet) -> None:
        for name in ("api", "worker-1", "worker-2"):
            fleet.add(name, lease=2 * LEASE)
        await fleet.ready()
        async with client_of(fleet.api.url) as client:
            runs = 0
            for killed in fleet.workers:
                own: set[str] = set()
                while killed.process not in own:  # one process may claim all four
                    name, runs = f"{killed.name}-{runs}-", runs + 4
                    await client.submit_all(conversations(4, 4, name=name, steps=8, model_seconds=0.4))
                    await until_acting(fleet, runs, step=5)
                    acting = {(entry.run, entry.process) for entry in fleet.entries if entry.run.startswith(name)}
                    assert len(acting) == 4, "no run changed its process"
                    own = {process for _, process in acting}
                death = killed.kill()
                await fleet.restart(killed)
                await check(fleet, client)
                assert take_overs(fleet.entries, death), "the other one has continued its runs"

    with fleet_on(tmp_path, new_database(postgres), launch_one_ahead) as fleet:
        asyncio.run(main(fleet))


@pytest.fixture
def pooler(postgres: str) -> Iterator[str]:
    """URL of an empty database through PgBouncer in transaction mode."""
    try:
        with pooled(new_database(postgres)) as url:
            yield url
    except LookupError as missing:
        pytest.skip(str(missing))


def test_a_fleet_behind_a_pooler_polls_and_says_so(tmp_path: Path, pooler: str) -> None:
    async def main(fleet: Fleet) -> None:
        for name in ("api", "worker-1", "worker-2"):
            fleet.add(name, lease=LEASE)
        await fleet.ready()
        async with client_of(fleet.api.url) as client:
            await client.submit_all(conversations(16, 8))
            busiest = await fleet.busiest("c", 8)
            busiest.kill()
            await fleet.restart(busiest)
            await check(fleet, client)
        for worker in fleet.workers:
            assert any("pooler" in line for line in worker.output), worker.output

    with fleet_on(tmp_path, pooler) as fleet:
        asyncio.run(main(fleet))


def test_two_servers_on_one_file_share_its_runs(tmp_path: Path) -> None:
    async def main(fleet: Fleet) -> None:
        one, two = (fleet.add(name, command=["serve"]) for name in ("one", "two"))
        await fleet.ready()
        async with client_of(one.url) as client, client_of(two.url) as other:
            await client.submit_all(conversations(12, 8))
            await other.submit_all(conversations(12, 8, name="d"))
            busiest = await fleet.busiest("", 16)
            busiest.kill()
            survivor = client if busiest is two else other
            survivor.submitted.ids.update(client.submitted.ids | other.submitted.ids)
            await check(fleet, survivor)
            assert len({entry.process for entry in fleet.entries}) == 2, "both executed runs"

    with fleet_on(tmp_path, f"sqlite:///{tmp_path}/state.db") as fleet:
        asyncio.run(main(fleet))
