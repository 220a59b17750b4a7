"""The ReAct executor."""

from __future__ import annotations

from framework.engine.run import Run


async def react(run: Run) -> str:
    """Think, act, observe - until the model answers without calling a tool."""
    while True:
        reply = run.state.last_reply or await run.ask_model()  # a pause or a crash may have left one
        if not reply.tool_calls:
            return reply.content
        await run.call_tools(reply.tool_calls)
