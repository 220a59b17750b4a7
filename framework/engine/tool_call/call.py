"""One tool call, from the model's wish to its answer: admitted, judged, confirmed, done, recorded.

Every step is put down in `state.calls`, so that after a pause or a crash a finished call is never made again, and one
that was in flight is repeated only if its tool is idempotent; otherwise a human is asked what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.engine.context.concurrency import Confirmations
from framework.engine.context.policy import Verdict
from framework.engine.context.run_context import RunContext
from framework.engine.tool_call import argument_repair, hooks
from framework.engine.tool_call.execution import execute
from framework.engine.tool_call.results import INVALID_CALL, record_result
from framework.engine.tool_call.trace import record_decision, trace_call
from framework.llm.openai_format import revalidate_call, unique_calls
from framework.tools.conditions import policy_views
from framework.tools.locations import canonical_arguments
from framework.tools.schema.arguments import ArgumentsError
from framework.tools.tool import Tool
from framework.tools.toolset import Toolset
from framework.types.digest import call_digest, canonical_call, content_digest, matches_digest
from framework.types.errors import ToolError
from framework.types.events import ToolRequested
from framework.types.messages import Message, ToolCall, ToolResult
from framework.types.redact import redact_data
from framework.types.state import (
    Approve,
    CallRecord,
    Confirmation,
    Decision,
    Edit,
    Reject,
    Respond,
    RunState,
)
from framework.types.text import did_you_mean, fix_surrogates

_REJECTED = "User cancelled the operation"
"""The error of a call that a human rejects."""
_ESCAPED_MARKS = str.maketrans("/~?", "___")
"""What the ids of confirmations are made with, of a path and a call's own id."""


def normalize_message(message: Message, state: RunState, toolset: Toolset) -> Message:
    """A model's message as it may be kept: text that can be stored, arguments that are JSON, ids of their own.

    A call that is given twice counts once. Tools that are named as providers name them get their own names. Calls
    without an id, or with one that was used before in this run, get another; so do those with one that could stand for
    what is asked of another call.
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
        unique.append(call if call.id == fresh else call.model_copy(update={"id": fresh}))
    content = fix_surrogates(message.content)
    if content == message.content and not unique:
        return message
    return message.model_copy(update={"content": content, "tool_calls": tuple(unique)})


def _with_tool_name(call: ToolCall, toolset: Toolset) -> ToolCall:
    """The call under its tool's own name: a denied tool is denied also by the name that providers use (`a__b`)."""
    if call.tool in toolset.tools:
        return call
    tool = toolset.by_wire_name(call.tool)
    return call.model_copy(update={"tool": tool.name}) if tool else call


def reserve_calls(run: RunContext, requested: Sequence[ToolCall], *, is_retry: bool = False) -> list[ToolCall]:
    """Count calls against the limits, before any of them is made. Calls that do not fit are answered so.

    Args:
        run: whose calls.
        requested: those of one turn.
        is_retry: the calls are further attempts, which do not count as repeats.

    Returns:
        The calls as they are to be performed: those whose arguments cannot be kept are invalid.

    Raises:
        LimitExceeded: none of them fits, or one was made too often.
    """
    open_calls = run.state.open_calls()  # these were read when their message came in
    requested = [
        call if any(call is open_call for open_call in open_calls) else revalidate_call(call) for call in requested
    ]
    requested = [_with_tool_name(call, run.agent.toolset) for call in requested]
    new = [call for call in requested if call.id not in run.state.calls]
    fitting = 0
    for call in new:
        repeats = 1 if is_retry else run.budget.spend_repeat(call_digest(call.tool, call.arguments))
        fits = run.budget.reserve_call()
        fitting += fits
        run.state.calls[call.id] = CallRecord(call=call, repeats=repeats, result=None if fits else _limit_reached())
    if new and not fitting:
        raise run.budget.calls_exhausted()
    return requested


async def run_call(run: RunContext, call: ToolCall) -> Confirmations:
    """Make an admitted call, unless it has its result already.

    Returns:
        What a human must confirm first; nothing when the call has its result.
    """
    record = run.state.calls[call.id]
    if record.result is not None:
        return ()
    tool = run.agent.toolset.tools.get(call.tool)
    with trace_call(run, call, tool) as trace:
        pending = await _handle(run, call, tool, record)
        trace.set_pending(pending)
    return pending


async def _handle(run: RunContext, call: ToolCall, tool: Tool | None, record: CallRecord) -> Confirmations:
    if tool is None:
        offered = sorted(run.agent.toolset.offered)
        return await record_result(
            run, call, _invalid_call(f"there is no tool {call.tool!r}{did_you_mean(call.tool, offered)}")
        )
    if call.invalid:
        return await record_result(run, call, _invalid_call(f"the arguments cannot be read: {call.invalid}"))
    return await _authorize(run, await argument_repair.repair_call(run, call, tool), tool, record)


async def _authorize(run: RunContext, call: ToolCall, tool: Tool, record: CallRecord) -> Confirmations:
    verdict = run.policy.evaluate(tool, *policy_views(tool, call.arguments))
    if verdict.kind == "deny":
        return await record_result(run, call, _denied(verdict))
    try:
        bound = argument_repair.bind_arguments(tool, call.arguments, run.services.base_path)
    except ArgumentsError as error:
        return await record_result(
            run, call, _invalid_call(error.message, findings=argument_repair.findings_as_data(error))
        )
    except ToolError as error:
        return await record_result(run, call, _tool_error(error))
    if len(seen := policy_views(tool, call.arguments, bound)) > 1:
        verdict = run.policy.evaluate(tool, *seen)
    if verdict.kind == "deny":
        return await record_result(run, call, _denied(verdict))
    if refused := await hooks.before_tool(run, call):
        return await record_result(run, call, refused)
    question = _required_confirmation(run, call, tool, verdict, record)
    if question is None:
        return await _execute_rate_limited(run, call, tool, bound, is_approved=False)
    return await _apply_decision(run, call, tool, bound, question)


