"""`/chat`, `/runs`, `/conversations` and `/approvals`: runs, their conversations, and decisions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

from framework.engine.runtime.start import fork_conversation
from framework.server.errors import run_error_body
from framework.server.event_stream import (
    EncodedEvent,
    EventStreamResponse,
    OpenStreams,
    encode_event,
    until_client_leaves,
)
from framework.server.identity import Admin, Chatter, Decider, Identity, Reader, RunReader
from framework.server.request_handling import (
    STREAM_RESPONSE,
    Cursor,
    IdempotencyHeader,
    Keyed,
    MessageRoute,
    OldCursor,
    OptionalSize,
    PageSize,
    ServedRuns,
    ServedRuntime,
    accepted_locale,
    api_router,
    compressed_response,
    either,
    error_responses,
    page_of,
    verbatim_response,
)
from framework.server.run_schemas import (
    ApprovalList,
    ChatBody,
    ChatResponse,
    ConversationDetail,
    ConversationList,
    ConversationSummary,
    DecisionsBody,
    DeletedConversation,
    ForkBody,
    ForkedConversation,
    Id,
    PendingRun,
    RatingBody,
    RunBody,
    RunDetail,
    RunFilters,
    RunList,
    RunRating,
    RunReference,
    RunSummary,
    StoredTrace,
)
from framework.server.run_service import (
    OwnedRun,
    RunService,
    count_runs_for,
    list_conversations_for,
    list_runs_for,
    load_conversation_for,
    load_run_info_for,
)
from framework.server.schemas import ResponseModel
from framework.store.types import (
    OPEN_STATUSES,
    SEARCHED_CONVERSATIONS,
    SEARCHED_TEXTS,
    ConversationQuery,
    RunInfo,
    RunQuery,
)
from framework.types.errors import RequestError, outcome_for
from framework.types.events import Event, wire
from framework.types.report import Status
from framework.types.state import Confirmation, Decision, MadeDecision, QueuePlace, Rating, RunResult

_MAX_EVENT_DIGITS = 18


def run_stream(
    request: Request,
    service: RunService,
    run: OwnedRun,
    admitted: ExitStack,
    after: int = 0,
    *,
    wait: bool = False,
    cancel_on_leave: bool = False,
) -> EventStreamResponse:
    """Return a response with the events of a run.

    Args:
        request: the request.
        service: the operations on runs.
        run: the run.
        admitted: what `KeyLimits.admit_stream` returned. The response takes it over.
        after: number of the last event that the client has.
        wait: continue after a pause, until the run ends.
        cancel_on_leave: cancel the run if the client leaves before the end.
    """
    return EventStreamResponse(
        request,
        encode_run(service.follow(run, after, through_pauses=wait), service.streams),
        headers=run.headers,
        on_leave=(lambda: service.cancel(run)) if cancel_on_leave else None,
        streams=service.streams,
        during=admitted.pop_all(),
    )


async def encode_run(events: AsyncGenerator[Event, None], streams: OpenStreams) -> AsyncGenerator[bytes]:
    """Encode the events of a run. Numbered events have their number as id; deltas of texts have none.

    Readers that send the same event at the same time share its bytes.
    """
    try:
        async for event in events:
            key = (event.run_id, event.seq)
            if (encoded := streams.encoded.get(key) if event.seq else None) is None:
                data = wire(event)
                encoded = EncodedEvent(encode_event(data, data["event"], event.seq or None))
                del data
                if event.seq:
                    streams.encoded[key] = encoded
            del event  # a client may take long to read it
            yield encoded.data
    finally:
        await events.aclose()


def last_event(after: int, last_event_id: str | None) -> int:
    """Return the number of the last event that a client has: `Last-Event-ID` or, without it, `after`.

    Raises:
        RequestError: `Last-Event-ID` is not a number.
    """
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) <= _MAX_EVENT_DIGITS):
        message = f"Last-Event-ID is not the id of an event of a run: {last_event_id[:40]!r}; send the last id received"
        raise RequestError(message, param="Last-Event-ID")
    return int(last_event_id)


_FIELDS = {"history": "messages", "conversation": "conversation_id"}
"""Fields of a request body by the options that have other names."""


routes = api_router("runs", MessageRoute)


@routes.post(
    "/chat",
    response_model=ChatResponse,
    responses={
        200: STREAM_RESPONSE,
        202: {"model": ChatResponse, "description": "The run waits for a decision: see `pending`"},
        **error_responses(404, 409, 413, 502, 503),
    },
)
async def send_message(
    request: Request, identity: Chatter, service: ServedRuns, body: ChatBody, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Send a message, and wait until the run has ended or waits for a decision.

    A run that fails returns the error with the status of its cause, and `run_id`.
    """
    cancels = body.on_disconnect == "cancel"
    if body.stream:
        with service.limits.admit_stream(identity) as admitted:
            run = await submit_body(service, request, identity, body, idempotency_key)
            return run_stream(request, service, run, admitted, cancel_on_leave=cancels)
    run = await submit_body(service, request, identity, body, idempotency_key)
    result = await (_result_or_cancel(request, service, run) if cancels else service.result(run))
    return _response(run, result)


