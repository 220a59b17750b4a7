"""Span and metrics of one model call: a request that is retried, and that may go to a fallback, is one call.

One `chat` span covers all attempts, as the GenAI conventions want it. Each attempt has a span below it once there is
more than one; a call that succeeds at once has none, so the common case costs one span.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any, Self

from framework.engine.context.run_context import RunContext
from framework.engine.context.trace import model_attributes, trace_content, usage_attributes
from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.telemetry import names
from framework.telemetry.span import NOOP_SPAN, NullContext
from framework.types.messages import Usage


class AttemptTrace(NullContext):
    """No-op trace of an attempt."""

    __slots__ = ()

    def replied(self, reply: ModelReply, first_at: float | None) -> None:
        """The model replied; `first_at` is when the first chunk arrived, by `perf_counter`."""

    def failed(self, error_type: str, usage: Usage | None) -> None:
        """The attempt failed; `usage` is what it consumed nevertheless."""


class ModelTrace(NullContext):
    """No-op trace of a model call."""

    __slots__ = ()

    def attempt(self, info: ModelInfo, *, fallback: bool) -> AttemptTrace:  # noqa: ARG002 - a no-op
        """Trace of the next attempt."""
        return _UNTRACED_ATTEMPT


_UNTRACED_ATTEMPT, _UNTRACED = AttemptTrace(), ModelTrace()


def model_trace(run: RunContext, request: ModelRequest) -> ModelTrace:
    """Trace of a model call with all its attempts."""
    services = run.services
    if not services.spans.recording and services.meters is None:
        return _UNTRACED
    return _Call(run, request)


class _Call(ModelTrace):
    """The span opens with the first attempt: there is none for a model that is not asked."""

    __slots__ = ("_attempts", "_began", "_error", "_first", "_held", "_info", "_request", "_run", "_span", "_usage")

    def __init__(self, run: RunContext, request: ModelRequest) -> None:
        self._run, self._request = run, request
        self._span = NOOP_SPAN
        self._info: ModelInfo | None = None
        self._usage: Usage | None = None
        self._first: float | None = None
        self._attempts = 0
        self._held: _Ended | None = None
        """The first attempt, which failed: it gets a span if there is another one."""
        self._error: str | None = None
        """`error.type` of the last attempt."""

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
                self._span.fail(self._error)
            self._span.__exit__(kind, error, traceback)
        if meters := self._run.services.meters:
            seconds = perf_counter() - self._began
            meters.record_model_call(self._info.provider, self._info.wire_name, seconds, self._first, self._error)

    def attempt(self, info: ModelInfo, *, fallback: bool) -> AttemptTrace:
        self._attempts += 1
        if self._info is None:
            self._open(info)
        elif self._held is not None:
            self._emit(self._held)
            self._held = None
        return _Attempt(self, info, self._attempts, fallback=fallback)

    def replied(self, info: ModelInfo, reply: ModelReply, first: float | None, *, fallback: bool) -> None:
        """An attempt succeeded."""
        self._first = first
        if self._span is NOOP_SPAN:
            return
        self._span.set_attributes(
            {
                **(model_attributes(info) if fallback else {}),
                names.REQUEST_MODEL: self._info.wire_name if self._info else None,
                names.MODEL_FALLBACK: fallback or None,
                names.RESPONSE_MODEL: reply.model or (info.wire_name if fallback else None),
                names.RESPONSE_ID: reply.response_id or None,
                names.FINISH_REASONS: (reply.finish_reason,),
                names.FIRST_CHUNK: first,
            }
        )
        if self._span.is_recording() and (content := trace_content(self._run)):
            self._span.set_attributes(content.reply(reply.message, reply.finish_reason))

    def ended(self, attempt: _Ended, usage: Usage | None) -> None:
        """An attempt ended, either way."""
        self._error = attempt.error
        if usage:
            self._usage = self._usage + usage if self._usage else usage
        if meters := self._run.services.meters:
            meters.record_model_attempt(attempt.info.provider, attempt.info.wire_name, usage, attempt.error)
        if self._attempts == 1:
            self._held = attempt
        else:
            self._emit(attempt)

    def _open(self, info: ModelInfo) -> None:
        self._info, self._began = info, perf_counter()
        run = self._run
        if not run.services.spans.recording:
            return
        self._span = run.span(f"chat {info.wire_name}", "LLM", self._attributes(info))
        self._span.__enter__()
        if self._span.is_recording() and (content := trace_content(run)):
            self._span.set_attributes(content.request(self._request.messages, self._request.tools))

    def _emit(self, attempt: _Ended) -> None:
        run = self._run
        if self._span is NOOP_SPAN:
            return
        attributes = {
            names.AGENT: run.agent.name,
            names.MODEL_ATTEMPT: attempt.number,
            names.MODEL_FALLBACK: attempt.fallback or None,
            **model_attributes(attempt.info),
        }
        name = f"chat.attempt {attempt.number}"
        span = run.services.spans.span(name, "CHAIN", attributes, client=True, started_ns=attempt.began_ns)
        if attempt.error:
            span.fail(attempt.error)
        span.end(attempt.ended_ns)

    def _attributes(self, info: ModelInfo) -> dict[str, Any]:
        request, settings = self._request, self._request.settings
        return {
            names.OPERATION: "chat",
            **model_attributes(info),
            names.OUTPUT_TYPE: "json" if request.output else None,
            names.REQUEST_STREAM: request.stream or None,
            names.REQUEST_TEMPERATURE: settings.temperature,
            names.REQUEST_TOP_P: settings.top_p,
            names.REQUEST_MAX_TOKENS: settings.max_tokens,
            names.REQUEST_SEED: settings.seed,
        }


@dataclass(frozen=True, slots=True)
class _Ended:
    """An attempt that is over; times are Unix time in nanoseconds."""

    info: ModelInfo
    number: int
    fallback: bool
    began_ns: int
    ended_ns: int
    error: str | None


class _Attempt(AttemptTrace):
    __slots__ = ("_began", "_began_ns", "_call", "_error", "_fallback", "_info", "_number", "_usage")

    def __init__(self, call: _Call, info: ModelInfo, number: int, *, fallback: bool) -> None:
        self._call, self._info, self._number, self._fallback = call, info, number, fallback
        self._error: str | None = None
        self._usage: Usage | None = None

    def __enter__(self) -> Self:
        self._began, self._began_ns = perf_counter(), time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = "cancelled" if isinstance(error, asyncio.CancelledError) else self._error
        ended = _Ended(self._info, self._number, self._fallback, self._began_ns, time_ns(), failed)
        self._call.ended(ended, self._usage)

    def replied(self, reply: ModelReply, first_at: float | None) -> None:
        self._usage = reply.usage
        first = None if first_at is None else first_at - self._began
        self._call.replied(self._info, reply, first, fallback=self._fallback)

    def failed(self, error_type: str, usage: Usage | None) -> None:
        self._error, self._usage = error_type, usage
