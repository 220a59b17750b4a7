"""Retries and fallbacks: the only place where a failed model call is repeated, or sent to another model.

Clients send a request once, and their SDKs retry nothing, so that attempts never multiply. Each error is handled once:

| the provider                                                            | retried | then a fallback |
|-------------------------------------------------------------------------|---------|-----------------|
| limits the rate, fails (5xx, 408, 409), times out, cannot be reached    | yes     | yes             |
| sends an unusable answer: truncated, empty, not JSON, an HTML page      | yes     | yes             |
| says that the model's function call is unreadable (400, 500)            | yes (+) | yes             |
| sends a function call as text, because its server has no parser for it  | once(-) | yes             |
| lacks the model, rejects the key, requires payment, quota is exhausted  | no      | yes (*)         |
| rejects the request (400, 403, 413, 422)                                | no      | no              |
| refuses the content; max_tokens cut a tool call or left no text         | no      | no              |

(+) With the provider's message as a correction.
(-) With a correction that says how to call.
(*) The run and its sub-runs do not call this model again as long as a fallback remains; other runs do.

A failed attempt leaves nothing in the run but its cost: no message, and no tool call. The files of a request are loaded
before the call, and replaced by descriptions where the model does not get them:

| a file                              | that the model does not accept | beyond the size limit | that was deleted    |
|-------------------------------------|--------------------------------|-----------------------|---------------------|
| in the run's own message            | RequestError                   | RequestError at start | description         |
| of earlier turns and tool results   | description                    | description           | description         |

Fallbacks that do not accept a file of a user's message are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any, Self

from framework.config.agents.models import OPT_OUT_HINT, price_hint
from framework.config.settings import ModelCallSettings
from framework.config.yaml.agent_keys import written_path
from framework.engine.context.policy import defined_at
from framework.engine.context.run_context import (
    ModelCaller,
    NamedClient,
    Permit,
    RunContext,
    model_attributes,
    usage_attributes,
)
from framework.llm.answer_text import Separated, ThoughtSplitter, reject_text_calls, require_content, without_thoughts
from framework.llm.capabilities import accepted_settings, with_cost
from framework.llm.client import Delta, ModelClient, ModelInfo, ModelReply, ModelRequest, other_seed, require_accepted
from framework.llm.message_shape import blamed_tool, message_tokens
from framework.telemetry import names
from framework.telemetry.spans import NOOP_SPAN, TraceSpan
from framework.tools.tool import source_of
from framework.types.errors import ConfigError, ModelError
from framework.types.events import ContentReceived, Thought
from framework.types.http import backoff
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, MediaPart, file_size
from framework.types.messages import Message, Usage, late_guidance
from framework.types.text import estimate_tokens


class ModelTrace:
    """Span and metrics of a model call: one `chat` span covers all attempts, as the GenAI conventions require.

    It opens with the first attempt, so that a model in cooldown leaves none. Each attempt gets a child span once there
    is more than one, so a call that succeeds at the first attempt costs one span.
    """

    def __init__(self, caller: ModelCaller, request: ModelRequest) -> None:
        self._caller, self._request = caller, request
        self._span = NOOP_SPAN
        self._info: ModelInfo | None = None
        self._usage: Usage | None = None
        self._first: float | None = None
        self._attempts = 0
        self._held: AttemptTrace | None = None
        """The first attempt, if it failed: it gets a span when there is a second one."""
        self._error: str | None = None
        self._message = ""

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
            seconds = perf_counter() - self._started
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
        served_by: dict[str, Any] = {}  # of a fallback; the requested model remains the first one
        if fallback and self._info:
            served_by = {**model_attributes(info), names.REQUEST_MODEL: self._info.wire_name}
        self._span.set_attributes(
            {
                **served_by,
                names.MODEL_FALLBACK: fallback or None,
                names.RESPONSE_MODEL: reply.model or (info.wire_name if fallback else None),
                names.RESPONSE_ID: reply.response_id or None,
                names.FINISH_REASONS: (reply.finish_reason,),
                names.FIRST_CHUNK: first,
            }
        )
        if self._span.is_recording() and (content := self._caller.content):
            self._span.set_attributes(content.reply(reply.message, reply.finish_reason))

    def add_attempt(self, attempt: AttemptTrace) -> None:
        """Record an attempt that ended, in success or failure."""
        self._error, self._message = attempt.error, attempt.message
        if attempt.usage:
            self._usage = self._usage + attempt.usage if self._usage else attempt.usage
        if meters := self._caller.meters:
            meters.record_model_attempt(attempt.info.provider, attempt.info.wire_name, attempt.usage, attempt.error)
        if self._attempts == 1:
            self._held = attempt
        else:
            self._add_span(attempt)

    def _open(self, info: ModelInfo) -> None:
        self._info, self._started = info, perf_counter()
        spans = self._caller.spans
        if not spans.recording:
            return
        self._span = spans.span(f"chat {info.wire_name}", "LLM", self._attributes(info))
        self._span.__enter__()
        if self._span.is_recording() and (content := self._caller.content):
            self._span.set_attributes(content.request(self._request.messages, self._request.tools))

    def _add_span(self, attempt: AttemptTrace) -> None:
        if self._span is NOOP_SPAN:
            return
        attributes = {
            names.AGENT: self._caller.agent.name,
            names.MODEL_ATTEMPT: attempt.number,
            names.MODEL_FALLBACK: attempt.fallback or None,
            **model_attributes(attempt.info),
        }
        name = f"chat.attempt {attempt.number}"
        span = self._caller.spans.span(name, "CHAIN", attributes, client=True, started_ns=attempt.started_ns)
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


class AttemptTrace:
    """Times, usage and error of one attempt."""

    __slots__ = (
        "_call",
        "ended_ns",
        "error",
        "fallback",
        "info",
        "message",
        "number",
        "started",
        "started_ns",
        "usage",
    )

    def __init__(self, call: ModelTrace, info: ModelInfo, number: int, *, fallback: bool) -> None:
        self._call, self.info, self.number, self.fallback = call, info, number, fallback
        self.error: str | None = None
        self.message = ""
        self.usage: Usage | None = None

    def __enter__(self) -> Self:
        self.started, self.started_ns = perf_counter(), time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ended_ns = time_ns()
        if isinstance(error, asyncio.CancelledError):
            self.error = "cancelled"
        self._call.add_attempt(self)
        del self._call  # which refers to this attempt: a cycle would keep ended runs until a collection

    def replied(self, reply: ModelReply, first_at: float | None) -> None:
        """Record the reply; `first_at` is when the first piece arrived, by `perf_counter`."""
        self.usage = reply.usage
        first = None if first_at is None else first_at - self.started
        self._call.set_reply(self.info, reply, first, fallback=self.fallback)

    def failed(self, error_type: str, message: str, usage: Usage | None) -> None:
        """Record that the attempt failed, why, and what it consumed nevertheless."""
        self.error, self.message, self.usage = error_type, message, usage


async def with_files(run: RunContext, request: ModelRequest, primary: NamedClient) -> ModelRequest:
    """Return a request with the contents of its files; warn about those that the model does not get.

    Raises:
        RequestError: the model does not accept a file of the run's own message.
    """
    own = run.state.messages[0]
    require_accepted(own.media, primary.name, primary.info)
    refused = {part for part in _files(request.messages, but=own) if primary.info.accepts(part) is False}
    excess = set(_excess_files(request.messages, own, refused, primary.info.max_files))
    messages = tuple(_without(message, refused | excess, but=own) for message in request.messages)
    kept = [part for message in messages for part in message.media]
    media = await run.services.media.load({part.digest for part in kept})
    deleted = [part for part in kept if part.digest not in media]
    limit = file_size(MAX_REQUEST_MEDIA_BYTES)
    if primary.info.max_files is not None:
        limit += f", and at most {primary.info.max_files},"
    for reason, files in (
        (f"{primary.name} does not accept it", refused),
        (f"a request can have {limit} of files, and newer ones need them", excess),
        ("it is no longer stored", deleted),
    ):
        for part in run.services.media.newly_omitted([*files]):
            await run.warn("file_not_sent", f"the model gets only the description {part.description}: {reason}")
    return replace(request, messages=messages, media=media)


def fallback_request(request: ModelRequest, name: str, info: ModelInfo) -> ModelRequest:
    """Return a request for a fallback, without settings that it refuses: for an agent's own model, these are errors.

    Files in tool results that it does not accept are replaced by their descriptions.

    Raises:
        ModelError: it does not accept a file of a user's message.
    """
    request = replace(request, settings=accepted_settings(request.settings, info.capabilities))
    refused = {part for part in _files(request.messages) if info.accepts(part) is False} if request.media else ()
    for message in request.messages if refused else ():
        if message.role == "user" and (part := next((part for part in message.media if part in refused), None)):
            raise ModelError(f"{name} does not accept {part.description}", unavailable=True)
    if not refused:
        return request
    return replace(request, messages=tuple(_without(message, refused) for message in request.messages))


def _files(messages: Iterable[Message], *, but: Message | None = None) -> Iterator[MediaPart]:
    for message in messages:
        if message.parts and message is not but:
            yield from message.media


def _excess_files(
    messages: Sequence[Message], own: Message, refused: Collection[MediaPart], max_files: int | None
) -> Iterator[MediaPart]:
    """Yield the files beyond the limits of a request. The run's own files and the newest ones come first."""
    size = sum(part.size for part in own.media)
    count = len(own.media)
    for part in dict.fromkeys(_files(reversed(messages), but=own)):
        if part not in refused:
            size, count = size + part.size, count + 1
            if size > MAX_REQUEST_MEDIA_BYTES or (max_files is not None and count > max_files):
                yield part


