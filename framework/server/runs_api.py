"""`/chat` and `/runs`: starts runs, and shows, follows, continues, cancels and rates them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from framework.config.generations.generation import Generation
from framework.engine.run_report import build_result
from framework.engine.runtime.request import RunOptions
from framework.server.approvals_api import PendingConfirmation
from framework.server.errors import run_error_body
from framework.server.event_stream import (
    EncodedEvent,
    EventStreamResponse,
    OpenStreams,
    encode_event,
    unless_client_leaves,
)
from framework.server.identity import Chatter, Decider, Identity, Reader, RunReader
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
from framework.server.run_service import OwnedRun, RunService, list_runs_for, load_run_info_for
from framework.server.schemas import MAX_URL_ID_CHARS, Id, RequestModel, ResponseModel, whole_number
from framework.store.types import OPEN_STATUSES, SEARCHED_RUNS, SEARCHED_TEXTS, RunInfo, RunQuery
from framework.types.errors import RequestError, outcome_for
from framework.types.events import Event, wire
from framework.types.report import CallSummary, IncompleteStep, SpanRecord, Status
from framework.types.spec import Limits
from framework.types.state import (
    QUEUE_NAME,
    Confirmation,
    Decision,
    MadeDecision,
    Priority,
    QueuePlace,
    Rating,
    RatingValue,
    RunResult,
    RunState,
)
from framework.types.text import content_digest

_Limit = Annotated[int, Field(ge=1), BeforeValidator(whole_number)]
MAX_COMMENT_CHARS = 4000
MAX_DECISIONS = 100
_RULES: JsonDict = {
    "anyOf": [
        {"required": ["message"], "properties": {"message": {"type": "string"}}},
        {"required": ["messages"], "properties": {"messages": {"type": "array", "items": {}, "minItems": 1}}},
    ],
    "not": {
        "anyOf": [
            {
                "required": ["conversation_id", "messages"],
                "properties": {"conversation_id": {"type": "string"}, "messages": {"type": "array", "items": {}}},
            },
            {
                "required": ["max_total_tokens", "max_tokens"],
                "properties": {"max_total_tokens": {"type": "integer"}, "max_tokens": {"type": "integer"}},
            },
        ]
    },
}
"""What `RunBody.check` refuses, as JSON Schema."""


class RunBody(RequestModel):
    """A message for an agent."""

    model_config = ConfigDict(json_schema_extra=_RULES)

    message: str | None = None
    """The user's message. Default: the last entry of `messages`."""
    agent: Annotated[str, Field(max_length=MAX_URL_ID_CHARS)] | None = None
    """Name of the agent. By default the conversation's agent, or the one that the router chooses."""
    conversation_id: Id | None = None
    """Conversation to continue; an unknown id starts a new one. Default: a new conversation. Excludes `messages`."""
    messages: list[Any] | None = None
    """Earlier messages in the format of OpenAI's chat completions, images and files included, or in that of this
    API. The run then has no stored conversation."""
    inputs: dict[str, Any] | None = None
    """Values of the variables that the agent declares."""
    max_tool_calls: _Limit | None = None
    """Maximum number of tool calls; at most the agent's own limit."""
    max_total_tokens: _Limit | None = None
    """Maximum number of tokens of all model calls; at most the agent's own limit."""
    max_tokens: _Limit | None = None
    """The same as `max_total_tokens`."""
    locale: Annotated[str, Field(max_length=35)] | None = None
    """Language of the prompt templates, such as `zh`."""
    user: Id | None = None
    """Owner of the run and its conversation, if the key names no user."""
    queue: bool = False
    """In a busy conversation, wait for its open run and those that wait already (at most 20), instead of 409."""
    priority: Annotated[Priority, BeforeValidator(whole_number)] = 0
    """Of the runs that can start, those with a higher priority start first. Above 0: needs the role `admin`."""
    queue_name: Annotated[str, StringConstraints(pattern=f"^{QUEUE_NAME}$")] | None = None
    """Queue whose workers execute the run; needs the role `admin`. Default: workers of its agent."""

    def check(self) -> None:
        """Raise RequestError for fields that exclude each other, and if there is no message."""
        if self.message is None and not self.messages:
            raise RequestError(
                "message is missing: send message, or messages that end with a user message", param="message"
            )
        if self.conversation_id is not None and self.messages is not None:
            raise RequestError(
                "conversation_id and messages exclude each other: a conversation keeps its own messages",
                param="messages",
            )
        if self.max_total_tokens is not None and self.max_tokens is not None:
            raise RequestError(
                "max_tokens and max_total_tokens are the same limit: send one of them", param="max_tokens"
            )

    @property
    def options(self) -> RunOptions:
        """The options of the run."""
        given = {"max_tool_calls": self.max_tool_calls, "max_total_tokens": self.max_total_tokens or self.max_tokens}
        return {
            "agent": self.agent,
            "conversation": self.conversation_id,
            "history": self.messages,
            "inputs": self.inputs,
            "lower_limits": {name: value for name, value in given.items() if value is not None},
            "locale": self.locale,
            "user": self.user,
        }

    @property
    def digest(self) -> str:
        """Digest of the request, to compare requests with the same idempotency key."""
        return content_digest(self.model_dump_json(exclude_defaults=True))


