"""The persisted state of a run, the decisions it waits for, and the result that the caller receives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import not_
from typing import Annotated, Any, Generic, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypeVar

from framework.types.budget import BudgetUse
from framework.types.frozen import Frozen
from framework.types.grant import Remember, RememberOffer
from framework.types.memory import Note
from framework.types.messages import Message, ModelUse, Summary, ToolCall, ToolDefinition, ToolResult, Usage
from framework.types.plan import Plan, Preflight
from framework.types.report import (
    CallSummary,
    ErrorInfo,
    IncompleteStep,
    LimitUse,
    RunWarning,
    Status,
    ToolStat,
    TraceContext,
    TraceEntry,
)
from framework.types.spec import Limits, ModelSettings, OnExpiry, Risk

ConfirmationKind = Literal["tool", "plan", "question", "ask_user", "step", "elicitation", "login", "client_tool"]
STEP_PREFIX = "failed-"
"""Prefix of the last part of the id of confirmations about failed plan steps."""


@dataclass(frozen=True, slots=True)
class KindTraits:
    """The properties that all confirmations of one kind share."""

    awaits: Literal["approval", "an answer", "a choice"]
    """Kind of reply that the run waits for."""
    asked_by_tool: bool = False
    """Whether a running tool asks the question and receives the answer."""
    can_approve: bool = True
    """Whether `approve` and `edit` are accepted. Otherwise only answers and rejections are."""

    @property
    def is_question(self) -> bool:
        """Whether the run waits for an answer rather than an approval."""
        return self.awaits != "approval"


CONFIRMATION_KINDS: Mapping[ConfirmationKind, KindTraits] = {
    "tool": KindTraits("approval"),  # call a tool
    "plan": KindTraits("approval"),  # execute a plan
    "question": KindTraits("an answer", asked_by_tool=True),  # question of a tool
    "ask_user": KindTraits("an answer", asked_by_tool=True, can_approve=False),  # question of the model
    "step": KindTraits("a choice", can_approve=False),  # retry, skip or stop after a failed plan step
    "elicitation": KindTraits("an answer", asked_by_tool=True, can_approve=False),  # form of a tool server
    "login": KindTraits("approval", asked_by_tool=True),  # login at a tool server, then continue
    "client_tool": KindTraits("an answer", asked_by_tool=True, can_approve=False),  # result of a tool of the client
}
CLIENT_RESULT = "?result"
"""End of the id of confirmations about the result of a client's tool."""
_VISIT = KindTraits("approval", asked_by_tool=True)
"""A confirmation with an address: the person visits it, and then lets the run continue."""


def traits_of(kind: ConfirmationKind, url: str) -> KindTraits:
    """Return the properties of a confirmation by its kind, or those of an address to visit."""
    return _VISIT if url else CONFIRMATION_KINDS[kind]


def subject_of(kind: ConfirmationKind, tool: str) -> str:
    """Return the subject of a confirmation as test cases name it: the tool, `plan`, or `step` for a failed step."""
    return kind if kind in ("plan", "step") else tool


def is_about_step(confirmation_id: str) -> bool:
    """Return whether a confirmation is about a failed plan step."""
    return confirmation_id.rpartition("/")[2].startswith(STEP_PREFIX)


class Confirmation(Frozen):
    """A decision that a run waits for."""

    id: str
    """Id to pass with the decision."""
    kind: ConfirmationKind
    """Subject of the decision: a tool call, a plan, a failed step, or a question."""
    agent: str
    """Agent that waits for the decision."""
    tool: str = ""
    """Tool to be called; empty for a plan."""
    call_id: str | None = None
    """Id of the call as its tool sees it (`context.call_id`); None for a plan, or a step without a tool."""
    idempotency_key: str | None = None
    """Key that the tool passes to services (`context.idempotency_key`), to look up whether the call took effect."""
    description: str = ""
    """Short description of the tool."""
    arguments: dict[str, Any] = {}
    """Arguments of the call."""
    preview: str = ""
    """What the call would change, as the tool describes it: a unified diff for an edit of a file. May be empty."""
    plan: Plan | None = None
    """Plan to be approved."""
    preflight: Preflight | None = None
    """Policy decision for each step of the plan, and an estimate."""
    hash: str
    """Digest of what is to be approved. An approval applies to this content only."""
    reason: str = ""
    """Why a decision is required; for a question, the question itself."""
    rule: str = ""
    """Rule that requires the decision, with its `file:line`."""
    risk: Risk = "medium"
    """Risk of the call."""
    choices: tuple[str, ...] = ()
    """Possible answers; empty if any text is accepted."""
    form: dict[str, Any] | None = None
    """JSON Schema of the values that answer it, an object without nested objects; None if it is not a form."""
    url: str = ""
    """Address that the person visits before they approve, in ASCII; empty if there is none. Nothing opens it."""
    expires_at: datetime | None = None
    """Time after which decisions are refused and `on_expiry` applies."""
    on_expiry: OnExpiry = "reject"
    """Action after `expires_at`, from `confirm.on_expiry` in the agent file."""
    remember: RememberOffer | None = Field(default=None, exclude_if=lambda offer: offer is None)
    """How its approval can be remembered for later calls; None if it cannot."""

    @property
    def traits(self) -> KindTraits:
        """The properties of its kind, or those of an address to visit."""
        return traits_of(self.kind, self.url)

    def has_expired(self, now: float) -> bool:
        """Return whether it has expired at a time of the store, in Unix seconds."""
        return self.expires_at is not None and self.expires_at.timestamp() <= now