async def submit_body(
    service: RunService, request: Request, identity: Identity, body: RunBody, idempotency_key: str | None
) -> OwnedRun:
    """Start the run of a request body; raises the errors of `RunService.submit`."""
    body.check()
    repetition = (idempotency_key, body.digest) if idempotency_key else None
    place = QueuePlace(wait=body.queue, priority=body.priority, queue_name=body.queue_name)
    options = body.options
    if body.locale is None and (locale := accepted_locale(request.headers)):
        options["locale"] = locale
    return await service.submit(identity, body.message, options, place=place, repetition=repetition, fields=_FIELDS)


def _response(run: OwnedRun, result: RunResult) -> Response:
    if result.error is not None:
        error_status, body = run_error_body(result.error, run.run_id)
        return JSONResponse(body, error_status, run.headers)
    status = outcome_for(result.finish_reason).http_status
    return verbatim_response(ChatResponse.of(result), status, run.headers)


async def _result_or_cancel(request: Request, service: RunService, run: OwnedRun) -> RunResult:
    """Wait for the result of a run, and cancel the run if the client leaves."""
    result = asyncio.ensure_future(service.result(run))
    leaving = asyncio.ensure_future(until_client_leaves(request.receive))
    try:
        await asyncio.wait((result, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            await service.cancel(run)
        return await result
    finally:
        leaving.cancel()
        result.cancel()


_LAST_EVENT = Annotated[
    Annotated[str, Field(json_schema_extra={"pattern": r"^\d{0,18}$"})] | None,
    Header(alias="Last-Event-ID", description="Id of the last event received; takes precedence over after."),
]


@routes.post("/runs", status_code=202, response_model=RunReference, responses=error_responses(404, 409, 413))
async def start_run(
    request: Request, identity: Chatter, service: ServedRuns, body: RunBody, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Start a run in the background. It continues if the server restarts."""
    run = await submit_body(service, request, identity, body, idempotency_key)
    location = f"{request.url.path}/{run.run_id}"
    return verbatim_response(await _reference(service, run), 202, {**run.headers, "location": location})


@routes.get("/runs", response_model=RunList)
async def list_runs(
    identity: Reader,
    runtime: ServedRuntime,
    filters: Annotated[RunFilters, Query()],
    cursor: Cursor = None,
    before: OldCursor = None,
    limit: PageSize = 20,
) -> Response:
    """List runs, the newest first."""
    query = filters.query(either(cursor, before, "before"), limit)
    found, following = await list_runs_for(runtime, identity, query)
    return verbatim_response(RunList(runs=tuple(map(RunSummary.model_validate, found)), next=following))


@routes.get("/runs/{run_id}", response_model=RunDetail, responses=error_responses(404))
async def show_run(identity: RunReader, service: ServedRuns, run_id: str) -> Response:
    """Return a run with its messages, its steps, and what it waits for."""
    runtime = service.runtime
    run, state = await service.load(identity, run_id)
    info = await load_run_info_for(runtime, identity, run_id)
    decisions = await runtime.store.decisions(run_id) if state.decisions else ()
    detail = RunDetail.of(state, info, runtime.catalog.current, decisions)
    return verbatim_response(detail, headers=run.headers)


@routes.get("/runs/{run_id}/trace", response_model=StoredTrace, responses=error_responses(404))
async def show_trace(
    request: Request,
    identity: Reader,
    service: ServedRuns,
    run_id: str,
    cursor: Cursor = None,
    after: OldCursor = None,
    limit: OptionalSize = None,
) -> Response:
    """Return the stored spans of a run, in the order they began; compressed if the client accepts gzip."""
    run, state = await service.load(identity, run_id)
    spans, name = tuple(await service.runtime.store.spans(run_id)), "cursor" if cursor else "after"
    page, following = page_of(spans, either(cursor, after, "after"), limit, lambda span: span.span_id, name)
    trace = StoredTrace.model_construct(run_id=run_id, trace_id=state.trace_id, spans=tuple(page), next=following)
    return await asyncio.to_thread(compressed_response, trace, request, run.headers)


@routes.get(
    "/runs/{run_id}/events",
    response_class=StreamingResponse,
    responses={
        200: STREAM_RESPONSE,
        204: {"description": "No event follows: the run has ended, or is paused"},
        **error_responses(404, 503),
    },
)
async def follow_run(
    request: Request,
    identity: RunReader,
    service: ServedRuns,
    run_id: str,
    after: Annotated[int, Query(ge=0, le=2**53, description="Number of the last event received.")] = 0,
    wait: Annotated[bool, Query(description="Continue after a pause, until the run ends.")] = False,
    last_event_id: _LAST_EVENT = None,
) -> Response:
    """Stream the events of a run, stored and live, until it ends or pauses.

    A client that reconnects with `Last-Event-ID` gets every later numbered event once. If none can follow, the
    status is 204, which keeps browsers from reconnecting.
    """
    run, state = await service.load(identity, run_id)
    after = last_event(after, last_event_id)
    is_over = state.status not in OPEN_STATUSES or (state.status == "paused" and not wait)
    if is_over and 0 < state.seq <= after:
        return Response(status_code=204, headers=run.headers)
    with service.limits.admit_stream(identity) as admitted:
        return run_stream(request, service, run, admitted, after, wait=wait)


@routes.post(
    "/runs/{run_id}/decisions", status_code=202, response_model=RunReference, responses=error_responses(404, 409, 413)
)
async def decide_run(
    request: Request,
    identity: Decider,
    service: ServedRuns,
    keyed: Keyed,
    run_id: str,
    body: DecisionsBody,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Decide what a run waits for, and continue it in the background. Undecided confirmations stay open."""

    async def decide() -> Response:
        run, state = await service.load(identity, run_id)
        # Another process may have got the request first.
        is_repeated = idempotency_key is not None and body.decisions.items() <= state.decisions.items()
        if not is_repeated:
            await service.decide(identity, run, body.decisions)
        return verbatim_response(await _reference(service, run), 202, run.headers)

    return await keyed.once(request, idempotency_key, decide)


@routes.post(
    "/runs/{run_id}/cancel",
    status_code=202,
    response_model=RunReference,
    responses={
        200: {"model": RunReference, "description": "Not cancelled: the run had ended before"},
        **error_responses(404),
    },
)
async def cancel_run(
    request: Request,
    identity: Chatter,
    service: ServedRuns,
    keyed: Keyed,
    run_id: str,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Cancel a run. The status is 202 if it is cancelled or will be, and 200 if it had ended before."""

    async def cancel() -> Response:
        run, _ = await service.load(identity, run_id)
        has_ended = await service.cancel(run) not in (*OPEN_STATUSES, "cancelled")
        return verbatim_response(await _reference(service, run), 200 if has_ended else 202, run.headers)

    return await keyed.once(request, idempotency_key, cancel)


@routes.put("/runs/{run_id}/rating", response_model=RunRating, responses=error_responses(404, 413))
async def rate_run(identity: Chatter, service: ServedRuns, run_id: str, body: RatingBody) -> Response:
    """Rate the answer of a run, with a comment. It replaces an earlier rating."""
    run, _ = await service.load(identity, run_id)
    at = datetime.fromtimestamp(service.runtime.store.now(), UTC)
    by = identity.user or identity.name
    rating = Rating(value=body.rating, comment=body.comment.strip(), by=by, at=at)
    await service.runtime.store.rate(run.run_id, rating)
    return verbatim_response(RunRating(run_id=run.run_id, rating=rating), headers=run.headers)


@routes.delete("/runs/{run_id}/rating", response_model=RunRating, responses=error_responses(404))
async def delete_rating(identity: Chatter, service: ServedRuns, run_id: str) -> Response:
    """Delete the rating of a run, if it has one."""
    run, _ = await service.load(identity, run_id)
    await service.runtime.store.rate(run.run_id, None)
    return verbatim_response(RunRating(run_id=run.run_id, rating=None), headers=run.headers)


async def _reference(service: RunService, run: OwnedRun) -> RunReference:
    """Return a run with its current status."""
    state = await service.runtime.store.load_run(run.run_id)
    return RunReference(run_id=run.run_id, conversation_id=run.conversation_id, status=state.status)


_SEARCH = (
    "Only conversations whose title, agent or id contains this, looked up in the latest "
    f"{SEARCHED_CONVERSATIONS:,}; or any message of the user or the model, in the newest {SEARCHED_TEXTS:,} runs."
)
_TENANT = Annotated[Id | None, Query(description="Its tenant, if the key can access several.")]
_USER = Annotated[Id | None, Query(description="Its user, if the key can access several that have one with this id.")]


@routes.get("/conversations", response_model=ConversationList)
async def list_conversations(
    identity: Reader,
    runtime: ServedRuntime,
    agent: Annotated[str | None, Query(description="Only conversations that this agent answered last.")] = None,
    user: Annotated[Id | None, Query(description="Only conversations of this user.")] = None,
    q: Annotated[Id | None, Query(description=_SEARCH)] = None,
    cursor: Cursor = None,
    limit: PageSize = 20,
) -> Response:
    """List conversations, the latest turn first."""
    query = ConversationQuery(agent=agent, user=user, search=q, cursor=cursor or None, limit=limit)
    found, following = await list_conversations_for(runtime, identity, query)
    summaries = tuple(map(ConversationSummary.model_validate, found))
    return verbatim_response(ConversationList(conversations=summaries, next=following))


@routes.get("/conversations/{conversation_id}", response_model=ConversationDetail, responses=error_responses(404))
async def show_conversation(
    identity: RunReader, runtime: ServedRuntime, conversation_id: str, tenant: _TENANT = None, user: _USER = None
) -> Response:
    """Return a conversation with its messages."""
    found = await load_conversation_for(runtime, identity, conversation_id, tenant, user)
    return verbatim_response(ConversationDetail.model_validate(found))


@routes.delete(
    "/conversations/{conversation_id}", response_model=DeletedConversation, responses=error_responses(404, 409)
)
async def delete_conversation(
    identity: Admin, runtime: ServedRuntime, conversation_id: str, tenant: _TENANT = None, user: _USER = None
) -> Response:
    """Delete a conversation with all its runs and their data."""
    found = await load_conversation_for(runtime, identity, conversation_id, tenant, user)
    runs = await runtime.store.delete_conversation(found.id, found.tenant, found.user)
    return verbatim_response(DeletedConversation(conversation_id=found.id, runs=runs))


@routes.post(
    "/conversations/{conversation_id}/fork",
    name="fork_conversation",
    status_code=201,
    response_model=ForkedConversation,
    responses=error_responses(404, 409, 413),
)
async def copy_turns(
    request: Request,
    identity: Chatter,
    runtime: ServedRuntime,
    keyed: Keyed,
    conversation_id: str,
    body: ForkBody,
    tenant: _TENANT = None,
    user: _USER = None,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Begin a new conversation with copies of the turns before or up to a run. Nothing is executed.

    Send the next message, such as an edited one, with the id of the new conversation.
    """

    async def fork() -> Response:
        origin = await load_conversation_for(runtime, identity, conversation_id, tenant, user)
        made = await fork_conversation(runtime.store, origin, body.point, body.conversation_id)
        return verbatim_response(ForkedConversation.model_validate(made), 201)

    return await keyed.once(request, idempotency_key, fork)


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
