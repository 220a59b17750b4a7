"""The table of results, with what is promised of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

from examples.scale_demo.facts import Death, find_facts, hand_overs, take_overs
from examples.scale_demo.load import Submissions
from examples.scale_demo.log import Entry


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to a fleet; times in seconds."""

    kills: Sequence[Death]
    """Of the load."""
    lone: Sequence[float]
    """From the acceptance to the first model call, of runs in an idle fleet."""
    ended: Sequence[float]
    """From a SIGTERM to the next act of each run of the worker."""
    killed: Sequence[float]
    """From a kill -9 to the next act of each run of the worker."""
    lease: float
    """Lease of the processes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One result."""

    name: str
    measured: str
    promised: str = ""
    """Empty: nothing is promised."""
    verdict: Literal["", "BROKEN", "slower"] = ""
    """`slower` depends on the machine: the times are promised of two idle processors."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values do not exceed; infinity for no values."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else inf


def rows_of(story: Story, entries: Sequence[Entry], submitted: Submissions, statuses: Counter[str]) -> list[Row]:
    """Return the results of a demo.

    Args:
        story: what happened.
        entries: the log of all runs.
        submitted: when the runs were submitted.
        statuses: number of runs by status at the end.
    """
    facts, handed = find_facts(entries), hand_overs(entries, submitted.accepted)
    taken = [gap for death in story.kills for gap in take_overs(entries, death)]
    total, completed = len(submitted.accepted), statuses["completed"]
    return [
        Row("runs completed", f"{completed} of {total}", "all", "" if completed == total > 0 else "BROKEN"),
        _none("finished steps repeated", facts.repeated),
        _none("overlaps", facts.overlaps),
        _none("conversations out of order", facts.disordered),
        Row("steps that a kill interrupted, and that were repeated", str(facts.interrupted)),
        _times("accepted to first model call, lone runs: p50", story.lone, 0.5, 0.025),
        _times("accepted to first model call, lone runs: p99", story.lone, 0.99, 0.1),
        _times("hand-over in a conversation: p50", handed, 0.5),
        _times("hand-over in a conversation: p99", handed, 0.99),
        _times("take-over while others are killed: p50", taken, 0.5),
        _times("take-over while others are killed: p99", taken, 0.99),
        _times(f"take-over of {len(story.ended)} runs after SIGTERM: slowest", story.ended, 1, 1),
        _times(f"take-over of {len(story.killed)} runs after kill -9: slowest", story.killed, 1, story.lease + 1),
    ]


def _none(name: str, found: Sequence[str]) -> Row:
    examples = f": {'; '.join(found[:3])}" if found else ""
    return Row(name, f"{len(found)}{examples}", "0", "BROKEN" if found else "")


def _times(name: str, seconds: Sequence[float], share: float, limit: float | None = None) -> Row:
    value = percentile(seconds, share)
    promised = "" if limit is None else f"< {_duration(limit)}"
    return Row(name, _duration(value), promised, "" if limit is None or value < limit else "slower")


def _duration(seconds: float) -> str:
    if seconds == inf:
        return "none seen"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def print_table(rows: Sequence[Row]) -> None:
    """Print the results."""
    name, measured = (max(len(getattr(row, column)) for row in rows) for column in ("name", "measured"))
    print(f"\n{'':{name}}  {'measured':{measured}}  promised")
    for row in rows:
        print(f"{row.name:{name}}  {row.measured:{measured}}  {row.promised:8}  {row.verdict}".rstrip())
