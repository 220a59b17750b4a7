"""Results of tool calls, and the plugin hooks around runs and calls.

A result is recorded once, emitted as an event, and appended to the conversation in the calls' order. Any exception in a
hook is a refusal: a hook that fails lets nothing through.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from itertools import count
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn, Self

from pydantic import BaseModel

from framework.config.templates.prompts import PromptError
from framework.engine.context.run_context import RunContext
from framework.telemetry import names
from framework.telemetry.redact import safe_traceback
from framework.telemetry.spans import NOOP_SPAN, PluginSpan, current_span, plugin_attributes, record_pending
from framework.tools.builtin.notes import ASK_USER, RESULT_READ, RESULT_SEARCH, TODO, next_line
from framework.tools.declaration import Extension
from framework.tools.skills import SKILL_RUN
from framework.tools.tool import Inquiry, Session, Tool, ToolContext, ToolSpan, idempotency_key, source_of
from framework.types.errors import Paused, Refused, ToolError
from framework.types.events import GrantUsed, TodoChanged, ToolFinished, ToolRequested, ToolStarted
from framework.types.file import File
from framework.types.media import TextPart
from framework.types.messages import HOST, REFUSED_STATUSES, Message, ToolCall, ToolResult
from framework.types.plan import read_items
from framework.types.redact import redact, redact_data
from framework.types.report import Action, ToolStat, TraceEntry
from framework.types.state import CLIENT_RESULT, Approve, Confirmation, Decision, Edit, Reject, Respond, RunState
from framework.types.text import MAX_JSON_DEPTH, call_digest, fix_surrogates, nesting_depth

log = logging.getLogger(__name__)


_MAX_OUTPUT_DEPTH = MAX_JSON_DEPTH
_CUT_NOTE = "(This answer was cut at the output limit: its end is missing.)"
MAX_RESULT_BYTES, MAX_KEPT_BYTES = 10_000_000, 50_000_000
"""What is kept of one result that is too long for the model, and of all those of a run: the starts."""
DROPPED = "dropped_bytes"
"""Key in a result's metadata: size of the end that is not kept."""
INVALID_CALL = "wrong_call"
"""Key in a result's metadata: the model named a tool that does not exist, or passed invalid arguments."""


async def record_result(run: RunContext, call: ToolCall, result: ToolResult) -> None:
    """Record and emit a call's result. A call with a recorded result is not executed again."""
    state = run.state
    record = state.calls[call.id]
    if result.error:
        result = result.model_copy(update={"error": fix_surrogates(redact(result.error))})
    result = _kept(run, call, result)
    state.calls[call.id] = record.model_copy(update={"result": result, "continuation": {}})
    if call.tool in run.agent.toolset.tools:  # a name that the model made up must not reach the log
        stat = state.tool_stats.get(call.tool) or ToolStat()
        state.tool_stats[call.tool] = ToolStat(count=stat.count + 1, total_ms=stat.total_ms + result.elapsed_ms)
    text = observation(run, call, result)
    state.trace.append(_trace_entry(run, call, result, text))
    decision = "respond" if result.metadata.get("decision") == "respond" else None
    ended = {"status": result.status, "error": result.error, "decision": decision, "elapsed_ms": result.elapsed_ms}
    await run.emit(ToolFinished, id=call.id, tool=call.tool, result=text, **ended)
    await run.save()
    if record.repeats == run.budget.limits.max_repeated_calls:
        warning = f"{call.tool} was called {record.repeats} times with the same arguments"
        await run.warn("max_repeated_calls", warning)


def append_tool_messages(run: RunContext, requested: Sequence[ToolCall]) -> None:
    """Append the results of a turn to the conversation, in the order of the calls.

    Raises:
        LimitExceeded: too many consecutive turns contained an invalid call.
    """
    state = run.state
    records = [state.calls[call.id] for call in requested]
    for call, record in zip(requested, records, strict=True):
        assert record.result is not None
        text = observation(run, call, record.result)
        if record.repeats == run.budget.limits.max_repeated_calls:
            text += f"\n(You made this exact call {record.repeats} times. Do not repeat it; use what you have.)"
        state.messages.append(tool_message(run, call, record.result, text))
    if any(record.result and INVALID_CALL in record.result.metadata for record in records):
        run.budget.spend_correction()
    else:
        state.corrections = 0