class ChatBody(RunBody):
    """A message for an agent, and how the answer is returned."""

    stream: bool = False
    """Return the events of the run as server-sent events, instead of the answer as JSON."""
    on_disconnect: Literal["continue", "cancel"] = "continue"
    """What happens to the run if the client closes the connection before the answer."""


class RunFilters(BaseModel):
    """The query of a list of runs. Unset filters match everything."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    status: list[Status] | None = Field(None, description="Only runs with one of these statuses.")
    agent: str | None = Field(None, description="Only runs of this agent.")
    conversation_id: Id | None = Field(None, description="Only runs of this conversation.")
    user: Id | None = Field(None, description="Only runs of this user.")
    generation: int | None = Field(None, ge=1, le=2**31 - 1, description="Only runs on this generation.")
    digest: Id | None = Field(None, description="Only runs on configurations whose digest begins with this.")
    text: Id | None = Field(
        None, description=f"Only runs whose message contains this; looked up in the newest {SEARCHED_RUNS:,} runs."
    )
    q: Id | None = Field(
        None,
        description="Only runs whose message, agent, id or conversation's id contains this, looked up in the newest "
        f"{SEARCHED_RUNS:,} runs; or any message of the user or the model, in the newest {SEARCHED_TEXTS:,}.",
    )
    rating: RatingValue | None = Field(None, description="Only runs whose answer was rated so.")
    since: AwareDatetime | None = Field(
        None, description="Only runs created at this time or later, such as 2026-11-23T00:00:00Z."
    )
    until: AwareDatetime | None = Field(None, description="Only runs created before this time.")

    def query(self, before: str | None, limit: int) -> RunQuery:
        """Return the query of one page."""
        same = self.model_dump(exclude={"status", "q", "since", "until"})
        return RunQuery(
            statuses=frozenset(self.status or ()),
            search=self.q,
            since=self.since.timestamp() if self.since else None,
            until=self.until.timestamp() if self.until else None,
            before=before,
            limit=limit,
            **same,
        )


class RatingBody(RequestModel):
    """A rating of the answer of a run."""

    rating: RatingValue
    """Whether the answer was good (`up`) or not (`down`)."""
    comment: Annotated[str, Field(max_length=MAX_COMMENT_CHARS)] = ""
    """Why: what was good or wrong. `agentsd runs export --as-test` writes it as the note of the case."""


class DecisionsBody(RequestModel):
    """Decisions about what a run waits for. Confirmations without one stay open."""

    decisions: Annotated[dict[str, Decision], Field(min_length=1, max_length=MAX_DECISIONS)]
    """Decisions by the id of the confirmation: `{"type": "approve"}`, with `remember` for later calls; `edit` with all
    `arguments` to call the tool with; `reject` with a `reason`; `respond` with a `text`, which answers a question or
    replaces the tool's result."""


class ChatMeta(ResponseModel):
    """Figures of a run."""

    total_tokens: int
    """Tokens of all model calls."""
    tool_calls_count: int
    latency_ms: float
    """Active time of the run in milliseconds, without the time it waited for a person."""
    finish_reason: str
    """`final`, `confirmation`, `cancelled`, or the key of the limit that stopped the run."""


class ChatResponse(ResponseModel):
    """The answer to a message, or what the run waits for."""

    success: bool
    """Whether the run is completed. Otherwise `status` and `meta.finish_reason` say why not."""
    response: str
    """Text of the answer."""
    data: Any = None
    """Structured output, if the agent has an `output_schema`."""
    status: Status
    agent: str
    conversation_id: str | None
    """Id to send with the next message; null if the request contained its own history."""
    run_id: str
    trace_id: str | None
    generation: int
    digest: str
    """Digest of the configuration that the run used."""
    tool_calls: tuple[CallSummary, ...]
    pending: tuple[Confirmation, ...]
    """Decisions that the run waits for, if its status is `paused`: POST them to `/agent/runs/RUN_ID/decisions`."""
    incomplete: tuple[IncompleteStep, ...] = ()
    """Steps of the run's plan that were not done, although it may be `completed`."""
    meta: ChatMeta

    @classmethod
    def of(cls, result: RunResult) -> ChatResponse:
        """Return the response for a result."""
        meta = ChatMeta(
            total_tokens=result.usage.total_tokens,
            tool_calls_count=len(result.tool_calls),
            latency_ms=round(result.elapsed_ms, 3),
            finish_reason=result.finish_reason,
        )
        return cls.of_parts(result, success=result.status == "completed", response=result.output, meta=meta)


