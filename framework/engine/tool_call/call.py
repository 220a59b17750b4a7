"""The lifecycle of one tool call: check limits, evaluate the policy, ask for approval, execute, record.

Each stage is recorded in `state.calls`. After a pause or a crash, a finished call is not executed again, and a call
that was in progress is repeated only if its tool is idempotent; otherwise a person is asked first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from operator import is_
from time import perf_counter
from typing import Any

from framework.engine.context.concurrency import Confirmations
from framework.engine.context.run_context import RunContext
from framework.engine.tool_call import hooks
from framework.engine.tool_call.gate import (
    AllowedCall,
    Question,
    RefusedCall,
    Ruling,
    edited_call,
    evaluate_call,
    invalid_call,
    repair_call,
)
from framework.engine.tool_call.hooks import build_tool_context, confirmations_in, is_plugin_failure
from framework.engine.tool_call.results import (
    ToolTrace,
    describe_output,
    describe_unfinished,
    raised_error_type,
    record_decision,
    record_result,
    split_output,
)
from framework.engine.tool_call.run_tools import RUN_TOOLS
from framework.llm.openai_format import revalidate_call, unique_calls
from framework.telemetry import names
from framework.telemetry.redact import places
from framework.telemetry.spans import current_span
from framework.tools.builtin.notes import TODO
from framework.tools.plugins.modules import place_of_error
from framework.tools.tool import HostedOutput, Tool
from framework.tools.toolset import Toolset
from framework.types.errors import Paused, ToolError
from framework.types.events import TodoChanged, ToolRequested, ToolStarted
from framework.types.file import File
from framework.types.http import backoff
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, file_size
from framework.types.messages import HOST, Message, ToolCall, ToolResult
from framework.types.plan import read_items
from framework.types.redact import redact_data
from framework.types.state import EXPIRED, Approve, CallRecord, Edit, Reject, Respond, RunState
from framework.types.strict_json import repetition_key
from framework.types.text import did_you_mean, fix_surrogates, shorten

log = logging.getLogger(__name__)

RAISED_AT = "raised_at"
"""Key in a result's metadata: `file:line` in the tool's code, for its author. It is not sent to the model."""
_MAX_PREVIEW_CHARS = 20_000
RETRYABLE = "retryable"
"""Key in a result's metadata: the tool broke or timed out, so a retry may help."""
_REJECTED = "The user rejected this call"
"""Error of a call that a person rejects."""
_ESCAPED_MARKS = str.maketrans("/~?", "___")
"""Separators in confirmation ids, which must not occur in a call's own id."""


def normalize_message(message: Message, state: RunState, toolset: Toolset) -> Message:
    """Return a model's message in the form that is stored: valid text, arguments as JSON, unique call ids.

    Duplicate calls are removed, and tool names in a provider's spelling replaced by the tools' own names. A misspelt
    name that can mean one offered tool only is repaired, and kept in `state.misspelt` for the report. A call gets a new
    id if its own is empty, was used before in this run, or contains a separator of confirmation ids.
    """
    used = {*state.calls, *(call.id for earlier in state.messages for call in earlier.tool_calls)}
    unique = []
    requested = [_with_tool_name(revalidate_call(call), toolset) for call in unique_calls(message.tool_calls)]
    for index, call in enumerate(requested):
        fresh = call.id.translate(_ESCAPED_MARKS)
        if not fresh or fresh in used:
            fresh = f"{fresh or 'call'}_{len(state.messages)}_{index}"
        while fresh in used:
            fresh += "_"
        used.add(fresh)
        if call.tool not in toolset.tools and (meant := toolset.by_misspelt_name(call.tool)):
            state.misspelt[fresh] = call.tool
            call = call.model_copy(update={"tool": meant.name})
        unique.append(call if call.id == fresh else call.model_copy(update={"id": fresh}))
    content = fix_surrogates(message.content)
    is_same = len(unique) == len(message.tool_calls) and all(map(is_, unique, message.tool_calls))
    if is_same and content == message.content:
        return message
    return message.model_copy(update={"content": content, "tool_calls": tuple(unique)})


