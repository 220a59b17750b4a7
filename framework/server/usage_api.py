"""What runs used over time, by agent, model, tenant or user."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import Query
from fastapi.responses import Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from framework.server.identity import Reader
from framework.server.request_handling import ServedRuntime, api_router, verbatim_response
from framework.server.run_schemas import Id
from framework.server.run_service import report_usage_for
from framework.server.schemas import ResponseModel
from framework.store.types import RunQuery
from framework.store.usage import CHARTED_GROUPS, STEP_SECONDS, Figures, Grouping, Period, Step, UsageGroup, UsageReport
from framework.types.errors import RequestError
from framework.types.report import Status

MAX_STEPS = 1000
"""Number of steps in one report."""
_DAY = 86_400.0
_DEFAULT_SECONDS = 30 * _DAY
_FIRST, _LAST = datetime(1971, 1, 1, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)
"""The times for which every time zone can be computed."""
_YEARS = r"^(197[1-9]|19[89]\d|[2-8]\d{3}|9[0-8]\d\d|99[0-8]\d|999[0-7])-"
_Time = Annotated[AwareDatetime, Field(json_schema_extra={"pattern": _YEARS})]


class UsageFilters(BaseModel):
    """The query of a report."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    since: _Time | None = Field(
        None, description="Only runs created at this time or later. Default: 30 days before `until`."
    )
    until: _Time | None = Field(None, description="Only runs created before this time. Default: now.")
    by: Grouping = Field("agent", description="How runs are grouped.")
    step: Step | None = Field(None, description="Length of a step in time. Default: by the length of the period.")
    tz: Id = Field("UTC", description="Time zone whose clock divides the period into steps, such as Europe/Berlin.")
    agent: str | None = Field(None, description="Only runs of this agent.")
    user: Id | None = Field(None, description="Only runs of this user.")

    @property
    def query(self) -> RunQuery:
        """The filter for runs."""
        return RunQuery(agent=self.agent, user=self.user)

    def period(self, now: float) -> tuple[Period, Step]:
        """Return the period and the length of its steps; raises RequestError if they are invalid.

        Args:
            now: the time of the store, at which the period ends by default.
        """
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None and not _FIRST <= at < _LAST:
                raise RequestError(f"{name}: {at.isoformat()} is not between 1971 and 9998", param=name)
        until = self.until.timestamp() if self.until else now
        since = self.since.timestamp() if self.since else until - _DEFAULT_SECONDS
        if since >= until:
            raise RequestError("since: the period must begin before it ends (until, by default now)", param="since")
        step = self.step or _default_step(until - since)
        if (until - since) / STEP_SECONDS[step] > MAX_STEPS:
            message = (
                f"step: the period has more than {MAX_STEPS} steps of {step}; choose a longer step, or a later since"
            )
            raise RequestError(message, param="step")
        return Period.of(since, until, step, self._zone()), step

    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.tz)
        except (KeyError, ValueError, OSError):  # OSError: the name of a folder of zones
            message = f"tz: unknown time zone {self.tz!r}; use a name such as Europe/Berlin or UTC"
            raise RequestError(message, param="tz") from None


def _default_step(seconds: float) -> Step:
    if seconds <= 2 * _DAY:
        return "1h"
    return "3h" if seconds <= 10 * _DAY else "1d"


class TokenCounts(ResponseModel):
    """Tokens of some runs. Those of runs in progress may be part of the total only."""

    total: int
    input: int
    """Cached ones included."""
    output: int
    cached: int


class LatencyFigures(ResponseModel):
    """Active time of runs that completed or were stopped by a limit: exact values of single runs, by nearest rank."""

    p50_ms: float | None
    p95_ms: float | None


