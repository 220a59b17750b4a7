"""Bodies of requests and answers about runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from framework.config.generations.generation import Generation
from framework.engine.run_report import build_result
from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.start import ForkPoint
from framework.server.run_service import MAX_URL_ID_CHARS
from framework.server.schemas import PRINTABLE, ResponseModel, whole_number
from framework.store.types import SEARCHED_RUNS, SEARCHED_TEXTS, RunInfo, RunQuery
from framework.types.errors import RequestError
from framework.types.messages import Message, Summary
from framework.types.report import CallSummary, IncompleteStep, SpanRecord, Status
from framework.types.spec import Limits
from framework.types.state import (
    QUEUE_NAME,
    Confirmation,
    Decision,
    MadeDecision,
    Priority,
    Rating,
    RatingValue,
    RunResult,
    RunState,
)
from framework.types.strict_json import content_digest

_Limit = Annotated[int, Field(ge=1), BeforeValidator(whole_number)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_ID_CHARS), *PRINTABLE]
"""An id that the client chooses."""
MAX_COMMENT_CHARS = 4000
MAX_DECISIONS = 100
"""Number of decisions in one request."""


class RequestModel(BaseModel):
    """The base of request bodies. Unknown fields are refused, so that a misspelled limit is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


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
        return RunQuery(
            statuses=frozenset(self.status or ()),
            agent=self.agent,
            conversation_id=self.conversation_id,
            user=self.user,
            generation=self.generation,
            digest=self.digest,
            text=self.text,
            search=self.q,
            rating=self.rating,
            since=self.since.timestamp() if self.since else None,
            until=self.until.timestamp() if self.until else None,
            before=before,
            limit=limit,
        )


class ForkBody(RequestModel):
    """Where a fork leaves the history of its conversation: exactly one of `before`, `after` and `messages`."""

    before: Id | None = None
    """Id of the run whose message and answer are left out, with those after it."""
    after: Id | None = None
    """Id of the last run that is kept."""
    messages: Annotated[int, Field(ge=0, le=10**6), BeforeValidator(whole_number)] | None = None
    """Number of messages of the conversation that are kept; the last one must be an answer."""
    conversation_id: Id | None = None
    """Id of the new conversation. Default: a new one."""

    @property
    def point(self) -> ForkPoint:
        """The place."""
        return ForkPoint(self.before, self.after, self.messages)


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
        return cls(
            success=result.status == "completed",
            response=result.output,
            data=result.data,
            status=result.status,
            agent=result.agent,
            conversation_id=result.conversation_id,
            run_id=result.run_id,
            trace_id=result.trace_id,
            generation=result.generation,
            digest=result.digest,
            tool_calls=result.tool_calls,
            pending=result.pending,
            incomplete=result.incomplete,
            meta=ChatMeta(
                total_tokens=result.usage.total_tokens,
                tool_calls_count=len(result.tool_calls),
                latency_ms=round(result.elapsed_ms, 3),
                finish_reason=result.finish_reason,
            ),
        )


class RunReference(ResponseModel):
    """A run that was accepted, resumed or cancelled. It continues in the background."""

    run_id: str
    conversation_id: str | None
    status: Status
    """Status of the run at the time of the response."""


class RunSummary(ResponseModel):
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
    created_at: datetime
    updated_at: datetime
    conversation_id: str | None
    turn: int
    """Number of the run in its conversation, from 1; 0 without a conversation."""
    user: str | None
    tenant: str | None
    trace_id: str | None
    steps: int
    tokens: int
    cost_usd: float | None
    """Cost of the model calls whose cost is known; null if that is none of them."""
    elapsed_ms: float
    """Active time in milliseconds, without the time it waited for a person."""
    expires_at: datetime | None
    """When the first of its pending confirmations expires."""
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


class RunList(ResponseModel):
    """Runs, the newest first."""

    runs: tuple[RunSummary, ...]
    next: str | None
    """Value of `before` for the next page; null on the last one."""


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


