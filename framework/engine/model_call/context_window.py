"""The context window: token estimates of requests, and the check that a request fits before it is sent.

The provider's own count is preferred: only messages added since the last reply are estimated.
"""

from __future__ import annotations

from collections.abc import Iterable

from framework.engine.context.run_context import RunContext
from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.llm.request_cache import ToolsetCache, encode_json
from framework.llm.tokens import estimate_tokens
from framework.types.errors import LimitExceeded
from framework.types.messages import Message

_MAX_SHARE = 0.95
"""Share of a context window that requests may use: estimates can be wrong, and providers add tokens of their own."""
_WARNING_SHARE = 0.8
"""Share of a context window from which on the run warns."""
_MESSAGE_OVERHEAD = 4
"""Tokens per message in addition to its text."""


async def ensure_fits(run: RunContext, request: ModelRequest, info: ModelInfo) -> None:
    """Check the estimated size of a request before it is sent; warn when the context window fills.

    Raises:
        LimitExceeded: the request does not fit into the context window, or needs more tokens than the run has left.
    """
    if info.stand_in:  # its token counts are made up
        return
    expected = _expected_tokens(run, request)
    run.budget.check_tokens(expected)
    window = info.capabilities.context_window
    if window is None:
        return
    needed = expected + (request.settings.max_tokens or 0)
    if needed > _MAX_SHARE * window:
        place = f"the context window of {info.name}"
        await run.warn("context_full", f"the request does not fit into {place}: {_advice(run)}")
        raise LimitExceeded("context_full", used=needed, allowed=int(_MAX_SHARE * window), place=place)
    if needed > _WARNING_SHARE * window and "context" not in run.state.warned:
        run.state.warned.append("context")
        used = f"{needed} of {window} tokens of the context window used"
        await run.warn("context", f"{used}; when it is full: {_advice(run)}")


def record_token_count(run: RunContext, reply: ModelReply) -> None:
    """Store the provider's token count of the conversation up to and including this reply, before it is appended."""
    if reply.usage.prompt_tokens:
        size = reply.usage.prompt_tokens + reply.usage.completion_tokens
        run.state.counted = len(run.state.messages) + 1, size


def request_tokens(request: ModelRequest, tool_tokens: ToolsetCache[int]) -> int:
    """Return the estimated number of tokens of a whole request, with its tools."""
    return _sum_tokens(request.messages) + tool_tokens.of(request.tools)


def message_tokens(message: Message) -> int:
    """Return the estimated number of tokens of a message."""
    calls = [[call.tool, call.arguments] for call in message.tool_calls]
    text = message.content + (encode_json(calls).decode() if calls else "")
    return _MESSAGE_OVERHEAD + estimate_tokens(text)


def _expected_tokens(run: RunContext, request: ModelRequest) -> int:
    counted, tokens = run.state.counted
    messages = run.state.messages
    if counted and len(messages) >= counted:
        added = len(messages) - counted + _instruction_count(run, request)
        return tokens + _sum_tokens(request.messages[len(request.messages) - added :])
    return request_tokens(request, run.services.clients.tool_tokens)


def _instruction_count(run: RunContext, request: ModelRequest) -> int:
    """Return how many messages follow the run's own in a request: instructions that are not stored."""
    last = run.state.messages[-1]
    positions = (position for position, message in enumerate(reversed(request.messages)) if message is last)
    return next(positions, 0)


def _sum_tokens(messages: Iterable[Message]) -> int:
    return sum(map(message_tokens, messages))


def _advice(run: RunContext) -> str:
    if run.state.history or run.state.summary:
        return "begin a new conversation"
    place = run.agent.place("runtime_policy", "max_observation_chars")
    return f"have tools return less, or lower runtime_policy.max_observation_chars ({place})"
