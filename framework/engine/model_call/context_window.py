"""Whether a request still fits, before it is sent: into the context window, and into what the run may use up.

What the provider counted is the truth; only what came since the last answer is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framework.engine.context.run_context import RunContext
from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.llm.request_cache import encode_json
from framework.llm.tokens import estimate_tokens
from framework.types.errors import LimitExceeded
from framework.types.messages import Message, ToolDefinition

_MAX_SHARE = 0.95
"""How much of a context window is used: estimates may be wrong, and providers add something of their own."""
_WARNING_SHARE = 0.8
"""At how much of it a warning is told."""
_MESSAGE_OVERHEAD = 4
"""What a message takes besides its text."""


async def ensure_fits(run: RunContext, request: ModelRequest, info: ModelInfo) -> None:
    """Warn when the context window fills.

    Raises:
        LimitExceeded: the call would not fit into it, or would use up more tokens than the run has left.
    """
    if info.stand_in:  # what it counts as tokens is made up
        return
    expected = expected_tokens(run, request)
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


def expected_tokens(run: RunContext, request: ModelRequest) -> int:
    """About how many input tokens a request has."""
    counted, tokens = run.state.counted
    own = run.state.messages
    if counted and len(own) >= counted:
        later = request.messages[len(request.messages) - (len(own) - counted) - _added(run, request) :]
        return tokens + _estimate(later)
    return request_tokens(run, request)


def request_tokens(run: RunContext, request: ModelRequest) -> int:
    """About how many tokens a whole request has, with its tools."""
    return _estimate(request.messages) + run.services.tool_tokens.of(request.tools)


def tool_tokens(tools: Sequence[ToolDefinition]) -> int:
    """About how many tokens a list of tools has."""
    return estimate_tokens("".join(tool.canonical_json for tool in tools))


def record_token_count(run: RunContext, reply: ModelReply) -> None:
    """Remember what the provider counted: the conversation up to and with this answer, which is recorded next."""
    if reply.usage.prompt_tokens:
        size = reply.usage.prompt_tokens + reply.usage.completion_tokens
        run.state.counted = len(run.state.messages) + 1, size


def _added(run: RunContext, request: ModelRequest) -> int:
    """How many messages of a request stand behind the run's own: instructions that are never stored."""
    last = run.state.messages[-1]
    behind = (place for place, message in enumerate(reversed(request.messages)) if message is last)
    return next(behind, 0)


def message_tokens(message: Message) -> int:
    """About how many tokens a message takes."""
    return _MESSAGE_OVERHEAD + estimate_tokens(_text(message))


def _estimate(messages: Iterable[Message]) -> int:
    return sum(map(message_tokens, messages))


def _advice(run: RunContext) -> str:
    if run.state.history or run.state.summary:
        return "begin a new conversation"
    place = run.agent.place("runtime_policy", "max_observation_chars")
    return f"ask for less at once, or lower runtime_policy.max_observation_chars ({place})"


def _text(message: Message) -> str:
    calls = [[call.tool, call.arguments] for call in message.tool_calls]
    return message.content + (encode_json(calls).decode() if calls else "")
