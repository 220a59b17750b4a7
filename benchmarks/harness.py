"""What all benchmarks share: timers, gauges, tables, and comparisons of two results."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from resource import RUSAGE_SELF, getpagesize, getrusage
from statistics import median
from time import perf_counter
from typing import Any


class NotMeasured(Exception):
    """This machine lacks something that a benchmark needs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    name: str
    value: float
    ratio: float | None = None
    """Ratio to the baseline of the table; None if the table has no baseline."""
    note: str = ""
    at_most: float | None = None
    """The highest ratio that the project promises."""
    at_least: float | None = None
    """The lowest ratio that the project promises."""

    @classmethod
    def limited(cls, name: str, value: float, limit: float, note: str = "") -> Row:
        """Return a row whose baseline is a limit, which it may not exceed."""
        return cls(name, value, value / limit, note or f"of {figure(limit)}", at_most=1)

    @property
    def kept(self) -> bool | None:
        """Whether the promise is kept; None without a promise."""
        if self.ratio is None or (self.at_most is None and self.at_least is None):
            return None
        return (self.at_most is None or self.ratio <= self.at_most) and (
            self.at_least is None or self.ratio >= self.at_least
        )


@dataclass(frozen=True, slots=True)
class Table:
    """Measured values with one unit, and their ratios to a baseline, which is the row with the ratio 1."""

    title: str
    unit: str
    rows: Sequence[Row]
    note: str = ""
    """A sentence below the table."""


Results = Mapping[str, Sequence[Table]]
"""The tables of each benchmark, by its name."""


def best(function: Callable[[], object], *, rounds: int, at_least: float = 0.02) -> float:
    """Return the time of one call in microseconds: the lowest of `rounds` rounds of `at_least` seconds each."""
    function()
    calls = max(1, int(at_least / max(_seconds(function, 1), 1e-7)))
    return min(_seconds(function, calls) for _ in range(rounds)) / calls * 1e6


def _seconds(function: Callable[[], object], calls: int) -> float:
    started = perf_counter()
    for _ in range(calls):
        function()
    return perf_counter() - started


def paired(values: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median of the ratios of values that were measured in turn, so that both had the same load."""
    return median(value / base for value, base in zip(values, baseline, strict=True))


def results_file(text: str) -> Path:
    """Return the path of results that were written before, as the type of a command line's argument."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}: `make bench` writes build/bench/suite.json")
    return path


def end_on_interrupt() -> None:
    """Let Ctrl-C end this process, which serves another one, without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def resident_mb() -> float:
    """Return the memory of this process in megabytes: the current value on Linux, elsewhere the peak."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text("ascii").split()[1]) * getpagesize() / 1e6
    return getrusage(RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


class LoopDelays:
    """Delays of the event loop in seconds, measured by a timer of one millisecond."""

    INTERVAL = 0.001

    def __init__(self) -> None:
        """Start the timer of the running loop."""
        self._loop, self.delays = asyncio.get_running_loop(), list[float]()
        self._tick(self._loop.time())

    def _tick(self, due: float) -> None:
        self.delays.append(self._loop.time() - due)
        now = self._loop.time()
        self._handle = self._loop.call_at(now + self.INTERVAL, self._tick, now + self.INTERVAL)

    def stop(self) -> None:
        """Stop the timer."""
        self._handle.cancel()


def measure(name: str, earlier: Mapping[tuple[str, str], float], *, quick: bool) -> list[Table]:
    """Run a benchmark and return its tables; show each as soon as it is measured, beside earlier ratios."""
    measured: list[Table] = []
    try:
        for table in import_module(f"benchmarks.{name}").tables(quick=quick):
            show(table, earlier)
            measured.append(table)
    except NotMeasured as missing:
        print(f"\n{name} is not measured: {missing}", flush=True)
    return measured


def save(path: Path, results: Results, facts: Mapping[str, Any]) -> None:
    """Write results, and facts about where they were measured, as JSON."""
    tables = {name: [asdict(table) for table in found] for name, found in results.items()}
    path.parent.mkdir(parents=True, exist_ok=True)  # what took minutes to measure must not be lost
    path.write_text(json.dumps({**facts, "benchmarks": tables}, indent=1, ensure_ascii=False) + "\n", "utf-8")


def load(path: Path) -> tuple[Results, Mapping[str, Any]]:
    """Return what `save` wrote."""
    facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
    results = {
        name: [Table(**table | {"rows": [Row(**row) for row in table["rows"]]}) for table in tables]
        for name, tables in facts.pop("benchmarks").items()
    }
    return results, facts


def ratios(tables: Iterable[Table]) -> dict[tuple[str, str], float]:
    """Return the ratios of tables, by the title of the table and the name of the row."""
    return {(table.title, row.name): row.ratio for table in tables for row in table.rows if row.ratio is not None}


def show(table: Table, before: Mapping[tuple[str, str], float]) -> None:
    """Print a table, with the ratios of an earlier result beside its own."""
    names = max(len(row.name) for row in table.rows)
    print(f"\n{table.title}\n{'':{names}}  {table.unit:>12}  {'ratio':>9}")
    for row in table.rows:
        parts = [f"{row.name:{names}}  {figure(row.value):>12}  {times(row.ratio):>9}", promise(row), row.note]
        earlier = before.get((table.title, row.name))
        if row.ratio and earlier:
            parts.append(f"(before: {times(earlier)}, {row.ratio / earlier - 1:+.0%})")
        print("  ".join(part for part in parts if part))
    if table.note:
        print(table.note)
    sys.stdout.flush()


def figure(value: float) -> str:
    """Return a value as text, with three digits or as an integer."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(ratio: float | None) -> str:
    """Return a ratio as text."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}x" if ratio >= 0.01 or ratio <= 0 else f"1/{1 / ratio:,.0f}"


def promise(row: Row) -> str:
    """Return the promise of a row, and whether it is kept, as text."""
    limits = [(row.at_most, "≤"), (row.at_least, "≥")]
    promised = " and ".join(f"{sign} {times(limit)}" for limit, sign in limits if limit is not None)
    return f"{promised}{'' if row.kept else ' MISSED'}" if promised else ""
