"""What readers of a run's events cost the run: none, one, one that stops reading, and many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from benchmarks.harness import Row, Table, paired
from benchmarks.loop import LOOPER, STEPS, note, script
from framework import Runtime
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn
from framework.types.events import Event

READERS = (10, 100)
ANSWER = "word " * 300


def talkative(request: ModelRequest) -> Turn:
    """Return the turns of the loop, and a long answer at its end."""
    turn = script(request)
    return ANSWER.strip() if isinstance(turn, str) else turn


async def one_run(runtime: Runtime, followers: int, *, idle: bool) -> float:
    """Stream a run while others follow it; return the CPU time of all in seconds.

    Args:
        runtime: the runtime.
        followers: number of further readers.
        idle: whether they stop reading after the first event.
    """
    started = process_time()
    async with runtime.stream("go", agent="looper") as stream:
        others = [runtime.follow(stream.run_id) for _ in range(followers)]
        for other in others:
            await anext(other)
        reading = [asyncio.create_task(_read(other)) for other in others if not idle]
        async for _ in stream:
            pass
        assert (await stream.result()).output == ANSWER.strip()
        if reading:
            await asyncio.wait(reading)
        spent = process_time() - started
        for other in others:
            await other.aclose()
    return spent


async def _read(events: AsyncIterator[Event]) -> None:
    async for _ in events:
        pass


async def compare(root: Path, rounds: int) -> Table:
    """Compare runs with different readers, interleaved, so that all run under the same load."""
    kinds = {"stream": (0, False), "and one that stops reading": (1, True)}
    kinds |= {f"and {number} more": (number, False) for number in READERS}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    model = ScriptedModel(script=talkative)
    async with Runtime.open(root, tools=[note], models={"scripted": model}, watch=False) as runtime:
        for _ in range(rounds + 1):
            for name, (followers, idle) in kinds.items():
                times[name].append(await one_run(runtime, followers, idle=idle))
    first, *_ = times.values()
    rows = [
        Row(name, median(spent[1:]) * 1e3, paired(spent[1:], first[1:]), at_most=1.1 if "stops" in name else None)
        for name, spent in times.items()
    ]
    return Table(f"A streamed run of {STEPS} tool calls and 300 words, CPU time with its readers", "ms", rows)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure each kind of reader."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "looper.yaml"
        path.write_text(LOOPER, "utf-8")
        yield asyncio.run(compare(path, 3 if quick else 5))
