"""What comes of tool calls: recorded once, told to whoever listens, put into the conversation in the calls' order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from framework.config.templates.prompts import PromptError
from framework.engine.context.run_context import RunContext
from framework.types.events import ToolFinished
from framework.types.messages import REFUSED_STATUSES, Message, ToolCall, ToolResult
from framework.types.redact import redact
from framework.types.report import Action, ToolStat, TraceEntry
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond, RunState
from framework.types.strict_json import MAX_JSON_DEPTH, nesting_depth
from framework.types.text import fix_surrogates

_MAX_OUTPUT_DEPTH = MAX_JSON_DEPTH
INVALID_CALL = "wrong_call"
"""In a result's metadata: the model named a tool that is not there, or gave arguments that do not fit."""


async def record_result(run: RunContext, call: ToolCall, result: ToolResult) -> tuple[Confirmation, ...]:
    """Record a call's result: from here on it is never made again."""
    state = run.state
    record = state.calls[call.id]
    if result.error:
        result = result.model_copy(update={"error": fix_surrogates(redact(result.error))})
    state.calls[call.id] = record.model_copy(update={"result": result})
    if call.tool in run.agent.toolset.tools:  # else it is a word of the model's, and the log lists these names
        stat = state.tool_stats.get(call.tool) or ToolStat()
        state.tool_stats[call.tool] = ToolStat(count=stat.count + 1, total_ms=stat.total_ms + result.elapsed_ms)
    text = observation(run, call.tool, result)
    state.trace.append(_trace_entry(run, call, result, text))
    ended = {"status": result.status, "error": result.error, "elapsed_ms": result.elapsed_ms}
    await run.emit(ToolFinished, id=call.id, tool=call.tool, result=text, **ended)
    await run.save()
    if record.repeats == run.budget.limits.max_repeated_calls:
        warning = f"{call.tool} was called {record.repeats} times with the same arguments"
        await run.warn("max_repeated_calls", warning)
    return ()


def append_tool_messages(run: RunContext, requested: Sequence[ToolCall]) -> None:
    """Put the results of a turn into the conversation, in the order they were asked for.

    Raises:
        LimitExceeded: too many turns in a row had a wrong call.
    """
    state = run.state
    records = [state.calls[call.id] for call in requested]
    for call, record in zip(requested, records, strict=True):
        assert record.result is not None
        text = observation(run, call.tool, record.result)
        if record.repeats == run.budget.limits.max_repeated_calls:
            text += f"\n(You made this very call {record.repeats} times. Do not repeat it; use what you have.)"
        state.messages.append(tool_message(run, call, record.result, text))
    if any(record.result and INVALID_CALL in record.result.metadata for record in records):
        run.budget.spend_correction()
    else:
        state.corrections = 0


def partial_output(state: RunState) -> str:
    """What a run that could not finish has to show: its answer, done plan steps, or the model's last words."""
    if state.plan is not None:
        if (answer := state.last_reply) and not answer.tool_calls:
            return answer.content
        return "\n".join(step.result for step in state.plan.steps if step.status == "done" and step.result)
    said = (message.content for message in reversed(state.messages) if message.role == "assistant")
    return next((text for text in said if text), "")


def describe_unfinished(state: RunState) -> str:
    """Why a sub-run did not complete, and what it has so far."""
    why = state.error.message if state.error else f"it was stopped by {state.finish_reason}"
    return f"{why}; what it has so far: {state.output}" if state.output else why


def answer_open_calls(run: RunContext) -> None:
    """Answer what the last turn asked for before its run ended, for providers refuse a call without an answer.

    The steps of a plan get their end, too.
    """
    for call in run.state.open_calls():
        record = run.state.calls.get(call.id)
        result = (record and record.result) or ToolResult(
            status="error", error=f"not finished: the run was ended by {run.state.finish_reason}"
        )
        run.state.messages.append(tool_message(run, call, result, observation(run, call.tool, result)))
    if run.state.plan is not None:
        run.state.plan = run.state.plan.ended(f"not finished: the run was ended by {run.state.finish_reason}")


