"""What operators and clients ask of a server itself: health, metrics, identity, processes, events, usage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Self
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from framework.config.api_keys import ROLES, Role
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import MetricsUnavailable
from framework.server.event_stream import ConfigFeed, EventStreamResponse, encode_event
from framework.server.identity import (
    AnyRole,
    Identity,
    ProjectReader,
    Reader,
    check_access,
    require,
    requires,
    scope_of,
)
from framework.server.request_handling import (
    STREAM_RESPONSE,
    GuardedRoute,
    ServedRuns,
    ServedRuntime,
    ServerRoute,
    api_router,
    error_responses,
    json_response,
    served_state,
    shared,
    verbatim_response,
    with_security_headers,
)
from framework.server.schemas import HealthResponse, Id, ReadinessResponse, ResponseModel, redact_problems
from framework.store.types import RunQuery
from framework.store.usage import CHARTED_GROUPS, STEP_SECONDS, Figures, Grouping, Period, Step, UsageGroup, UsageReport
from framework.types.errors import AgentsdError, RequestError
from framework.types.installation import installed_version
from framework.types.report import Fleet, Status

if TYPE_CHECKING:
    from framework.store.store import Store


log = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 2.0
_MAX_AGE_SECONDS = 1.0


class StoreCheck:
    """Writes to the store: at most once a second and one write at a time, however often it is called.

    A store on a full disk can still be read.
    """

    def __init__(self, store: Store, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._store, self._timeout = store, timeout
        self._write: asyncio.Task[bool] | None = None
        self._written_at = 0.0

    async def can_save(self) -> bool:
        """Return whether the store saved within the time limit. A slow write counts as a failure."""
        now = asyncio.get_running_loop().time()
        if self._write is None or (self._write.done() and now - self._written_at >= _MAX_AGE_SECONDS):
            self._write, self._written_at = asyncio.create_task(self._try_write()), now
        await asyncio.wait([self._write], timeout=self._timeout)
        return self._write.done() and self._write.result()

    async def _try_write(self) -> bool:
        try:
            await self._store.renew(())  # writes the row of this process
        except AgentsdError as error:
            log.warning("the store cannot save: %s", error.message)
            return False
        return True


class ClientLimits(ResponseModel):
    """The limits of a key. None: no limit."""

    rate: str | None = None
    """Requests that start or continue a run, such as `60/m`."""
    max_running: int | None = None
    """Runs that are queued or in progress."""


class ServerFeatures(ResponseModel):
    """What the server offers."""

    version: str
    allow_edit: bool
    """Whether keys with the role `admin` may edit the project's files."""
    stored: bool
    """Whether runs outlive the server's process."""


class Me(ResponseModel):
    """The client of a request."""

    name: str
    """Name of the key, `local` without keys, or `full-access`."""
    user: str | None
    """User of all its runs. None: each request names one."""
    tenant: str | None
    roles: tuple[Role, ...]
    agents: tuple[str, ...] | None
    """The agents that it may use. None: all."""
    limits: ClientLimits
    server: ServerFeatures

    @classmethod
    def of(cls, identity: Identity, runtime: Runtime) -> Me:
        """Return the client with this identity."""
        features = ServerFeatures(
            version=installed_version(), allow_edit=runtime.settings.server.allow_edit, stored=runtime.store.durable
        )
        return cls(
            name=identity.name,
            user=identity.user,
            tenant=identity.tenant,
            roles=tuple(role for role in ROLES if role in identity.roles),
            agents=identity.agents,
            limits=ClientLimits(rate=identity.rate and str(identity.rate), max_running=identity.max_running),
            server=features,
        )


probes = APIRouter(route_class=ServerRoute)
"""The routes without access control."""
metrics_route = APIRouter(route_class=GuardedRoute)
routes = api_router("configuration")
_StoreCheck = Annotated[StoreCheck, shared(lambda state: StoreCheck(state.runtime.store))]


@probes.api_route("/health", methods=["GET", "HEAD"], response_model=HealthResponse)
async def health() -> object:
    """Return 200 while the process is responsive."""
    return with_security_headers(json_response(HealthResponse()))


@probes.api_route("/ready", methods=["GET", "HEAD"], response_model=ReadinessResponse)
async def ready(request: Request, runtime: ServedRuntime, store: _StoreCheck) -> object:
    """Return 200 if an agent is available, the store can save and the server is not stopping; else 503."""
    current = runtime.catalog.current
    is_stopping = served_state(request).feed.closed
    parts = {"agents": bool(current.agents), "store": await store.can_save(), "server": not is_stopping}
    failing = tuple(name for name, is_ready in parts.items() if not is_ready)
    readiness = ReadinessResponse(
        ready=not failing,
        not_ready=failing,
        generation=current.number,
        agents=len(current.agents),
        problems=redact_problems(runtime.catalog.problems) if _may_read(request) else (),
    )
    return with_security_headers(json_response(readiness, 503 if failing else 200))


