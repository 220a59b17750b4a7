"""Making one call that was admitted and may be made: in its time, tried again where that is harmless, recorded."""

from __future__ import annotations

import asyncio
import logging
import random
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from time import perf_counter
from typing import Any

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call import hooks
from framework.engine.tool_call.plugin_errors import is_failure, questions_in
from framework.engine.tool_call.results import finish, plain, why_unfinished
from framework.engine.tool_call.tool_context import context_of
from framework.telemetry import names
from framework.telemetry.redact import places
from framework.telemetry.span import current
from framework.tools.builtin.notes import TODO
from framework.tools.conditions import views
from framework.tools.plugins.errors import raised_at
from framework.tools.tool import Tool
from framework.types.errors import Paused, ToolError
from framework.types.events import TodoChanged, ToolStarted
from framework.types.messages import ToolCall, ToolResult
from framework.types.redact import redact_data
from framework.types.state import Confirmation
from framework.types.todo import read_items

log = logging.getLogger(__name__)

Confirmations = tuple[Confirmation, ...]
BACKOFF_SECONDS, MOST_BACKOFF_SECONDS = 0.1, 5.0
RAISED_AT = "raised_at"
"""In a result's metadata: `file:line` in the tool's own code, for its author. No model sees it."""
RETRYABLE = "retryable"
"""In a result's metadata: the tool did not say why it failed, so trying again may help."""


async def execute(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> Confirmations:
    """Make the call, and put down its result; its tool's rate allows it.

    Returns:
        What the tool, or a sub-agent, has to ask a human first; nothing when the call has its result.
    """
    run.keep_time()
    run.services.journal.check()
    record = run.state.calls[call.id]
    run.state.calls[call.id] = record.model_copy(update={"started": record.started + 1, "call": call})
    await run.emit(ToolStarted, id=call.id, tool=call.tool, arguments=redact_data(call.arguments))
    await run.save()
    started = perf_counter()
    perform = _delegate if tool.source == "agent" else _try
    todo_before = run.services.root.session.get(TODO) if call.tool == TODO else None
    asked, result = await perform(run, call, tool, bound)
    if asked:
        return asked
    if call.tool == TODO:
        await _report_todo_changes(run, todo_before)
    elapsed = (perf_counter() - started) * 1000
    timed = result.model_copy(update={"elapsed_ms": elapsed})
    changed = await hooks.after_tool(run, call, timed)
    return await finish(run, call, timed if changed is timed else changed.model_copy(update={"elapsed_ms": elapsed}))


async def _try(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> tuple[Confirmations, ToolResult]:
    """Call the tool, again if it may be and that may help."""
    for attempt in count(1):
        try:
            result = await _invoke(run, call, tool, bound)
        except Paused as paused:  # it asks before it acts: to be begun anew, not to be doubted
            record = run.state.calls[call.id]
            run.state.calls[call.id] = record.model_copy(update={"started": record.started - 1})
            return paused.confirmations, ToolResult(status="cancelled")
        if attempt > tool.retries or RETRYABLE not in result.metadata:
            break
        await asyncio.sleep(min(BACKOFF_SECONDS * 2**attempt, MOST_BACKOFF_SECONDS) * random.uniform(0.5, 1))
        await run.services.throttle.wait(tool)
        if run.policy.judge(tool, *views(tool, call.arguments, bound)).kind == "deny":
            break
    if tool.retries:
        current().set_attribute(names.TOOL_ATTEMPTS, attempt)
    return (), result


async def _invoke(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> ToolResult:
    limits = [limit for limit in (tool.timeout, run.budget.limits.tool_timeout) if limit is not None]
    try:
        async with (
            _thread(run, tool) as thread,
            asyncio.timeout(min(limits, default=None)) as deadline,
        ):
            output = plain(await tool.invoke(bound, context_of(run, call), thread))
    except ToolError as error:
        return ToolResult(status="error", error=error.message, metadata={"error_type": error.code})
    except TimeoutError as error:
        if not deadline.expired():
            return _failed(run, tool, error)
        doubt = "" if tool.idempotent else "; whether it took effect is unknown"
        message = f"it did not finish within {min(limits):g}s{doubt}"
        return ToolResult(status="error", error=message, metadata={"error_type": "timeout", RETRYABLE: True})
    except BaseException as error:  # a tool may raise anything; the model is told, and the run goes on
        if asked := [*questions_in(error)]:
            raise Paused(asked) from None
        if not is_failure(error):
            raise
        return _failed(run, tool, error)
    return ToolResult(status="success", output=output)


def _thread(run: RunContext, tool: Tool) -> AbstractAsyncContextManager[Executor | None]:
    """A thread of the run's quota if the tool blocks; none for a coroutine."""
    return run.services.threads.turn(run.services.root.run_id, tool.name) if tool.needs_thread else nullcontext()


async def _delegate(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]
) -> tuple[Confirmations, ToolResult]:
    """Run a sub-agent: the call's arguments are its message and inputs, its answer is the result."""
    name = tool.name.removeprefix("agent.")
    agent = run.services.generation.agents.get(name)
    if agent is None:
        return (), ToolResult(status="error", error=f"the agent {name!r} is not there any more")
    inputs = {key: value for key, value in bound.items() if key != "message"}
    asked, state = await run.delegate(call.id, agent, bound["message"], inputs)
    if asked or state.status == "completed":
        said = state.output if state.data is None else state.data
        return asked, ToolResult(status="success", output=said)
    told = {"error_type": state.finish_reason}
    return (), ToolResult(status="error", error=why_unfinished(state), metadata=told)


def _failed(run: RunContext, tool: Tool, error: BaseException) -> ToolResult:
    """The result of a tool that raised: its text for the model, its place for the tool's author."""
    kind = type(error).__name__
    place = raised_at(error, tool.function)
    if log.isEnabledFor(logging.INFO):
        log.info("run %s: the tool %s raised %s", run.state.run_id, tool.name, places(error))
    try:
        text = f"{kind}: {error}"
    except BaseException:  # noqa: BLE001 - an exception that cannot even say what it is; __str__ may raise anything
        text = kind
    told = {"error_type": kind, RETRYABLE: True, **({RAISED_AT: place} if place else {})}
    return ToolResult(status="error", error=text, metadata=told)


async def _report_todo_changes(run: RunContext, before: Any) -> None:
    """Emit the list if it differs from `before`, the session's value before the call."""
    kept = run.services.root.session.get(TODO)
    if kept != before:
        await run.emit(TodoChanged, items=read_items(kept))
