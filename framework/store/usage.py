"""Figures of many runs: periods and their steps, what the database counts, and the report made of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, tzinfo
from math import floor
from typing import Any, Literal, get_args

import sqlalchemy as sa

from framework.store.lists import conditions
from framework.store.runs import figure, has_unknown_cost, model_uses
from framework.store.schema import runs
from framework.store.types import ANSWERED_STATUSES, RunQuery
from framework.types.report import Status

Step = Literal["1h", "3h", "1d"]
STEPS: tuple[Step, ...] = get_args(Step)
STEP_SECONDS: dict[Step, int] = {"1h": 3600, "3h": 10_800, "1d": 86_400}
_SCAN_SECONDS = 21_600
"""Interval at which changes of the clock are looked for. No zone changes its clock twice in it."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period and its steps. Each step has a number; one in which the clock changes is shorter or longer."""

    since: float
    """Start, as Unix time."""
    until: float
    """End, as Unix time, which is not part of the period."""
    seconds: int
    """Length of a step in local time."""
    offsets: tuple[tuple[float, int], ...]
    """Difference to UTC in seconds, and the Unix time from which it applies; sorted."""
    starts: tuple[tuple[int, float], ...]
    """The number and the Unix time of each step's start; the first one may be before the period."""

    @classmethod
    def of(cls, since: float, until: float, step: Step, zone: tzinfo) -> Period:
        """Return the period between two Unix times, divided into steps of the zone's clock."""
        seconds = STEP_SECONDS[step]
        offsets = tuple(_offsets(since, until, zone))
        steps = cls(since, until, seconds, offsets, ())
        first, last = steps.number(since), steps.number(max(since, until - 1e-6))
        starts = [(number, _start(number * seconds, zone)) for number in range(first, last + 1)]
        following = [start for _, start in starts[1:]] + [float("inf")]
        # a step that the clock skips has no time
        starts = [one for one, end in zip(starts, following, strict=True) if one[1] < end]
        return cls(since, until, seconds, offsets, tuple(starts))

    @property
    def previous_since(self) -> float:
        """Start of the period of the same length before it."""
        return self.since - (self.until - self.since)

    def number(self, at: float) -> int:
        """Return the number of the step that contains a Unix time."""
        offset = next((offset for begin, offset in reversed(self.offsets) if at >= begin), self.offsets[0][1])
        return floor((at + offset) / self.seconds)


def _offset(at: float, zone: tzinfo) -> int:
    difference = datetime.fromtimestamp(at, zone).utcoffset()
    return int(difference.total_seconds()) if difference else 0


def _start(local: int, zone: tzinfo) -> float:
    """Return the Unix time at which a zone's clock first shows a time, given as if it were UTC."""
    return datetime.fromtimestamp(local, UTC).replace(tzinfo=zone).timestamp()


def _offsets(since: float, until: float, zone: tzinfo) -> Iterator[tuple[float, int]]:
    """Yield the differences to UTC in a period, each with the Unix time from which it applies."""
    at, offset = since, _offset(since, zone)
    yield since, offset
    while at < until:
        following = min(at + _SCAN_SECONDS, until)
        if (changed := _offset(following, zone)) != offset:
            yield _first_with(changed, at, following, zone), changed
        at, offset = following, changed


def _first_with(offset: int, before: float, after: float, zone: tzinfo) -> float:
    """Return the whole second from which a difference to UTC applies; it does at `after`, not at `before`."""
    low, high = floor(before), floor(after) + (after > floor(after))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(middle, zone) == offset else (middle, high)
    return float(high)


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


_GROUPS = {
    "agent": runs.c.agent,
    "generation": runs.c.digest,
    "user": runs.c.user_id,
    "status": runs.c.status,
}
_SUMMED = [one.name for one in fields(Counts)]


@dataclass(frozen=True, slots=True)
class _Source:
    """The rows that are counted: runs or, by model, runs with each model that they called."""

    rows: sa.FromClause
    group: sa.ColumnElement[Any]
    summands: dict[str, sa.ColumnElement[Any]]
    """The value of a row for each field of `Counts`."""


