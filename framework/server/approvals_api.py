"""`/approvals`: lists what runs wait for, and what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from framework.engine.runtime.runtime import Runtime
from framework.server.identity import identity_of, requires
from framework.server.request_handling import Cursor, OldCursor, PageSize, either, page_of, verbatim_response
from framework.server.run_schemas import ApprovalList, Id, PendingRun
from framework.server.run_service import count_runs_for, list_runs_for
from framework.server.schemas import ResponseModel
from framework.store.types import RunInfo, RunQuery
from framework.types.report import Status
from framework.types.state import Confirmation, Decision, MadeDecision

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
    """The beginning of the user's message."""
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
        return cls(
            run_id=info.run_id,
            agent=info.agent,
            generation=info.generation,
            conversation_id=info.conversation_id,
            user=info.user,
            tenant=info.tenant,
            message=info.message,
            status=info.status,
            decision=made.decision,
            by=made.by,
            at=made.at,
            expired=made.expired,
            confirmation=asked,
        )


class DecidedList(ResponseModel):
    """Decisions, the latest first."""

    decided: tuple[DecidedConfirmation, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


def add_approval_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add `/approvals` and `/approvals/decided`."""

    @routes.get("/approvals", response_model=ApprovalList, dependencies=[requires("decide")])
    async def list_approvals(
        request: Request,
        agent: _Agent = None,
        user: _User = None,
        cursor: Cursor = None,
        before: OldCursor = None,
        limit: PageSize = 20,
    ) -> Response:
        """List the runs that wait for decisions, the newest first."""
        identity = identity_of(request)
        place = either(cursor, before, "before")
        query = RunQuery(statuses=_PAUSED, agent=agent, user=user, before=place, limit=limit)
        found, following = await list_runs_for(runtime, identity, query)
        states = [(info, await runtime.store.load_run(info.run_id)) for info in found]
        generation = runtime.catalog.current
        pending = [PendingRun.of(info, state, generation) for info, state in states if state.pending]  # else decided
        is_all = place is None and following is None
        waiting = len(pending) if is_all else await count_runs_for(runtime, identity, query)
        return verbatim_response(ApprovalList(approvals=tuple(pending), waiting=waiting, next=following))

    @routes.get("/approvals/decided", response_model=DecidedList, dependencies=[requires("decide")])
    async def list_decided(
        request: Request, agent: _Agent = None, user: _User = None, cursor: Cursor = None, limit: PageSize = 20
    ) -> Response:
        """List the latest decisions on confirmations of the newest 1,000 runs, and those that expired."""
        query = RunQuery(statuses=_BEGUN, agent=agent, user=user, limit=DECIDED_RUNS)
        found, _ = await list_runs_for(runtime, identity_of(request), query)
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
