"""`/approvals` and `/grants`: what waits for people, what they decided, and approvals that are remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import Response
from pydantic import ConfigDict, Field

from framework.config.generations.generation import Generation
from framework.engine.context.grants import state_of
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import GrantNotFound
from framework.server.identity import Decider, Identity
from framework.server.request_handling import (
    Cursor,
    MessageRoute,
    OldCursor,
    PageSize,
    ServedRuns,
    ServedRuntime,
    api_router,
    either,
    error_responses,
    page_of,
    verbatim_response,
)
from framework.server.run_service import count_runs_for, list_runs_for
from framework.server.schemas import Id, RequestModel, ResponseModel
from framework.store.types import GrantQuery, RunInfo, RunQuery
from framework.types.grant import Grant, GrantFacts, GrantState, GrantUsage, Remember
from framework.types.report import Status
from framework.types.state import Confirmation, Decision, MadeDecision, RunState

routes = api_router("runs", MessageRoute)


class PendingConfirmation(Confirmation):
    """A decision that a run waits for, with what is needed to edit it."""

    schemas: dict[str, dict[str, Any]] = {}
    """JSON Schema of the arguments of the tool or, for a plan, of each tool that its steps name, by name of the tool.
    Tools that no longer exist are missing."""

    @classmethod
    def of(cls, confirmation: Confirmation, generation: Generation) -> PendingConfirmation:
        """Return a confirmation with the schemas of the live tools, which are those that the run continues with."""
        agent = generation.agents.get(confirmation.agent)
        tools = generation.tools if agent is None else agent.toolset.tools
        steps = confirmation.plan.steps if confirmation.plan else ()
        names = {confirmation.tool, *(step.tool or "" for step in steps)} & tools.keys()
        schemas = {name: tools[name].definition.parameters for name in sorted(names)}
        return cls.model_construct(**dict(confirmation), schemas=schemas)


class PendingRun(ResponseModel):
    """A run that waits for decisions."""

    run_id: str
    agent: str
    generation: int
    digest: str
    conversation_id: str | None
    user: str | None
    tenant: str | None
    message: str
    """The start of the user's message."""
    paused_at: datetime | None
    pending: tuple[PendingConfirmation, ...]

    @classmethod
    def of(cls, info: RunInfo, state: RunState, generation: Generation) -> PendingRun:
        """Return a paused run. Editing what it waits for uses the tools of a generation."""
        pending = tuple(PendingConfirmation.of(one, generation) for one in state.pending)
        return cls.of_parts(info, paused_at=state.paused_at, pending=pending)


class ApprovalList(ResponseModel):
    """Runs that wait for decisions, the newest first."""

    approvals: tuple[PendingRun, ...]
    waiting: int
    """Number of runs that wait, those on other pages included."""
    next: str | None
    """Value of `before` for the next page; null on the last one."""


DECIDED_RUNS = 1000
"""Number of runs, the newest ones, whose decisions are listed. It bounds the time: decisions have no index by time."""


_MAX_DECIDED = 10_000


_PAUSED: tuple[Status, ...] = ("paused",)


_BEGUN: tuple[Status, ...] = ("paused", "running", "completed", "stopped", "cancelled", "failed")


_Agent = Annotated[str | None, Query(description="Only runs of this agent.")]


_User = Annotated[Id | None, Query(description="Only runs of this user.")]


class DecidedConfirmation(ResponseModel):
    """A decision that was made, or a confirmation that expired, with its run."""

    run_id: str
    agent: str
    """Agent of the run."""
    generation: int
    conversation_id: str | None
    user: str | None
    tenant: str | None
    message: str
    """The start of the user's message."""
    status: Status
    """Status of the run now."""
    decision: Decision
    by: str | None
    """User or name of the key that decided; null if the confirmation expired, or if the caller named nobody."""
    at: datetime
    """When it was decided."""
    expired: bool
    """Whether it expired before anyone decided. The decision is then the rejection that was recorded."""
    confirmation: Confirmation | None
    """What was decided about; null if the run's events do not contain it."""

    @classmethod
    def of(cls, made: MadeDecision, info: RunInfo, asked: Confirmation | None) -> DecidedConfirmation:
        """Return a decision about a run."""
        decision = {"decision": made.decision, "by": made.by, "at": made.at, "expired": made.expired}
        return cls.of_parts(info, **decision, confirmation=asked)