def _without(message: Message, omitted: Collection[MediaPart], *, but: Message | None = None) -> Message:
    if not omitted or not message.parts or message is but or not any(part in omitted for part in message.media):
        return message
    return message.without(omitted)


_MAX_RETRIED_CHARS = 1000
"""Characters of received text, about 200 words, from which on a timeout is not retried: the text was paid for."""
_THOUGHTS_SHOWN = (
    "what {model} wrote before </think> was its thoughts, not its answer, and the server did not say where they begin: "
    "start the server with its reasoning parser"
)


async def send_attempt(
    caller: ModelCaller,
    client: ModelClient,
    request: ModelRequest,
    call: ModelTrace,
    message_id: str,
    *,
    fallback: bool,
) -> ModelReply:
    """Send a request to a model once, within the timeouts.

    Args:
        caller: limits, telemetry and context of the call.
        client: the model's client.
        request: the request.
        call: trace of the model call that this attempt belongs to.
        message_id: id, in events, of the message that this attempt produces.
        fallback: whether the model is a fallback.

    Raises:
        ModelError: the attempt failed, or its answer is empty or a call as text; carries the usage, where known.
    """
    attempt = _Attempt(caller, client, request, message_id)
    with call.attempt(client.info, fallback=fallback) as trace:
        try:
            reply = attempt.completed(await attempt.receive())
            if request.continued is None:  # else nothing may be left to add
                require_content(reply, client.info)
                reject_text_calls(reply, request, client.info, request.tools or caller.agent.toolset.definitions)
        except ModelError as error:
            attempt.name_rejected_tool(error)
            error.usage = attempt.failed_usage(error.usage)
            error.has_started |= any(text.strip() for text in attempt.texts)
            trace.failed(error.error_type, error.message, error.usage)
            error.for_message(attempt.message_id)
            raise
        trace.replied(reply, attempt.first_at)
    return reply


