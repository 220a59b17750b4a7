"""What operators and clients ask of a server itself: health, identity, processes, events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse

from framework.config.api_keys import ROLES, Role
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import MetricsUnavailable
from framework.server.event_stream import ConfigFeed, EventStreamResponse, encode_event
from framework.server.identity import AnyRole, Identity, ProjectReader, Reader, check_access, require, requires
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
from framework.server.run_service import read_fleet_for
from framework.server.schemas import HealthResponse, ReadinessResponse, ResponseModel, redact_problems
from framework.types.errors import AgentsdError, RequestError
from framework.types.fleet import Fleet
from framework.types.installation import installed_version

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
            version=installed_version(),
            allow_edit=runtime.settings.server.allow_edit,
            stored=runtime.store.durable,
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
    return verbatim_response(await read_fleet_for(runtime, identity))


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
