"""What a run reports of its steps, its tool calls and its end."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from framework.types.frozen import Frozen


class Action(Frozen):
    """What the model chose to do in a step."""

    type: Literal["tool", "final"]
    tool: str | None = None
    args: dict[str, Any] | None = None


class TraceEntry(Frozen):
    """One line of a run's trace."""

    step: int
    agent: str
    call_id: str = ""
    """Id of the tool call; empty for an answer."""
    thought: str = ""
    action: Action
    observation: str | None = None
    """What the model saw of the result."""
    tool_output: Any = None
    """The uncut result."""
    elapsed_ms: float = 0.0
    timestamp: datetime
    error: str | None = None
    repairs: tuple[str, ...] = ()
    """What was put right in the arguments."""


class ToolStat(Frozen):
    """How often a tool was called, and for how long altogether."""

    count: int = 0
    total_ms: float = 0.0


class ErrorInfo(Frozen):
    """Why a run failed."""

    code: str
    message: str
    retryable: bool = False


class LimitUse(Frozen):
    """The limit that stopped a run."""

    limit: str
    """Its key in the agent file."""
    used: float
    allowed: float
    place: str
    """Where it is set: `file:line`, or the request."""


class CallSummary(Frozen):
    """One tool call, as the caller sees it."""

    id: str
    tool: str
    arguments: dict[str, Any]
    result: Any = None
    status: str
    elapsed_ms: float
