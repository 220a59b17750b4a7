"""The lifecycle of one tool call: check limits, evaluate the policy, ask for approval, execute, record.

Each stage is recorded in `state.calls`. After a pause or a crash, a finished call is not executed again, and a call
that was in progress is repeated only if its tool is idempotent; otherwise a person is asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from framework.engine.context.concurrency import Confirmations
from framework.engine.context.policy import Verdict
from framework.engine.context.run_context import RunContext
from framework.engine.tool_call import argument_repair, hooks
from framework.engine.tool_call.execution import execute, preview_call
from framework.engine.tool_call.results import INVALID_CALL, record_result
from framework.engine.tool_call.trace import raised_error_type, record_decision, trace_call
from framework.llm.openai_format import revalidate_call, unique_calls
from framework.tools.conditions import policy_views
from framework.tools.locations import canonical_arguments
from framework.tools.schema.arguments import ArgumentsError
from framework.tools.tool import Tool, idempotency_key
from framework.tools.toolset import Toolset
from framework.types.errors import ToolError
from framework.types.events import ToolRequested
from framework.types.messages import Message, ToolCall, ToolResult
from framework.types.redact import redact_data
from framework.types.state import (
    EXPIRED,
    Approve,
    CallRecord,
    Confirmation,
    Decision,
    Edit,
    Reject,
    Respond,
    RunState,
)
from framework.types.strict_json import canonical_call, content_digest, repetition_key
from framework.types.text import did_you_mean, fix_surrogates

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
    """Execute a reserved call, unless it already has a result.

    Returns:
        The confirmations that are needed first; empty once the call has a result.
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
        return await record_result(run, call, _tool_error(error, tool))
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
    """Execute a call once its tool's rate limit allows it. After a wait, the policy is evaluated again.

    Args:
        run: the run that makes the call.
        call: the call.
        tool: its tool.
        bound: its arguments, as passed to the tool.
        is_approved: a person has approved the call, so no confirmation is requested after the wait.
    """
    if tool.rate:
        run.keep_time()  # a timeout that was lowered must also end the wait
    if tool.rate and await run.services.rate_limiter.wait(tool.name, tool.rate):
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
    """Return the confirmation that is required before the call is executed, or None."""
    in_doubt = record.started > 0 and not tool.idempotent
    if verdict.kind != "ask" and not in_doubt:
        return None
    reason, changed = verdict.reason, list[str]()
    arguments = canonical_call(tool.name, call.arguments)
    if record.contract and record.contract != tool.contract:
        reason = "the tool's definition has changed since approval was requested"
        changed.append(tool.definition.canonical_json)
    if record.asked and record.asked != content_digest(arguments):
        reason = "its arguments have changed since approval was requested"
        changed.append(arguments)
    doubt = f"~{record.started}" if in_doubt else ""
    key = "/".join((*run.state.path, call.id))
    told = idempotency_key(run.state.run_id, key)
    if in_doubt:
        reason = (
            "the process ended during this call: whether it took effect is unknown "
            f"(look it up by the call id {key} or the idempotency key {told})"
        )
    return Confirmation(
        id=run.confirmation_id(key, changed, end=doubt),
        kind="tool",
        agent=run.agent.name,
        tool=tool.name,
        call_id=key,
        idempotency_key=told,
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
            if not record.started:  # a call in doubt may have taken effect, so that it could not succeed again
                preview = await preview_call(run, call, tool, bound)
                if isinstance(preview, ToolResult):
                    return await record_result(run, call, preview)
                question = question.model_copy(update={"preview": preview})
            if not record.contract:  # the first question keeps the plain id; its approval covers these contents only
                about = {"contract": tool.contract, "asked": question.hash}
                run.state.calls[call.id] = record.model_copy(update=about)
            await run.emit(ToolRequested, id=call.id, tool=call.tool, arguments=redact_data(call.arguments))
            return (question,)
        case Approve():
            return await _execute_rate_limited(run, call, tool, bound, is_approved=True)
        case Reject(reason=reason):
            what = "The approval expired" if decision == EXPIRED else _REJECTED
            reason_text = f"{what}: {reason}" if reason else what
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
    """Execute the call with arguments edited by a person. The policy can still deny it; no approval is requested."""
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
        return await record_result(run, call, ToolResult(status="error", error=f"invalid edit by a human: {problem}"))
    if refused := await hooks.before_tool(run, edited):
        return await record_result(run, call, refused)
    return await _execute_rate_limited(run, edited, tool, bound, is_approved=True)


def _limit_reached() -> ToolResult:
    return ToolResult(status="error", error="not called: max_tool_calls is reached; answer now with what you have")


def _invalid_call(message: str, **more: Any) -> ToolResult:
    return ToolResult(
        status="error", error=message, metadata={INVALID_CALL: True, "error_type": "invalid_call", **more}
    )


def _tool_error(error: ToolError, tool: Tool) -> ToolResult:
    return ToolResult(status="error", error=error.message, metadata={"error_type": raised_error_type(error, tool)})


def _denied(verdict: Verdict) -> ToolResult:
    message = f"the policy forbids this call: {verdict}"
    return ToolResult(
        status="denied",
        error=message,
        metadata={"error_type": "policy_denied", "rule": verdict.rule, "place": verdict.place},
    )
