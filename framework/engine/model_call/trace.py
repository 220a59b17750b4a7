"""Span and metrics of a model call: one call is one request, with all its retries and fallbacks.

One `chat` span covers all attempts, as the GenAI conventions require. Each attempt gets a child span once there is more
than one, so a call that succeeds at the first attempt costs one span.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any, Self

from framework.engine.context.model_clients import ModelCaller
from framework.engine.context.run_context import model_attributes, usage_attributes
from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.telemetry import names
from framework.telemetry.spans import NOOP_SPAN, TraceSpan
from framework.types.messages import Usage


class ModelTrace:
    """The span opens with the first attempt, so that a model in cooldown leaves none."""

    __slots__ = (
        *("_attempts", "_began", "_caller", "_error", "_first", "_held", "_info", "_message", "_request", "_span"),
        "_usage",
    )

    def __init__(self, caller: ModelCaller, request: ModelRequest) -> None:
        self._caller, self._request = caller, request
        self._span = NOOP_SPAN
        self._info: ModelInfo | None = None
        self._usage: Usage | None = None
        self._first: float | None = None
        self._attempts = 0
        self._held: _EndedAttempt | None = None
        """The first attempt, if it failed: it gets a span when there is a second one."""
        self._error: str | None = None
        """`error.type` of the last attempt."""
        self._message = ""
        """Its message."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._info is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self._error = "cancelled"
        if self._span is not NOOP_SPAN:
            self._span.set_attributes({names.MODEL_ATTEMPTS: self._attempts, **usage_attributes(self._usage)})
            if self._error:
                self._fail(self._span, self._error, self._message)
            self._span.__exit__(kind, error, traceback)
        if meters := self._caller.meters:
            seconds = perf_counter() - self._began
            meters.record_model_call(self._info.provider, self._info.wire_name, seconds, self._first, self._error)

    def __enter__(self) -> Self:
        return self

    def attempt(self, info: ModelInfo, *, fallback: bool) -> AttemptTrace:
        """Return the trace of the next attempt."""
        self._attempts += 1
        if self._info is None:
            self._open(info)
        elif self._held is not None:
            self._add_span(self._held)
            self._held = None
        return AttemptTrace(self, info, self._attempts, fallback=fallback)

    def set_reply(self, info: ModelInfo, reply: ModelReply, first: float | None, *, fallback: bool) -> None:
        """Record the reply of a successful attempt; `first` is the time to the first piece, in seconds."""
        self._first = first
        if self._span is NOOP_SPAN:
            return
        self._span.set_attributes(
            {
                **(self._served_by(info) if fallback else {}),
                names.MODEL_FALLBACK: fallback or None,
                names.RESPONSE_MODEL: reply.model or (info.wire_name if fallback else None),
                names.RESPONSE_ID: reply.response_id or None,
                names.FINISH_REASONS: (reply.finish_reason,),
                names.FIRST_CHUNK: first,
            }
        )
        if self._span.is_recording() and (content := self._caller.content):
            self._span.set_attributes(content.reply(reply.message, reply.finish_reason))

    def _served_by(self, info: ModelInfo) -> dict[str, Any]:
        """Return the attributes of the fallback that replied; the requested model remains the first one."""
        return {**model_attributes(info), names.REQUEST_MODEL: self._info.wire_name if self._info else None}

    def add_attempt(self, attempt: _EndedAttempt, usage: Usage | None) -> None:
        """Record an attempt that ended, in success or failure."""
        self._error, self._message = attempt.error, attempt.message
        if usage:
            self._usage = self._usage + usage if self._usage else usage
        if meters := self._caller.meters:
            meters.record_model_attempt(attempt.info.provider, attempt.info.wire_name, usage, attempt.error)
        if self._attempts == 1:
            self._held = attempt
        else:
            self._add_span(attempt)

    def _open(self, info: ModelInfo) -> None:
        self._info, self._began = info, perf_counter()
        spans = self._caller.spans
        if not spans.recording:
            return
        self._span = spans.span(f"chat {info.wire_name}", "LLM", self._attributes(info))
        self._span.__enter__()
        if self._span.is_recording() and (content := self._caller.content):
            self._span.set_attributes(content.request(self._request.messages, self._request.tools))

    def _add_span(self, attempt: _EndedAttempt) -> None:
        if self._span is NOOP_SPAN:
            return
        attributes = {
            names.AGENT: self._caller.agent.name,
            names.MODEL_ATTEMPT: attempt.number,
            names.MODEL_FALLBACK: attempt.fallback or None,
            **model_attributes(attempt.info),
        }
        name = f"chat.attempt {attempt.number}"
        span = self._caller.spans.span(name, "CHAIN", attributes, client=True, started_ns=attempt.began_ns)
        if attempt.error:
            self._fail(span, attempt.error, attempt.message)
        span.end(attempt.ended_ns)

    def _fail(self, span: TraceSpan, error_type: str, message: str) -> None:
        """Mark a span as failed. Providers quote requests in their messages, so a message is content."""
        span.fail(error_type)
        if message and span.is_recording() and (content := self._caller.content):
            span.set_attributes(content.text(names.ERROR_MESSAGE, message))

    def _attributes(self, info: ModelInfo) -> dict[str, Any]:
        request, settings = self._request, self._request.settings
        return {
            names.AGENT: self._caller.agent.name,
            names.OPERATION: "chat",
            **model_attributes(info),
            names.OUTPUT_TYPE: "json" if request.output else None,
            names.REQUEST_STREAM: info.is_streamed(request) or None,
            names.REQUEST_TEMPERATURE: settings.temperature,
            names.REQUEST_TOP_P: settings.top_p,
            names.REQUEST_MAX_TOKENS: settings.max_tokens,
            names.REQUEST_SEED: settings.seed,
        }


@dataclass(frozen=True, slots=True)
class _EndedAttempt:
    """An attempt that has ended; times are Unix time in nanoseconds."""

    info: ModelInfo
    number: int
    fallback: bool
    began_ns: int
    ended_ns: int
    error: str | None
    message: str


class AttemptTrace:
    """Times, usage and error of one attempt."""

    __slots__ = ("_began", "_began_ns", "_call", "_error", "_fallback", "_info", "_message", "_number", "_usage")

    def __init__(self, call: ModelTrace, info: ModelInfo, number: int, *, fallback: bool) -> None:
        self._call, self._info, self._number, self._fallback = call, info, number, fallback
        self._error: str | None = None
        self._message = ""
        self._usage: Usage | None = None

    def __enter__(self) -> Self:
        self._began, self._began_ns = perf_counter(), time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        error_type = "cancelled" if isinstance(error, asyncio.CancelledError) else self._error
        times = self._began_ns, time_ns()
        ended = _EndedAttempt(self._info, self._number, self._fallback, *times, error_type, self._message)
        self._call.add_attempt(ended, self._usage)

    def replied(self, reply: ModelReply, first_at: float | None) -> None:
        """Record the reply; `first_at` is when the first piece arrived, by `perf_counter`."""
        self._usage = reply.usage
        first = None if first_at is None else first_at - self._began
        self._call.set_reply(self._info, reply, first, fallback=self._fallback)

    def failed(self, error_type: str, message: str, usage: Usage | None) -> None:
        """Record that the attempt failed, why, and what it consumed nevertheless."""
        self._error, self._message, self._usage = error_type, message, usage
