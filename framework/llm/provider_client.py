"""What the clients of all providers share: their options, and the check of a complete response."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar
from uuid import uuid4

from framework.llm.answer_text import split_thoughts
from framework.llm.capabilities import Capabilities, OpenAIApi, with_cost
from framework.llm.client import FinishReason, ModelInfo, ModelReply, ModelRequest, served_model
from framework.llm.openai_format import unique_calls
from framework.llm.provider_errors import ProviderErrors, option_secrets
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, Usage
from framework.types.text import fix_surrogates

T = TypeVar("T")


class ProviderClient:
    """A model at a provider. The SDK is loaded with the first request.

    Args:
        model: the model's name in the API.
        api_key: empty for a server that requires none.
        base_url: a different server with the same API; None for the provider's own.
        capabilities: override the known ones.
        stream: whether responses are always or never streamed; None to stream them if the request asks for it.
        extra_body: fields added to the body of each request.
        headers: headers added to each request.
        usual_path: the path that most servers' `base_url` ends with.
    """

    provider: str
    """The first part of the model name."""
    api: OpenAIApi | None = None
    """Which of OpenAI's APIs is used; None for other providers."""
    credential = "API key"
    """What the server authenticates, as errors call it."""
    media_types: frozenset[str]
    """Media types of files that the API can express."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
        stream: bool | None = None,
        extra_body: Mapping[str, Any] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
        usual_path: str = "",
    ) -> None:
        self._info = served_model(
            self.provider, model, base_url, capabilities, media_types=self.media_types, stream=stream
        )
        self._api_key, self._base_url = api_key, base_url
        self._extra_body, self._headers = extra_body, headers
        self._errors = ProviderErrors(
            self._info.name,
            api_key,
            base_url,
            usual_path=usual_path,
            api=self.api,
            credential=self.credential,
            secrets=option_secrets(headers, extra_body),
        )

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        """Return the root classes of the SDK's errors."""
        return ()

    def _explain(self, error: Any) -> ModelError | None:  # noqa: ARG002 - for subclasses
        """Translate an error of the SDK; return None if it only wraps one of the transport."""
        return None

    async def _guard(self, call: Awaitable[T]) -> T:
        """Await a call of the SDK; raise ModelError for whatever it raises."""
        return await self._errors.guard(call, self._sdk_errors(), self._explain)


FinishReasons = Mapping[str, FinishReason | Literal["error"]]
"""A provider's finish reasons, mapped to those of `ModelReply`; `error` marks a failed response."""
MAX_ANSWER_CHARS = 10_000_000
"""Limit of a reply's text."""


@dataclass(frozen=True, slots=True)
class ProviderResponse:
    """A provider's response, with the finish reason as the provider reports it."""

    message: Message
    finish_reason: str
    """Empty if the provider reported none: unless `is_ended`, the response was cut off."""
    usage: Usage
    model: str
    response_id: str
    chunks: int
    """Number of chunks received; 0 if the server streamed nothing."""
    refusal: str | None = None
    """The provider's explanation of a refusal, which may be empty; None if nothing was refused."""
    is_ended: bool = False
    """Whether the server ended its stream: the response is complete, also without a finish reason."""


def to_reply(
    response: ProviderResponse, request: ModelRequest, info: ModelInfo, reasons: FinishReasons, errors: ProviderErrors
) -> ModelReply:
    """Return the reply with unique call ids and priced usage.

    Raises:
        ModelError: the response is incomplete, empty or refused. Carries the usage, which is charged nevertheless.
    """
    calls = response.message.tool_calls
    usage = with_cost(response.usage, info.capabilities)
    try:
        finish = _finish_reason(response, reasons, errors)
    except ModelError as error:
        error.usage = usage
        raise
    used_ids = {call.id for earlier in request.messages for call in earlier.tool_calls} if calls else set[str]()
    unique = _unique_ids(unique_calls(calls), used_ids)
    return ModelReply(
        message=response.message if unique == calls else response.message.model_copy(update={"tool_calls": unique}),
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        usage=usage,
        model=fix_surrogates(response.model),
        response_id=fix_surrogates(response.response_id),
        lacks_finish_reason=not response.finish_reason,
    )


