"""Timers and tables, shared by all benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    name: str
    value: float
    ratio: float
    """Ratio to the baseline of the table."""
    note: str = ""


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


def table(title: str, unit: str, rows: Sequence[Row]) -> None:
    """Print a table of names, values in `unit`, and ratios to the baseline."""
    width = max(len(row.name) for row in rows)
    print(f"\n{title}\n{'':{width}}  {unit:>12}  {'ratio':>9}")
    for row in rows:
        print(f"{row.name:{width}}  {_figure(row.value):>12}  {_times(row.ratio):>9}  {row.note}".rstrip())


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio >= 0.01 else f"1/{1 / ratio:,.0f}"
