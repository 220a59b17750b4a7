"""Figures of the runs of a store in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from framework.store.memory_lists import select_runs
from framework.store.period import Period
from framework.store.protocol import ANSWERED_STATUSES, RunInfo, RunQuery
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
from framework.types.messages import ModelUse
from framework.types.state import RunState


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run, and what it has used."""

    info: RunInfo
    counts: Counts
    model_counts: Mapping[str, Counts]
    """What it has used of each model that it called."""

    @classmethod
    def of(cls, state: RunState, info: RunInfo) -> MeasuredRun:
        """Measure a run. `info`: its entry in lists."""
        usage = state.usage
        counts = Counts(
            runs=1,
            tokens=usage.total_tokens,
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cost_usd=usage.cost_usd or 0.0,
            unknown_cost=any(use.unpriced_calls for use in state.model_uses.values()),
            steps=state.steps,
            tool_calls=state.tool_calls,
        )
        return cls(info, counts, {name: _model_counts(counts, use) for name, use in state.model_uses.items()})

    def cells(self, by: Grouping) -> Iterator[Cell]:
        """Yield the run as cells of its groups: each model that it called or, without one, None is a group."""
        info = self.info
        if by != "model" or not self.model_counts:
            group = {"generation": info.digest, "model": None}.get(by, getattr(info, by, None))
            yield Cell(group or None, info.status, info.finish_reason, self.counts)
            return
        for name, own in self.model_counts.items():
            yield Cell(name, info.status, info.finish_reason, own)


def _model_counts(counts: Counts, use: ModelUse) -> Counts:
    return replace(
        counts,
        tokens=use.usage.total_tokens,
        input_tokens=use.usage.prompt_tokens,
        output_tokens=use.usage.completion_tokens,
        cached_tokens=use.usage.cached_tokens,
        cost_usd=use.usage.cost_usd or 0.0,
        unknown_cost=use.unpriced_calls > 0,
        steps=use.calls,
    )


def memory_report(measured: Iterable[MeasuredRun], query: RunQuery, by: Grouping, period: Period) -> UsageReport:
    """Return the report of the matching runs of those given."""
    query = replace(query, since=period.previous_since, until=period.until)
    by_id = {one.info.run_id: one for one in measured}
    matching = [by_id[info.run_id] for info in select_runs((one.info for one in by_id.values()), query)]
    grouped = [(one, cell) for one in matching if not _is_past(one, period) for cell in one.cells(by)]
    data = UsageData(
        steps=[replace(cell, group=_step(one, period)) for one in matching for cell in one.cells("status")],
        groups=[cell for _, cell in grouped],
        step_latency=_latency((_step(one, period), one) for one in matching),
        periods=_latency((_is_past(one, period), one) for one in matching),
        group_latency=_latency((cell.group, one) for one, cell in grouped),
        first_uses=_first_uses(matching),
    )
    charted = charted_groups(data.groups)
    over_time = [
        replace(cell, group=(cell.group, _step(one, period))) for one, cell in grouped if cell.group in charted
    ]
    return usage_report(period, by, data, over_time)


def _is_past(one: MeasuredRun, period: Period) -> bool:
    return one.info.created_at < period.since


def _step(one: MeasuredRun, period: Period) -> int:
    return PREVIOUS if _is_past(one, period) else period.number(one.info.created_at)


def _latency(runs: Iterable[tuple[Any, MeasuredRun]]) -> dict[Any, Latency]:
    """Return the percentiles of the answered runs by group."""
    times: dict[Any, list[float]] = {}
    for group, one in runs:
        if one.info.status in ANSWERED_STATUSES:
            times.setdefault(group, []).append(one.info.elapsed_ms)
    return {group: _percentiles(sorted(found)) for group, found in times.items()}


def _percentiles(times: Sequence[float]) -> Latency:
    p50, p95 = nearest_ranks(len(times))
    return Latency(times[p50 - 1], times[p95 - 1])


def _first_uses(runs: Iterable[MeasuredRun]) -> list[FirstUse]:
    found: dict[str, FirstUse] = {}
    for info in (one.info for one in runs if one.info.digest):
        use = found.setdefault(info.digest, FirstUse(info.digest, info.generation, info.created_at))
        first, highest = min(use.at, info.created_at), max(use.generation, info.generation)
        found[info.digest] = FirstUse(info.digest, highest, first)
    return list(found.values())
