"""One attempt at a model call: its timeouts, its usage, and the text shown while the answer arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from time import perf_counter

from framework.engine.context.model_clients import ModelCaller
from framework.engine.context.policy import defined_at
from framework.engine.model_call.trace import ModelTrace
from framework.llm.answer_text import Separated, ThoughtSplitter, reject_text_calls, without_thoughts
from framework.llm.capabilities import with_cost
from framework.llm.client import Delta, ModelClient, ModelInfo, ModelReply, ModelRequest
from framework.llm.provider_client import require_content
from framework.llm.request_cache import estimate_tokens, message_tokens
from framework.llm.tool_schemas import blamed_tool
from framework.tools.tool_source import source_of
from framework.types.errors import ModelError
from framework.types.events import ContentReceived, Thought
from framework.types.messages import Usage

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
            error.has_begun |= any(text.strip() for text in attempt.texts)
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
            begins_inside = self.info.name in self.caller.clients.begin_with_thoughts
            is_first = self.request.continued is None
            self.thoughts = ThoughtSplitter(begins_inside=begins_inside and is_first, finds_lone_tags=is_first)

    @property
    def info(self) -> ModelInfo:
        """The model's properties."""
        return self.client.info

    @property
    def _is_streamed(self) -> bool:
        return self.info.is_streamed(self.request)

    async def receive(self) -> ModelReply:
        """Return the reply; raises ModelError, also for a timeout."""
        limits, now = self.caller.budget.limits, asyncio.get_running_loop().time
        first_limit = limits.first_token_timeout if self._is_streamed else None
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
                raise self._timeout_error("did not begin to answer", "first_token_timeout", first_limit) from None
            is_silent = self.first_at is None or not self._is_streamed
            what = "did not answer" if is_silent else "did not continue its answer"
            raise self._timeout_error(what, "model_timeout", limits.model_timeout) from None

    async def _read(self, first: asyncio.Timeout | None, idle: asyncio.Timeout, end: float | None) -> ModelReply:
        """Read the answer. The first piece ends the timeout `first`; each piece extends `idle`, at most to `end`."""
        idle_limit = self.caller.budget.limits.model_timeout if self._is_streamed else None
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
            learn = clients.begin_with_thoughts.add if self.thoughts.is_lone else clients.begin_with_thoughts.discard
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
        return f"runtime_policy.{key}, {agent.place('runtime_policy', key) if is_own else 'set by the caller'}"

    def name_rejected_tool(self, error: ModelError) -> None:
        """Add to an error about a tool which one it is, where it is defined, and where to leave it out."""
        blamed = blamed_tool(error.message, self.request.tools) if error.error_type in _REJECTED else None
        if blamed is not None:
            agent = self.caller.agent
            tool, place = agent.toolset.tools.get(blamed.name), agent.place("skill_policy")
            origin = self.caller.sources.get(source_of(blamed.name)) or (defined_at(tool) if tool else "")
            named = f"{blamed.name} ({origin})" if origin else blamed.name
            advice = f"this is about the tool {named}: leave it out with skill_policy.deny ({place})"
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
        has_begun = self.is_late or self.first_at is not None
        if not has_begun or (reported and reported.total_tokens):
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