def select_usage(connection: sa.Connection, query: RunQuery, by: Grouping, period: Period) -> UsageReport:
    """Return the report of the matching runs."""
    dialect = connection.dialect.name
    whole, source = _runs(dialect), _source(by, dialect)
    both = [*conditions(replace(query, since=period.previous_since, until=period.until), dialect)]
    current, step, is_past = [*both, runs.c.created_at >= period.since], _step(period, dialect), _is_past(period)
    cells = [*_cells(connection, whole, both, sa.case((is_past, PREVIOUS), else_=step))]
    of_periods = (replace(cell, group=cell.group == PREVIOUS) for cell in cells)
    by_period = figures_by_group(of_periods, _latency(connection, whole, both, is_past))
    by_step = figures_by_group(cells, _latency(connection, whole, current, step))
    group_latency = _latency(connection, source, current, source.group)
    found = figures_by_group(_cells(connection, source, current, source.group), group_latency)
    most = sorted(found, key=lambda key: (-found[key].counts.tokens, -found[key].counts.runs, key or ""))
    charted, over_time = most[:CHARTED_GROUPS], dict[Any, Figures]()
    if charted:
        of_charted = [*current, _is_one_of(source.group, charted)]
        over_time = figures_by_group(_cells(connection, source, of_charted, source.group, step), {})
    uses, none = _first_uses(connection, both), Figures()
    generations = {use.digest: use.generation for use in uses} if by == "generation" else {}

    def group(key: str | None) -> UsageGroup:
        steps = tuple(over_time.get((key, number), none) for number, _ in period.starts)
        return UsageGroup(key, found[key], generations.get(key or ""), steps if key in charted else None)

    groups = [group(key) for key in sorted(found, key=lambda key: (-found[key].counts.runs, key or ""))]
    in_order = sorted(uses, key=lambda use: (use.at, use.digest))
    return UsageReport(
        total=by_period.get(False, none),
        previous=by_period.get(True, none),
        steps=tuple((start, by_step.get(number, none)) for number, start in period.starts),
        groups=tuple(groups[:MAX_GROUPS]),
        more_groups=max(0, len(groups) - MAX_GROUPS),
        generations=tuple(use for use in in_order[1:] if use.at >= period.since),  # the first of all is no new version
    )