def partial_output(state: RunState) -> str:
    """Return the output of a run that did not finish: its answer, results of plan steps, or the model's last text."""
    if state.plan is not None:
        if (answer := state.last_reply) and not answer.tool_calls:
            return answer.content
        return "\n".join(step.result for step in state.plan.steps if step.status == "done" and step.result)
    said = (message.content for message in reversed(state.messages) if message.role == "assistant")
    return next((text for text in said if text), "")


def describe_output(state: RunState) -> str:
    """Return the output of a completed sub-run as its caller's model sees it: with a note if it was cut."""
    return f"{state.output}\n{_CUT_NOTE}" if state.truncated else state.output


def describe_unfinished(state: RunState) -> str:
    """Describe why a sub-run did not complete, with its partial output."""
    why = state.error.message if state.error else f"stopped by {state.finish_reason}"
    return f"{why}; partial output: {state.output}" if state.output else why


def answer_open_calls(run: RunContext) -> None:
    """Append a result for each call that the run's end left open: providers reject a conversation without them.

    Unfinished steps of a plan are closed as well.
    """
    for call in run.state.open_calls():
        record = run.state.calls.get(call.id)
        result = (record and record.result) or ToolResult(
            status="error", error=f"not finished: the run ended with {run.state.finish_reason}"
        )
        run.state.messages.append(tool_message(run, call, result, observation(run, call, result)))
    if run.state.plan is not None:
        run.state.plan = run.state.plan.interrupted(f"not finished: the run ended with {run.state.finish_reason}")


def tool_message(run: RunContext, call: ToolCall, result: ToolResult, text: str) -> Message:
    """Return the message with a call's result, its status, and a person's decision on it."""
    key = "/".join((*run.state.path, call.id))
    record = run.state.calls.get(call.id)
    decision = _decision_text(run.services.root.decisions, key, record.call.arguments if record else {})
    fields = {"tool_call_id": call.id, "status": result.status, "decision": decision}
    if result.media:
        return Message.of_parts("tool", (TextPart(text=text), *result.media), **fields)
    return Message(role="tool", content=text, **fields)


def _decision_text(decisions: Mapping[str, Decision], key: str, executed: Mapping[str, Any]) -> str | None:
    """Return a person's decision on a call as text, the last one if they were asked again; None if not asked.

    The edit counts if its call was approved again after a crash: `executed` has the arguments of the call.
    """
    about = [found for asked, found in decisions.items() if _is_about(asked, key)]
    last = about[-1] if about else None
    if isinstance(last, Approve):
        last = next((one for one in about if isinstance(one, Edit) and one.arguments == executed), last)
    match last:
        case None:
            return None
        case Edit(arguments=arguments):
            return f"edit: {json.dumps(arguments, ensure_ascii=False)}"
        case Reject(reason=text) | Respond(text=text):
            return f"{last.type}: {text}" if text else last.type
        case Approve():
            return "approve"


def _is_about(confirmation_id: str, key: str) -> bool:
    """Return whether a person was asked about the call with this key. The result of a client's tool is no decision."""
    is_asked = confirmation_id == key or confirmation_id.startswith((f"{key}~", f"{key}?"))
    return is_asked and not confirmation_id.endswith(CLIENT_RESULT)


def observation(run: RunContext, call: ToolCall, result: ToolResult) -> str:
    """Return a result as the model sees it: text or JSON, cut at `max_observation_chars`, and how to read on."""
    text = whole_text(run, call.tool, result)
    limit = run.budget.limits.max_observation_chars
    if len(text) <= limit or _is_skill(run, call, result):
        return text
    shown, more = text[:limit], f"{len(text) - limit} more characters"
    if dropped := result.metadata.get(DROPPED):
        more += f", without {dropped} bytes at the end that are not kept"
    read, search = (run.agent.toolset.on_demand.get(name) for name in (RESULT_READ, RESULT_SEARCH))
    if read:
        arguments = f"(id={json.dumps(call.id, ensure_ascii=False)}, start={next_line(shown, limit)})"
        more += f"; read on with {read.definition.wire_name}{arguments}"
    if search:
        more += f"{', or' if read else ';'} find a text in it with {search.definition.wire_name}"
    return f"{shown}\n… ({more})"


def _is_skill(run: RunContext, call: ToolCall, result: ToolResult) -> bool:
    """Return whether a result is a text of a skill: instructions, which have a limit of their own."""
    tool = run.agent.toolset.tools.get(call.tool)
    is_text = tool is not None and tool.source == "skills" and tool.name != SKILL_RUN
    return is_text and result.status == "success"