async def _execute_rate_limited(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any], *, is_approved: bool
) -> Confirmations:
    """Make a call once its tool's rate allows it, if the rules of then do, too; `asked`: a human has approved it."""
    run.keep_time()
    if await run.services.rate_limiter.wait(tool):
        verdict = run.policy.evaluate(tool, *policy_views(tool, call.arguments, bound))
        if verdict.kind == "deny":
            return await record_result(run, call, _denied(verdict))
        question = None if is_approved else _required_confirmation(run, call, tool, verdict, run.state.calls[call.id])
        if question is not None:
            return await _apply_decision(run, call, tool, bound, question)
    return await execute(run, call, tool, bound)


def _required_confirmation(
    run: RunContext, call: ToolCall, tool: Tool, verdict: Verdict, record: CallRecord
) -> Confirmation | None:
    """What a human must be asked before the call is made, if anything."""
    in_doubt = record.started > 0 and not tool.idempotent
    if verdict.kind != "ask" and not in_doubt:
        return None
    reason, changed = verdict.reason, list[str]()
    arguments = canonical_call(tool.name, call.arguments)
    if record.contract and not matches_digest(record.contract, tool.definition.canonical_json):
        reason = "the tool is not what it was when it was asked about"
        changed.append(tool.definition.canonical_json)
    if record.asked and not matches_digest(record.asked, arguments):
        reason = "its arguments are not what they were when it was asked about"
        changed.append(arguments)
    doubt = f"~{record.started}" if in_doubt else ""
    if in_doubt:
        reason = "it was under way when the process ended: its outcome is unknown"
    key = "/".join((*run.state.path, call.id))
    return Confirmation(
        id=run.confirmation_id(key, changed, end=doubt),
        kind="tool",
        agent=run.agent.name,
        tool=tool.name,
        description=tool.definition.summary,
        arguments=call.arguments,
        hash=content_digest(arguments),
        reason=reason,
        rule=f"{verdict.rule} ({verdict.place})",
        risk=tool.risk,
    )


async def _apply_decision(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any], question: Confirmation
) -> Confirmations:
    decision: Decision | None = run.decision(question.id)
    if decision is not None:
        record_decision(run, question.id, decision)
    match decision:
        case None:
            record = run.state.calls[call.id]
            if not record.contract:  # what was asked about first keeps the plain id: its approval is for that alone
                about = {"contract": tool.contract, "asked": question.hash}
                run.state.calls[call.id] = record.model_copy(update=about)
            await run.emit(ToolRequested, id=call.id, tool=call.tool, arguments=redact_data(call.arguments))
            return (question,)
        case Approve():
            return await _execute_rate_limited(run, call, tool, bound, is_approved=True)
        case Reject(reason=reason):
            reason_text = f"{_REJECTED}: {reason}" if reason else _REJECTED
            return await record_result(
                run, call, ToolResult(status="cancelled", error=reason_text, metadata={"decision": "reject"})
            )
        case Respond(text=text):
            return await record_result(
                run, call, ToolResult(status="success", output=text, metadata={"decision": "respond"})
            )
        case Edit(arguments=arguments):
            return await _execute_edited(run, call, tool, arguments)


async def _execute_edited(run: RunContext, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> Confirmations:
    """A human's arguments instead of the model's: judged as any other call, but not asked about again."""
    canonical = canonical_arguments(tool, arguments, run.services.base_path).arguments
    edited = revalidate_call(call.model_copy(update={"arguments": canonical}))
    seen = policy_views(tool, edited.arguments)
    try:
        bound = argument_repair.bind_arguments(tool, edited.arguments, run.services.base_path)
        problem, seen = "", policy_views(tool, edited.arguments, bound)
    except ToolError as error:
        problem = edited.invalid or error.message
    verdict = run.policy.evaluate(tool, *seen)
    if verdict.kind == "deny":
        return await record_result(run, call, _denied(verdict))
    if problem:
        return await record_result(run, call, ToolResult(status="error", error=f"edited by a human: {problem}"))
    if refused := await hooks.before_tool(run, edited):
        return await record_result(run, call, refused)
    return await _execute_rate_limited(run, edited, tool, bound, is_approved=True)


def _limit_reached() -> ToolResult:
    return ToolResult(status="error", error="not called: this run's limit of tool calls is reached; answer now")


def _invalid_call(message: str, **more: Any) -> ToolResult:
    return ToolResult(
        status="error", error=message, metadata={INVALID_CALL: True, "error_type": "invalid_call", **more}
    )


def _tool_error(error: ToolError) -> ToolResult:
    return ToolResult(status="error", error=error.message, metadata={"error_type": error.code})


def _denied(verdict: Verdict) -> ToolResult:
    message = f"the policy forbids this call: {verdict}"
    return ToolResult(
        status="denied",
        error=message,
        metadata={"error_type": "policy_denied", "rule": verdict.rule, "place": verdict.place},
    )
