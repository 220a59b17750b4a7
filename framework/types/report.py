"""Parts of a run's result: trace entries, call summaries, statistics, and the reason it stopped or failed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from framework.types.budget import ReachedBudget
from framework.types.frozen import Frozen
from framework.types.text import one_line, visible

_REASON_CHARS = 300
"""Characters of the reason of a step that was not done, where it is shown in words."""


class Action(Frozen):
    """The action that the model chose in a step: a tool call or the final answer."""

    type: Literal["tool", "final"]
    tool: str | None = None
    args: dict[str, Any] | None = None


class TraceEntry(Frozen):
    """One entry of a run's trace: a tool call or the answer."""

    step: int
    """Number of the model turn."""
    agent: str
    """Name of the agent."""
    call_id: str = ""
    """Id of the tool call; empty for an answer."""
    thought: str = ""
    """Text that the model wrote before the action."""
    action: Action
    """Tool call or final answer."""
    observation: str | None = None
    """Text of the result as the model received it."""
    tool_output: Any = None
    """Complete result."""
    elapsed_ms: float = 0.0
    """Duration in milliseconds."""
    timestamp: datetime
    error: str | None = None
    """Error message, if the call failed."""
    repairs: tuple[str, ...] = ()
    """Repairs made to the arguments."""


class ToolStat(Frozen):
    """Number of calls of a tool and their total duration."""

    count: int = 0
    total_ms: float = 0.0
    """Total duration in milliseconds."""


class IncompleteStep(Frozen):
    """A step of a run's plan that was not done."""

    id: str
    description: str
    status: Literal["failed", "skipped"]
    reason: str = ""
    """Error of a failed step, or why it was skipped."""


def incomplete_text(steps: Sequence[IncompleteStep]) -> str:
    """Return which steps were not done, and why, in one line; empty if there are none."""
    each = (f"step {step.id} {step.status}: {visible(one_line(step.reason, _REASON_CHARS))}" for step in steps)
    return f"incomplete: {'; '.join(each)}" if steps else ""


class ErrorInfo(Frozen):
    """The error that a run failed with."""

    code: str
    message: str
    retryable: bool = False
    """Whether the same request may succeed later."""

    def __str__(self) -> str:
        return self.message


class LimitUse(Frozen):
    """The limit that stopped a run."""

    limit: str
    """Key of the limit in the agent file, or `budget`."""
    used: float
    allowed: float
    place: str
    """Place where the limit is set: `file:line`, or the request."""
    budget: ReachedBudget | None = None
    """The shared budget, if it is one."""


class CallSummary(Frozen):
    """A tool call as reported in the result of a run."""

    id: str
    tool: str
    arguments: dict[str, Any]
    result: Any = None
    status: str
    elapsed_ms: float
    host: dict[str, Any] = {}
    """What the host of a skill says of the call: `trace_id` and `meta`, as far as it sent them."""