def whole_text(run: RunContext, tool: str, result: ToolResult) -> str:
    """Return a result as text or JSON, of which the model sees the start."""
    if result.status in REFUSED_STATUSES:
        return f"{result.status.capitalize()}: {result.error}"
    if result.status != "success":
        return _error_text(run, tool, result)
    return result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False)


def _kept(run: RunContext, call: ToolCall, result: ToolResult) -> ToolResult:
    """Return a result as it is recorded; if it is too long for the model, the tools that read on are added to the run.

    Of a result that is larger than the limits of what is kept, only the start is recorded, as text.
    """
    text, shown = whole_text(run, call.tool, result), run.budget.limits.max_observation_chars
    if len(text) <= shown or _is_skill(run, call, result):
        return result
    run.add_tools(name for name in (RESULT_READ, RESULT_SEARCH) if name in run.agent.toolset.on_demand)
    data, root = text.encode("utf-8", "replace"), run.services.root
    allowed = max(0, min(MAX_RESULT_BYTES, MAX_KEPT_BYTES - root.kept_bytes))
    if result.status == "success" and len(data) > allowed:
        start = max(text[:shown], data[:allowed].decode("utf-8", "ignore"), key=len)
        dropped = len(data) - len(start.encode("utf-8", "replace"))
        changed = {"output": start, "metadata": {**result.metadata, DROPPED: dropped}}
        result = result.model_copy(update=changed)
    root.kept_bytes += min(len(data), allowed)
    return result


def _error_text(run: RunContext, tool: str, result: ToolResult) -> str:
    message, metadata = result.error or "", result.metadata
    variables = {
        "tool": tool,
        "message": message,
        "hint": metadata.get("hint"),
        "findings": metadata.get("findings", []),
    }
    try:
        return run.agent.prompts.render("error.j2", run.state.locale, variables)
    except PromptError:  # a broken error.j2 of the project must not fail the run
        return f"Error: {tool} failed: {message}"


def record_final_answer(run: RunContext, message: Message) -> None:
    """Append the trace entry of a turn without tool calls."""
    run.state.trace.append(
        TraceEntry(
            step=run.state.steps,
            agent=run.agent.name,
            thought=message.content,
            action=Action(type="final"),
            timestamp=datetime.fromtimestamp(run.services.now(), UTC),
        )
    )


def replace_answer(run: RunContext, text: str) -> None:
    """Replace the last answer with the text that hooks returned, so that later turns do not see the original."""
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
        timestamp=datetime.fromtimestamp(run.services.now(), UTC),
        error=result.error,
        repairs=run.state.calls[call.id].repairs,
    )


def to_json(output: Any) -> Any:
    """Return a tool's return value as JSON data; values that JSON or the store cannot represent become text."""
    return split_output(output)[0]


def _readable(value: Any) -> Any:
    """Return a Python value in the form that says most to a model; other objects as their text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)


def _with_text_keys(value: Any) -> Any:
    """Return nested dicts and lists with texts as keys."""
    if isinstance(value, dict):
        return {_key_text(key): _with_text_keys(inner) for key, inner in value.items()}
    return [_with_text_keys(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _key_text(key: Any) -> str:
    if isinstance(key, str) and not isinstance(key, Enum):
        return key
    plain = isinstance(key, (bool, int, float)) or key is None
    return json.dumps(key) if plain else str(_readable(key))


def split_output(output: Any) -> tuple[Any, list[File]]:
    """Return a tool's return value as JSON data, with a description of each `File`, and the files."""
    files: list[File] = []
    if isinstance(output, BaseModel):
        return output.model_dump(mode="json"), files
    if isinstance(output, str):
        return output.encode("utf-8", "replace").decode(), files  # lone surrogates cannot be stored or sent

    def to_data(value: Any) -> Any:
        if not isinstance(value, File):
            return _readable(value)
        files.append(value)
        return value.description

    try:
        written = json.dumps("" if output is None else output, default=to_data, ensure_ascii=False)
    except TypeError:  # keys that are no text
        files.clear()
        written = json.dumps(_with_text_keys(output), default=lambda v: _with_text_keys(to_data(v)), ensure_ascii=False)
    text = written.encode("utf-8", "replace")
    data = json.loads(text)
    if files and isinstance(data, list) and all(isinstance(item, str) for item in data):
        data = "\n".join(data)
    return data if nesting_depth(data) <= _MAX_OUTPUT_DEPTH else text.decode(), files


