"""One tool call, from the model's wish to its answer: admitted, judged, confirmed, done, recorded.

Every step is put down in `state.calls`, so that after a pause or a crash a finished call is never made again, and one
that was in flight is repeated only if its tool is idempotent; otherwise a human is asked what came of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from framework.engine.policy import Verdict
from framework.engine.results import WRONG_CALL, finish, plain
from framework.telemetry import names
from framework.telemetry.redact import redact
from framework.telemetry.spans import fail
from framework.tools.arguments import ArgumentsError
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ToolError, did_you_mean
from framework.types.events import ToolRequested, ToolStarted
from framework.types.messages import Message, ToolCall, ToolResult
from framework.types.state import (
    Approve,
    CallRecord,
    Confirmation,
    Decision,
    Edit,
    Reject,
    Respond,
    RunState,
    arguments_hash,
)

if TYPE_CHECKING:
    from framework.engine.run import Run


def with_unique_ids(message: Message, state: RunState) -> Message:
    """Give calls without an id, or with one that was used before in this run, an id of their own."""
    used = {call.id for earlier in state.messages for call in earlier.tool_calls}
    unique = []
    for index, call in enumerate(message.tool_calls):
        fresh = call.id if call.id and call.id not in used else f"{call.id or 'call'}_{len(state.messages)}_{index}"
        used.add(fresh)
        unique.append(call if call.id == fresh else call.model_copy(update={"id": fresh}))
    return message.model_copy(update={"tool_calls": tuple(unique)}) if unique else message


def admit(run: Run, requested: Sequence[ToolCall]) -> None:
    """Count calls against the limits, before any of them is made. Calls that do not fit are answered so.

    Raises:
        LimitExceeded: none of them fits, or one was made too often.
    """
    new = [call for call in requested if call.id not in run.state.calls]
    fitting = 0
    for call in new:
        repeats = run.budget.spend_repeat(arguments_hash(call.tool, call.arguments))
        fits = run.budget.spend_call()
        fitting += fits
        refusal = ToolResult(status="error", error="not called: this run's limit of tool calls is reached; answer now")
        run.state.calls[call.id] = CallRecord(call=call, repeats=repeats, result=None if fits else refusal)
    if new and not fitting:
        raise run.budget.no_calls_left()


async def perform(run: Run, call: ToolCall) -> tuple[Confirmation, ...]:
    """Make an admitted call, unless it has its result already.

    Returns:
        What a human must confirm first; nothing when the call has its result.
    """
    record = run.state.calls[call.id]
    if record.result is not None:
        return ()
    tool = run.agent.toolset.tools.get(call.tool)
    if tool is None:
        known = sorted(run.agent.toolset.offered)
        return await finish(run, call, _wrong(f"there is no tool {call.tool!r}{did_you_mean(call.tool, known)}"))
    if call.invalid:
        return await finish(run, call, _wrong(f"the arguments cannot be read: {call.invalid}"))
    return await _judge(run, call, tool, record)


async def _judge(run: Run, call: ToolCall, tool: Tool, record: CallRecord) -> tuple[Confirmation, ...]:
    verdict = run.policy.judge(tool, tool.with_defaults(call.arguments))
    if verdict.kind == "deny":
        return await finish(run, call, _denied(verdict))
    try:
        bound = tool.bind(call.arguments)
    except ArgumentsError as error:
        return await finish(run, call, _wrong(error.message))
    question = _question(run, call, tool, verdict, record)
    if question is None:
        return await _execute(run, call, tool, bound)
    return await _decide(run, call, tool, bound, question)


def _question(run: Run, call: ToolCall, tool: Tool, verdict: Verdict, record: CallRecord) -> Confirmation | None:
    """What a human must be asked before the call is made, if anything."""
    in_doubt = record.started > 0 and not tool.idempotent
    if verdict.kind != "ask" and not in_doubt:
        return None
    key, reason = "/".join((*run.state.path, call.id)), verdict.reason
    if record.contract not in ("", tool.contract):
        key, reason = f"{key}~{tool.contract}", "the tool is not what it was when it was asked about"
    if in_doubt:
        key, reason = f"{key}~{record.started}", "it was under way when the process ended: its outcome is unknown"
    return Confirmation(
        id=key,
        kind="tool",
        agent=run.agent.name,
        tool=tool.name,
        arguments=call.arguments,
        hash=arguments_hash(tool.name, call.arguments),
        reason=reason,
        rule=f"{verdict.rule} ({verdict.place})",
        risk=tool.risk,
    )


async def _decide(
    run: Run, call: ToolCall, tool: Tool, bound: dict[str, Any], question: Confirmation
) -> tuple[Confirmation, ...]:
    decision: Decision | None = run.decision(question.id)
    match decision:
        case None:
            asked = run.state.calls[call.id].model_copy(update={"contract": tool.contract})
            run.state.calls[call.id] = asked
            await run.emit(ToolRequested, id=call.id, tool=call.tool, arguments=call.arguments)
            return (question,)
        case Approve():
            return await _execute(run, call, tool, bound)
        case Reject(reason=reason):
            told = f"a human rejected the call{': ' + reason if reason else ''}"
            return await finish(run, call, ToolResult(status="denied", error=told, metadata={"decision": "reject"}))
        case Respond(text=text):
            return await finish(run, call, ToolResult(status="success", output=text, metadata={"decision": "respond"}))
        case Edit(arguments=arguments):
            return await _execute_edited(run, call, tool, arguments)


async def _execute_edited(run: Run, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> tuple[Confirmation, ...]:
    """A human's arguments instead of the model's: judged as any other call, but not asked about again."""
    verdict = run.policy.judge(tool, tool.with_defaults(arguments))
    if verdict.kind == "deny":
        return await finish(run, call, _denied(verdict))
    try:
        bound = tool.bind(arguments)
    except ArgumentsError as error:
        return await finish(run, call, ToolResult(status="error", error=f"edited by a human: {error.message}"))
    return await _execute(run, call.model_copy(update={"arguments": arguments}), tool, bound)


async def _execute(run: Run, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> tuple[Confirmation, ...]:
    run.keep_time()
    record = run.state.calls[call.id]
    run.state.calls[call.id] = record.model_copy(update={"started": record.started + 1, "call": call})
    await run.save()
    await run.emit(ToolStarted, id=call.id, tool=call.tool, arguments=call.arguments)
    attributes = {
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: tool.name,
        names.TOOL_CALL_ID: call.id,
        names.TOOL_TYPE: "function",
        names.TOOL_SOURCE: tool.source,
        names.TOOL_RISK: tool.risk,
    }
    with run.span(f"execute_tool {tool.name}", "TOOL", attributes) as span:
        started = perf_counter()
        try:
            if tool.source == "agent":
                asked, result = await _delegate(run, call, bound)
            else:
                asked, result = (), await _invoke(run, call, tool, bound)
        except asyncio.CancelledError:
            fail(span, "cancelled")
            raise
        span.set_attribute(names.TOOL_OUTCOME, "waiting" if asked else result.status)
        if not asked and result.status != "success":
            fail(span, str(result.metadata.get("error_type", "tool_error")))
    if asked:
        return asked
    elapsed = (perf_counter() - started) * 1000
    return await finish(run, call, result.model_copy(update={"elapsed_ms": elapsed}))


async def _invoke(run: Run, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> ToolResult:
    limits = [limit for limit in (tool.timeout, run.budget.limits.tool_timeout) if limit is not None]
    try:
        async with asyncio.timeout(min(limits, default=None)) as deadline:
            output = plain(await tool.invoke(bound, _context(run, call), run.services.threads))
    except ToolError as error:
        return ToolResult(status="error", error=redact(error.message), metadata={"error_type": error.code})
    except TimeoutError as error:
        if not deadline.expired():
            return _failed(error)
        doubt = "" if tool.idempotent else "; whether it took effect is unknown"
        message = f"it did not finish within {min(limits):g}s{doubt}"
        return ToolResult(status="error", error=message, metadata={"error_type": "timeout"})
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the model is told, and the run goes on
        return _failed(error)
    return ToolResult(status="success", output=output)


async def _delegate(run: Run, call: ToolCall, bound: dict[str, Any]) -> tuple[tuple[Confirmation, ...], ToolResult]:
    """Run a sub-agent: the call's arguments are its message and inputs, its answer is the result."""
    name = call.tool.removeprefix("agent.")
    agent = run.services.generation.agents.get(name)
    if agent is None:
        return (), ToolResult(status="error", error=f"the agent {name!r} is not there any more")
    inputs = {key: value for key, value in bound.items() if key != "message"}
    child = run.child(call.id, agent, bound["message"], inputs)
    asked = await child.drive()
    if asked or child.state.status == "completed":
        return asked, ToolResult(status="success", output=child.state.output)
    why = child.state.error.message if child.state.error else f"it was stopped by {child.state.finish_reason}"
    partial = f"; what it has so far: {child.state.output}" if child.state.output else ""
    return (), ToolResult(status="error", error=why + partial, metadata={"error_type": child.state.finish_reason})


