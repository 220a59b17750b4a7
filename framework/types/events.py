"""What a run tells while it goes on. Typed here; `wire` gives the form every stream carries.

Each event names its run, its number in the run, the generation it ran on, and `path`: the sub-runs it happened in.
Content deltas are the exception: unnumbered (seq 0) and free to be merged. Every stream ends with exactly one
`RunFinished`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from framework.types.change import Change
from framework.types.confirmation_kinds import ConfirmationKind
from framework.types.frozen import Frozen
from framework.types.messages import Usage
from framework.types.plan import Plan, PlanChange, PlanStep, StepStatus
from framework.types.preflight import Preflight
from framework.types.problem import Problem
from framework.types.spec import OnExpiry, Risk
from framework.types.status import Status
from framework.types.todo import TodoItem


class RunEvent(Frozen):
    """The head of every event of a run."""

    run_id: str
    seq: int
    generation: int
    path: tuple[str, ...] = ()


class Routed(RunEvent):
    """An agent was chosen."""

    agent: str
    reason: str
    confidence: float
    executor: str | None = None
    """How it works, where a model has chosen that."""


class Thought(RunEvent):
    """The provider's reasoning, or a message's text that turned out to lead to tool calls."""

    message_id: str
    text: str


class ContentReceived(RunEvent):
    """Text of the answer: a delta where the caller listens to deltas, else the whole."""

    message_id: str
    text: str


class ToolRequested(RunEvent):
    """The model asks for a tool."""

    id: str
    tool: str
    arguments: dict[str, Any]
    status: Literal["pending", "running"] = "pending"
    progress: float | None = None
    message: str | None = None


class ToolStarted(ToolRequested):
    """A tool was called, or tells how far it is (`progress` from 0 to 1, `message`)."""

    status: Literal["pending", "running"] = "running"


class ToolFinished(RunEvent):
    """A tool call has its result."""

    id: str
    tool: str
    status: Literal["success", "error", "cancelled", "denied"]
    """`denied` by a rule or a hook, `cancelled` by a human."""
    result: str
    """What the model sees of it."""
    error: str | None = None
    """Why it did not succeed."""
    elapsed_ms: float


class Warned(RunEvent):
    """Something a person should know: a limit is near, a call repeats, a model is asked again."""

    code: str
    message: str
    message_id: str | None = None
    """The message of the model call that failed: what came of it is void, the next attempt has another id."""


class PlanProposed(RunEvent):
    """There is a plan, or a new revision of it."""

    revision: int
    goal: str
    hash: str
    steps: tuple[PlanStep, ...]
    changes: tuple[PlanChange, ...] = ()
    """Of a new revision: what is other than before."""
    preflight: Preflight | None = None


class PlanStepChanged(RunEvent):
    """A plan step's state changed."""

    id: str
    description: str
    status: StepStatus
    result: str | None = None


class TodoChanged(RunEvent):
    """The conversation's to-do list has changed."""

    items: tuple[TodoItem, ...]
    """The whole list."""


class ConfirmationRequested(RunEvent):
    """A human is asked; the run ends as paused."""

    id: str
    kind: ConfirmationKind
    agent: str
    tool: str
    description: str = ""
    """What the tool does, in short."""
    arguments: dict[str, Any]
    hash: str
    reason: str
    rule: str
    risk: Risk
    choices: tuple[str, ...] = ()
    """The answers that are possible; none: any text."""
    expires_at: datetime | None = None
    """Until when a decision counts."""
    on_expiry: OnExpiry = "reject"
    plan: Plan | None = None
    preflight: Preflight | None = None
    """Of a plan: the verdict on each of its steps, and what it will take."""


class RunFailed(RunEvent):
    """The run could not go on; `RunFinished` follows."""

    code: str
    message: str
    retryable: bool = False


class RunFinished(RunEvent):
    """The last event of every stream."""

    status: Status
    finish_reason: str
    output: str
    message_id: str | None = None
    tokens_used: int = 0
    usage: Usage = Usage()
    trace_id: str | None = None


class ConfigReloaded(Frozen):
    """A new generation is live."""

    generation: int
    digest: str
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    """What the agents' files say otherwise, each with its direction."""
    problems: tuple[Problem, ...] = ()


class ConfigRejected(Frozen):
    """Changed files could not be used; what served before still serves."""

    generation: int
    """The one that serves. Where single files are broken, it is a new one with their last good versions; where the edit
    was refused as a whole (strict mode, the gate, agentsd.yaml), it is the same as before."""
    problems: tuple[Problem, ...]


Event = (
    Routed | Thought | ContentReceived | ToolRequested | ToolStarted | ToolFinished | Warned | PlanProposed
    | PlanStepChanged | TodoChanged | ConfirmationRequested | RunFailed | RunFinished
)  # fmt: skip

WIRE_NAMES: dict[type[Frozen], str] = {
    Routed: "route",
    Thought: "thinking",
    ContentReceived: "content",
    ToolRequested: "tool_call",
    ToolStarted: "tool_call",
    ToolFinished: "tool_result",
    Warned: "warning",
    PlanProposed: "plan",
    PlanStepChanged: "plan_step",
    TodoChanged: "todo",
    ConfirmationRequested: "confirm_required",
    RunFailed: "error",
    RunFinished: "done",
    ConfigReloaded: "config_reloaded",
    ConfigRejected: "config_rejected",
}


def wire(event: Event | ConfigReloaded | ConfigRejected) -> dict[str, Any]:
    """The event as JSON data: `{"event": NAME, …payload}`."""
    return {"event": WIRE_NAMES[type(event)], **event.model_dump(mode="json", exclude_none=True)}
