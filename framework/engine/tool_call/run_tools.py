"""The tools that work on the run itself: `tool_search`, and `result.read` and `result.search` on long results.

Tools that are found stay in the requests of the run, after the others. Results are read by the id of their call, those
of this run only: a step of a plan also reads the results of the run that it is part of, whose beginnings it has
received; a sub-agent reads only its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from framework.engine.context.run_context import Confirmations, RunContext
from framework.engine.tool_call.results import whole_text
from framework.tools.builtin.notes import RESULT_READ, RESULT_SEARCH, read_lines, search_lines
from framework.tools.tool import Tool
from framework.tools.toolset import TOOL_SEARCH
from framework.types.errors import ToolError
from framework.types.messages import ToolCall, ToolResult
from framework.types.text import shorten

_INLINE_CHARS = 100_000
"""Length from which on a text is divided in a thread, which takes about 1 ms for each 100,000 characters."""
_SHOWN_ID_CHARS, _SHOWN_WORDS_CHARS = 80, 200
_MAX_FOUND_CHARS = 40_000
"""Maximum size of the definitions that one search adds to requests, but for the first: about 10,000 tokens."""
_LEFT_OUT = " (its definition is not shown, for lack of room; it can be called)"


async def _read(run: RunContext, id: str, start: int, lines: int) -> str:
    text, limit = _result_text(run, id), run.budget.limits.max_observation_chars
    return await _off_loop(text, partial(read_lines, text, start, lines, limit))


async def _search(run: RunContext, id: str, text: str) -> str:
    whole, limit = _result_text(run, id), run.budget.limits.max_observation_chars
    return await _off_loop(whole, partial(search_lines, whole, text, limit))


async def _off_loop(text: str, function: Callable[[], str]) -> str:
    return await asyncio.to_thread(function) if len(text) > _INLINE_CHARS else function()


def _result_text(run: RunContext, call_id: str) -> str:
    """Return the whole result of a call of this run, as text; raise ToolError if there is none."""
    holder: RunContext | None = run
    while holder is not None and holder.agent.name == run.agent.name:
        record = holder.state.calls.get(call_id)
        if record is not None and record.result is not None:
            return whole_text(holder, record.call.tool, record.result)
        holder = holder.parent
    message = f"this run has no result {shorten(call_id, _SHOWN_ID_CHARS)!r}"
    raise ToolError(f"{message}: results of earlier runs and of other agents cannot be read; call their tool again")


async def _search_tools(run: RunContext, words: str) -> str:
    toolset, searchable = run.agent.toolset, run.searchable_tools()
    found = await asyncio.to_thread(toolset.find_deferred, words, searchable)
    if not found:
        return f"no tool fits {shorten(words, _SHOWN_WORDS_CHARS)!r}: try other words, such as a verb and a thing"
    definitions, chars, fitting = [toolset.tools[name].definition for name in found], 0, list[str]()
    for definition in definitions:
        chars += len(definition.canonical_json)
        if not fitting or chars <= _MAX_FOUND_CHARS:
            fitting.append(definition.name)
    run.add_tools(fitting)
    there = {*run.state.added_tools, *(definition.name for definition in run.tool_definitions())}
    if toolset.in_code_mode:
        shown = [function.text() for function in toolset.functions.values() if function.tool in {*found} & there]
        return "\n\n".join(("Scripts can call these functions now:", *shown))
    lines = [f"- {one.wire_name}: {one.summary}{'' if one.name in there else _LEFT_OUT}" for one in definitions]
    return "\n".join(("You can call these tools now:", *lines))


_RUN_TOOLS: Mapping[str, Callable[..., Awaitable[str]]] = {
    RESULT_READ: _read,
    RESULT_SEARCH: _search,
    TOOL_SEARCH: _search_tools,
}
"""What executes each tool whose source is `run`, by its name: called with the run and the arguments."""


async def call_run_tool(
    run: RunContext,
    call: ToolCall,  # noqa: ARG001 - the signature is that of all that execute a tool in another way than calling it
    tool: Tool,
    bound: dict[str, Any],
) -> tuple[Confirmations, ToolResult]:
    """Call a tool that works on the run itself."""
    try:
        return (), ToolResult(status="success", output=await _RUN_TOOLS[tool.name](run, **bound))
    except ToolError as error:
        return (), ToolResult(status="error", error=error.message, metadata={"error_type": error.code})
