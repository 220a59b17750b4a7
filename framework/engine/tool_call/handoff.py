"""Handing a conversation over: another agent continues the run, and answers the messages that follow.

The call is alone in its turn, so that no result is lost, and leads to no agent that has worked on the same message.
What moves the conversation is a call with a result in the state: after a crash it is found there, and moved once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from framework.config.agents.compile import HANDOFF
from framework.engine.context.run_context import Confirmations, RunContext
from framework.tools.tool import Tool
from framework.types.events import HandedOff
from framework.types.messages import ToolCall, ToolResult

MAX_HANDOFFS = 3
"""Maximum number of times that a conversation is handed over for one message of the user."""


def refused_handoff(run: RunContext, call: ToolCall, tool: Tool) -> ToolResult | None:
    """Return the result of a call that cannot hand the conversation over; None if it can."""
    name, worked = tool.name.removeprefix(HANDOFF), run.state.handled_by or [run.state.agent]
    agent = run.services.generation.agents.get(name)
    why = ""
    if run.parent is not None:
        why = "only the agent that has the conversation can hand it over"
    elif [one.id for one in run.state.open_calls()] != [call.id]:
        why = "it must be the only call of its turn: call it again without others"
    elif name in worked:
        why = f"{name!r} has worked on this message before: answer it, or ask the user"
    elif len(worked) > MAX_HANDOFFS:
        why = f"this message has been handed over {MAX_HANDOFFS} times, the maximum: answer it, or ask the user"
    elif agent is None or run.services.current_agent(name) is None:
        why = f"there is no agent {name!r} any longer"
    else:
        try:
            agent.inputs_from(run.state.inputs)
        except ValidationError as error:
            detail = error.errors(include_url=False, include_input=False)[0]
            why = f"its input {'.'.join(map(str, detail['loc']))!r} cannot be set: {detail['msg']}"
    if not why:
        return None
    return ToolResult(status="error", error=f"not handed over: {why}", metadata={"error_type": "handoff_refused"})


async def call_handoff(
    run: RunContext,
    call: ToolCall,  # noqa: ARG001 - the signature is that of all that execute a tool in another way than calling it
    tool: Tool,
    bound: dict[str, Any],
) -> tuple[Confirmations, ToolResult]:
    """Return the result of a call that hands the conversation over; `move` follows once it is recorded."""
    name = tool.name.removeprefix(HANDOFF)
    because = f" Its reason: {bound['reason']}" if bound["reason"].strip() else ""
    text = (
        f"{run.agent.name} has handed this conversation over to {name}, which answers now.{because} Until the user's "
        "next message, it can use only tools that both may use."
    )
    return (), ToolResult(status="success", output=text)


def target_of(run: RunContext, requested: Sequence[ToolCall]) -> str | None:
    """Return the agent that the calls of a turn have handed the conversation over to, if any."""
    for call in requested:
        record, tool = run.state.calls[call.id], run.agent.toolset.tools.get(call.tool)
        is_done = record.started and record.result is not None and record.result.status == "success"
        if tool is not None and tool.source == "handoff" and is_done:
            return tool.name.removeprefix(HANDOFF)
    return None


async def move(run: RunContext, target: str) -> None:
    """Let another agent continue the run: it calls its own `before_run` hooks and reads its own context.

    The change is saved together with the result of the call, which is the last message.
    """
    state, origin = run.state, run.agent.name
    state.handled_by = [*(state.handled_by or [state.agent]), target]
    state.admitted, state.background, state.executor, state.added_tools = False, None, "", []
    state.recalled, state.counted = None, (0, 0)
    await run.emit(HandedOff, agent=target, origin=origin)