class Approve(Frozen):
    """Approve the call or plan as shown."""

    type: Literal["approve"] = "approve"
    remember: Remember | None = Field(default=None, exclude_if=lambda remember: remember is None)
    """Do not ask about later calls of this kind. Default: the approval is for this call only."""


class Edit(Frozen):
    """Approve the call with other arguments. The policy is evaluated again for the edited call."""

    type: Literal["edit"] = "edit"
    arguments: dict[str, Any]
    """Arguments to use instead; for a plan, the edited plan."""


class Reject(Frozen):
    """Reject the call or plan."""

    type: Literal["reject"] = "reject"
    reason: str = ""
    """Reason, passed to the model."""


class Respond(Frozen):
    """Answer a question, or use a text as the result of the call without executing it."""

    type: Literal["respond"] = "respond"
    text: str = ""
    """The answer, or the result."""
    values: dict[str, Any] | None = Field(default=None, exclude_if=lambda values: values is None)
    """Values of a form by the names of its fields, instead of a text."""

    @model_validator(mode="after")
    def _text_or_values(self) -> Respond:
        if self.text if self.values is not None else "text" not in self.model_fields_set:
            raise ValueError("write `text`, or `values` to answer a form")
        return self


Decision = Annotated[Approve | Edit | Reject | Respond, Field(discriminator="type")]
EXPIRED = Reject(reason="no decision was made in time")
"""The decision on a confirmation that expired. Nobody made it."""


class MadeDecision(Frozen):
    """A decision, with who made it and when."""

    run_id: str
    """The run."""
    confirmation_id: str
    """`id` of the confirmation."""
    decision: Decision
    """The decision; for an expired confirmation, the rejection that was recorded."""
    by: str | None
    """User or name of the API key; None if the confirmation expired, or if the caller named nobody."""
    at: datetime
    """When it was decided."""

    @property
    def expired(self) -> bool:
        """Whether the confirmation expired before anyone decided."""
        return self.by is None and self.decision == EXPIRED


class ClientTools(Frozen):
    """The tools that the client of a run executes itself, and what its next requests must agree with."""

    tools: tuple[ToolDefinition, ...] = ()
    """The tools, by the names that the client gave them; policies call them `client.NAME`."""
    required: bool = False
    """Whether the run must call one of them before it answers."""
    key: str = ""
    """Name of the API key that allows them where the agent's file does not. Empty: only the file can."""
    history: str = ""
    """Digest of the messages that the run started with, which the request with results repeats. Empty: not compared."""
    stored: bool = False
    """Whether later requests may name the response by its id."""


RatingValue = Literal["up", "down"]


class Rating(Frozen):
    """A person's rating of the answer of a run."""

    value: RatingValue
    comment: str = ""
    """Why: what was good or wrong."""
    by: str | None = None
    """User or name of the API key; None if the caller named nobody."""
    at: datetime


