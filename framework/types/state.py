"""The state that makes a run re-entrant, what a human is asked and answers, and what the caller gets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from framework.types.confirmation_kinds import ConfirmationKind
from framework.types.frozen import Frozen
from framework.types.messages import Message, ToolCall, ToolResult, Usage
from framework.types.plan import Plan
from framework.types.preflight import Preflight
from framework.types.report import CallSummary, ErrorInfo, LimitUse, ToolStat, TraceEntry
from framework.types.spec import Limits, ModelSettings, OnExpiry, Risk
from framework.types.status import Status
from framework.types.transcript import Summary
from framework.types.warnings import RunWarning


class Confirmation(Frozen):
    """What a human is asked."""

    id: str
    kind: ConfirmationKind
    agent: str
    tool: str = ""
    """The tool to be called; empty for a plan."""
    description: str = ""
    """What the tool does, in short."""
    arguments: dict[str, Any] = {}
    plan: Plan | None = None
    preflight: Preflight | None = None
    """Of a plan: the verdict on each of its steps, and what it will take."""
    hash: str
    """An approval counts for exactly this content."""
    reason: str = ""
    """Why a human is asked; of a question, the question itself."""
    rule: str = ""
    """The rule that asks, with its place in the file."""
    risk: Risk = "medium"
    choices: tuple[str, ...] = ()
    """The answers that are possible; none: any text."""
    expires_at: datetime | None = None
    """After this nobody can decide it any more: what the agent's file says happens (`confirm.on_expiry`)."""
    on_expiry: OnExpiry = "reject"


class Approve(Frozen):
    """Do it as shown."""

    type: Literal["approve"] = "approve"


class Edit(Frozen):
    """Do it with these arguments instead; the edited call is judged anew."""

    type: Literal["edit"] = "edit"
    arguments: dict[str, Any]


class Reject(Frozen):
    """Do not do it; the model is told why."""

    type: Literal["reject"] = "reject"
    reason: str = ""


class Respond(Frozen):
    """Do not do it; take this text as its result."""

    type: Literal["respond"] = "respond"
    text: str


Decision = Annotated[Approve | Edit | Reject | Respond, Field(discriminator="type")]


class CallRecord(Frozen):
    """How far a tool call has got; what makes a turn re-entrant."""

    call: ToolCall
    started: int = 0
    """How often it was begun: a started call without a result was in flight at a crash."""
    result: ToolResult | None = None
    repeats: int = 1
    """Which time in this run the tool is called with these very arguments."""
    contract: str = ""
    """Of the tool as a human was first asked about it; with another, they are asked again."""
    asked: str = ""
    """Hash of the arguments a human was first asked about; with others, they are asked again."""
    repairs: tuple[str, ...] = ()
    """What was put right in its arguments before it was judged."""


