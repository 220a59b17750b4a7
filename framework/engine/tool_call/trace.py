"""What a trace tells of one tool call, from the model's wish to its answer, and the numbers that go with it."""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from framework.engine.context.run_context import RunContext
from framework.engine.context.trace import record_pending, trace_content
from framework.telemetry import names
from framework.telemetry.span import NOOP_SPAN, NullContext, current_span
from framework.tools.tool import Tool
from framework.types.messages import ToolCall, ToolResult
from framework.types.state import Confirmation, Decision

_UNKNOWN_TOOL = "unknown"
"""Stands for a tool that is not there: its name is a word of the model's."""


class ToolTrace(NullContext):
    """No-op trace, used when nothing is recording."""

    __slots__ = ()

    def set_pending(self, confirmations: tuple[Confirmation, ...]) -> None:
        """A human is asked first; nothing if the call has its result."""


_NO_TRACE = ToolTrace()


def trace_call(run: RunContext, call: ToolCall, tool: Tool | None) -> ToolTrace:
    """Tell of an admitted call; none of it, its name included, is the model's own word."""
    services = run.services
    if not services.spans.recording and services.meters is None:
        return _NO_TRACE
    return _RecordedToolTrace(run, call, tool)


class _RecordedToolTrace(ToolTrace):
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
            if self._span.is_recording() and (content := trace_content(run)):
                self._span.set_attributes(content.arguments(self._call.arguments))
        return self

    def set_pending(self, confirmations: tuple[Confirmation, ...]) -> None:
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
            if self._span.is_recording() and (content := trace_content(self._run)):
                attributes |= content.result(result.output if result.status == "success" else result.error or "")
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
            if tool.source in ("mcp", "skill"):
                attributes[names.TOOL_SERVER] = tool.name.split(".")[1]
            if tool.source == "mcp":
                attributes[names.MCP_METHOD] = "tools/call"
        return attributes


def record_decision(run: RunContext, confirmation_id: str, decision: Decision) -> None:
    """Tell of a human's answer, on the span of what it is about: once, however often it is looked at."""
    if confirmation_id not in run.services.decided:
        return
    spans, meters = run.services.spans, run.services.meters
    if spans.recording:
        current_span().add_event(names.CONFIRM_RESOLVED, {names.CONFIRM_DECISION: decision.type})
    if meters:
        meters.record_confirmation(decision.type, run.services.root.paused_at)


def outcome_of(result: ToolResult) -> str:
    """A result in one word: success, error, denied, rejected or answered (by a human)."""
    match result.metadata.get("decision"):
        case "reject":
            return "rejected"
        case "respond":
            return "answered"
    return result.status


def call_error_type(result: ToolResult) -> str | None:
    """Of a call that failed; a human's no is no failure."""
    if result.status == "success" or result.metadata.get("decision") == "reject":
        return None
    return str(result.metadata.get("error_type", "policy_denied" if result.status == "denied" else "tool_error"))


def _size(result: ToolResult) -> int | None:
    output = result.output if result.status == "success" else result.error
    return len(output) if isinstance(output, str) else None
