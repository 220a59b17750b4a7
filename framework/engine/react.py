"""The ReAct executor."""

from __future__ import annotations

from framework.engine.run import Run


async def react(run: Run) -> str:
    """Think, act, observe - until the model answers without calling a tool."""
    while True:
        said = run.state.last_reply or await run.ask_model()  # a pause or a crash may have left one
        if not said.tool_calls:
            return said.content
        await run.call_tools(said.tool_calls)