_UNKNOWN_TOOL = "unknown"
"""Name of a tool that does not exist: the name in the call was generated by the model, so it is content."""


class ToolTrace:
    """Span and metrics of a reserved call. Names in it come from the tool, not from the model."""

    __slots__ = ("_call", "_name", "_pending", "_run", "_source", "_span", "_started", "_tool")

    def __init__(self, run: RunContext, call: ToolCall, tool: Tool | None) -> None:
        self._run, self._call, self._tool = run, call, tool
        self._name, self._source = (tool.name, tool.source) if tool else (_UNKNOWN_TOOL, _UNKNOWN_TOOL)
        self._span = NOOP_SPAN
        self._pending: tuple[Confirmation, ...] = ()

    def __enter__(self) -> Self:
        run = self._run
        self._started = perf_counter()
        if run.services.spans.recording:
            self._span = run.span(f"execute_tool {self._name}", "TOOL", self._attributes())
            self._span.__enter__()
            if self._span.is_recording() and (content := run.content):
                self._span.set_attributes(content.arguments(self._call.arguments))
                if self._tool is None:
                    self._span.set_attributes(content.text(names.TOOL_REQUESTED, self._call.tool))
        return self

    def set_pending(self, confirmations: tuple[Confirmation, ...]) -> None:
        """Record the confirmations that the call waits for; empty once it has a result."""
        self._pending = confirmations

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        result = self._run.state.calls[self._call.id].result
        error_type = None if result is None else call_error_type(result)
        if isinstance(error, asyncio.CancelledError):
            error_type = "cancelled"
        if self._span is not NOOP_SPAN:
            self._set_results(result, error_type)
            self._span.__exit__(kind, error, traceback)
        if (meters := self._run.services.meters) and not self._pending:
            seconds = result.elapsed_ms / 1000 if result else perf_counter() - self._started
            meters.record_tool_call(self._name, self._source, seconds, error_type)

    def _set_results(self, result: ToolResult | None, error_type: str | None) -> None:
        for question in self._pending:
            about = {
                names.CONFIRM_ID: question.id,
                names.CONFIRM_KIND: question.kind,
                names.CONFIRM_RULE: question.rule,
            }
            self._span.add_event(names.CONFIRM_REQUESTED, about)
        record_pending(self._span, self._pending)
        outcome = "waiting" if self._pending else "cancelled" if result is None else outcome_of(result)
        attributes: dict[str, Any] = {names.TOOL_OUTCOME: outcome}
        if result is not None:
            attributes[names.TOOL_RULE] = result.metadata.get("rule")
            attributes[names.TOOL_RESULT_SIZE] = _size(result)
            host = result.metadata.get(HOST, {})
            attributes[names.TOOL_HOST_TRACE] = host.get("trace_id")
            if self._span.is_recording() and (content := self._run.content):
                attributes |= content.result(result.output if result.status == "success" else result.error or "")
                if host:
                    attributes |= content.text(names.TOOL_HOST, json.dumps(host, ensure_ascii=False))
        self._span.set_attributes(attributes)
        if error_type:
            self._span.fail(error_type)

    def _attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            names.OPERATION: "execute_tool",
            names.TOOL_NAME: self._name,
            names.TOOL_CALL_ID: self._call.id,
            names.TOOL_SOURCE: self._source,
        }
        if tool := self._tool:
            attributes[names.TOOL_RISK] = tool.risk
            attributes[names.TOOL_TYPE] = "function"
            attributes[names.TOOL_DESCRIPTION] = tool.definition.summary
            if tool.is_external:
                attributes[names.TOOL_SERVER] = source_of(tool.name).rpartition(".")[2]
            if tool.source == "mcp":
                attributes[names.MCP_METHOD] = "tools/call"
        return attributes


async def report_todo_changes(run: RunContext, before: Any) -> None:
    """Emit the to-do list if it differs from `before`, the session's value before the call."""
    after = run.services.root.session.get(TODO)
    if after != before:
        await run.emit(TodoChanged, items=read_items(after))


async def wait_for_rate(run: RunContext, tool: Tool) -> bool:
    """Wait until the tool's rate limit permits a call; return whether that took time."""
    if not tool.rate:
        return False
    run.keep_time()  # a timeout that was lowered must also end the wait
    return await run.services.rate_limiter.wait(tool.name, tool.rate)