def _context(run: Run, call: ToolCall) -> ToolContext:
    async def progress(fraction: float, message: str) -> None:
        head = {"id": call.id, "tool": call.tool, "arguments": call.arguments}
        await run.emit(ToolStarted, **head, progress=fraction, message=message)

    return ToolContext(
        run_id=run.state.run_id,
        call_id="/".join((*run.state.path, call.id)),
        agent=run.agent.name,
        base_path=run.services.base_path,
        deps=run.services.deps,
        locale=run.state.locale,
        user=run.state.user,
        tenant=run.state.tenant,
        metadata=run.services.root.metadata,
        progress=progress,
    )


def _wrong(message: str) -> ToolResult:
    return ToolResult(status="error", error=message, metadata={WRONG_CALL: True, "error_type": "invalid_call"})


def _denied(verdict: Verdict) -> ToolResult:
    told = f"the policy forbids this call: {verdict}"
    return ToolResult(
        status="denied",
        error=told,
        metadata={"error_type": "policy_denied", "rule": verdict.rule, "place": verdict.place},
    )


def _failed(error: Exception) -> ToolResult:
    kind = type(error).__name__
    try:
        text = f"{kind}: {error}"
    except Exception:  # noqa: BLE001 - an exception that cannot even say what it is
        text = kind
    return ToolResult(status="error", error=redact(text), metadata={"error_type": kind})