_REJECTED = ("400", "422")
"""Statuses of a request that the provider rejects, as `error.type`."""


@dataclass(slots=True)
class _Attempt:
    """A request that was sent, and the part of its answer received so far."""

    caller: ModelCaller
    client: ModelClient
    request: ModelRequest
    message_id: str
    first_at: float | None = None
    """When the first piece arrived, by `perf_counter`."""
    is_late: bool = False
    """Whether a timeout ended the attempt."""
    texts: list[str] = field(default_factory=list)
    thoughts: ThoughtSplitter | None = None
    """Finds thoughts in text that is shown as it arrives; None for a client that does so itself."""

    def __post_init__(self) -> None:
        if self.request.stream and not self.info.describes_json:
            begins_inside = self.info.name in self.caller.clients.start_with_thoughts
            is_first = self.request.continued is None
            self.thoughts = ThoughtSplitter(begins_inside=begins_inside and is_first, finds_lone_tags=is_first)

    @property
    def info(self) -> ModelInfo:
        """The model's properties."""
        return self.client.info

    async def receive(self) -> ModelReply:
        """Return the reply; raises ModelError, also for a timeout."""
        limits, now = self.caller.budget.limits, asyncio.get_running_loop().time
        first_limit = limits.first_token_timeout if self.info.is_streamed(self.request) else None
        end = None if limits.model_total_timeout is None else now() + limits.model_total_timeout
        try:
            async with asyncio.timeout_at(_due(now(), limits.model_timeout, end)) as idle:
                if first_limit is None:
                    return await self._read(None, idle, end)
                async with asyncio.timeout(first_limit) as first:
                    return await self._read(first, idle, end)
        except TimeoutError:
            if end is not None and now() >= end:
                what = "did not finish its answer"
                raise self._timeout_error(what, "model_total_timeout", limits.model_total_timeout) from None
            if first_limit is not None and first.expired():
                raise self._timeout_error("did not start to answer", "first_token_timeout", first_limit) from None
            has_started = self.first_at is not None and self.info.is_streamed(self.request)
            what = "did not continue its answer" if has_started else "did not answer"
            raise self._timeout_error(what, "model_timeout", limits.model_timeout) from None

    async def _read(self, first: asyncio.Timeout | None, idle: asyncio.Timeout, end: float | None) -> ModelReply:
        """Read the answer. The first piece ends the timeout `first`; each piece extends `idle`, at most to `end`."""
        idle_limit = self.caller.budget.limits.model_timeout if self.info.is_streamed(self.request) else None
        deltas = self.client.stream(self.request)
        try:
            async for delta in deltas:
                if delta.reply is not None:
                    return await self._finished(delta.reply)
                self.first_at = self.first_at or perf_counter()
                self.texts += (delta.text, delta.reasoning)
                if first is not None:
                    first.reschedule(None)
                if self.request.stream:
                    await self._show(delta)
                if idle_limit is not None:
                    _extend(idle, idle_limit, end)
        finally:
            # Left to the garbage collector, the connection would stay open and the provider would keep generating.
            if isinstance(deltas, AsyncGenerator):
                await deltas.aclose()
        problem = f"{self.info.name} closed the stream before its answer was complete"
        raise ModelError(problem, retryable=True).of_type("incomplete_answer")

    async def _finished(self, reply: ModelReply) -> ModelReply:
        """Return the complete reply without the thoughts in its text, and show what is not shown of it."""
        if self.info.describes_json:
            return reply
        message = without_thoughts(reply.message, self.info.provider)
        if self.thoughts is not None:
            clients = self.caller.clients
            await self._show_separated(self.thoughts.finish())
            learn = clients.start_with_thoughts.add if self.thoughts.is_lone else clients.start_with_thoughts.discard
            learn(self.info.name)
        return reply if message is reply.message else replace(reply, message=message)

    async def _show(self, delta: Delta) -> None:
        if delta.reasoning:
            self.caller.context.emit_text(Thought, self.message_id, delta.reasoning)
            if self.thoughts is not None:
                self.thoughts.without_lone_tags()
        if delta.text:
            piece = Separated(delta.text) if self.thoughts is None else self.thoughts.add(delta.text)
            await self._show_separated(piece)

    async def _show_separated(self, piece: Separated) -> None:
        """Show a piece of the answer or of thoughts; if what was shown as answer was thoughts, void it first."""
        context = self.caller.context
        if piece.is_void:
            await context.warn(
                "thoughts_in_text", _THOUGHTS_SHOWN.format(model=self.info.name), message_id=self.message_id
            )
            self.message_id += "-answer"
        if piece.thoughts:
            context.emit_text(Thought, self.message_id, piece.thoughts)
        if piece.text:
            context.emit_text(ContentReceived, self.message_id, piece.text)

    def _timeout_error(self, what: str, key: str, seconds: float | None) -> ModelError:
        """Return the error for a timeout; `seconds` is None if the client's own timeout, which has no key, expired."""
        self.is_late = True
        within = "in time" if seconds is None else f"within {seconds:g}s ({self._place_of(key)})"
        chars = sum(map(len, self.texts))
        if chars < _MAX_RETRIED_CHARS:
            return ModelError(f"{self.info.name} {what} {within}", retryable=True).of_type("timeout")
        problem = f"{self.info.name} {what} {within}; not retried after {chars} characters of answer"
        return ModelError(problem).of_type("timeout")

    def _place_of(self, key: str) -> str:
        """Return the key of a limit, and the file and line that set it."""
        agent = self.caller.agent
        is_own = getattr(agent.spec.runtime_policy, key) == getattr(self.caller.budget.limits, key)
        written = ".".join(map(str, written_path(("runtime_policy", key))))
        return f"{written}, {agent.place('runtime_policy', key) if is_own else 'set by the caller'}"

    def name_rejected_tool(self, error: ModelError) -> None:
        """Add to an error about a tool which one it is, where it is defined, and where to leave it out."""
        blamed = blamed_tool(error.message, self.request.tools) if error.error_type in _REJECTED else None
        if blamed is not None:
            agent = self.caller.agent
            tool, policy = agent.toolset.tools.get(blamed.name), agent.place("skill_policy")
            declared = self.caller.sources
            place = declared.get(blamed.name) or declared.get(source_of(blamed.name))
            origin = place or (defined_at(tool) if tool else "")
            named = f"{blamed.name} ({origin})" if origin else blamed.name
            advice = f"this is about the tool {named}: leave it out with tools.deny ({policy})"
            error.args = (f"{error.message}; {advice}",)

    # --- usage

    def completed(self, reply: ModelReply) -> ModelReply:
        """Return the reply with its message id, and with its tokens and cost: estimates where the client has none."""
        return replace(reply, message_id=self.message_id, usage=self._usage_of(reply))

    def _usage_of(self, reply: ModelReply) -> Usage:
        usage = reply.usage
        if self.info.stand_in:
            return usage
        if usage.total_tokens:
            return with_cost(usage, self.info.capabilities)
        estimated = self._estimated_usage(message_tokens(reply.message))
        is_reported = "cost_usd" in usage.model_fields_set and usage.cost_usd is not None
        return estimated.model_copy(update={"cost_usd": usage.cost_usd}) if is_reported else estimated

    def failed_usage(self, reported: Usage | None) -> Usage | None:
        """Return the usage of a failed attempt: an estimate if none is reported and the provider was generating."""
        has_started = self.is_late or self.first_at is not None
        if not has_started or (reported and reported.total_tokens):
            return reported
        return self._estimated_usage(estimate_tokens("".join(self.texts)))

    def _estimated_usage(self, completion: int) -> Usage:
        """Return estimated usage, so that budgets advance even if the provider reports none."""
        prompt = self.caller.clients.request_tokens(self.request)
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        return with_cost(usage, self.info.capabilities)


