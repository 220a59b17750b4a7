"""The response bodies of the routes for runs and conversations. They contain texts and arguments as they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from framework.config.generations.generation import Generation
from framework.engine.runtime.result import build_result
from framework.server.schemas import ResponseModel
from framework.store.conversation_lists import ConversationInfo
from framework.store.protocol import Conversation, RunInfo
from framework.types.messages import Message, Summary
from framework.types.report import CallSummary, IncompleteStep, Status
from framework.types.spec import Limits
from framework.types.state import Confirmation, MadeDecision, Rating, RunResult, RunState
from framework.types.trace import SpanRecord


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
    """The beginning of the user's message."""
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
    """Of the runs that can begin, those with a higher priority begin first."""
    waits_for: str | None
    """What a run waits for that is queued, or that continues: `conversation`, `capacity`, `handed_on` or a limit, such
    as `agent:support`."""
    rating: Rating | None = None
    """A person's rating of the answer."""
    copied_from: str | None = None
    """Id of the run that it is a copy of, as a turn of a forked conversation. Only lists of the runs of a conversation
    contain copies."""

    @classmethod
    def of(cls, info: RunInfo) -> RunSummary:
        """Return the summary of a run."""
        return cls(
            run_id=info.run_id,
            status=info.status,
            finish_reason=info.finish_reason,
            agent=info.agent,
            generation=info.generation,
            digest=info.digest,
            message=info.message,
            created_at=_time(info.created_at),
            updated_at=_time(info.updated_at),
            conversation_id=info.conversation_id,
            turn=info.turn,
            user=info.user,
            tenant=info.tenant,
            trace_id=info.trace_id,
            steps=info.steps,
            tokens=info.tokens,
            cost_usd=info.cost_usd,
            elapsed_ms=info.elapsed_ms,
            expires_at=None if info.expires_at is None else _time(info.expires_at),
            orphaned=info.orphaned,
            priority=info.priority,
            waits_for=info.waits_for,
            rating=info.rating,
            copied_from=info.copied_from,
        )


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
    """Of the runs that can begin, those with a higher priority begin first."""
    waits_for: str | None = None
    """What it waits for until it begins or continues; see `RunSummary`."""
    executor: str = ""
    """Executor that a model selected, if the agent file has `executor: auto`."""
    limits: Limits
    """Effective limits: the agent's, as overridden by the caller."""
    earlier_messages: int = 0
    """Number of messages at the beginning of `messages` that are from earlier turns."""
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
    """The stored spans of a run, in the order they began."""

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
    """The beginning of the user's message."""
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

    conversation_id: str
    agent: str | None
    """The agent that answered last."""
    turns: int
    """Number of runs that began in it."""
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    open_run: str | None
    """Id of its run that is in progress or paused."""
    user: str | None
    tenant: str | None
    title: str
    """The beginning of the user's message of its first stored run."""
    status: Status | None
    """Status of its last stored run."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""

    @classmethod
    def of(cls, info: ConversationInfo) -> ConversationSummary:
        """Return the summary of a conversation."""
        return cls(
            conversation_id=info.id,
            agent=info.agent,
            turns=info.turns,
            created_at=_time(info.created_at),
            updated_at=_time(info.updated_at),
            expires_at=None if info.expires_at is None else _time(info.expires_at),
            open_run=info.open_run,
            user=info.user,
            tenant=info.tenant,
            title=info.title,
            status=info.status,
            forked_from=info.forked_from,
        )


class ConversationList(ResponseModel):
    """Conversations, the latest turn first."""

    conversations: tuple[ConversationSummary, ...]
    next: str | None
    """Value of `cursor` for the next page; null on the last one."""


class ConversationDetail(ResponseModel):
    """The messages of a conversation."""

    conversation_id: str
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
    """Summary that replaces the beginning of the messages in requests to a model."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""

    @classmethod
    def of(cls, conversation: Conversation) -> ConversationDetail:
        """Return a conversation."""
        return cls(
            conversation_id=conversation.id,
            agent=conversation.agent,
            turns=conversation.turns,
            waiting=conversation.waiting,
            open_run=conversation.open_run,
            user=conversation.user,
            tenant=conversation.tenant,
            messages=conversation.messages,
            summary=conversation.summary,
            forked_from=conversation.forked_from,
        )


class ForkedConversation(ResponseModel):
    """A conversation that begins with copies of the turns of another."""

    conversation_id: str
    forked_from: str | None
    """Id of the other conversation."""
    agent: str | None
    """The agent that answered last."""
    turns: int
    """Number of turns that were copied."""

    @classmethod
    def of(cls, conversation: Conversation) -> ForkedConversation:
        """Return a forked conversation."""
        return cls(
            conversation_id=conversation.id,
            forked_from=conversation.forked_from,
            agent=conversation.agent,
            turns=conversation.turns,
        )


class DeletedConversation(ResponseModel):
    """A conversation that was deleted with all its runs."""

    conversation_id: str
    runs: int
    """Number of runs that were deleted."""


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