class RunReference(ResponseModel):
    """A run that was accepted, resumed or cancelled. It continues in the background."""

    run_id: str
    conversation_id: str | None
    status: Status
    """Status of the run at the time of the response."""


class _RunFacts(BaseModel):
    """What lists and details of runs have in common, besides the result."""

    user: str | None
    tenant: str | None
    created_at: datetime
    updated_at: datetime
    orphaned: bool
    """Whether its process ended before the run did, and no other has taken it over yet."""
    priority: int
    """Of the runs that can start, those with a higher priority start first."""
    waits_for: str | None
    """What a run waits for that is queued, or that continues: `conversation`, `capacity`, `handed_on` or a limit, such
    as `agent:support`."""
    rating: Rating | None = None
    """A person's rating of the answer."""
    copied_from: str | None = None
    """Id of the run that it is a copy of, as a turn of a forked conversation. Only lists of the runs of a conversation
    contain copies."""


class RunSummary(_RunFacts, ResponseModel):
    """One run, as shown in lists."""

    run_id: str
    status: Status
    finish_reason: str
    agent: str
    """Name of the agent; empty while the run is queued and the router has not chosen one."""
    generation: int
    digest: str
    message: str
    """The start of the user's message."""
    conversation_id: str | None
    turn: int
    """Number of the run in its conversation, from 1; 0 without a conversation."""
    trace_id: str | None
    steps: int
    tokens: int
    cost_usd: float | None
    """Cost of the model calls whose cost is known; null if that is none of them."""
    elapsed_ms: float
    """Active time in milliseconds, without the time it waited for a person."""
    expires_at: datetime | None
    """When the first of its pending confirmations expires."""


class RunList(ResponseModel):
    """Runs, the newest first."""

    runs: tuple[RunSummary, ...]
    next: str | None
    """Value of `before` for the next page; null on the last one."""


class RunDetail(_RunFacts, RunResult):
    """A run with its messages, its trace, what it waits for, and what was decided."""

    paused_at: datetime | None = None
    """When the run paused, if it waits for decisions."""
    executor: str = ""
    """Executor that a model selected, if the agent file has `executor: auto`."""
    limits: Limits
    """Effective limits: the agent's, as overridden by the caller."""
    earlier_messages: int = 0
    """Number of messages at the start of `messages` that are from earlier turns."""
    seq: int = 0
    """Number of its last event: pass it as `after` to follow what happens next."""
    pending: tuple[PendingConfirmation, ...] = ()
    decisions: tuple[MadeDecision, ...] = ()
    """Decisions in the order they were made, those on confirmations that expired included."""

    @classmethod
    def of(cls, state: RunState, info: RunInfo, generation: Generation, decisions: Sequence[MadeDecision]) -> RunDetail:
        """Return a run from its state, its entry in lists and its decisions. Editing uses the tools of a generation."""
        result = build_result(state)
        named = ("orphaned", "priority", "waits_for", "rating", "copied_from")
        more = {
            **{name: getattr(info, name) for name in named},
            **{name: getattr(state, name) for name in ("user", "tenant", "executor", "seq")},
            "paused_at": _time(state.paused_at) if state.pending and state.paused_at is not None else None,
            "created_at": _time(info.created_at),
            "updated_at": _time(info.updated_at),
            "limits": Limits.model_construct(**{name: getattr(state.limits, name) for name in Limits.model_fields}),
            "earlier_messages": len(result.messages) - len(state.messages),
            "pending": tuple(PendingConfirmation.of(one, generation) for one in result.pending),
            "decisions": tuple(decisions),
        }
        return cls.model_construct(**{**dict(result), **more})


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class RunRating(ResponseModel):
    """The rating of a run."""

    run_id: str
    rating: Rating | None
    """Null if it has none."""


class StoredTrace(ResponseModel):
    """The stored spans of a run, in the order they started."""

    run_id: str
    trace_id: str | None
    spans: tuple[SpanRecord, ...]
    next: str | None = None
    """Value of `after` for the next page, if there is one."""


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

    It takes over what `KeyLimits.admit_stream` returned. With `wait`, it continues after a pause, until the run ends.
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
    result = service.result(run)
    if cancels:
        result = unless_client_leaves(request, result, lambda: service.cancel(run))
    return _response(run, await result)


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
    at = _time(service.runtime.store.now())
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
