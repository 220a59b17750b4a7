"""Whole answers, judged alike for every provider: is it whole, may its tool calls run, what did it cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from framework.llm.capabilities import with_cost
from framework.llm.client import FinishReason, ModelInfo, ModelReply, ModelRequest
from framework.llm.openai_format import unique_calls
from framework.llm.provider_errors import ProviderErrors
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, Usage
from framework.types.text import fix_surrogates

Ending = FinishReason | Literal["error"]
FinishReasons = Mapping[str, Ending]
"""A provider's words for why an answer ended -> ours."""
MAX_ANSWER_CHARS = 10_000_000
THINK_TAG, _THOUGHT = "<think>", re.compile(r"<think>(.*?)</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """What a provider answered, in our form but in its own word for how it ended."""

    message: Message
    finish_reason: str
    """Empty: it said none, so the answer was cut off."""
    usage: Usage
    model: str
    response_id: str
    pieces: int
    """How many came; none: the server streamed nothing."""
    refusal: str | None = None
    """Why there is no answer, in the provider's own words, which may be none; None: nothing was refused."""


def to_reply(
    answer: ProviderAnswer, request: ModelRequest, info: ModelInfo, endings: FinishReasons, failures: ProviderErrors
) -> ModelReply:
    """The reply, its calls with unique ids, its tokens with their price; raises ModelError where it is not whole."""
    calls = answer.message.tool_calls
    usage = with_cost(answer.usage, info.capabilities)
    try:
        finish = _finish_reason(answer, endings, failures)
    except ModelError as error:
        error.usage = usage  # what cannot be used is paid for all the same
        raise
    taken = {call.id for earlier in request.messages for call in earlier.tool_calls} if calls else set[str]()
    unique = _unique_ids(unique_calls(calls), taken)
    return ModelReply(
        message=answer.message if unique == calls else answer.message.model_copy(update={"tool_calls": unique}),
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        usage=usage,
        model=fix_surrogates(answer.model),
        response_id=fix_surrogates(answer.response_id),
    )


def require_content(reply: ModelReply, info: ModelInfo) -> None:
    """Reject an answer without tool calls and without visible text, whichever client it comes from.

    Reasoning alone is not an answer, neither in its own field nor as a `<think>` block in the text.

    Raises:
        ModelError: retryable, unless `max_tokens` cut the answer before its first word. Carries the reply's usage.
    """
    if reply.unusable is not None or reply.message.tool_calls or _has_text(reply.message.content):
        return
    if reply.finish_reason == "length":
        error = ModelError(f"{info.name}: max_tokens cut the answer before its text: raise model_settings.max_tokens")
    else:
        error = ModelError(f"{info.name}: the answer is empty: no text and no tool calls", retryable=True)
    error.usage = reply.usage
    raise error


def _has_text(content: str) -> bool:
    """Whether there is anything to see: spaces, control and zero-width characters do not count."""
    answer = split_reasoning(content)[1] if content.lstrip().startswith(THINK_TAG) else content
    return any(char.isprintable() and not char.isspace() for char in answer)


def merge_finish_reason(earlier: str, word: object, endings: FinishReasons) -> str:
    """How an answer ended, of which more than one thing is said: that it is whole takes nothing else back."""
    said = str(word or "")
    return earlier if not said or (earlier and endings.get(said) in ("stop", "tool_calls")) else said


def _finish_reason(answer: ProviderAnswer, endings: FinishReasons, failures: ProviderErrors) -> FinishReason:
    """Decide whether the answer is whole: tool calls of one that is not must never run."""
    if answer.refusal is not None:
        raise failures.refusal("refused", answer.refusal)
    calls, word = bool(answer.message.tool_calls), answer.finish_reason
    if len(answer.message.content) > MAX_ANSWER_CHARS:
        problem = f"the answer is longer than {MAX_ANSWER_CHARS} characters: no model writes that much"
        raise failures.error(problem, unavailable=True)
    match endings.get(word):
        case "tool_calls" if not calls and not answer.message.content.strip():
            raise failures.error("the answer says that it calls a tool, and holds no call", retryable=True)
        case "stop" | "tool_calls":
            return "stop"
        case "length":
            if calls:
                raise failures.error("a tool call was cut by max_tokens: raise model_settings.max_tokens")
            return "length"
        case "content_filter":
            raise failures.refusal("refused: the provider's content filter stopped the answer", word)
        case None if not word:
            nothing = "the server streamed nothing: is base_url right?"
            broken = "the answer broke off before its end"
            raise failures.error(broken if answer.pieces else nothing, retryable=True)
        case None if not calls and "error" not in word:
            return "stop"
        case _:
            raise failures.error("the answer ended with a finish_reason of its own", word, retryable=True)


def _unique_ids(calls: Iterable[ToolCall], taken: set[str]) -> tuple[ToolCall, ...]:
    """Give a new id to a call without one, or with one that the conversation has already: some servers count from 0."""
    unique = []
    for call in calls:
        call_id = call.id if call.id and call.id not in taken else f"call_{uuid4().hex[:16]}"
        taken.add(call_id)
        unique.append(call if call.id == call_id else call.model_copy(update={"id": call_id}))
    return tuple(unique)


def split_reasoning(text: str) -> tuple[str, str]:
    """What the model thought aloud before its answer, and the answer."""
    stripped = text.strip()
    thought = _THOUGHT.match(stripped)
    return (thought[1].strip(), stripped[thought.end() :].strip()) if thought else ("", stripped)
