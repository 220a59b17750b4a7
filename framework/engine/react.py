"""The ReAct executor."""

from __future__ import annotations

from framework.engine.run import Run


async def react(run: Run) -> str:
    """Call the model and the tools it requests, turn by turn, until it answers without a tool call."""
    while True:
        reply = run.state.last_reply or await run.ask_model()  # a reply may be left from before a pause or a crash
        if not reply.tool_calls:
            return reply.content
        await run.call_tools(reply.tool_calls)
