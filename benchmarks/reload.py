"""What it takes for an edit to go live among a thousand agents, and what looking costs when nothing changed."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter

import yaml

from benchmarks.measure import Row, best, table
from framework import Runtime
from framework.config.files.reading import FINE_NS
from framework.config.files.snapshot import TEST_SUFFIXES, Scanner, take_snapshot
from framework.config.settings import Settings
from framework.config.yaml.parse import parse_agent

SHIPPED = Path(__file__).parent.parent / "agents.d"

AGENTS = 1000
AGENT = """\
version: 1
name: agent-{number}
description: Answers questions of kind {number}. {note}
model: offline
instructions: |
  You are agent {number}. Answer briefly, and say so when you do not know.
  Look into the files before you answer, and name the ones you used.
skill_policy:
  deny: [{{tool: log_transform, reason: not for questions}}]
  allow: [calculator, read_file, "list_*"]
runtime_policy: {{max_steps: 6, max_tool_calls: 12}}
routing: {{priority: 3, keywords: [question, kind{number}]}}
"""


def write(root: Path, number: int, note: str) -> None:
    """Write one agent file."""
    (root / f"agents.d/{number}.yaml").write_text(AGENT.format(number=number, note=note), "utf-8")


def write_all(root: Path, note: str) -> None:
    """Write all of them."""
    for number in range(AGENTS):
        write(root, number, note)


class Collections:
    """How many seconds each garbage collection took; all threads stand still meanwhile."""

    def __init__(self) -> None:
        self.took, self._began = [0.0], 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:  # noqa: ARG002 - the signature is gc's
        """Be told of one."""
        if phase == "start":
            self._began = perf_counter()
        else:
            self.took.append(perf_counter() - self._began)


class Lags:
    """By how many seconds the event loop is late, each time it is to wake up after a millisecond."""

    PACE = 0.001

    def __init__(self) -> None:
        self._loop, self.late = asyncio.get_running_loop(), list[float]()
        self._tick(self._loop.time())

    def _tick(self, due: float) -> None:
        self.late.append(self._loop.time() - due)
        now = self._loop.time()
        self._handle = self._loop.call_at(now + self.PACE, self._tick, now + self.PACE)

    def stop(self) -> None:
        """Measure no more."""
        self._handle.cancel()


@contextmanager
def frozen() -> Iterator[None]:
    """Garbage collections pass over what the imports have left, as in `agentsd serve`."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def frozen_objects() -> str:
    """How many there are."""
    count = gc.get_freeze_count()
    return f"{count:,} objects of the imports frozen" if count else "nothing frozen"


async def edits(root: Path, rounds: int) -> None:
    """One file saved, with the real watcher; then files only touched."""
    left = frozen_objects()
    async with Runtime.open(root, settings=Settings()) as own:
        took, number = list[float](), own.catalog.current.number
        for edit in range(rounds + 1):
            await asyncio.to_thread(write, root, edit % AGENTS, f"Edit {edit}.")
            saved = perf_counter()
            number = (await own.wait_generation(number + 1)).number
            took.append((perf_counter() - saved) * 1000)
        took = took[1:]  # the first may have waited for the watch to begin
        for agent in range(AGENTS):
            (root / f"agents.d/{agent}.yaml").touch()
        await asyncio.to_thread(write, root, 0, "After the touches.")
        generations = (await own.wait_generation(number + 1)).number - number - 1
        quiet = own.settings.reload.quiet * 1000
    rows = [
        Row("the quiet time alone", quiet, 1),
        Row("half of the edits", median(took), median(took) / quiet),
        Row("95 of 100 edits", quantiles(took, n=20)[-1], quantiles(took, n=20)[-1] / quiet),
    ]
    table(f"One of {AGENTS:,} agent files saved: until it is live, {left}", "ms", rows)
    print(f"\n{AGENTS:,} files touched without a change: {generations} new generations")


def looks(root: Path, rounds: int) -> None:
    """What is done every two seconds although nothing changed."""
    while time.time_ns() - max(path.stat().st_ctime_ns for path in root.rglob("*")) <= FINE_NS:
        os.sched_yield()
    scanner = Scanner(root)
    everything = best(lambda: take_snapshot(root), rounds=rounds) / 1000
    look = best(scanner.scan, rounds=rounds) / 1000
    rows = [Row("read all files", everything, 1), Row("compare their times", look, look / everything)]
    table(f"A look at {AGENTS:,} files that did not change", "ms", rows)


async def rebuilds(root: Path, rounds: int) -> None:
    """All files changed, and read at once; meanwhile the loop has other things to do."""
    left = frozen_objects()
    async with Runtime.open(root, watch=False) as own:
        took, longest, late, collected = list[float](), list[float](), list[float](), list[float]()
        for edit in range(rounds):
            await asyncio.to_thread(write_all, root, f"Rebuild {edit}.")
            lags, collections, started = Lags(), Collections(), perf_counter()
            gc.callbacks.append(collections)
            await own.reload()
            took.append((perf_counter() - started) * 1000)
            gc.callbacks.remove(collections)
            lags.stop()
            collected.append(max(collections.took) * 1000)
            longest.append(max(lags.late) * 1000)
            late += lags.late
    usual = quantiles(late, n=20)[-1] * 1000
    rows = [
        Row("the whole rebuild", median(took), 1, "in a thread"),
        Row("the loop was late, usually at most", median(longest), median(longest) / median(took)),
        Row("the loop was late, in the worst rebuild", max(longest), max(longest) / median(took)),
        Row("the longest garbage collection of all", max(collected), max(collected) / median(took), "of the above"),
        Row("the loop was late, 95 of 100", usual, usual / median(took)),
    ]
    table(f"All {AGENTS:,} agent files changed at once, {left}", "ms", rows)


def parsing(rounds: int) -> None:
    """The shipped agents, each from its bytes to the checked model; the baseline makes plain data of the same bytes.

    In CPU time, and each round does both: the ratio is the median of the rounds' ratios.
    """
    took, ratios, rows = list[float](), list[float](), list[Row]()
    for path in sorted(SHIPPED.glob("*.yaml")):
        if path.name.endswith(TEST_SUFFIXES):
            continue
        source = path.read_bytes()
        both = [(cpu(partial(plain, source)), cpu(partial(parse_agent, path.name, source))) for _ in range(rounds)]
        parsed, ratio = min(own for _, own in both), median(own / other for other, own in both)
        rows.append(Row(path.name, parsed, ratio, f"{len(source):,} bytes"))
        took.append(parsed)
        ratios.append(ratio)
    loaded = Row("yaml.CSafeLoader alone", median(row.value / row.ratio for row in rows), 1, "no places, no checks")
    rows = [loaded, *rows, Row("half of the files", median(took), median(ratios))]
    table("One agent file, parsed and checked", "ms", rows)
    print(f"\nat most 1 ms a file: {'yes' if max(took) <= 1 else 'no'}, {max(took):.2f} ms for the slowest")


def cpu(function: Callable[[], object], calls: int = 50) -> float:
    """Milliseconds of this process's CPU time for one call."""
    function()
    started = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - started) / calls * 1000


def plain(source: bytes) -> object:
    """What PyYAML makes of it."""
    return yaml.load(source, yaml.CSafeLoader)


def main(*, quick: bool) -> None:
    """Print the tables of this part."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        write_all(root, "At first.")
        for imports in (frozen, nullcontext):
            with imports():
                asyncio.run(edits(root, 10 if quick else 40))
            with imports():
                asyncio.run(rebuilds(root, 1 if quick else 10))
        looks(root, 5 if quick else 20)
    parsing(5 if quick else 20)