def _runs(dialect: str) -> _Source:
    summands = {name: figure(name, dialect) for name in ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")}
    summands |= {
        "runs": sa.literal_column("1", sa.Integer),
        "tokens": runs.c.tokens,
        "steps": runs.c.steps,
        "tool_calls": figure("tool_calls", dialect),
        "unknown_cost": sa.case((has_unknown_cost(dialect), 1), else_=0),
    }
    return _Source(runs, sa.null(), summands)


def _source(by: Grouping, dialect: str) -> _Source:
    whole = _runs(dialect)
    if by != "model":
        return replace(whole, group=sa.func.nullif(_GROUPS[by], ""))
    uses = model_uses(dialect)
    if dialect == "sqlite":
        each = sa.func.json_each(uses).table_valued("key", "value", name="used")
    else:
        from sqlalchemy.dialects.postgresql import JSONB

        each = sa.func.jsonb_each(sa.cast(uses, JSONB)).table_valued("key", "value", name="used")

    def own(run_value: Any, kind: Any, *path: str) -> sa.ColumnElement[Any]:
        """Return a number of the model's own or, for a run without models, that of the run."""
        if dialect == "sqlite":
            found: Any = sa.func.json_extract(each.c.value, "$." + ".".join(path))
        else:
            found = sa.func.jsonb_extract_path_text(each.c.value, *path)
        value = sa.func.coalesce(sa.cast(found, kind), sa.literal_column("0"))
        return sa.case((each.c.key.is_(None), run_value), else_=value)

    summands = whole.summands | {
        "tokens": own(runs.c.tokens, sa.BigInteger, "usage", "total_tokens"),
        "steps": own(runs.c.steps, sa.BigInteger, "calls"),
        "unknown_cost": sa.case((own(whole.summands["unknown_cost"], sa.BigInteger, "unpriced_calls") > 0, 1), else_=0),
    }
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens", "cached_tokens": "cached_tokens"}
    for name, key in names.items():
        summands[name] = own(whole.summands[name], sa.BigInteger, "usage", key)
    summands["cost_usd"] = own(whole.summands["cost_usd"], sa.Double, "usage", "cost_usd")
    return _Source(runs.outerjoin(each, sa.true()), each.c.key, summands)


def _is_past(period: Period) -> sa.ColumnElement[bool]:
    return runs.c.created_at < period.since


def _step(period: Period, dialect: str) -> sa.ColumnElement[Any]:
    """Return the number of a run's step, as `Period.number` does."""
    (_, first), *changes = period.offsets
    offset: Any = sa.literal(first)
    if changes:
        offset = sa.case(*((runs.c.created_at >= at, value) for at, value in reversed(changes)), else_=first)
    number = (runs.c.created_at + offset) / float(period.seconds)
    # SQLite truncates, and may have no `floor`; no number is negative.
    return sa.cast(number if dialect == "sqlite" else sa.func.floor(number), sa.Integer)


def _is_one_of(group: sa.ColumnElement[Any], keys: Collection[str | None]) -> sa.ColumnElement[bool]:
    known = group.in_([key for key in keys if key is not None])
    return sa.or_(known, group.is_(None)) if None in keys else known


def _cells(
    connection: sa.Connection,
    source: _Source,
    where: list[sa.ColumnElement[bool]],
    *groups: sa.ColumnElement[Any],
) -> Iterator[Cell]:
    """Yield the sums by group, status and finish reason. Several groups are one, as a tuple."""
    keys = [group.label(f"group_{n}") for n, group in enumerate(groups)]
    sums = [sa.func.sum(source.summands[name]).label(name) for name in _SUMMED]
    columns = [*keys, runs.c.status, runs.c.finish_reason]
    select = sa.select(*columns, *sums).select_from(source.rows).where(*where).group_by(*columns)
    for row in connection.execute(select):
        *group, status, finish_reason = row[: len(columns)]
        sums_of: dict[str, Any] = dict(zip(_SUMMED, map(int, row[len(columns) :]), strict=True))
        counts = Counts(**sums_of | {"cost_usd": float(row.cost_usd)})
        yield Cell(group[0] if len(groups) == 1 else tuple(group), status, finish_reason, counts)


def _latency(
    connection: sa.Connection, source: _Source, where: list[sa.ColumnElement[bool]], group: sa.ColumnElement[Any]
) -> dict[Any, Latency]:
    """Return the percentiles of the answered runs by group: the values at two ranks, which the database sorts out."""
    # As an expression, so that SQLite reads the runs of the period, and not all with these statuses.
    answered = (runs.c.status + "").in_(ANSWERED_STATUSES)
    elapsed = figure("elapsed_ms", connection.dialect.name)
    times = sa.select(group.label("grp"), elapsed.label("ms")).select_from(source.rows).where(*where, answered)
    one = times.subquery()
    rank = sa.func.row_number().over(partition_by=one.c.grp, order_by=one.c.ms).label("rank")
    number = sa.func.count().over(partition_by=one.c.grp).label("number")
    ranked = sa.select(one.c.grp, one.c.ms, rank, number).subquery()
    p50, p95 = _nearest_ranks(ranked.c.number)
    found: dict[Any, dict[int, float]] = {}
    numbers: dict[Any, int] = {}
    for key, ms, place, count in connection.execute(
        sa.select(ranked.c.grp, ranked.c.ms, ranked.c.rank, ranked.c.number).where(ranked.c.rank.in_((p50, p95)))
    ):
        found.setdefault(key, {})[place] = float(ms)
        numbers[key] = count
    return {key: Latency(*(found[key][rank] for rank in _nearest_ranks(count))) for key, count in numbers.items()}


def _nearest_ranks(count: Any) -> tuple[Any, Any]:
    """Return the ranks, from 1, of the 50th and the 95th percentile of this many sorted values."""
    return (count + 1) // 2, (95 * count + 99) // 100


def _first_uses(connection: sa.Connection, where: list[sa.ColumnElement[bool]]) -> list[FirstUse]:
    columns = (runs.c.digest, sa.func.max(runs.c.generation), sa.func.min(runs.c.created_at))
    select = sa.select(*columns).where(*where, runs.c.digest != "").group_by(runs.c.digest)
    return [FirstUse(digest, number, at) for digest, number, at in connection.execute(select)]
