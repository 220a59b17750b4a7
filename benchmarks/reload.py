"""Time until an edit takes effect among a thousand agents, and the cost of a scan when nothing changed."""

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

from benchmarks.harness import LoopDelays, Row, Table, best
from framework import Runtime
from framework.config.settings import Settings
from framework.config.snapshot import FINE_NS, TEST_SUFFIXES, Scanner, take_snapshot
from framework.config.yaml.parse import parse_agent

SHIPPED = Path(__file__).parent.parent / "agents.d"

AGENTS = 1000
LIMIT_MS = 200
AGENT = """\
version: 1
name: agent-{number}
description: Answers questions of kind {number}. {note}
model: offline
instructions: |
  You are agent {number}. Answer briefly, and say so when you do not know.
  Look into the files before you answer, and name the ones you used.
skill_policy:
  deny: [{{tool: json_transform, reason: not for questions}}]
  allow: [calculator, read_file, "list_*"]
runtime_policy: {{max_steps: 6, max_tool_calls: 12}}
routing: {{priority: 3, keywords: [question, kind{number}]}}
"""


def write(root: Path, number: int, note: str) -> None:
    """Write one agent file."""
    (root / f"agents.d/{number}.yaml").write_text(AGENT.format(number=number, note=note), "utf-8")


def write_all(root: Path, note: str) -> None:
    """Write every agent file."""
    for number in range(AGENTS):
        write(root, number, note)


class Collections:
    """Callback for `gc` that records the duration of each collection in seconds. All threads are paused during it."""

    def __init__(self) -> None:
        self.durations, self._started = [0.0], 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:  # noqa: ARG002 - the signature is gc's
        """Record the start or the end of a collection."""
        if phase == "start":
            self._started = perf_counter()
        else:
            self.durations.append(perf_counter() - self._started)


@contextmanager
def frozen() -> Iterator[None]:
    """Exclude the objects of the imports from garbage collection, as `agentsd serve` does."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def frozen_objects() -> str:
    """Return the number of frozen objects as text."""
    count = gc.get_freeze_count()
    return "imports frozen" if count else "nothing frozen"


async def edits(root: Path, rounds: int) -> Table:
    """Save single files with the watcher running, then touch every file without a change."""
    frozen_count = frozen_objects()
    async with Runtime.open(root, settings=Settings()) as runtime:
        times, number = list[float](), runtime.catalog.current.number
        for edit in range(rounds + 1):
            await asyncio.to_thread(write, root, edit % AGENTS, f"Edit {edit}, {frozen_count}.")
            saved = perf_counter()
            number = (await runtime.wait_generation(number + 1)).number
            times.append((perf_counter() - saved) * 1000)
        times = times[1:]  # the first edit may have waited for the watcher to start
        for agent in range(AGENTS):
            (root / f"agents.d/{agent}.yaml").touch()
        await asyncio.to_thread(write, root, 0, f"After the touches, {frozen_count}.")
        generations = (await runtime.wait_generation(number + 1)).number - number - 1
        quiet = runtime.settings.reload.quiet * 1000
    rows = [
        Row("the quiet period alone", quiet, 1),
        Row("median", median(times), median(times) / quiet),
        Row.limited("95th percentile", quantiles(times, n=20)[-1], LIMIT_MS),
    ]
    touched = f"{AGENTS:,} files touched without a change: {generations} new generations"
    return Table(f"Time until a saved file is live, of {AGENTS:,} agent files, {frozen_count}", "ms", rows, touched)


def scans(root: Path, rounds: int) -> Table:
    """Measure the scan that is done every two seconds, with no file changed."""
    while time.time_ns() - max(path.stat().st_ctime_ns for path in root.rglob("*")) <= FINE_NS:
        os.sched_yield()
    scanner = Scanner(root)
    everything = best(lambda: take_snapshot(root), rounds=rounds) / 1000
    scan = best(scanner.scan, rounds=rounds) / 1000
    rows = [Row("read all files", everything, 1), Row("compare their timestamps", scan, scan / everything)]
    return Table(f"Scan of {AGENTS:,} unchanged files", "ms", rows)


async def rebuilds(root: Path, rounds: int) -> Table:
    """Change every file and reload, while a timer measures the delays of the event loop."""
    frozen_count = frozen_objects()
    async with Runtime.open(root, watch=False) as runtime:
        times, longest, delays, collected = list[float](), list[float](), list[float](), list[float]()
        for edit in range(rounds):
            await asyncio.to_thread(write_all, root, f"Rebuild {edit}, {frozen_count}.")
            lags, collections, started = LoopDelays(), Collections(), perf_counter()
            gc.callbacks.append(collections)
            await runtime.reload()
            times.append((perf_counter() - started) * 1000)
            gc.callbacks.remove(collections)
            lags.stop()
            collected.append(max(collections.durations) * 1000)
            longest.append(max(lags.delays) * 1000)
            delays += lags.delays
    percentile = quantiles(delays, n=20)[-1] * 1000
    rows = [
        Row("rebuild", median(times), 1, "in a thread"),
        Row("longest loop delay, median of rebuilds", median(longest), median(longest) / median(times)),
        Row("longest loop delay, worst rebuild", max(longest), max(longest) / median(times)),
        Row("longest garbage collection", max(collected), max(collected) / median(times), "part of the delay"),
        Row("loop delay, 95th percentile", percentile, percentile / median(times)),
    ]
    return Table(f"All {AGENTS:,} agent files changed together, {frozen_count}", "ms", rows)


def parsing(rounds: int) -> Table:
    """Parse and validate each shipped agent file; the baseline is PyYAML's C loader on the same bytes.

    CPU time. Each round measures both; the ratio is the median of the ratios of all rounds.
    """
    times, ratios, rows = list[float](), list[float](), list[Row]()
    for path in sorted(SHIPPED.glob("*.yaml")):
        if path.name.endswith(TEST_SUFFIXES):
            continue
        source = path.read_bytes()
        both = [(cpu(partial(plain, source)), cpu(partial(parse_agent, path.name, source))) for _ in range(rounds)]
        parsed, ratio = min(ms for _, ms in both), median(ms / base for base, ms in both)
        rows.append(Row(path.name, parsed, ratio, f"{len(source):,} bytes"))
        times.append(parsed)
        ratios.append(ratio)
    plain_ms = median(ms / ratio for ms, ratio in zip(times, ratios, strict=True))
    baseline = Row("yaml.CSafeLoader alone", plain_ms, 1, "no positions, no validation")
    rows = [baseline, *rows, Row("median of the files", median(times), median(ratios))]
    rows.append(Row.limited("slowest of the files", max(times), 1))
    return Table("One agent file, parsed and validated", "ms", rows)


def cpu(function: Callable[[], object], calls: int = 20) -> float:
    """Return the CPU time of one call in milliseconds."""
    function()
    started = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - started) / calls * 1000


def plain(source: bytes) -> object:
    """Load the file with PyYAML's C loader."""
    return yaml.load(source, yaml.CSafeLoader)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure with the objects of the imports frozen and not, then scans and parsing."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        write_all(root, "Initial version.")
        for collection in (frozen, nullcontext):
            with collection():
                yield asyncio.run(edits(root, 5 if quick else 15))
        with frozen():
            yield asyncio.run(rebuilds(root, 1 if quick else 2))
        yield scans(root, 3 if quick else 7)
    yield parsing(3 if quick else 7)