async def is_granted(
    run: RunContext, call: ToolCall, tool: Tool, views: Sequence[Mapping[str, Any]], asked: Confirmation
) -> bool:
    """Return whether an approval that a person gave before answers a question; its use is counted and reported."""
    grant = await run.services.grants.use(run.policy, run.services.root, tool, views)
    if grant is None:
        return False
    about = {"grant": grant.id, "covers": grant.covers_text(), "origin": grant.origin()}
    await run.emit(GrantUsed, id=call.id, tool=call.tool, rule=asked.rule, confirmation_id=asked.id, **about)
    return True


def record_decision(run: RunContext, confirmation_id: str, decision: Decision) -> None:
    """Record a person's decision on the current span and in the metrics, once, however often it is read."""
    if confirmation_id not in run.services.decided:
        return
    spans, meters = run.services.spans, run.services.meters
    if spans.recording:
        current_span().add_event(names.CONFIRM_RESOLVED, {names.CONFIRM_DECISION: decision.type})
    if meters and (asked_at := run.services.root.paused_at) is not None:
        meters.record_confirmation(decision.type, run.services.now() - asked_at)


def outcome_of(result: ToolResult) -> str:
    """Return the outcome attribute of a result: success, error, denied, rejected or answered (by a person)."""
    match result.metadata.get("decision"):
        case "reject":
            return "rejected"
        case "respond":
            return "answered"
    return result.status


def call_error_type(result: ToolResult) -> str | None:
    """Return the `error.type` attribute of a failed call, or None. A rejection is not a failure."""
    if result.status == "success" or result.metadata.get("decision") == "reject":
        return None
    return str(result.metadata.get("error_type", "policy_denied" if result.status == "denied" else "tool_error"))


def raised_error_type(error: ToolError, tool: Tool) -> str:
    """Return the `error.type` of an error that a tool raised: its own code, or the class of its cause or of itself.

    The conventions name a failure that an MCP server reports `tool_error`.
    """
    if error.code != ToolError.code:
        return error.code
    if error.__cause__ is not None:
        return type(error.__cause__).__name__
    return ToolError.code if tool.source == "mcp" else type(error).__name__


def _size(result: ToolResult) -> int | None:
    output = result.output if result.status == "success" else result.error
    return len(output) if isinstance(output, str) else None


def build_tool_context(run: RunContext, call: ToolCall) -> ToolContext:
    """Return the context object for one call; hooks receive the same."""

    async def progress(fraction: float, message: str) -> None:
        head = {"id": call.id, "tool": call.tool, "arguments": redact_data(call.arguments)}
        await run.emit(ToolStarted, **head, progress=fraction, message=message)

    question_numbers = count(1)

    async def ask_human(question: str, choices: Sequence[str] = ()) -> str:
        return _human_answer(run, _question(run, call, question, choices, next(question_numbers)))

    async def inquire(inquiries: Sequence[Inquiry], continuation: Mapping[str, Any]) -> list[Decision]:
        return _inquired(run, call, inquiries, continuation)

    async def keep(continuation: Mapping[str, Any]) -> None:
        _set_continuation(run, call, continuation)
        await run.save()

    def span(
        name: str, attributes: Mapping[str, Any] | None = None, *, client: bool = False
    ) -> AbstractContextManager[ToolSpan]:
        extra_attributes = plugin_attributes(attributes or {})
        return PluginSpan(run.span(name, "CHAIN", {names.TOOL_NAME: call.tool, **extra_attributes}, client=client))

    tools = run.services.tools()
    record = run.state.calls.get(call.id)
    return ToolContext(
        run_id=run.state.run_id,
        call_id="/".join((*run.state.path, call.id)),
        agent=run.agent.name,
        base_path=run.services.base_path,
        unprotected=tools.unprotected,
        write_below=tools.write_below,
        denied_files=run.policy.denied_files(),
        reserved_files=run.services.reserved_files,
        deps=run.services.deps,
        http=tools.http,
        sandbox=tools.sandbox,
        locale=run.state.locale,
        user=run.state.user,
        tenant=run.state.tenant,
        metadata=run.services.root.metadata,
        progress=progress,
        session=Session(run.services.root.session),
        ask_human=ask_human,
        inquire=inquire,
        continuation=record.continuation if record else {},
        keep=keep,
        span=span,
    )


