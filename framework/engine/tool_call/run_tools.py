"""The tools that work on the run itself: `result.read` and `result.search` on results that were too long for the model.

They read results of this run only, by the id of their call. A step of a plan also reads those of the run that it is
part of, whose beginnings it has received; a sub-agent reads only its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call.results import whole_text
from framework.tools.builtin.results import RESULT_READ, RESULT_SEARCH, read_lines, search_lines
from framework.types.errors import ToolError
from framework.types.text import shorten

_INLINE_CHARS = 100_000
"""Length from which on a text is divided in a thread, which takes about 1 ms for each 100,000 characters."""
_SHOWN_ID_CHARS = 80


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


RUN_TOOLS: Mapping[str, Callable[..., Awaitable[str]]] = {RESULT_READ: _read, RESULT_SEARCH: _search}
"""What executes each tool whose source is `run`, by its name: called with the run and the arguments."""
