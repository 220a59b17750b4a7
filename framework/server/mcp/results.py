"""Results of runs as results of MCP tools, and events as progress messages."""

from __future__ import annotations

from typing import Any

from mcp.types import CallToolResult, TextContent

from framework.server.wording import confirmations_text, reason_text
from framework.types import events
from framework.types.report import incomplete_text
from framework.types.state import RunResult
from framework.types.text import one_line, visible

_PROGRESS_CHARS = 200
_META = "agentsd/"
"""Prefix of our keys in the metadata of results."""


def tool_result(result: RunResult, how_to_decide: str) -> CallToolResult:
    """Return the result of a run as a tool result.

    Args:
        result: the run's result. A run that failed, was stopped or is paused is an error with its reason in words.
        how_to_decide: what to do if the run is paused.
    """
    if result.pending:
        text = (
            f"{confirmations_text(result.pending)}\n\nThe run {result.run_id} waits for this decision. {how_to_decide}"
        )
    else:
        is_text = result.status == "completed" and result.data is None
        notes = (reason_text(result), incomplete_text(result.incomplete) if is_text else "")
        text = "\n\n".join(part for part in (result.output, *notes) if part)
    is_error = result.status != "completed"
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=None if is_error else result.data,
        is_error=is_error,
        _meta=result_meta(result),
    )


def result_meta(result: RunResult) -> dict[str, Any]:
    """Return the metadata of a result: ids with which other interfaces find the run."""
    keys = ("run_id", "conversation_id", "status", "finish_reason", "agent", "digest", "trace_id")
    meta = {f"{_META}{key}": value for key in keys if (value := getattr(result, key)) is not None}
    if result.incomplete:
        meta[f"{_META}incomplete"] = [step.model_dump() for step in result.incomplete]
    return meta


def error_result(message: str) -> CallToolResult:
    """Return the result of a call that could not start a run."""
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)


def progress_text(event: events.Event) -> str | None:
    """Return an event as one line that clients show during a call; None for events that are not shown."""
    match event:
        case events.Routed(agent=agent):
            text = agent
        case events.ToolStarted(tool=tool, progress=None):
            text = f"{tool} …"
        case events.ToolStarted(tool=tool, progress=float(progress), message=message):
            text = f"{tool} {progress:.0%} {message or ''}"
        case events.ToolFinished(tool=tool, status=status):
            text = f"{tool}: {status}"
        case events.PlanProposed(revision=revision, steps=steps):
            text = f"plan {revision}: {'; '.join(step.description for step in steps)}"
        case events.PlanStepChanged(id=step, status=status, description=description):
            text = f"step {step} {status}: {description}"
        case events.Warned(message=message):
            text = f"warning: {message}"
        case _:
            return None
    return visible(one_line(text, _PROGRESS_CHARS))
