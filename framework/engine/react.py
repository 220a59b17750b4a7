"""The ReAct executor."""

from __future__ import annotations

from framework.engine.run import Run


async def react(run: Run) -> str:
    """Think, act, observe - until the model answers without calling a tool."""
    while True:
        calls = run.state.open_calls()  # left over from a pause or a crash
        if not calls:
            reply = await run.ask_model()
            if not reply.tool_calls:
                return reply.content
            calls = reply.tool_calls
        await run.call_tools(calls)