def _with_tool_name(call: ToolCall, toolset: Toolset) -> ToolCall:
    """Return the call under its tool's own name, so that rules also match the providers' spelling (`a__b`)."""
    if call.tool in toolset.tools:
        return call
    tool = toolset.by_wire_name(call.tool)
    return call.model_copy(update={"tool": tool.name}) if tool else call


def reserve_calls(run: RunContext, requested: Sequence[ToolCall], *, is_retry: bool = False) -> list[ToolCall]:
    """Count calls against the limits before the first is executed. Calls beyond a limit get an error as their result.

    Args:
        run: the run that makes the calls.
        requested: the calls of one turn.
        is_retry: the calls are further attempts, which do not count as repeats.

    Returns:
        The calls to pass to `run_call`; those whose arguments are not valid JSON are marked as invalid.

    Raises:
        LimitExceeded: no call is within the limits, or one was repeated too often.
    """
    open_calls = run.state.open_calls()  # parsed when their message arrived
    requested = [
        call if any(call is open_call for open_call in open_calls) else revalidate_call(call) for call in requested
    ]
    requested = [_with_tool_name(call, run.agent.toolset) for call in requested]
    new = [call for call in requested if call.id not in run.state.calls]
    fitting = 0
    for call in new:
        repeats = 1 if is_retry else run.budget.spend_repeat(repetition_key(call.tool, call.arguments))
        fits = run.budget.reserve_call()
        fitting += fits
        run.state.calls[call.id] = CallRecord(call=call, repeats=repeats, result=None if fits else _limit_reached())
    if new and not fitting:
        raise run.budget.calls_exhausted()
    return requested


async def run_call(run: RunContext, call: ToolCall) -> Confirmations:
    """Execute a reserved call and record its result, unless it already has one.

    Returns:
        The confirmations that are needed first; empty once the call has a result.
    """
    if run.state.calls[call.id].result is not None:
        return ()
    tool = run.agent.toolset.tools.get(call.tool)
    pending: Confirmations = ()
    with ToolTrace(run, call, tool) as trace:
        if tool is None:
            offered = sorted(run.agent.toolset.offered)
            unknown = f"there is no tool {call.tool!r}{did_you_mean(call.tool, offered)}"
            await record_result(run, call, invalid_call(unknown))
        elif call.invalid:
            await record_result(run, call, invalid_call(f"the arguments cannot be read: {call.invalid}"))
        else:
            call = await repair_call(run, call, tool)
            match await _authorize(run, call, tool):
                case RefusedCall(result):
                    await record_result(run, call, result)
                case Question(confirmation):
                    pending = (confirmation,)
                case AllowedCall(call, bound):
                    pending = await _execute(run, call, tool, bound)
        trace.set_pending(pending)
    return pending


async def _authorize(run: RunContext, call: ToolCall, tool: Tool) -> Ruling:
    """Pass a call through the gate, the hooks, a person's decision and the tool's rate limit.

    Whatever takes time or changes the call leads back to the gate: a hook, an approval, an edit, a wait.
    """
    decision: Approve | Edit | None = None
    seen_by_hooks: ToolCall | None = None
    has_waited = False
    while True:
        ruling = evaluate_call(run, call, tool, decision)
        if isinstance(ruling, RefusedCall):
            return ruling
        if seen_by_hooks is not call:
            if refused := await hooks.before_tool(run, call):
                return RefusedCall(refused)
            seen_by_hooks = call
            if any(True for _ in run.hooks("before_tool")):
                continue
        if isinstance(ruling, AllowedCall):
            if has_waited or not await _wait_for_rate(run, tool):
                return ruling
            has_waited = True
            continue
        answer = await _answer(run, call, tool, ruling)
        if not isinstance(answer, Approve | Edit):
            return answer
        decision = answer
        if isinstance(decision, Edit):
            call = edited_call(run, call, tool, decision)