class CallRecord(Frozen):
    """Progress of a tool call, persisted so that a turn can be resumed."""

    call: ToolCall
    """The call."""
    started: int = 0
    """Number of times that execution started. A started call without a result was in flight when the process ended."""
    result: ToolResult | None = None
    """Result, once there is one."""
    repeats: int = 1
    """Ordinal of this call among the run's calls of the tool with the same arguments."""
    contract: str = ""
    """Digest of the tool's definition when approval was first requested. If it differs, approval is requested again."""
    asked: str = ""
    """Digest of the arguments when approval was first requested. If it differs, approval is requested again."""
    repairs: tuple[str, ...] = ()
    """Repairs made to the arguments before the policy was evaluated."""
    continuation: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)
    """What the tool needs to continue the call after the pause, such as the questions of its server."""
    counted: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """Keys of the rules with `at_most` that the call was counted for."""


class ScriptRecord(Frozen):
    """Progress of a script, persisted so that it can be continued."""

    started_at: float
    """Unix time at which it started; a script sees the same time whenever it is continued."""
    calls: tuple[str, ...] = ()
    """`repetition_key` of each call that it asked for, in order. The calls themselves are in `calls` of the run."""
    snapshot: str = ""
    """State of the interpreter at a pause, in base64; empty if there is none."""
    version: str = ""
    """Version of the interpreter that the snapshot belongs to."""
    at: int = 0
    """Number of calls that were finished when the snapshot was taken."""
    printed: str = ""
    """What the script had printed by then."""


