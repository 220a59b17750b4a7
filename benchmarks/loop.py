"""An agent that calls a tool ten times, with scripted responses, and one that calculates: for several benchmarks."""

from __future__ import annotations

from framework import tool
from framework.llm.client import ModelRequest
from framework.testing import Turn
from framework.types.messages import ToolCall

STEPS = 10
LOOPER = """\
version: 1
name: looper
description: Calls a tool ten times.
model: scripted
instructions: Call the tool ten times, then answer.
skill_policy: {allow: [note]}
runtime_policy: {max_steps: null, max_tool_calls: null, max_total_tokens: null}
"""
CALCULATOR = """\
version: 1
name: calculator
description: Calculates.
model: offline
instructions: Calculate.
skill_policy: {allow: [calculator]}
"""


@tool(risk="low")
async def note(n: int) -> str:
    """Return a note of the number."""
    return f"noted {n}"


def script(request: ModelRequest) -> Turn:
    """Return the next of ten turns with one call each, then the answer. The turn follows from the transcript."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return (ToolCall(id=f"c{turn}", tool="note", arguments={"n": turn}),) if turn < STEPS else "done"
