"""Executes one authorized call: within its timeout, with retries if the tool is idempotent, then records the result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

from framework.engine.context.concurrency import Confirmations
from framework.engine.context.run_context import RunContext
from framework.engine.tool_call import hooks
from framework.engine.tool_call.hooks import confirmations_in, is_plugin_failure
from framework.engine.tool_call.results import describe_output, describe_unfinished, record_result, split_output
from framework.engine.tool_call.tool_context import build_tool_context
from framework.engine.tool_call.trace import raised_error_type
from framework.telemetry import names
from framework.telemetry.redact import places
from framework.telemetry.span import current_span
from framework.tools.builtin.notes import TODO
from framework.tools.conditions import policy_views
from framework.tools.plugins.modules import place_of_error
from framework.tools.tool import HostedOutput, Tool
from framework.types.errors import Paused, ToolError
from framework.types.events import TodoChanged, ToolRequested, ToolStarted
from framework.types.file import File
from framework.types.http import backoff
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, file_size
from framework.types.messages import HOST, ToolCall, ToolResult
from framework.types.plan import read_items
from framework.types.redact import redact_data
from framework.types.text import shorten

log = logging.getLogger(__name__)

RAISED_AT = "raised_at"
"""Key in a result's metadata: `file:line` in the tool's code, for its author. It is not sent to the model."""
_MAX_PREVIEW_CHARS = 20_000
RETRYABLE = "retryable"
"""Key in a result's metadata: the tool broke or timed out, so a retry may help."""


