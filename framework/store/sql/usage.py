"""SQL for figures of many runs. The database counts, and returns a row for each group, step and status."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import sqlalchemy as sa

from framework.store.period import Period
from framework.store.protocol import ANSWERED_STATUSES, RunQuery
from framework.store.sql.run_figures import figure, has_unknown_cost, model_uses
from framework.store.sql.run_lists import conditions
from framework.store.sql.schema import runs
from framework.store.usage import (
    PREVIOUS,
    Cell,
    Counts,
    FirstUse,
    Grouping,
    Latency,
    UsageData,
    UsageReport,
    charted_groups,
    nearest_ranks,
    usage_report,
)

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
    current = [*both, runs.c.created_at >= period.since]
    step = _step(period, dialect)
    data = UsageData(
        steps=list(_cells(connection, whole, both, sa.case((_is_past(period), PREVIOUS), else_=step))),
        groups=list(_cells(connection, source, current, source.group)),
        step_latency=_latency(connection, whole, current, step),
        periods=_latency(connection, whole, both, _is_past(period)),
        group_latency=_latency(connection, source, current, source.group),
        first_uses=_first_uses(connection, both),
    )
    charted = charted_groups(data.groups)
    of_charted = _is_one_of(source.group, charted)
    over_time = _cells(connection, source, [*current, of_charted], source.group, step) if charted else ()
    return usage_report(period, by, data, over_time)


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
    p50, p95 = (ranked.c.number + 1) // 2, (ranked.c.number * 95 + 99) // 100
    found: dict[Any, dict[int, float]] = {}
    numbers: dict[Any, int] = {}
    for key, ms, place, count in connection.execute(
        sa.select(ranked.c.grp, ranked.c.ms, ranked.c.rank, ranked.c.number).where(ranked.c.rank.in_((p50, p95)))
    ):
        found.setdefault(key, {})[place] = float(ms)
        numbers[key] = count
    return {key: Latency(*(found[key][rank] for rank in nearest_ranks(count))) for key, count in numbers.items()}


def _first_uses(connection: sa.Connection, where: list[sa.ColumnElement[bool]]) -> list[FirstUse]:
    columns = (runs.c.digest, sa.func.max(runs.c.generation), sa.func.min(runs.c.created_at))
    select = sa.select(*columns).where(*where, runs.c.digest != "").group_by(runs.c.digest)
    return [FirstUse(digest, number, at) for digest, number, at in connection.execute(select)]