def tool_message(run: RunContext, call: ToolCall, result: ToolResult, text: str) -> Message:
    """The answer to a call as the conversation keeps it: with how the call ended, and what a human said about it."""
    key = "/".join((*run.state.path, call.id))
    decision = _decision_text(run.services.root.decisions, key)
    return Message(role="tool", tool_call_id=call.id, content=text, status=result.status, decision=decision)


def _decision_text(decisions: Mapping[str, Decision], key: str) -> str | None:
    """What a human said about a call, in words; the last word, if they were asked again."""
    about = [found for asked, found in decisions.items() if asked == key or asked.startswith((f"{key}~", f"{key}?"))]
    match about[-1] if about else None:
        case None:
            return None
        case Edit(arguments=arguments):
            return f"edit: {json.dumps(arguments, ensure_ascii=False)}"
        case Reject(reason=text) | Respond(text=text):
            return f"{about[-1].type}: {text}" if text else about[-1].type
        case Approve():
            return "approve"


def observation(run: RunContext, tool: str, result: ToolResult) -> str:
    """A result as the model sees it: text, or JSON; cut at `max_observation_chars`."""
    if result.status in REFUSED_STATUSES:
        text = f"{result.status.capitalize()}: {result.error}"
    elif result.status != "success":
        text = _error_text(run, tool, result)
    elif isinstance(result.output, str):
        text = result.output
    else:
        text = json.dumps(result.output, ensure_ascii=False)
    limit = run.budget.limits.max_observation_chars
    return text if len(text) <= limit else f"{text[:limit]}\n… ({len(text) - limit} more characters)"


def _error_text(run: RunContext, tool: str, result: ToolResult) -> str:
    message, told = result.error or "", result.metadata
    variables = {"tool": tool, "message": message, "hint": told.get("hint"), "findings": told.get("findings", [])}
    try:
        return run.agent.prompts.render("error.j2", run.state.locale, variables)
    except PromptError:  # a project's own error.j2 must not turn a tool's failure into the run's
        return f"Error: {tool} failed: {message}"


def record_final_answer(run: RunContext, message: Message) -> None:
    """The trace's line for a turn that called no tool."""
    run.state.trace.append(
        TraceEntry(
            step=run.state.steps,
            agent=run.agent.name,
            thought=message.content,
            action=Action(type="final"),
            timestamp=datetime.now(UTC),
        )
    )


def replace_answer(run: RunContext, text: str) -> None:
    """Put what a hook made of the answer in its place: nobody sees what was there, not in later turns either."""
    messages, trace = run.state.messages, run.state.trace
    if messages[-1].role == "assistant" and not messages[-1].tool_calls:
        messages[-1] = messages[-1].model_copy(update={"content": text, "reasoning": None})
    if trace and trace[-1].action.type == "final":
        trace[-1] = trace[-1].model_copy(update={"thought": text})


def _trace_entry(run: RunContext, call: ToolCall, result: ToolResult, text: str) -> TraceEntry:
    said = next((m.content for m in reversed(run.state.messages) if m.role == "assistant"), "")
    return TraceEntry(
        step=run.state.steps,
        agent=run.agent.name,
        call_id=call.id,
        thought=said,
        action=Action(type="tool", tool=call.tool, args=call.arguments),
        observation=text,
        tool_output=result.output,
        elapsed_ms=result.elapsed_ms,
        timestamp=datetime.now(UTC),
        error=result.error,
        repairs=run.state.calls[call.id].repairs,
    )


def to_json(output: Any) -> Any:
    """A tool's return value as JSON data; what JSON cannot hold, or a store cannot nest, becomes text."""
    if isinstance(output, BaseModel):
        return output.model_dump(mode="json")
    if isinstance(output, str):
        return output.encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored or sent
    text = json.dumps("" if output is None else output, default=str, ensure_ascii=False).encode("utf-8", "replace")
    data = json.loads(text)
    return data if nesting_depth(data) <= _MAX_OUTPUT_DEPTH else text.decode()