class RunDetail(RunResult):
    """A run with its messages, its trace, what it waits for, and what was decided."""

    user: str | None = None
    tenant: str | None = None
    paused_at: datetime | None = None
    """When the run paused, if it waits for decisions."""
    created_at: datetime
    updated_at: datetime
    orphaned: bool = False
    """Whether its process ended before the run did, and no other has taken it over yet."""
    priority: int = 0
    """Of the runs that can start, those with a higher priority start first."""
    waits_for: str | None = None
    """What it waits for until it starts or continues; see `RunSummary`."""
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
    rating: Rating | None = None
    """A person's rating of the answer."""
    copied_from: str | None = None
    """Id of the run that it is a copy of, as a turn of a forked conversation."""

    @classmethod
    def of(cls, state: RunState, info: RunInfo, generation: Generation, decisions: Sequence[MadeDecision]) -> RunDetail:
        """Return a run from its state, its entry in lists and its decisions. Editing uses the tools of a generation."""
        result = build_result(state)
        limits = {name: getattr(state.limits, name) for name in Limits.model_fields}
        more = {
            "user": state.user,
            "tenant": state.tenant,
            "paused_at": _time(state.paused_at) if state.pending and state.paused_at is not None else None,
            "created_at": _time(info.created_at),
            "updated_at": _time(info.updated_at),
            "orphaned": info.orphaned,
            "priority": info.priority,
            "waits_for": info.waits_for,
            "executor": state.executor,
            "limits": Limits.model_construct(**limits),
            "earlier_messages": len(result.messages) - len(state.messages),
            "seq": state.seq,
            "pending": tuple(PendingConfirmation.of(one, generation) for one in result.pending),
            "decisions": tuple(decisions),
            "rating": info.rating,
            "copied_from": info.copied_from,
        }
        return cls.model_construct(**{**dict(result), **more})


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
        return cls(
            run_id=info.run_id,
            agent=info.agent,
            generation=info.generation,
            digest=info.digest,
            conversation_id=info.conversation_id,
            user=info.user,
            tenant=info.tenant,
            message=info.message,
            paused_at=None if state.paused_at is None else _time(state.paused_at),
            pending=tuple(PendingConfirmation.of(one, generation) for one in state.pending),
        )


class ApprovalList(ResponseModel):
    """Runs that wait for decisions, the newest first."""

    approvals: tuple[PendingRun, ...]
    waiting: int
    """Number of runs that wait, those on other pages included."""
    next: str | None
    """Value of `before` for the next page; null on the last one."""


class ConversationSummary(ResponseModel):
    """One conversation, as shown in lists."""

    conversation_id: Annotated[str, Field(validation_alias="id")]
    agent: str | None
    """The agent that answered last."""
    turns: int
    """Number of runs that started in it."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    open_run: str | None
    """Id of its run that is in progress or paused."""
    user: str | None
    tenant: str | None
    title: str
    """The start of the user's message of its first stored run."""
    status: Status | None
    """Status of its last stored run."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""
    handed_to: str | None = None
    """The agent that answers the next message instead of `agent`, which has handed the conversation over."""


class ConversationList(ResponseModel):
    """Conversations, the latest turn first."""

    conversations: tuple[ConversationSummary, ...]
    next: str | None
    """Value of `cursor` for the next page; null on the last one."""


class ConversationDetail(ResponseModel):
    """The messages of a conversation."""

    conversation_id: Annotated[str, Field(validation_alias="id")]
    agent: str | None
    """The agent that answered last."""
    turns: int
    waiting: int
    """Number of its runs that wait in the queue."""
    open_run: str | None
    user: str | None
    tenant: str | None
    messages: tuple[Message, ...]
    """Messages of the turns that completed or were stopped by a limit."""
    summary: Summary | None
    """Summary that replaces the start of the messages in requests to a model."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""
    handed_to: str | None = None
    """The agent that answers the next message instead of `agent`, which has handed the conversation over."""


class ForkedConversation(ResponseModel):
    """A conversation that starts with copies of the turns of another."""

    conversation_id: Annotated[str, Field(validation_alias="id")]
    forked_from: str | None
    """Id of the other conversation."""
    agent: str | None
    """The agent that answered last."""
    turns: int
    """Number of turns that were copied."""


class DeletedConversation(ResponseModel):
    """A conversation that was deleted with all its runs."""

    conversation_id: str
    runs: int
    """Number of runs that were deleted."""


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