def _extend(idle: asyncio.Timeout, seconds: float, end: float | None) -> None:
    """Let a timeout expire these seconds from now, at the latest at `end`; a difference of a hundredth is ignored.

    Tokens arrive faster than that, and a timer for each would take a seventh of the time that a token takes.
    """
    now, planned = asyncio.get_running_loop().time(), idle.when()
    if planned is None or now + seconds - planned > seconds / 100:
        idle.reschedule(_due(now, seconds, end))


def _due(now: float, seconds: float | None, end: float | None) -> float | None:
    """Return when a timeout that starts now expires: after these seconds, at the latest at `end`; None for never."""
    due = None if seconds is None else now + seconds
    return end if due is None or (end is not None and end < due) else due


_MAX_RESTARTS = 1
"""How often a model starts an answer again after a part of it had arrived: that part was paid for, and perhaps read."""
_NO_FINISH_REASON = (
    "the server of {model} ended its stream without a finish_reason: the answer is taken as complete; if answers are "
    "cut, set `stream: false` at an alias of the model, or update the server"
)
_UNUSABLE_ANSWERS = ("empty_answer", "bad_call", "text_call")
"""Types of errors after which the same request with the same seed would fail again."""
_POLL_INTERVAL = 0.5
"""Seconds between two checks whether a model has recovered, because another run may find out first."""


