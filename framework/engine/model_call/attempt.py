"""One attempt at a model call: its span, its two deadlines, and what is shown of the answer while it comes in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from time import perf_counter

from framework.engine.context.run_context import RunContext
from framework.engine.model_call.context_window import message_tokens, request_tokens
from framework.engine.model_call.trace import ModelTrace
from framework.llm.capabilities import with_cost
from framework.llm.client import ModelClient, ModelInfo, ModelReply, ModelRequest
from framework.llm.reply_check import require_content
from framework.llm.tokens import estimate_tokens
from framework.types.errors import ModelError
from framework.types.events import ContentReceived
from framework.types.messages import Usage
from framework.types.state import RunState

SUBSTANTIAL_CHARS = 1000
"""Text of an answer, about 200 words, after which a deadline ends the call instead of paying for it again."""


def message_id(state: RunState, attempt: int = 1) -> str:
    """Return the id, in events, of the message that an attempt at the current model turn produces.

    Args:
        state: of the run or sub-run.
        attempt: its number within the turn, from 1.
    """
    again = f"-{attempt}" if attempt > 1 else ""
    return ".".join(("msg", *state.path, str(state.steps))) + again


async def send_attempt(
    run: RunContext, client: ModelClient, request: ModelRequest, call: ModelTrace, message: str, *, fallback: bool
) -> ModelReply:
    """Call a model once, within its timeouts.

    Args:
        run: the run that the call is part of.
        client: the model's client.
        request: the request.
        call: trace of the model call that this is an attempt of.
        message: id, in events, of the message that this attempt produces.
        fallback: whether the model is a fallback.

    Raises:
        ModelError: the attempt failed or its answer is empty; carries the usage, where known.
    """
    info = client.info
    incoming = _Incoming(info, message)
    with call.attempt(info, fallback=fallback) as trace:
        try:
            reply = _counted(run, request, await _in_time(run, client, request, incoming), info)
            require_content(reply, info)
        except ModelError as error:
            error.usage = incoming.cost(run, request, error.usage)
            trace.failed("timeout" if incoming.late else error.code, error.usage)
            error.for_message(message)
            raise
        trace.replied(reply, incoming.first_at)
    return replace(reply, message_id=message)


def _counted(run: RunContext, request: ModelRequest, reply: ModelReply, info: ModelInfo) -> ModelReply:
    """The reply with tokens and cost: estimated or computed, each where the client reports none."""
    usage = reply.usage
    if info.stand_in or (usage.total_tokens and usage.cost_usd):
        return reply
    if not usage.total_tokens:
        usage = _estimated(run, request, message_tokens(reply.message), info)
    cost = reply.usage.cost_usd or with_cost(usage, info.capabilities).cost_usd
    return replace(reply, usage=usage.model_copy(update={"cost_usd": cost}))


def _estimated(run: RunContext, request: ModelRequest, completion: int, info: ModelInfo) -> Usage:
    """Estimated usage when the provider reports none, so that budgets still advance."""
    prompt = request_tokens(run, request)
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
    return with_cost(usage, info.capabilities)


@dataclass(slots=True)
class _Incoming:
    """What of an answer has come in so far."""

    info: ModelInfo
    message_id: str
    first_at: float | None = None
    """When the first piece came in, by `perf_counter`."""
    late: bool = False
    texts: list[str] = field(default_factory=list)

    def too_late(self, what: str, limit: str, seconds: float | None) -> ModelError:
        """The error of a deadline that has passed.

        Args:
            what: what the model did not do, such as `did not answer`.
            limit: key and place of the limit.
            seconds: value of the limit; None if only the client's own deadline has passed.
        """
        self.late = True
        within = "in time" if seconds is None else f"within {seconds:g}s ({limit})"
        chars = sum(map(len, self.texts))
        if chars < SUBSTANTIAL_CHARS:
            return ModelError(f"{self.info.name} {what} {within}", retryable=True)
        return ModelError(f"{self.info.name} {what} {within}; not retried after {chars} characters of answer")

    def cost(self, run: RunContext, request: ModelRequest, told: Usage | None) -> Usage | None:
        """What an attempt that failed has cost; an estimate where none is reported and the provider was at work."""
        begun = self.late or self.first_at is not None
        if not begun or (told and told.total_tokens):
            return told
        return _estimated(run, request, estimate_tokens("".join(self.texts)), self.info)


async def _in_time(run: RunContext, client: ModelClient, request: ModelRequest, incoming: _Incoming) -> ModelReply:
    limits = run.budget.limits
    first_limit = limits.first_token_timeout if request.stream else None
    try:
        async with asyncio.timeout(limits.model_timeout) as idle, asyncio.timeout(first_limit) as first:
            return await _receive(run, client, request, incoming, first, idle)
    except TimeoutError:
        if first.expired():
            limit = _limit(run, "first_token_timeout")
            raise incoming.too_late("did not begin to answer", limit, first_limit) from None
        what = "did not answer" if incoming.first_at is None or not request.stream else "did not continue its answer"
        raise incoming.too_late(what, _limit(run, "model_timeout"), limits.model_timeout) from None


def _limit(run: RunContext, key: str) -> str:
    """A limit as messages name it: its key, and where it is set."""
    own = getattr(run.agent.spec.runtime_policy, key) == getattr(run.budget.limits, key)
    return f"runtime_policy.{key}, {run.agent.place('runtime_policy', key) if own else 'set by the caller'}"


async def _receive(
    run: RunContext,
    client: ModelClient,
    request: ModelRequest,
    incoming: _Incoming,
    first: asyncio.Timeout,
    idle: asyncio.Timeout,
) -> ModelReply:
    """Read the answer. Each piece of a streamed one extends the deadline `idle`, and the first one ends `first`."""
    pause = run.budget.limits.model_timeout if request.stream else None
    root = run.services.root
    head = {"run_id": root.run_id, "seq": 0, "generation": root.generation, "path": run.state.path}
    deltas = client.stream(request)
    try:
        async for delta in deltas:
            if delta.reply is not None:
                return delta.reply
            incoming.first_at = incoming.first_at or perf_counter()
            first.reschedule(None)
            if pause is not None:
                idle.reschedule(asyncio.get_running_loop().time() + pause)
            incoming.texts += (delta.text, delta.reasoning)
            if delta.text and request.stream and not run.is_guarded:  # a guard may have come since it was asked
                await run.services.channel.put(ContentReceived(**head, message_id=incoming.message_id, text=delta.text))
    finally:
        # Left to the garbage collector, the connection would stay open, and the provider would go on writing.
        if isinstance(deltas, AsyncGenerator):
            await deltas.aclose()
    raise ModelError(f"{incoming.info.name} broke off in the middle of its answer", retryable=True)