async def execute(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> Confirmations:
    """Execute the call and record its result. The caller has waited for the tool's rate limit.

    Returns:
        The confirmations that the tool, or a sub-agent, requests first; empty once the call has a result.
    """
    run.keep_time()
    run.services.journal.check()
    record = run.state.calls[call.id]
    run.state.calls[call.id] = record.model_copy(update={"started": record.started + 1, "call": call})
    described = {"id": call.id, "tool": call.tool, "arguments": redact_data(call.arguments)}
    if not (record.contract or record.started):  # else it was emitted with the first question, or start
        await run.emit(ToolRequested, **described)
    await run.emit(ToolStarted, **described)
    await run.save()
    started = perf_counter()
    invoke_tool = _delegate if tool.source == "agent" else _call_with_retries
    todo_before = run.services.root.session.get(TODO) if call.tool == TODO else None
    pending, result = await invoke_tool(run, call, tool, bound)
    if pending:
        return pending
    if call.tool == TODO:
        await _report_todo_changes(run, todo_before)
    elapsed = (perf_counter() - started) * 1000
    timed = result.model_copy(update={"elapsed_ms": elapsed})
    changed = await hooks.after_tool(run, call, timed)
    return await record_result(
        run, call, timed if changed is timed else changed.model_copy(update={"elapsed_ms": elapsed})
    )


async def preview_call(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> str | ToolResult:
    """Return what a call would change, for the person who approves it; or the error of a call that cannot succeed.

    If the preview itself fails, the person decides without it.
    """
    if tool.preview is None:
        return ""
    limits = [limit for limit in (tool.timeout, run.budget.limits.tool_timeout) if limit is not None]
    try:
        async with (
            run.services.threads.turn(run.services.root.run_id, tool.name) as thread,
            asyncio.timeout(min(limits, default=None)),
        ):
            return shorten(
                await tool.invoke_preview(bound, partial(build_tool_context, run, call), thread), _MAX_PREVIEW_CHARS
            )
    except ToolError as error:
        return ToolResult(status="error", error=error.message, metadata={"error_type": error.code})
    except BaseException as error:  # a plugin's preview may raise anything
        if not is_plugin_failure(error) and not isinstance(error, TimeoutError):
            raise
        log.info("run %s: the preview of %s failed: %s", run.state.run_id, tool.name, places(error))
        return ""


async def _call_with_retries(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]
) -> tuple[Confirmations, ToolResult]:
    """Call the tool, and retry it as often as it declares, for failures that may be temporary."""
    for attempt in count(1):
        try:
            result = await _invoke(run, call, tool, bound)
        except Paused as paused:  # a tool asks before it acts, so this attempt had no effect
            record = run.state.calls[call.id]
            run.state.calls[call.id] = record.model_copy(update={"started": record.started - 1})
            return paused.confirmations, ToolResult(status="cancelled")
        if attempt > tool.retries or RETRYABLE not in result.metadata:
            break
        await asyncio.sleep(retry_delay(attempt))
        if tool.rate:
            await run.services.rate_limiter.wait(tool.name, tool.rate)
        if run.policy.evaluate(tool, *policy_views(tool, call.arguments, bound)).kind == "deny":
            break
    if tool.retries:
        current_span().set_attribute(names.TOOL_ATTEMPTS, attempt)
    return (), result


def retry_delay(attempt: int) -> float:
    """Return the wait before the call is repeated after `attempt` failures, in seconds."""
    return backoff(attempt, base=0.1, cap=5.0, spread=0.5)


async def _invoke(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> ToolResult:
    limits = [limit for limit in (tool.timeout, run.budget.limits.tool_timeout) if limit is not None]
    try:
        async with (
            _thread(run, tool) as thread,
            asyncio.timeout(min(limits, default=None)) as deadline,
        ):
            context = partial(build_tool_context, run, call)
            returned = await tool.invoke(bound, context, thread)
            is_hosted = isinstance(returned, HostedOutput)
            output, files = split_output(returned.output if is_hosted else returned)
    except ToolError as error:
        return ToolResult(status="error", error=error.message, metadata={"error_type": raised_error_type(error, tool)})
    except TimeoutError as error:
        if not deadline.expired():
            return _failure_result(run, tool, error)
        doubt = "" if tool.idempotent else "; whether it took effect is unknown"
        message = f"timed out after {min(limits):g}s{doubt}"
        return ToolResult(status="error", error=message, metadata={"error_type": "timeout", RETRYABLE: True})
    except BaseException as error:  # a tool may raise anything; the model gets the error, and the run continues
        if pending := [*confirmations_in(error)]:
            raise Paused(pending) from None
        if not is_plugin_failure(error):
            raise
        return _failure_result(run, tool, error)
    if files:
        return await _result_with_files(run, output, files)
    about = {HOST: dict(returned.about)} if is_hosted and returned.about else {}
    return ToolResult(status="success", output=output, metadata=about)


async def _result_with_files(run: RunContext, output: Any, files: Sequence[File]) -> ToolResult:
    """Save the files that a tool returned, and return its result; raises StoreError."""
    if (size := sum(len(file.data) for file in files)) > MAX_REQUEST_MEDIA_BYTES:
        limit = file_size(MAX_REQUEST_MEDIA_BYTES)
        error = f"the tool returned {file_size(size)} of files; at most {limit} are allowed"
        return ToolResult(status="error", error=error, metadata={"error_type": "files_too_large"})
    return ToolResult(status="success", output=output, media=await run.services.media.save(files))


def _thread(run: RunContext, tool: Tool) -> AbstractAsyncContextManager[Executor | None]:
    """Return a thread from the run's quota for a blocking tool; None for a coroutine."""
    return run.services.threads.turn(run.services.root.run_id, tool.name) if tool.needs_thread else nullcontext()


async def _delegate(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]
) -> tuple[Confirmations, ToolResult]:
    """Run a sub-agent: the call's arguments become its message and inputs, its output the result."""
    name = tool.name.removeprefix("agent.")
    agent = run.services.generation.agents.get(name)
    if agent is None:
        return (), ToolResult(status="error", error=f"agent {name!r} no longer exists")
    inputs = {key: value for key, value in bound.items() if key != "message"}
    pending, state = await run.delegate(call.id, agent, bound["message"], inputs)
    if pending or state.status == "completed":
        output = describe_output(state) if state.data is None else state.data
        return pending, ToolResult(status="success", output=output)
    metadata = {"error_type": state.finish_reason}
    return (), ToolResult(status="error", error=describe_unfinished(state), metadata=metadata)


def _failure_result(run: RunContext, tool: Tool, error: BaseException) -> ToolResult:
    """Return the result of a tool that raised: the message for the model, the code location for the tool's author."""
    kind = type(error).__name__
    place = place_of_error(error, tool.function)
    if log.isEnabledFor(logging.INFO):
        log.info("run %s: tool %s raised %s", run.state.run_id, tool.name, places(error))
    try:
        text = f"{kind}: {error}"
    except BaseException:  # noqa: BLE001 - __str__ of a tool's exception may raise anything
        text = kind
    metadata = {"error_type": kind, RETRYABLE: True, **({RAISED_AT: place} if place else {})}
    return ToolResult(status="error", error=text, metadata=metadata)


async def _report_todo_changes(run: RunContext, before: Any) -> None:
    """Emit the to-do list if it differs from `before`, the session's value before the call."""
    after = run.services.root.session.get(TODO)
    if after != before:
        await run.emit(TodoChanged, items=read_items(after))