async def _wait_for_rate(run: RunContext, tool: Tool) -> bool:
    """Wait until the tool's rate limit permits a call; return whether that took time."""
    if not tool.rate:
        return False
    run.keep_time()  # a timeout that was lowered must also end the wait
    return await run.services.rate_limiter.wait(tool.name, tool.rate)


async def _answer(run: RunContext, call: ToolCall, tool: Tool, question: Question) -> Ruling | Approve | Edit:
    """Return a person's decision to execute the call, or the ruling that follows from the lack of one."""
    decision = run.decision(question.confirmation.id)
    if decision is None:
        return await _ask(run, call, tool, question)
    record_decision(run, question.confirmation.id, decision)
    match decision:
        case Respond(text=text):
            return RefusedCall(ToolResult(status="success", output=text, metadata={"decision": "respond"}))
        case Reject(reason=reason):
            what = "The approval expired" if decision == EXPIRED else _REJECTED
            error = f"{what}: {reason}" if reason else what
            return RefusedCall(ToolResult(status="cancelled", error=error, metadata={"decision": "reject"}))
    return decision


async def _ask(run: RunContext, call: ToolCall, tool: Tool, question: Question) -> Ruling:
    """Return the question with a preview of what the call would change, or the error of a call that cannot succeed."""
    record, confirmation = run.state.calls[call.id], question.confirmation
    if not record.started:  # a call in doubt may have taken effect, so that it could not succeed again
        preview = await _preview(run, call, tool, question.bound)
        if isinstance(preview, ToolResult):
            return RefusedCall(preview)
        confirmation = confirmation.model_copy(update={"preview": preview})
    if not record.contract:  # the first question keeps the plain id; its approval covers these contents only
        about = {"contract": tool.contract, "asked": confirmation.hash}
        run.state.calls[call.id] = record.model_copy(update=about)
    await run.emit(ToolRequested, id=call.id, tool=call.tool, arguments=redact_data(call.arguments))
    return replace(question, confirmation=confirmation)


def _limit_reached() -> ToolResult:
    return ToolResult(status="error", error="not called: max_tool_calls is reached; answer now with what you have")


async def _execute(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> Confirmations:
    """Execute an allowed call and record its result; return the confirmations that the tool requests first, if any."""
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
    invoke_tool = {"agent": _delegate, "run": _call_run_tool}.get(tool.source, _call_with_retries)
    todo_before = run.services.root.session.get(TODO) if call.tool == TODO else None
    pending, result = await invoke_tool(run, call, tool, bound)
    if pending:
        return pending
    if call.tool == TODO:
        await _report_todo_changes(run, todo_before)
    elapsed = (perf_counter() - started) * 1000
    timed = result.model_copy(update={"elapsed_ms": elapsed})
    changed = await hooks.after_tool(run, call, timed)
    await record_result(run, call, timed if changed is timed else changed.model_copy(update={"elapsed_ms": elapsed}))
    return ()


async def _preview(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> str | ToolResult:
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
        if isinstance(evaluate_call(run, call, tool, Approve()), RefusedCall):
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
            if thread and isinstance(ruling := evaluate_call(run, call, tool, Approve()), RefusedCall):
                return ruling.result  # denied while it waited for a thread
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


async def _call_run_tool(
    run: RunContext,
    call: ToolCall,  # noqa: ARG001 - the signature is that of `_delegate`
    tool: Tool,
    bound: dict[str, Any],
) -> tuple[Confirmations, ToolResult]:
    """Call a tool that works on the run itself."""
    try:
        return (), ToolResult(status="success", output=await RUN_TOOLS[tool.name](run, **bound))
    except ToolError as error:
        return (), ToolResult(status="error", error=error.message, metadata={"error_type": error.code})


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