def _question(run: RunContext, call: ToolCall, question: str, choices: Sequence[str], number: int) -> Confirmation:
    call_id = "/".join((*run.state.path, call.id))
    return Confirmation(
        id=f"{call_id}?{number}",
        call_id=call_id,
        idempotency_key=idempotency_key(run.state.run_id, call_id),
        kind="ask_user" if call.tool == ASK_USER else "question",
        agent=run.agent.name,
        tool=call.tool,
        arguments=call.arguments,
        hash=call_digest(call.tool, {"question": question, **({"choices": list(choices)} if choices else {})}),
        reason=question,
        rule="the model asks" if call.tool == ASK_USER else "the tool asks",
        choices=tuple(choices),
    )


def _set_continuation(run: RunContext, call: ToolCall, continuation: Mapping[str, Any]) -> None:
    record = run.state.calls[call.id]
    run.state.calls[call.id] = record.model_copy(update={"continuation": dict(continuation)})


def _inquired(
    run: RunContext, call: ToolCall, inquiries: Sequence[Inquiry], continuation: Mapping[str, Any]
) -> list[Decision]:
    """Return the decisions on a server's inquiries; until all are made, store the continuation and raise Paused."""
    asked = [_inquiry(run, call, one) for one in inquiries]
    made = {one.id: decision for one in asked if (decision := run.decision(one.id)) is not None}
    if pending := [one for one in asked if one.id not in made]:
        _set_continuation(run, call, continuation)
        raise Paused(pending)
    for one in asked:
        record_decision(run, one.id, made[one.id])
    return [made[one.id] for one in asked]


def _inquiry(run: RunContext, call: ToolCall, inquiry: Inquiry) -> Confirmation:
    """Return the confirmation for an inquiry of a server; its id changes with everything that a person reads."""
    call_id = "/".join((*run.state.path, call.id))
    form = dict(inquiry.form) if inquiry.form is not None else None
    read = call_digest(call.tool, {"message": inquiry.message, "form": form, "url": inquiry.url})
    server = source_of(call.tool)
    return Confirmation(
        id=run.confirmation_id(f"{call_id}?{inquiry.key}", [read]),
        call_id=call_id,
        idempotency_key=idempotency_key(run.state.run_id, call_id),
        kind=inquiry.kind,
        agent=run.agent.name,
        tool=call.tool,
        description=inquiry.note,
        arguments=call.arguments,
        hash=read,
        reason=inquiry.message,
        rule=f"{server} {'asks' if inquiry.kind != 'login' else inquiry.waits_for}",
        form=form,
        url=inquiry.url,
    )


def _human_answer(run: RunContext, question: Confirmation) -> str:
    """Return a person's answer; raise Paused until they answer, ToolError if they declined."""
    match run.decision(question.id):
        case None:
            raise Paused([question])
        case Respond(text=text):
            return text
        case Approve():
            return "yes"
        case Reject(reason=reason):
            raise ToolError(f"a human did not answer the question{': ' + reason if reason else ''}")
        case Edit():
            raise ToolError("a human edited the call instead of answering the question")


async def await_client(run: RunContext, call: ToolCall, tool: Tool) -> tuple[Confirmation, ...]:
    """Record the result of an allowed call that the client of the run executes; until there is one, return the wait."""
    key = "/".join((*run.state.path, call.id))
    match run.decision(f"{key}{CLIENT_RESULT}"):
        case Respond(text=text):
            result = ToolResult(status="success", output=text)
        case Reject(reason=reason):
            why = f": {reason}" if reason else ""
            result = ToolResult(status="cancelled", error=f"The client did not execute this call{why}")
        case _:
            record = run.state.calls[call.id]
            run.state.calls[call.id] = record.model_copy(update={"call": call})
            await run.emit(ToolRequested, id=call.id, tool=call.tool, arguments=redact_data(call.arguments))
            asked = Confirmation(
                id=f"{key}{CLIENT_RESULT}",
                call_id=key,
                idempotency_key=idempotency_key(run.state.run_id, key),
                kind="client_tool",
                agent=run.agent.name,
                tool=tool.name,
                description=tool.definition.summary,
                arguments=call.arguments,
                hash=call_digest(tool.name, call.arguments),
                reason=f"what is the result of {tool.definition.wire_name}? Its client has not sent it yet",
                rule="the client executes the tool",
                risk=tool.risk,
            )
            return (asked,)
    await record_result(run, call, await after_tool(run, call, result))
    return ()