class UsageFigures(ResponseModel):
    """Figures of some runs. Of a model: tokens, cost and steps are its own, the rest is that of the runs using it."""

    runs: int
    statuses: dict[Status, int]
    """Number of runs by status."""
    errors: dict[str, int]
    """Number of failed and stopped runs by finish reason."""
    tokens: TokenCounts
    cost_usd: float | None
    """Cost of the calls whose price is known; null if that is the price of no run."""
    unknown_cost: int
    """Number of runs with calls of unknown price."""
    steps: int
    """Model turns; of a model, its calls."""
    tool_calls: int
    latency: LatencyFigures

    @classmethod
    def fields_of(cls, figures: Figures) -> dict[str, Any]:
        """Return the fields of figures."""
        counts = figures.counts
        return {
            "runs": counts.runs,
            "statuses": figures.statuses,
            "errors": figures.errors,
            "tokens": TokenCounts(
                total=counts.tokens,
                input=counts.input_tokens,
                output=counts.output_tokens,
                cached=counts.cached_tokens,
            ),
            "cost_usd": figures.cost_usd,
            "unknown_cost": counts.unknown_cost,
            "steps": counts.steps,
            "tool_calls": counts.tool_calls,
            "latency": LatencyFigures.model_validate(figures.latency),
        }


class StepFigures(UsageFigures):
    """Figures of the runs that were created in one step of time."""

    at: datetime
    """Start of the step."""


class GroupOverTime(ResponseModel):
    """Figures of a group for each step of time."""

    runs: tuple[int, ...]
    failed: tuple[int, ...]
    tokens: tuple[int, ...]
    cost_usd: tuple[float | None, ...]


class GroupFigures(UsageFigures):
    """Figures of the runs of one group."""

    key: str | None
    """Agent, model (`provider/model`), digest, user or status. null: none, or unknown."""
    generation: int | None
    """Number of the generation with this digest, if runs are grouped by generation."""
    over_time: GroupOverTime | None = Field(
        description=f"Figures of each step, for the {CHARTED_GROUPS} groups that used most tokens."
    )

    @classmethod
    def of(cls, group: UsageGroup) -> GroupFigures:
        """Return a group."""
        over_time = None
        if (steps := group.steps) is not None:
            over_time = GroupOverTime(
                runs=tuple(one.counts.runs for one in steps),
                failed=tuple(one.statuses.get("failed", 0) for one in steps),
                tokens=tuple(one.counts.tokens for one in steps),
                cost_usd=tuple(one.cost_usd for one in steps),
            )
        own = cls.fields_of(group.figures)
        return cls(key=group.key, generation=group.generation, over_time=over_time, **own)


class NewGeneration(ResponseModel):
    """A version of the configuration that came into use."""

    generation: int
    digest: str
    at: datetime
    """When the first run on it was created."""


class UsageSummary(ResponseModel):
    """What runs have used in a period."""

    since: datetime
    until: datetime
    by: Grouping
    step: Step
    total: UsageFigures
    previous: UsageFigures
    """Figures of the period of the same length before."""
    over_time: tuple[StepFigures, ...]
    groups: tuple[GroupFigures, ...]
    """The groups with most runs first. A run that called several models belongs to several groups."""
    more_groups: int
    """Number of further groups."""
    generations: tuple[NewGeneration, ...]
    """Versions of the configuration on which the first run, for this or the previous period, was in this period."""

    @classmethod
    def of(cls, report: UsageReport, period: Period, by: Grouping, step: Step) -> UsageSummary:
        """Return a report."""
        fields_of = UsageFigures.fields_of
        return cls(
            since=datetime.fromtimestamp(period.since, UTC),
            until=datetime.fromtimestamp(period.until, UTC),
            by=by,
            step=step,
            total=UsageFigures(**fields_of(report.total)),
            previous=UsageFigures(**fields_of(report.previous)),
            over_time=tuple(
                StepFigures(at=datetime.fromtimestamp(at, UTC), **fields_of(figures)) for at, figures in report.steps
            ),
            groups=tuple(map(GroupFigures.of, report.groups)),
            more_groups=report.more_groups,
            generations=tuple(map(NewGeneration.model_validate, report.generations)),
        )


routes = api_router("runs")


@routes.get("/usage", response_model=UsageSummary)
async def show_usage(identity: Reader, runtime: ServedRuntime, filters: Annotated[UsageFilters, Query()]) -> Response:
    """Return what the runs of a period have used, in total, over time and by group."""
    period, step = filters.period(runtime.store.now())
    report = await report_usage_for(runtime, identity, filters.query, filters.by, period)
    return verbatim_response(UsageSummary.of(report, period, filters.by, step))