class RunState(BaseModel):
    """Everything a run needs to go on, as plain JSON. The one record that changes: only `Run` writes it.

    A sub-run (a sub-agent, a free step of a plan) has a state of its own, kept in its parent's `children`.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    schema_version: int = 1
    version: int = 0
    """Which record of the run this is: a store counts them, and refuses to write over a later one."""
    run_id: str = Field(default_factory=lambda: f"run_{uuid4().hex}")
    path: tuple[str, ...] = ()
    """Where in its root run this one stands: the keys of the sub-runs that lead to it."""
    agent: str
    generation: int = 0
    digest: str = ""
    traceparent: str = ""
    """Where in a trace its last part began, as W3C writes it."""
    blueprint: str = ""
    """Digest of the files its agent is made of, as a durable store keeps them."""
    conversation_id: str | None = None
    conversation_ttl: float | None = None
    """Seconds for which the conversation is kept after this run; none: for ever."""
    user: str | None = None
    tenant: str | None = None
    locale: str = "en"
    inputs: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    base_path: str | None = None
    model: str | None = None
    """Model that replaces those of the agent and its sub-agents, as the caller asked; only of a root run."""
    limits: Limits = Limits()
    """The limits in force: the agent's, changed by the caller."""
    model_settings: ModelSettings = ModelSettings()

    status: Status = "running"
    finish_reason: str = ""
    output: str = ""
    output_schema: dict[str, Any] | None = None
    """What the answer's data must fit, if it is to have any."""
    data: Any = None
    """The answer as data."""
    error: ErrorInfo | None = None
    stopped_by: LimitUse | None = None
    admitted: bool = False
    """The hooks that look at the message have let it pass."""
    executor: str = ""
    """How it works, where the agent's file leaves that to a choice: `react` or `plan`, once that is made."""
    background: list[str] | None = None
    """What MCP servers gave for the context when the run began; none before that."""
    history: list[Message] = Field(default_factory=list)
    """Earlier turns of the conversation; where there is a summary, those that come after what it stands for."""
    summary: Summary | None = None
    """What stands for the beginning of the conversation."""
    messages: list[Message] = Field(default_factory=list)
    """This run's own messages, append-only; the first is the user's."""
    replies: list[int] = Field(default_factory=list)
    """Places in `messages` of what the model said, turn by turn; an executor may have put others there."""
    typed: list[str] = Field(default_factory=list)
    """What the model gave as answers of a type, as JSON, one after the other."""
    calls: dict[str, CallRecord] = Field(default_factory=dict)
    """How far each tool call of the run has got, in the order they were asked for."""
    plan: Plan | None = None
    children: dict[str, RunState] = Field(default_factory=dict)
    """Sub-runs by the call or plan step they belong to."""
    pending: list[Confirmation] = Field(default_factory=list)
    paused_at: float | None = None
    """Since when it waits for them; Unix time."""
    decisions: dict[str, Decision] = Field(default_factory=dict)
    """Answers by confirmation, all kept in the root's state."""
    expires: dict[str, datetime] = Field(default_factory=dict)
    """Until when a confirmation may be answered, since it was first asked; all kept in the root's state."""

    steps: int = 0
    tool_calls: int = 0
    corrections: int = 0
    """Turns in a row with a wrong call."""
    usage: Usage = Usage()
    tool_stats: dict[str, ToolStat] = Field(default_factory=dict)
    counted: tuple[int, int] = (0, 0)
    """So many of the run's own messages, with all that stands before them, were so many tokens for the provider."""
    warned: list[str] = Field(default_factory=list)
    """Limits already warned of."""
    call_counts: dict[str, int] = Field(default_factory=dict)
    """How often each tool was called with the same arguments, by their hash."""
    elapsed_ms: float = 0.0
    """Active time, without waiting for a human."""
    session: dict[str, Any] = Field(default_factory=dict)
    """What tools keep, in the root's state: the conversation's values, as this run leaves them."""
    seq: int = 0
    """Number of the last event."""
    trace: list[TraceEntry] = Field(default_factory=list)
    truncated: bool = False
    """The model's last answer was cut by its output limit."""
    warnings: list[RunWarning] = Field(default_factory=list)
    """Of the run and its sub-runs; all kept in the root's state."""

    @property
    def trace_id(self) -> str | None:
        """The trace of its last part, where one was recorded."""
        return self.traceparent.split("-")[1] if self.traceparent else None

    def with_sub_runs(self) -> Iterator[RunState]:
        """The run, its sub-runs, theirs, and so on."""
        yield self
        for child in self.children.values():
            yield from child.with_sub_runs()

    @property
    def last_reply(self) -> Message | None:
        """What the model said last, if nothing has come after it: its calls stand unanswered, or it is the answer."""
        if self.replies and self.replies[-1] == len(self.messages) - 1:
            return self.messages[-1]
        return None

    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last turn that stand unanswered: left over from a pause or a crash."""
        if not self.messages or self.messages[-1].role != "assistant":
            return ()
        return self.messages[-1].tool_calls


class RunResult(Frozen):
    """What the caller gets."""

    run_id: str
    status: Status
    finish_reason: str
    """`final`, `confirmation`, `cancelled`, the key of a limit, or an error's code."""
    output: str
    data: Any = None
    """The answer as JSON data, where `output_schema` or `output_type` asks for it."""
    plan: Plan | None = None
    """The plan with the states and results of its steps, where the run made one."""
    messages: tuple[Message, ...]
    """History and this run's messages; feed them to the next call as `history`."""
    steps: int
    tool_calls: tuple[CallSummary, ...] = ()
    tool_stats: dict[str, ToolStat] = {}
    usage: Usage = Usage()
    agent: str
    generation: int
    digest: str
    conversation_id: str | None = None
    trace_id: str | None = None
    trace: tuple[TraceEntry, ...] = ()
    pending: tuple[Confirmation, ...] = ()
    """What a human must decide before the run goes on."""
    error: ErrorInfo | None = None
    stopped_by: LimitUse | None = None
    """The limit that ended a run whose status is `stopped`."""
    truncated: bool = False
    """The output limit (`max_tokens`) cut the answer: `output` is not whole."""
    warnings: tuple[RunWarning, ...] = ()
    """What a person should know: the warning events of the run and its sub-runs, parts before a pause included."""
    elapsed_ms: float = 0.0