class RunState(BaseModel):
    """Everything required to resume a run, as plain JSON. The only mutable record; only `Run` writes to it.

    A sub-run (a sub-agent, or a plan step without a tool) has its own state in its parent's `children`.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    schema_version: int = 1
    version: int = 0
    """Number of times that the state was stored. A store refuses to overwrite a later version."""
    run_id: str = Field(default_factory=lambda: f"run_{uuid4().hex}")
    path: tuple[str, ...] = ()
    """Keys of the sub-runs that lead from the root run to this one."""
    agent: str
    generation: int = 0
    digest: str = ""
    traceparent: str = ""
    """W3C trace context of the span in which the run was last started or resumed."""
    blueprint: str = ""
    """Digest of the agent's files, as archived in a durable store."""
    conversation_id: str | None = None
    conversation_ttl: float | None = None
    """Seconds for which the conversation is stored after this run; None: without limit."""
    copied_from: str | None = None
    """Id of the run that this turn of a forked conversation is a copy of. Root runs only."""
    user: str | None = None
    tenant: str | None = None
    locale: str = "en"
    inputs: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    base_path: str | None = None
    model: str | None = None
    """Model that the caller set instead of those of the agent and its sub-agents. Root runs only."""
    limits: Limits = Limits()
    """Effective limits: the agent's, as overridden by the caller."""
    model_settings: ModelSettings = ModelSettings()
    caller_instructions: str = ""
    """The caller's own instructions, which follow those of the agent."""
    client: ClientTools | None = None
    """Tools that the client executes. Root runs only."""

    status: Status = "running"
    finish_reason: str = ""
    output: str = ""
    output_schema: dict[str, Any] | None = None
    """JSON Schema of the structured output, if one is required."""
    data: Any = None
    """Structured output."""
    error: ErrorInfo | None = None
    stopped_by: LimitUse | None = None
    admitted: bool = False
    """Whether the `before_run` hooks have accepted the message."""
    handled_by: list[str] = Field(default_factory=list)
    """Agents that have worked on the user's message, in order, if the conversation was handed over. Root runs only."""
    executor: str = ""
    """Selected executor, `react` or `plan`, if the agent file has `executor: auto`."""
    background: list[str] | None = None
    """Resources and prompts of MCP servers, read when the run started; None before that."""
    recalled: list[Note] | None = None
    """Notes of earlier conversations that the run started with; None before that, and without a memory."""
    history: list[Message] = Field(default_factory=list)
    """Earlier messages of the conversation that `summary` does not replace."""
    summary: Summary | None = None
    """Summary that replaces the start of the conversation."""
    messages: list[Message] = Field(default_factory=list)
    """Messages of this run, append-only. The first is the user's."""
    replies: list[int] = Field(default_factory=list)
    """Indexes in `messages` of the model's replies. Executors may add other messages."""
    typed: list[str] = Field(default_factory=list)
    """Typed answers of the model as JSON, in order."""
    calls: dict[str, CallRecord] = Field(default_factory=dict)
    """Progress of each tool call by call id, in the order requested."""
    scripts: dict[str, ScriptRecord] = Field(default_factory=dict)
    """Scripts in progress by the id of the call that runs them."""
    plan: Plan | None = None
    children: dict[str, RunState] = Field(default_factory=dict)
    """Sub-runs by the call or plan step they belong to."""
    pending: list[Confirmation] = Field(default_factory=list)
    paused_at: float | None = None
    """Unix time at which the run paused."""
    decisions: dict[str, Decision] = Field(default_factory=dict)
    """Decisions by confirmation id. Stored in the root's state only."""
    expires: dict[str, datetime] = Field(default_factory=dict)
    """Time limits by confirmation id, set when approval was first requested. Stored in the root's state only."""

    steps: int = 0
    tool_calls: int = 0
    corrections: int = 0
    """Number of consecutive turns with an invalid call."""
    usage: Usage = Usage()
    model_uses: dict[str, ModelUse] = Field(default_factory=dict)
    """What the run and its sub-runs have used of each model, by `provider/model`. Root runs only."""
    uncounted: list[BudgetUse] = Field(default_factory=list)
    """Use that the counters of shared budgets do not contain yet: the next write adds it. Root runs only."""
    tool_stats: dict[str, ToolStat] = Field(default_factory=dict)
    counted: tuple[int, int] = (0, 0)
    """Number of this run's messages in the last measured request, and the tokens that the provider counted for it."""
    warned: list[str] = Field(default_factory=list)
    """Limits for which a warning was emitted."""
    added_tools: list[str] = Field(default_factory=list)
    """Names of tools that requests contain in addition to those of the agent, in the order in which they were added."""
    found_tools: dict[str, list[str]] = Field(default_factory=dict)
    """Those of them that a search has found, by the id of its call, if its result names no others."""
    kept_bytes: int = 0
    """Size of the results that were too long for the model and are kept whole. Root runs only."""
    misspelt: dict[str, str] = Field(default_factory=dict)
    """Names of tools as the model wrote them, by the id of a call whose name was repaired and that has not started."""
    call_counts: dict[str, int] = Field(default_factory=dict)
    """Number of calls by `repetition_key` of tool and arguments."""
    elapsed_ms: float = 0.0
    """Active time in milliseconds, without the time spent waiting for a person."""
    session: dict[str, Any] = Field(default_factory=dict)
    """Session values that tools set. Stored in the root's state only."""
    seq: int = 0
    """Sequence number of the last event."""
    trace: list[TraceEntry] = Field(default_factory=list)
    truncated: bool = False
    """Whether the model's last answer is incomplete because the output limit cut it."""
    warnings: list[RunWarning] = Field(default_factory=list)
    """Warnings of the run and its sub-runs. Stored in the root's state only."""

    @property
    def trace_id(self) -> str | None:
        """Id of the last recorded trace, or None."""
        return self.traceparent.split("-")[1] if self.traceparent else None

    @property
    def answering(self) -> str:
        """Name of the agent that answers: the last one that the conversation was handed over to, or `agent`."""
        return self.handled_by[-1] if self.handled_by else self.agent

    @property
    def handed_to(self) -> str | None:
        """Name of the agent that answers, if the conversation was handed over to it; otherwise None."""
        return None if self.answering == self.agent else self.answering

    def with_sub_runs(self) -> Iterator[RunState]:
        """Iterate over this state and those of all sub-runs, depth first."""
        yield self
        for child in self.children.values():
            yield from child.with_sub_runs()

    @property
    def last_reply(self) -> Message | None:
        """The last message, if it is a reply of the model: either its calls are open or it is the answer."""
        if self.replies and self.replies[-1] == len(self.messages) - 1:
            return self.messages[-1]
        return None

    def open_calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls of the last turn that have no results, after a pause or a crash."""
        if not self.messages or self.messages[-1].role != "assistant":
            return ()
        return self.messages[-1].tool_calls


OutputT = TypeVar("OutputT", default=Any)
"""Type of a result's `parsed`: the caller's `output_type`."""


class RunResult(Frozen, Generic[OutputT]):
    """The result of a run, as returned to the caller."""

    run_id: str
    """Id of the run; accepted by `agentsd runs show` and `runtime.resume`."""
    status: Status
    """`completed`, `stopped`, `paused`, `cancelled` or `failed` (table)."""
    finish_reason: str
    """`final`, `confirmation`, `cancelled`, the key of a limit, or the code of an error."""
    output: str
    """Text of the answer."""
    data: Any = None
    """Structured output as JSON data, if `output_schema` or `output_type` is set."""
    parsed: OutputT | None = Field(default=None, exclude=True, repr=False)
    """Structured output as an instance of `output_type`; None without one, and for results that were read from the
    store. Not part of the JSON form."""
    plan: Plan | None = None
    """Plan of the run with the status and result of each step, if there is one."""
    messages: tuple[Message, ...]
    """History and messages of this run. Pass them as `history` to continue the conversation."""
    steps: int
    """Model turns."""
    tool_calls: tuple[CallSummary, ...] = ()
    """Calls that have a result, in the order the model made them."""
    tool_stats: dict[str, ToolStat] = {}
    """By tool name: `count` (calls) and `total_ms`."""
    usage: Usage = Usage()
    """Tokens and cost of all model calls."""
    agent: str
    """The agent that answered."""
    generation: int
    """Configuration generation of this process that the run used."""
    digest: str
    """Digest of that generation, the same in every process."""
    conversation_id: str | None = None
    """The conversation, if the run belongs to one."""
    trace_id: str | None = None
    """Trace id, if the run was traced."""
    trace: tuple[TraceEntry, ...] = ()
    """The actions of the run, step by step."""
    pending: tuple[Confirmation, ...] = ()
    """Decisions that the run waits for."""
    error: ErrorInfo | None = None
    """Why a run failed."""
    stopped_by: LimitUse | None = None
    """Limit that stopped the run, if its status is `stopped`."""
    truncated: bool = False
    """Whether the output limit (`max_tokens`) cut the answer, so that `output` is incomplete."""
    incomplete: tuple[IncompleteStep, ...] = ()
    """Steps of the plan that were not done: skipped, or failed without new steps instead. Such a run may be
    `completed`."""
    warnings: tuple[RunWarning, ...] = ()
    """Warnings of the run and its sub-runs, those before a pause included."""
    elapsed_ms: float = 0.0
    """Active time, without the time spent waiting for decisions."""


MAX_PRIORITY = 100
"""Highest priority of a run; the lowest is its negative."""
QUEUE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the names of queues."""
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class RunRequest(Frozen):
    """A run to execute: its message and options as they came. No agent is chosen yet, and no model called."""

    run_id: str = Field(default_factory=lambda: f"run_{uuid4().hex}")
    message: Message
    """The user's message. The files in it are in the store."""
    options: dict[str, Any] = {}
    """The other options of the run as JSON data, by name."""
    conversation_id: str | None = None
    user: str | None = None
    tenant: str | None = None
    queue: bool = False
    """Whether the run may wait for the open run of its conversation, and for those that wait already."""
    priority: Priority = 0
    """Of the runs that can start, those with a higher priority start first."""
    queue_name: Annotated[str, Field(pattern=f"^{QUEUE_NAME}$")] | None = None
    """Queue whose workers execute the run. Default: workers of its agent."""
    trace_context: TraceContext | None = None
    """Trace that the request belongs to, if any."""
    attempts: int = 0
    """Number of processes that claimed the run and ended before it started. Set by `Store.claim`."""

    def queued_state(self) -> RunState:
        """Return the state of the run while it waits."""
        return RunState(
            run_id=self.run_id,
            agent=self.options.get("agent") or "",
            conversation_id=self.conversation_id,
            user=self.user,
            tenant=self.tenant,
            metadata=self.options.get("metadata") or {},
            status="queued",
            messages=[self.message],
        )


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a request waits until its run starts."""

    wait: bool = False
    """In a busy conversation, wait for the open run and for those that wait already."""
    priority: int = 0
    queue_name: str | None = None


FIRST_COME = QueuePlace()


@dataclass(frozen=True, slots=True)
class TriggerUse:
    """A run that a trigger starts. It is saved together with what the trigger has done."""

    name: str
    tick: float | None = None
    """The time for which a cron trigger starts it. A time up to the last one that was handled starts no run."""
    not_while: tuple[Status, ...] = ()
    """Statuses of the trigger's last run with which it is refused."""
    by_hand: bool = False
    """Whether a person starts it, also while the trigger is paused."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's key for a request: a repetition of the request returns the same run for 24 hours."""

    scope: str
    """Who sent the key, such as a tenant or the name of an API key. Equal keys in two scopes are different keys."""
    key: str
    digest: str
    """Digest of the request. Another request with the same key is rejected."""
    seconds: float = 24 * 3600.0
    """How long the key is valid after its request was saved."""
    trigger: TriggerUse | None = None
    """The trigger that sends the request."""
