"""What a trace tells of one attempt at a model call, and the numbers that go with it."""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from framework.engine.run_trace import content_of
from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.telemetry import names
from framework.telemetry.span import NO_SPAN
from framework.telemetry.untold import Untold
from framework.types.messages import Usage

if TYPE_CHECKING:
    from framework.engine.run import Run


class ModelTrace(Untold):
    """An attempt of which nothing is told."""

    __slots__ = ()

    def replied(self, reply: ModelReply, first_at: float | None) -> None:
        """It answered; `first_at` is when the first piece came in, by `perf_counter`."""

    def failed(self, error_type: str, usage: Usage | None) -> None:
        """It did not; `usage` is what it has cost all the same."""


_UNTOLD = ModelTrace()


def model_trace(run: Run, info: ModelInfo, request: ModelRequest, *, fallback: bool) -> ModelTrace:
    """Tell of an attempt; the number of the attempt is `run.attempt`."""
    services = run.services
    if not services.spans.recording and services.meters is None:
        return _UNTOLD
    return _Told(run, info, request, fallback=fallback)


class _Told(ModelTrace):
    __slots__ = ("_began", "_error", "_fallback", "_first", "_info", "_model", "_request", "_run", "_span", "_usage")

    def __init__(self, run: Run, info: ModelInfo, request: ModelRequest, *, fallback: bool) -> None:
        self._run, self._info, self._request, self._fallback = run, info, request, fallback
        self._model = info.model or info.provider
        self._span = NO_SPAN
        self._error: str | None = None
        self._usage: Usage | None = None
        self._first: float | None = None

    def __enter__(self) -> Self:
        run = self._run
        self._began = perf_counter()
        if run.services.spans.recording:
            self._span = run.span(f"chat {self._model}", "LLM", self._attributes())
            self._span.__enter__()
            if self._span.is_recording() and (content := content_of(run)):
                self._span.set_attributes(content.request(self._request.messages, self._request.tools))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._error = "cancelled"
        if self._error:
            self._span.fail(self._error)
        self._span.__exit__(kind, error, traceback)
        if meters := self._run.services.meters:
            meters.model_call(
                self._info.provider, self._model, perf_counter() - self._began, self._first, self._usage, self._error
            )

    def replied(self, reply: ModelReply, first_at: float | None) -> None:
        self._usage = reply.usage
        self._first = None if first_at is None else first_at - self._began
        if self._span is NO_SPAN:
            return
        self._span.set_attributes(
            {
                names.RESPONSE_MODEL: reply.model or None,
                names.RESPONSE_ID: reply.response_id or None,
                names.FINISH_REASONS: (reply.finish_reason,),
                names.FIRST_CHUNK: self._first,
                **_usage_attributes(reply.usage),
            }
        )
        if self._span.is_recording() and (content := content_of(self._run)):
            self._span.set_attributes(content.reply(reply.message, reply.finish_reason))

    def failed(self, error_type: str, usage: Usage | None) -> None:
        self._error, self._usage = error_type, usage
        if usage:
            self._span.set_attributes(_usage_attributes(usage))

    def _attributes(self) -> dict[str, Any]:
        request, settings = self._request, self._request.settings
        return {
            names.OPERATION: "chat",
            names.PROVIDER: self._info.provider,
            names.REQUEST_MODEL: self._model,
            names.SERVER_ADDRESS: self._info.server_address,
            names.OUTPUT_TYPE: "json" if request.output else None,
            names.REQUEST_STREAM: request.stream or None,
            names.REQUEST_TEMPERATURE: settings.temperature,
            names.REQUEST_TOP_P: settings.top_p,
            names.REQUEST_MAX_TOKENS: settings.max_tokens,
            names.REQUEST_SEED: settings.seed,
            names.MODEL_ATTEMPT: self._run.attempt,
            names.MODEL_FALLBACK: self._fallback or None,
        }


def _usage_attributes(usage: Usage) -> dict[str, Any]:
    return {
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.OUTPUT_TOKENS: usage.completion_tokens,
        names.CACHED_TOKENS: usage.cached_tokens or None,
        names.CACHE_WRITE_TOKENS: usage.cache_write_tokens or None,
        names.CALL_COST: usage.cost_usd or None,
    }
