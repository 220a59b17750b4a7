"""`/grants`: the approvals that are remembered."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import Response
from pydantic import Field

from framework.engine.context.grants import why_void
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import GrantNotFound
from framework.server.identity import Decider, Identity
from framework.server.request_handling import (
    MessageRoute,
    PageSize,
    ServedRuns,
    ServedRuntime,
    api_router,
    error_responses,
    verbatim_response,
)
from framework.server.run_schemas import Id, RequestModel
from framework.server.schemas import ResponseModel
from framework.store.types import GrantQuery
from framework.types.grant import Grant, GrantScope, Remember, When, Width

_MAX_GRANTS = 1000
"""Number of grants, the newest ones, among which those of a client are looked for."""
GrantState = Literal["active", "expired", "revoked", "void"]


class GrantEntry(ResponseModel):
    """An approval that is remembered."""

    id: str
    agent: str
    """The agent that may call the tool; a sub-agent after its callers, as in `desk/billing`."""
    tool: str
    covers: str
    """What it covers in words, such as `orders.refund when amount <= 20`."""
    width: Width
    when: When
    """Conditions on the arguments of a call that must all be met."""
    arguments: dict[str, Any]
    """Arguments of the call that was approved."""
    scope: GrantScope
    scope_id: str
    """Id of the run or of the conversation; empty for a user."""
    tenant: str | None
    user: str | None
    at_most: str | None
    """Number of uses per period, such as `10/day`."""
    rule: str
    """The rule that asked, with its `file:line`."""
    run_id: str
    """The run in which the call was approved."""
    by: str | None
    """Who approved it."""
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    uses: int
    last_used_at: datetime | None
    state: GrantState
    """`void`: something that it depends on has changed, see `reason`."""
    reason: str | None
    """Why it is void."""

    @classmethod
    def of(cls, grant: Grant, runtime: Runtime) -> GrantEntry:
        """Return a grant as it is with the live files."""
        reason, state = None, "expired" if grant.revoked_at is None else "revoked"
        if grant.is_active(runtime.store.now()):
            live = runtime.catalog.current
            reason = why_void(grant, live.agents, live.settings)
            state = "active" if reason is None else "void"
        data = {**grant.model_dump(), "covers": grant.covers_text(), "state": state, "reason": reason}
        return cls.model_validate(data)


class GrantList(ResponseModel):
    """Approvals that are remembered, the newest first."""

    grants: tuple[GrantEntry, ...]


class GrantPreviewBody(RequestModel):
    """An approval that may be remembered."""

    confirmation_id: Annotated[str, Field(max_length=2000)]
    """Id of the confirmation that the run waits for."""
    remember: Remember
    """How its approval would be remembered."""


class GrantPreview(ResponseModel):
    """What a grant would have covered."""

    days: int
    """Length of the period."""
    calls: int
    """Number of calls of the tool that the agent made for the owner of the run."""
    matched: int
    """Number of them that the grant would have covered."""
    rejected: int
    """Number of those that a person rejected."""
    is_complete: bool
    """Whether all runs of the period were read; otherwise the newest 300."""


routes = api_router("runs", MessageRoute)


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
    return verbatim_response(GrantPreview.model_validate(usage))


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
