"""Stored runs with made-up figures, at any time, and the naive computation of a usage report."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from framework.store.store import Store
from framework.store.types import Blueprint, RunQuery
from framework.store.usage import Figures, Grouping, Period, UsageReport
from framework.types.messages import Message, ModelUse, Usage
from framework.types.report import Status
from framework.types.state import RunState
from tests.support.clocks import clock_of

Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class UsedRun:
    """A run to store, and what it has used."""

    at: float
    """When it was added, as Unix time."""
    agent: str = "one"
    tenant: str | None = None
    user: str | None = None
    generation: int = 1
    status: Status = "completed"
    reason: str = "final"
    elapsed_ms: float = 1.0
    steps: int = 1
    tool_calls: int = 0
    uses: Mapping[str, ModelUse] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The digest of its generation."""
        return f"d{self.generation:015}"

    @property
    def usage(self) -> Usage:
        """What all its models have used."""
        return sum((use.usage for use in self.uses.values()), Usage())


def used(calls: int, tokens: int, cost: float | None, *, cached: int = 0) -> ModelUse:
    """Return a model's use: as many input as output tokens. `cost`: in US dollars; None: unknown."""
    usage = Usage(
        prompt_tokens=tokens,
        completion_tokens=tokens,
        total_tokens=2 * tokens,
        cached_tokens=cached,
        cost_usd=cost,
    )
    return ModelUse(calls=calls, usage=usage, unpriced_calls=calls if cost is None else 0)


async def add_runs(store: Store, runs: Iterable[UsedRun]) -> list[str]:
    """Store runs, and return their ids. The store has a `MovableClock`."""
    clock, ids = clock_of(store), []
    try:
        for run in runs:
            clock.at = run.at
            ids.append(await _add(store, run))
    finally:
        clock.at = None
    return ids


async def _add(store: Store, run: UsedRun) -> str:
    state = RunState(
        agent=run.agent,
        tenant=run.tenant,
        user=run.user,
        generation=run.generation,
        digest=run.digest,
        blueprint="b1",
        messages=[Message(role="user", content="hello")],
    )
    record = await store.start(state, None, Blueprint("b1", {}))
    state.status, state.finish_reason = run.status, run.reason
    state.steps, state.tool_calls, state.elapsed_ms = run.steps, run.tool_calls, run.elapsed_ms
    state.usage, state.model_uses = run.usage, dict(run.uses)
    await record.write(state, last=run.status != "running")
    return state.run_id


def expected(runs: Iterable[UsedRun], query: RunQuery, by: Grouping, period: Period) -> dict[str, Any]:
    """Compute what `flat` returns for the report of these runs, one figure at a time."""
    own = [run for run in runs if _matches(run, query)]
    now = [run for run in own if period.since <= run.at < period.until]
    past = [run for run in own if period.previous_since <= run.at < period.since]
    starts = [start for _, start in period.starts]
    keys = {key for run in now for key in _keys(run, by)}
    return {
        "total": _figures([(run, None) for run in now]),
        "previous": _figures([(run, None) for run in past]),
        "steps": {
            start: _figures([(run, None) for run in now if starts[bisect_right(starts, run.at) - 1] == start])
            for start in starts
        },
        "groups": {
            key: _figures([(run, key if by == "model" else None) for run in now if key in _keys(run, by)])
            for key in keys
        },
    }


def flat(report: UsageReport) -> dict[str, Any]:
    """Return the figures of a report as plain data."""
    return {
        "total": _flat(report.total),
        "previous": _flat(report.previous),
        "steps": {start: _flat(figures) for start, figures in report.steps},
        "groups": {group.key: _flat(group.figures) for group in report.groups},
    }


def _flat(figures: Figures) -> Numbers:
    counts = figures.counts
    return {
        "runs": counts.runs,
        "statuses": dict(figures.statuses),
        "errors": dict(figures.errors),
        "tokens": (counts.tokens, counts.input_tokens, counts.output_tokens, counts.cached_tokens),
        "cost": figures.cost_usd,
        "unknown": counts.unknown_cost,
        "calls": (counts.steps, counts.tool_calls),
        "latency": (figures.latency.p50_ms, figures.latency.p95_ms),
    }


def _matches(run: UsedRun, query: RunQuery) -> bool:
    return (
        (query.tenant is None or run.tenant == query.tenant)
        and (not query.without_tenant or run.tenant is None)
        and (query.user is None or run.user == query.user)
        and (query.agents is None or run.agent in query.agents)
        and (query.agent is None or run.agent == query.agent)
    )


def _keys(run: UsedRun, by: Grouping) -> list[str | None]:
    if by == "model":
        return [*run.uses] or [None]
    return [{"agent": run.agent, "generation": run.digest, "user": run.user, "status": run.status}[by]]


def _figures(runs: list[tuple[UsedRun, str | None]]) -> Numbers:
    """Return the figures of runs, each with the model whose use counts, or None for all its models."""
    uses = [[*run.uses.values()] if model is None else [run.uses[model]] for run, model in runs]
    usage = [sum((use.usage for use in of_run), Usage()) for of_run in uses]
    unknown = sum(any(use.unpriced_calls for use in of_run) for of_run in uses)
    cost = sum(one.cost_usd or 0 for one in usage)
    times = sorted(run.elapsed_ms for run, _ in runs if run.status in ("completed", "stopped"))
    steps = (run.steps if model is None else run.uses[model].calls for run, model in runs)
    return {
        "runs": len(runs),
        "statuses": dict(Counter(run.status for run, _ in runs)),
        "errors": dict(Counter(run.reason for run, _ in runs if run.status in ("failed", "stopped"))),
        "tokens": (
            sum(one.total_tokens for one in usage),
            sum(one.prompt_tokens for one in usage),
            sum(one.completion_tokens for one in usage),
            sum(one.cached_tokens for one in usage),
        ),
        "cost": None if runs and unknown == len(runs) and not cost else cost,
        "unknown": unknown,
        "calls": (sum(steps), sum(run.tool_calls for run, _ in runs)),
        "latency": (times[ceil(0.5 * len(times)) - 1], times[ceil(0.95 * len(times)) - 1]) if times else (None, None),
    }