_HOOK_SECONDS = 10.0
_NO_CALL = ToolCall(id="", tool="")
_RAISE = dis.opmap["RAISE_VARARGS"]


async def before_run(run: RunContext) -> None:
    """Call the `before_run` hooks once per run, before its executor starts; raise Refused if one refuses."""
    if run.state.admitted:
        return
    for hook in run.hooks("before_run"):
        await _call(run, hook, _NO_CALL, run.state.messages[0].description)
    run.state.admitted = True


async def after_run(run: RunContext, output: str) -> str:
    """Return the output as changed by the `after_run` hooks; raise Refused if one refuses."""
    for hook in run.hooks("after_run"):
        changed = await _call(run, hook, _NO_CALL, output)
        output = output if changed is None else fix_surrogates(str(changed))
    return output


async def before_tool(run: RunContext, call: ToolCall) -> ToolResult | None:
    """Return the result of a call that a `before_tool` hook refuses, or None if all hooks allow it."""
    for hook in run.hooks("before_tool"):
        try:
            await _call(run, hook, call, call)
        except Refused as refusal:
            metadata = {"error_type": "policy_denied", "rule": f"hook {hook.name}"}
            return ToolResult(status="denied", error=refusal.message, metadata=metadata)
    return None


async def after_tool(run: RunContext, call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result of a call as changed by the `after_tool` hooks; it is recorded and sent to the model."""
    for hook in run.hooks("after_tool"):
        try:
            result = _replacement(hook, result, await _call(run, hook, call, call, result))
        except Refused as refusal:
            error = f"the call was executed, but its result is withheld: {refusal.message}"
            return ToolResult(status="error", error=error, metadata={"error_type": "withheld", "hook": hook.name})
    return result


def _replacement(hook: Extension, result: ToolResult, returned: Any) -> ToolResult:
    """Return the result that a hook returned, with its output as JSON data; raise Refused for any other type."""
    if returned is None:
        return result
    if not isinstance(returned, ToolResult):
        raise Refused(f"hook {hook.name} returned {type(returned).__name__}; expected ToolResult or None")
    return returned.model_copy(update={"output": to_json(returned.output), "metadata": to_json(returned.metadata)})


async def _call(run: RunContext, hook: Extension, call: ToolCall, *arguments: Any) -> Any:
    """Call a hook within its timeout; raise Refused if it fails for any reason."""
    context = replace(build_tool_context(run, call), ask_human=_reject_question, inquire=_reject_question)
    try:
        if inspect.iscoroutinefunction(hook.function):
            async with asyncio.timeout(_HOOK_SECONDS):
                return await hook.function(context, *arguments)
        async with (
            run.services.threads.turn(run.services.root.run_id, f"hook {hook.name}") as thread,
            asyncio.timeout(_HOOK_SECONDS),
        ):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(thread, hook.function, context, *arguments)
    except Refused:
        raise
    except BaseException as error:  # any failure of a hook is a refusal
        if not is_plugin_failure(error):
            raise
        log.error("run %s: hook %s failed: %s", run.state.run_id, hook.name, safe_traceback(error))
        raise Refused(f"hook {hook.name} failed: {type(error).__name__}") from None


async def _reject_question(*_: object, **__: object) -> NoReturn:
    raise Refused("hooks cannot ask a human: use an `ask` rule, or ask in the tool")


def is_plugin_failure(error: BaseException) -> bool:
    """Return whether the plugin itself failed, as opposed to the run or the process ending.

    SystemExit and the panic of a native library count as failures: they must not end a process that has other runs. A
    CancelledError counts if this task is not being cancelled: it came from something that the plugin awaited.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return _is_raised_by_statement(error)
    return not isinstance(error, Paused)


def _is_raised_by_statement(error: BaseException) -> bool:
    """Return whether a `raise` statement of the plugin raised the error.

    A real Ctrl-C and the closing of a coroutine can occur between any two instructions, or inside asyncio, which raises
    KeyboardInterrupt at the second Ctrl-C. Both must propagate.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("asyncio", "signal"):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def confirmations_in(error: BaseException) -> Iterator[Confirmation]:
    """Yield the confirmations that a plugin requests, also from tasks that it started in a task group."""
    if isinstance(error, Paused):
        yield from error.confirmations
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from confirmations_in(inner)