def require_content(reply: ModelReply, info: ModelInfo) -> None:
    """Reject a reply that contains neither tool calls nor visible text, whichever client it comes from.

    Reasoning alone does not count, neither in its own field nor as a `<think>` block in the text.

    Raises:
        ModelError: retryable, unless `max_tokens` cut the reply before its first word. Carries the reply's usage.
    """
    if reply.unusable is not None or reply.message.tool_calls:
        return
    if has_visible_text(split_thoughts(reply.message.content)[1]):
        return
    if reply.finish_reason == "length":
        error = ModelError(f"{info.name}: max_tokens cut the answer before its text: raise model_settings.max_tokens")
    else:
        thoughts = len(reply.message.reasoning.text) if reply.message.reasoning else 0
        only = f"only thoughts ({thoughts} characters), which may lack their end tag, " if thoughts else ""
        problem = f"the answer is empty: {only}no text and no tool calls"
        error = ModelError(f"{info.name}: {problem}", retryable=True)
    error.usage = reply.usage
    raise error.of_type("empty_answer")


def has_visible_text(text: str) -> bool:
    """Return whether any character is visible: spaces, control and zero-width characters do not count."""
    return any(char.isprintable() and not char.isspace() for char in text)


def merge_finish_reason(earlier: str, reported: object, reasons: FinishReasons) -> str:
    """Return the finish reason of a response that reports several: a later success does not override an earlier one."""
    later = str(reported or "")
    return earlier if not later or (earlier and reasons.get(later) in ("stop", "tool_calls")) else later


def _finish_reason(response: ProviderResponse, reasons: FinishReasons, errors: ProviderErrors) -> FinishReason:
    """Return the finish reason of a complete response; raise ModelError for others, whose tool calls must not run."""
    if response.refusal is not None:
        raise errors.refusal("refused", response.refusal)
    has_calls, reported = bool(response.message.tool_calls), response.finish_reason
    if len(response.message.content) > MAX_ANSWER_CHARS:
        problem = f"the answer exceeds {MAX_ANSWER_CHARS} characters, more than any model writes"
        raise errors.error(problem, unavailable=True)
    match reasons.get(reported):
        case "tool_calls" if not has_calls and not response.message.content.strip():
            raise errors.error("the finish reason announces a tool call, but the answer contains none", retryable=True)
        case "stop" | "tool_calls":
            return "stop"
        case "length":
            if has_calls:
                raise errors.error("a tool call was cut by max_tokens: raise model_settings.max_tokens")
            return "length"
        case "content_filter":
            raise errors.refusal("refused: the provider's content filter stopped the answer", reported)
        case None if not reported:
            return _unreported(response, errors)
        case None if not has_calls and "error" not in reported:
            return "stop"
        case _:
            raise errors.unexpected_finish(reported)


def _unreported(response: ProviderResponse, errors: ProviderErrors) -> FinishReason:
    """Return the finish reason of a response without one; raise ModelError if it was cut off."""
    if response.is_ended and response.chunks and not any(call.invalid for call in response.message.tool_calls):
        return "stop"
    empty = "the server streamed nothing: check base_url"
    incomplete = "the stream ended before the answer was complete"
    error = errors.error(incomplete if response.chunks else empty, retryable=True)
    raise error.of_type("incomplete_answer" if response.chunks else "empty_answer")


def _unique_ids(calls: Iterable[ToolCall], used_ids: set[str]) -> tuple[ToolCall, ...]:
    """Assign a new id to each call without one or with a used one: some servers count from 0 in each response."""
    unique = []
    for call in calls:
        call_id = call.id if call.id and call.id not in used_ids else f"call_{uuid4().hex[:16]}"
        used_ids.add(call_id)
        unique.append(call if call.id == call_id else call.model_copy(update={"id": call_id}))
    return tuple(unique)