class DecidedList(ResponseModel):
    """Decisions, the latest first."""

    decided: tuple[DecidedConfirmation, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


@routes.get("/approvals", response_model=ApprovalList)
async def list_approvals(
    identity: Decider,
    runtime: ServedRuntime,
    agent: _Agent = None,
    user: _User = None,
    cursor: Cursor = None,
    before: OldCursor = None,
    limit: PageSize = 20,
) -> Response:
    """List the runs that wait for decisions, the newest first."""
    place = either(cursor, before, "before")
    query = RunQuery(statuses=_PAUSED, agent=agent, user=user, before=place, limit=limit)
    found, following = await list_runs_for(runtime, identity, query)
    states = [(info, await runtime.store.load_run(info.run_id)) for info in found]
    generation = runtime.catalog.current
    pending = [PendingRun.of(info, state, generation) for info, state in states if state.pending]  # else decided
    is_all = place is None and following is None
    waiting = len(pending) if is_all else await count_runs_for(runtime, identity, query)
    return verbatim_response(ApprovalList(approvals=tuple(pending), waiting=waiting, next=following))


@routes.get("/approvals/decided", response_model=DecidedList)
async def list_decided(
    identity: Decider,
    runtime: ServedRuntime,
    agent: _Agent = None,
    user: _User = None,
    cursor: Cursor = None,
    limit: PageSize = 20,
) -> Response:
    """List the latest decisions on confirmations of the newest 1,000 runs, and those that expired."""
    query = RunQuery(statuses=_BEGUN, agent=agent, user=user, limit=DECIDED_RUNS)
    found, _ = await list_runs_for(runtime, identity, query)
    infos = {info.run_id: info for info in found}
    # Those of earlier pages are read again: decisions of these runs are few, and have no index by time.
    every = await runtime.store.latest_decisions(infos.keys(), _MAX_DECIDED if cursor else limit + 1)
    latest, following = page_of(every, cursor, limit, lambda made: f"{made.run_id}/{made.confirmation_id}")
    asked: dict[str, Mapping[str, Confirmation]] = {}
    for run_id in {made.run_id for made in latest}:
        asked[run_id] = _confirmations(await runtime.store.events_named(run_id, "confirm_required"))
    decided = (
        DecidedConfirmation.of(made, infos[made.run_id], asked[made.run_id].get(made.confirmation_id))
        for made in latest
    )
    return verbatim_response(DecidedList(decided=tuple(decided), next=following))


def _confirmations(events: Iterable[Mapping[str, Any]]) -> dict[str, Confirmation]:
    """Return the confirmations that a run asked for, by id, as they were asked last."""
    known = Confirmation.model_fields.keys()
    return {event["id"]: Confirmation(**{key: event[key] for key in event.keys() & known}) for event in events}


_MAX_GRANTS = 1000
"""Number of grants, the newest ones, among which those of a client are looked for."""


class GrantEntry(GrantFacts, ResponseModel):
    """An approval that is remembered."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    covers: str
    """What it covers in words, such as `orders.refund when amount <= 20`."""
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None
    state: GrantState
    """`void`: something that it depends on has changed, see `reason`."""
    reason: str | None
    """Why it is void."""

    @classmethod
    def of(cls, grant: Grant, runtime: Runtime) -> GrantEntry:
        """Return a grant as it is with the live files."""
        state, reason = state_of(grant, runtime.catalog.current, runtime.store.now())
        return cls.of_parts(grant, covers=grant.covers_text(), state=state, reason=reason)


class GrantList(ResponseModel):
    """Approvals that are remembered, the newest first."""

    grants: tuple[GrantEntry, ...]


class GrantPreviewBody(RequestModel):
    """An approval that may be remembered."""

    confirmation_id: Annotated[str, Field(max_length=2000)]
    """Id of the confirmation that the run waits for."""
    remember: Remember
    """How its approval would be remembered."""


class GrantPreview(GrantUsage, ResponseModel):
    """What a grant would have covered."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


@routes.get("/grants", response_model=GrantList)
async def list_grants(
    identity: Decider,
    runtime: ServedRuntime,
    agent: Annotated[str | None, Query(description="Only grants of this agent, or of its sub-agents.")] = None,
    user: Annotated[Id | None, Query(description="Only grants of this user.")] = None,
    ended: Annotated[bool, Query(description="Also those that have expired or were revoked.")] = False,
    limit: PageSize = 100,
) -> Response:
    """List the approvals that are remembered, the newest first."""
    query = GrantQuery(
        among=agent,
        user=identity.user_of(user),
        tenant=identity.tenant,
        without_tenant=identity.tenant is None and not identity.single_user,
        active_at=None if ended else runtime.store.now(),
        limit=_MAX_GRANTS,
    )
    found = [one for one in await runtime.store.grants.list(query) if _can_access(identity, one)]
    return verbatim_response(GrantList(grants=tuple(GrantEntry.of(one, runtime) for one in found[:limit])))


@routes.post("/runs/{run_id}/grant-preview", response_model=GrantPreview, responses=error_responses(404, 413))
async def preview_grant(identity: Decider, service: ServedRuns, run_id: str, body: GrantPreviewBody) -> Response:
    """Count the calls of the last 30 days that an approval would cover if it were remembered."""
    run, _ = await service.load(identity, run_id)
    owner = {"user": run.user, "tenant": run.tenant}
    usage = await service.runtime.preview_grant(run_id, body.confirmation_id, body.remember, **owner)
    return verbatim_response(usage)


@routes.delete("/grants/{grant_id}", response_model=GrantEntry, responses=error_responses(404))
async def revoke_grant(identity: Decider, runtime: ServedRuntime, grant_id: Id) -> Response:
    """Revoke a remembered approval: the next call is asked about again."""
    found = await runtime.store.grants.list(GrantQuery(id=grant_id, limit=1))
    if not found or not _can_access(identity, found[0]):
        raise GrantNotFound(f"there is no grant {grant_id!r}", param="grant_id")
    await runtime.store.grants.revoke(found[0].id, identity.user or identity.name)
    (revoked,) = await runtime.store.grants.list(GrantQuery(id=found[0].id, limit=1))
    return verbatim_response(GrantEntry.of(revoked, runtime))


def _can_access(identity: Identity, grant: Grant) -> bool:
    """Return whether a grant exists for an identity: its runs do."""
    agent = grant.agent.partition("/")[0]
    return identity.can_access(tenant=grant.tenant, user=grant.user, agent=agent)
