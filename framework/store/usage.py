"""Figures of many runs: what a store counts, and the report that is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from framework.store.period import Period
from framework.types.report import Status

Grouping = Literal["agent", "model", "generation", "user", "status"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
FAILED_STATUSES: tuple[Status, ...] = ("failed", "stopped")
"""Statuses of runs whose finish reason is reported as an error."""
MAX_GROUPS = 100
CHARTED_GROUPS = 5
"""Number of groups with figures over time: those that used most tokens."""
PREVIOUS = -1
"""Stands for the number of a step: the runs of the period before. Numbers of steps are positive."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over runs. Of a model: tokens, cost and steps are its own, the rest that of the runs which called it."""

    runs: int = 0
    tokens: int = 0
    input_tokens: int = 0
    """Cached ones included."""
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    """Cost of the calls whose price is known."""
    unknown_cost: int = 0
    """Runs with calls of unknown price."""
    steps: int = 0
    """Model turns; of a model, its calls."""
    tool_calls: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs with the same group, status and finish reason."""

    group: Any
    """What they are grouped by: the number of a step, the value of the grouping, or both as (value, number)."""
    status: Status
    finish_reason: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the active time of answered runs, in milliseconds: exact values of single runs (nearest rank)."""

    p50_ms: float | None = None
    p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The first run on a version of the configuration, in the period of a report or the one before."""

    digest: str
    generation: int
    """Number of the generation; the highest if several server processes had this version."""
    at: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some runs."""

    counts: Counts = field(default_factory=Counts)
    statuses: Mapping[Status, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    """Number of failed and stopped runs by finish reason."""
    latency: Latency = field(default_factory=Latency)

    @property
    def cost_usd(self) -> float | None:
        """Cost of all calls whose price is known; None if that is the price of no run."""
        counts = self.counts
        return None if counts.runs and counts.unknown_cost == counts.runs and not counts.cost_usd else counts.cost_usd


@dataclass(frozen=True, slots=True)
class UsageGroup:
    """The runs of one group, such as those of an agent."""

    key: str | None
    """Value of the grouping; the digest of a generation. None: unknown."""
    figures: Figures
    generation: int | None = None
    """Number of the generation, if runs are grouped by generation."""
    steps: tuple[Figures, ...] | None = None
    """Figures of each step, without latency; None unless the group is one of `CHARTED_GROUPS`."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Figures of a period."""

    total: Figures
    previous: Figures
    """Figures of the period of the same length before it."""
    steps: tuple[tuple[float, Figures], ...]
    """Start of each step as Unix time, and its figures."""
    groups: tuple[UsageGroup, ...]
    """The groups with most runs first. A run that used several models belongs to several groups."""
    more_groups: int
    """Number of groups beyond `MAX_GROUPS`."""
    generations: tuple[FirstUse, ...]
    """New versions of the configuration, by their first run in the period."""


@dataclass(frozen=True, slots=True)
class UsageData:
    """What a store counts for a report."""

    steps: Sequence[Cell]
    """By number of the step, `PREVIOUS` included."""
    groups: Sequence[Cell]
    step_latency: Mapping[Any, Latency]
    """By number of the step."""
    periods: Mapping[Any, Latency]
    """By whether a run belongs to the period before."""
    group_latency: Mapping[Any, Latency]
    first_uses: Sequence[FirstUse]
    """Of the period and the one before."""


def nearest_ranks(count: int) -> tuple[int, int]:
    """Return the ranks, from 1, of the 50th and the 95th percentile of this many sorted values."""
    return (count + 1) // 2, (95 * count + 99) // 100


def figures_by_group(cells: Iterable[Cell], latency: Mapping[Any, Latency]) -> dict[Any, Figures]:
    """Add cells up to the figures of each group."""
    counts: dict[Any, Counts] = {}
    statuses: dict[Any, dict[Status, int]] = {}
    errors: dict[Any, dict[str, int]] = {}
    for cell in cells:
        group, runs = cell.group, cell.counts.runs
        counts[group] = counts[group] + cell.counts if group in counts else cell.counts
        of_group = statuses.setdefault(group, {})
        of_group[cell.status] = of_group.get(cell.status, 0) + runs
        reasons = errors.setdefault(group, {})
        if cell.status in FAILED_STATUSES:
            reasons[cell.finish_reason] = reasons.get(cell.finish_reason, 0) + runs
    none = Latency()
    return {group: Figures(counts[group], statuses[group], errors[group], latency.get(group, none)) for group in counts}


def charted_groups(groups: Iterable[Cell]) -> list[str | None]:
    """Return the groups that get figures over time."""
    found = figures_by_group(groups, {})
    most = sorted(found, key=lambda key: (-found[key].counts.tokens, -found[key].counts.runs, key or ""))
    return most[:CHARTED_GROUPS]


def usage_report(period: Period, by: Grouping, data: UsageData, charted: Iterable[Cell]) -> UsageReport:
    """Return the report of what a store counted. `charted`: cells of `charted_groups` by (value, step)."""
    none = Figures()
    by_period = figures_by_group((replace(cell, group=cell.group == PREVIOUS) for cell in data.steps), data.periods)
    by_step = figures_by_group(data.steps, data.step_latency)
    groups = _groups(period, by, data, figures_by_group(charted, {}))
    return UsageReport(
        total=by_period.get(False, none),
        previous=by_period.get(True, none),
        steps=tuple((start, by_step.get(number, none)) for number, start in period.starts),
        groups=tuple(groups[:MAX_GROUPS]),
        more_groups=max(0, len(groups) - MAX_GROUPS),
        generations=tuple(_new_versions(period, data.first_uses)),
    )


def _groups(period: Period, by: Grouping, data: UsageData, over_time: Mapping[Any, Figures]) -> list[UsageGroup]:
    """Return all groups, sorted. `over_time`: figures by group and number of the step."""
    none, charted = Figures(), {key for key, _ in over_time}
    by_digest = {use.digest: use.generation for use in data.first_uses} if by == "generation" else {}
    found = figures_by_group(data.groups, data.group_latency)

    def group(key: str | None) -> UsageGroup:
        steps = tuple(over_time.get((key, number), none) for number, _ in period.starts)
        return UsageGroup(key, found[key], by_digest.get(key or ""), steps if key in charted else None)

    return [group(key) for key in sorted(found, key=lambda key: (-found[key].counts.runs, key or ""))]


def _new_versions(period: Period, uses: Sequence[FirstUse]) -> Iterator[FirstUse]:
    """Yield the versions that came into use in the period, in order. The first run of all begins no new version."""
    for use in sorted(uses, key=lambda use: (use.at, use.digest))[1:]:
        if use.at >= period.since:
            yield use
