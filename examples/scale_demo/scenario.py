"""What happens to the fleet of the demo, and what it shows."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from time import monotonic

from examples.scale_demo.facts import Death, starts, take_overs
from examples.scale_demo.fleet import Fleet
from examples.scale_demo.load import Client
from examples.scale_demo.model import Work

Say = Callable[[str], None]
"""Prints a line."""
WARM_UP = 10
"""Number of runs before those whose start is measured."""


async def start_seconds(fleet: Fleet, client: Client, runs: int) -> list[float]:
    """Submit runs one at a time to an idle fleet; return the seconds from each acceptance to its first model call.

    A few runs before them do not count: the first run of a process connects it to the model server.
    """
    for number in range(-WARM_UP, runs):
        await client.submit(Work(f"lone{number}.1", steps=0, model_seconds=0, tool_seconds=0))
        await client.until_ended(10)
    return starts(
        fleet.entries, {f"lone{number}.1": client.submitted.accepted[f"lone{number}.1"] for number in range(runs)}
    )


async def kill_under_load(
    fleet: Fleet, client: Client, load: Sequence[Sequence[Work]], *, every: float, seconds: float, say: Say
) -> list[Death]:
    """Submit a load, and kill the workers in turn until all of it is answered; return the kills.

    Args:
        fleet: with its workers ready.
        client: of its API.
        load: the work of conversations.
        every: seconds between two kills. The next one waits until all workers are ready: there is always one left.
        seconds: limit of the whole.
        say: prints a line of progress, once a second.
    """
    begun, runs = monotonic(), {work.run for conversation in load for work in conversation}
    deaths: list[Death] = []
    async with fleet.supervised(), asyncio.TaskGroup() as group:
        submitting = group.create_task(client.submit_all(load))
        killing = group.create_task(_kill_workers(fleet, every, deaths))
        while monotonic() - begun < seconds:
            done = {entry.run for entry in fleet.entries if entry.what == "answered"} & runs
            say(f"{monotonic() - begun:3.0f} s  {_progress(len(runs), len(done), client, fleet, len(deaths))}")
            if submitting.done() and done == runs:
                break
            await asyncio.sleep(1)
        killing.cancel()
        submitting.cancel()
    await client.until_ended(max(1.0, seconds - (monotonic() - begun)))
    return deaths


async def _kill_workers(fleet: Fleet, every: float, deaths: list[Death]) -> None:
    for victim in cycle(fleet.workers):
        await asyncio.sleep(every)
        while not all(worker.is_up for worker in fleet.workers):  # noqa: ASYNC110 - other processes become ready
            await asyncio.sleep(0.02)
        deaths.append(victim.kill())


def _progress(runs: int, done: int, client: Client, fleet: Fleet, kills: int) -> str:
    accepted = sum(not run.startswith("lone") for run in client.submitted.accepted)
    workers = ", ".join(f"{worker.name} {'up' if worker.is_up else 'down'}" for worker in fleet.workers)
    return f"{accepted:4} of {runs} accepted, {done:4} answered, {kills:3} kills; {workers}"


async def end_one(
    fleet: Fleet, client: Client, name: str, number: signal.Signals, runs: int, seconds: float = 30
) -> list[float]:
    """Send a signal to a worker that executes runs, and wait until all runs have ended.

    Args:
        fleet: with its workers ready.
        client: of its API.
        name: prefix of the new runs.
        number: the signal, which ends the process.
        runs: number of new runs.
        seconds: limit of the whole.

    Returns:
        Seconds from the signal to the next act of each of the worker's runs, in another process.
    """
    for turn in range(runs):
        await client.submit(Work(f"{name}{turn}.1", steps=12, model_seconds=0.15, tool_seconds=0.05))
    victim = await fleet.busiest(name, runs)
    death = victim.signal(number)
    await fleet.restart(victim)
    await client.until_ended(seconds)
    return take_overs(fleet.entries, death)


async def digests(client: Client) -> dict[str, int]:
    """Return the number of runs by the beginning of their agent's digest."""
    return Counter(str(run["digest"])[:8] for run in await client.runs() if run["digest"])