def _may_read(request: Request) -> bool:
    try:
        require(check_access(served_state(request).identify, request), "read", all_agents=True)
    except RequestError:
        return False
    return True


@metrics_route.get("/metrics", response_class=Response, dependencies=[requires("read", all_agents=True)])
async def show_metrics(request: Request) -> Response:
    """Return the metrics of this process in the format of Prometheus."""
    if (scrape := served_state(request).scrape) is None:
        raise MetricsUnavailable(
            "metrics are not collected: install agentsd with the extra `serve`, and restart the server"
        )
    text, content_type = await asyncio.to_thread(scrape, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})


@routes.get("/me", response_model=Me)
async def show_identity(identity: AnyRole, runtime: ServedRuntime) -> Response:
    """Return the identity of the client: its roles, agents and limits, and what the server offers."""
    return verbatim_response(Me.of(identity, runtime))


@routes.get("/fleet", response_model=Fleet)
async def show_fleet(identity: Reader, runtime: ServedRuntime) -> Response:
    """Return the processes that share the store, with their agents, and the runs that have not ended."""
    return verbatim_response(await runtime.store.fleet(RunQuery(**scope_of(identity))))


@routes.get("/events", response_class=StreamingResponse, responses={200: STREAM_RESPONSE, **error_responses(503)})
async def follow_events(
    request: Request,
    identity: ProjectReader,
    service: ServedRuns,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="Id of the last event received.")
    ] = None,
) -> EventStreamResponse:
    """Stream `config_reloaded` and `config_rejected`, from now on or after the id in `Last-Event-ID`."""
    feed, admitted = served_state(request).feed, service.limits.admit_stream(identity)
    stream = _stream(feed, feed.number_of(last_event_id))
    return EventStreamResponse(request, stream, streams=service.streams, ends_itself=True, during=admitted)


async def _stream(feed: ConfigFeed, number: int) -> AsyncGenerator[bytes]:
    while not feed.closed:
        for item in await feed.wait_after(number):
            number = item.number
            yield encode_event(item.data, item.data["event"], feed.id_of(item))


MAX_STEPS = 1000
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

    def period(self, now: float) -> tuple[Period, Step]:
        """Return the period and the length of its steps; raises RequestError if they are invalid.

        By default, it ends now, by the time of the store.
        """
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None and not _FIRST <= at < _LAST:
                raise RequestError(f"{name}: {at.isoformat()} is not between 1971 and 9998", param=name)
        until = self.until.timestamp() if self.until else now
        since = self.since.timestamp() if self.since else until - _DEFAULT_SECONDS
        if since >= until:
            raise RequestError("since: the period must begin before it ends (until, by default now)", param="since")
        days = (until - since) / _DAY
        step: Step = self.step or ("1h" if days <= 2 else "3h" if days <= 10 else "1d")
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
    def of(cls, figures: Figures, **others: Any) -> Self:
        """Return figures, with values of further fields."""
        counts = figures.counts
        tokens = TokenCounts(
            total=counts.tokens, input=counts.input_tokens, output=counts.output_tokens, cached=counts.cached_tokens
        )
        own = {"statuses": figures.statuses, "errors": figures.errors, "cost_usd": figures.cost_usd}
        return cls.of_parts(counts, **own, tokens=tokens, latency=figures.latency, **others)


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
    def of_group(cls, group: UsageGroup) -> GroupFigures:
        """Return a group."""
        over_time = None
        if (steps := group.steps) is not None:
            over_time = GroupOverTime(
                runs=tuple(one.counts.runs for one in steps),
                failed=tuple(one.statuses.get("failed", 0) for one in steps),
                tokens=tuple(one.counts.tokens for one in steps),
                cost_usd=tuple(one.cost_usd for one in steps),
            )
        return cls.of(group.figures, key=group.key, generation=group.generation, over_time=over_time)


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
        return cls(
            since=datetime.fromtimestamp(period.since, UTC),
            until=datetime.fromtimestamp(period.until, UTC),
            by=by,
            step=step,
            total=UsageFigures.of(report.total),
            previous=UsageFigures.of(report.previous),
            over_time=tuple(StepFigures.of(figures, at=at) for at, figures in report.steps),
            groups=tuple(map(GroupFigures.of_group, report.groups)),
            more_groups=report.more_groups,
            generations=tuple(map(NewGeneration.model_validate, report.generations)),
        )


usage_routes = api_router("runs")


@usage_routes.get("/usage", response_model=UsageSummary)
async def show_usage(identity: Reader, runtime: ServedRuntime, filters: Annotated[UsageFilters, Query()]) -> Response:
    """Return what the runs of a period have used, in total, over time and by group."""
    period, step = filters.period(runtime.store.now())
    query = RunQuery(agent=filters.agent, **scope_of(identity, filters.user))
    report = await runtime.store.usage(query, filters.by, period)
    return verbatim_response(UsageSummary.of(report, period, filters.by, step))