async def complete_with_retries(caller: ModelCaller, request: ModelRequest, primary: NamedClient) -> ModelReply:
    """Send a request to a model, retry it, and try the agent's fallbacks in order; return the first reply.

    Args:
        caller: clients, budget and telemetry to use.
        request: the request.
        primary: the model to call first.

    Raises:
        ModelError: every model failed, or one rejected the request itself.
        LimitExceeded: the cost of failed attempts has used up a limit.
        ConfigError: a cost limit applies and the price of a model is unknown, or a setting is not supported.
    """
    return await _ModelCall(caller, request, primary).complete()


class _ModelCall:
    """One request, on its way through the primary model and its fallbacks. Each client is looked up once."""

    def __init__(self, caller: ModelCaller, request: ModelRequest, primary: NamedClient) -> None:
        self._caller, self._context, self._budget = caller, caller.context, caller.budget
        self._request = request
        self._rules: ModelCallSettings = caller.settings.model_calls
        self._breakers = caller.clients.breakers
        self._primary = primary
        self._names = (primary.name, *caller.agent.spec.fallback_models)
        self._clients = {primary.name: primary.client}
        self._cost_limit = self._budget.cost_limit
        self._attempts = 0
        self._message_id: str | None = None
        """Id of the last attempt's message; a warning with this id voids the text shown of that message."""

    async def complete(self) -> ModelReply:
        self._check_prices()
        self._trace = ModelTrace(self._caller, self._request)
        failures: list[ModelError] = []
        failed, names = self._caller.failed_models, self._caller.names_from(self._primary.name)
        with self._trace:
            for position, name in enumerate(names):
                fallback = names[position + 1] if position + 1 < len(names) else None
                is_fallback = name != self._primary.name
                try:
                    client = self._usable_client(name, is_fallback=is_fallback)
                    return await self._call(name, client, is_fallback=is_fallback, is_last=fallback is None)
                except ModelError as error:
                    if not error.unavailable:
                        raise
                    failures.append(error)
                if failures[-1].permanent:
                    failed.add(name)
                if fallback is not None:
                    await self._warn_of_fallback(failures[-1], fallback)
        raise self._exhausted_error(failures)

    async def _warn_of_fallback(self, error: ModelError, fallback: str) -> None:
        duration = " for the rest of the run" if error.permanent else ""
        message = f"{error.message}; falling back to {fallback}{duration}"
        await self._context.warn("model_fallback", message, message_id=self._message_id)

    # --- clients

    def _client(self, name: str) -> ModelClient:
        if name not in self._clients:
            self._clients[name] = self._caller.client(name)
        return self._clients[name]

    def _check_prices(self) -> None:
        """Raise ConfigError if a cost limit needs prices and that of a model is unknown: it could not be enforced."""
        limit = self._cost_limit
        if limit is None or not limit.needs_prices:
            return
        for position, name in enumerate(self._names):
            try:
                client = self._client(name)
            except ConfigError:
                if position:
                    continue  # a fallback without a client is never called
                raise
            if not client.info.has_price:
                hint = price_hint(name, name in self._caller.settings.models)
                problem = f"max_cost_usd ({limit.place}) cannot be enforced: the price of {name} is unknown"
                raise ConfigError(f"{problem}; {hint}" if limit.shared else f"{problem}; {hint}; {OPT_OUT_HINT}")

    async def _warn_of_unknown_cost(self, name: str) -> None:
        """Warn, once a run, that a cost limit does not count a call whose cost is neither reported nor computable."""
        if self._cost_limit is None or not self._budget.claim_warning("cost_unknown"):
            return
        message = f"calls of {name} count as 0 towards max_cost_usd ({self._cost_limit.place}): its price is unknown"
        hint = price_hint(name, name in self._caller.settings.models)
        await self._context.warn("cost_unknown", f"{message}; {hint}")

    def _usable_client(self, name: str, *, is_fallback: bool) -> ModelClient:
        """Return the client for this request; raise ModelError if the next fallback should be tried instead."""
        try:
            client = self._client(name)
        except ConfigError as error:
            if not is_fallback:
                raise
            raise ModelError(error.message, permanent=True) from None
        info, request = client.info, self._request
        if not is_fallback and (unsupported := list(info.unsupported_settings(request.settings))):
            prefix = "" if name == info.name else f"{name}: "
            raise ConfigError(prefix + "; ".join(f"{one.problem}: {one.hint}" for one in unsupported))
        if request.output is not None and not info.typed:
            raise ModelError(f"{name} does not support the structured output of this request", unavailable=True)
        return client

    # --- attempts

    async def _call(self, name: str, client: ModelClient, *, is_fallback: bool, is_last: bool) -> ModelReply:
        """Call one model until it answers or a retry is pointless."""
        first = fallback_request(self._request, name, client.info) if is_fallback else self._request
        request = first
        restarts = unusable = 0
        for retries in count():
            permit = await self._acquire_permit(name, is_last=is_last)
            self._context.keep_time()
            if self._attempts:
                await self._budget.admit_retry()
            self._attempts += 1
            self._message_id = await self._start_message()
            try:
                reply = await send_attempt(
                    self._caller,
                    client,
                    other_seed(request, unusable),
                    self._trace,
                    self._message_id,
                    fallback=is_fallback,
                )
            except ModelError as error:
                self._message_id = error.message_id
                self._record_failure(name, error, permit)
                if error.too_long:
                    self._caller.clients.learn_window(client.info, request, error.window)
                await self._spend(error.usage, client.info, name)
                delay = backoff_seconds(error, retries, self._rules)
                restarts += error.has_started
                unusable += error.error_type in _UNUSABLE_ANSWERS
                if restarts > _MAX_RESTARTS or not self._should_retry(name, error, retries, delay, is_last=is_last):
                    raise
                self._budget.check_spent()
                if error.correction:
                    request = replace(first, messages=(*first.messages, late_guidance(error.correction)))
                message = f"{error.message}; retrying in {delay:.1f}s"
                await self._context.warn("model_retry", message, message_id=self._message_id)
                await asyncio.sleep(delay)
            else:
                self._breakers.record_success(name)
                await self._spend(reply.usage, client.info, name)
                if reply.lacks_finish_reason and self._budget.claim_warning("no_finish_reason"):
                    await self._context.warn("no_finish_reason", _NO_FINISH_REASON.format(model=client.info.name))
                return reply
        raise AssertionError("count() never ends")

    async def _spend(self, usage: Usage | None, model: ModelInfo, name: str) -> None:
        """Add the usage of an attempt; if a shared budget pays for it, save it now, so that all runs see it."""
        if usage and usage.cost_usd is None:
            await self._warn_of_unknown_cost(name)
        if usage and self._budget.spend_tokens(usage, model):
            await self._context.save()

    async def _start_message(self) -> str:
        """Return the id of the message of the next attempt.

        A continued message keeps its id until an attempt fails, which voids it; its start is then emitted again.
        """
        message_id, cut = self._context.message_id(self._attempts), self._request.continued
        if cut is None:
            return message_id
        if self._attempts == 1:
            return cut.message_id
        if self._request.stream:
            self._context.emit_text(ContentReceived, message_id, cut.message.content)
        return message_id

    async def _acquire_permit(self, name: str, *, is_last: bool) -> Permit:
        """Wait until the circuit breaker admits a call.

        Raises:
            ModelError: a fallback remains, or the deadline comes before the end of the cooldown.
        """
        has_warned = False
        while (permit := self._breakers.acquire(name)).wait:
            cooldown = f"{name} is in cooldown for {permit.wait:.1f}s: {self._breakers.last_error(name)}"
            if not is_last:
                raise ModelError(cooldown, retryable=True, retry_after=permit.wait)
            if permit.wait >= self._context.time_remaining():
                advice = "that exceeds the run's remaining time: retry later, or set fallback_models"
                raise ModelError(f"{cooldown}; {advice}", retryable=True, retry_after=permit.wait)
            if not has_warned:
                await self._context.warn("model_retry", cooldown)
                has_warned = True
            await asyncio.sleep(min(permit.wait, _POLL_INTERVAL))
        return permit

    def _record_failure(self, name: str, error: ModelError, permit: Permit) -> None:
        """Record the outcome for the circuit breaker: only retryable errors mean that the model is unhealthy.

        An answer that the model itself got wrong does not.
        """
        if not error.retryable or error.correction:
            self._breakers.record_success(name)
            return
        rules = self._rules
        self._breakers.record_failure(name, permit, error.message, after=rules.cooldown_after, cooldown=rules.cooldown)

    def _should_retry(self, name: str, error: ModelError, retries: int, delay: float, *, is_last: bool) -> bool:
        if not error.retryable or retries >= self._rules.max_retries:
            return False
        if not is_last and self._breakers.is_open(name):
            return False
        timeout = self._budget.limits.model_timeout
        if error.retry_after and timeout is not None and error.retry_after > timeout:
            return False
        return delay < self._context.time_remaining()

    def _exhausted_error(self, failures: list[ModelError]) -> ModelError:
        """Return the error for the caller: the last message of each model, without duplicates."""
        messages = "; ".join(dict.fromkeys(error.message for error in failures))
        attempts = f" ({self._attempts} attempts)" if self._attempts > 1 else ""
        exhausted = ModelError(
            messages + attempts,
            retryable=any(error.retryable for error in failures),
            retry_after=failures[-1].retry_after,
            unavailable=True,
            scarce=any(error.scarce for error in failures),
        )
        return exhausted.of_type(failures[-1].error_type).for_message(self._message_id)


def backoff_seconds(error: ModelError, retries: int, rules: ModelCallSettings) -> float:
    """Return the delay before the next attempt: exponential with full jitter, after the provider's `Retry-After`."""
    delay = backoff(retries, base=rules.backoff, cap=rules.max_backoff)
    return delay if error.retry_after is None else error.retry_after + delay
