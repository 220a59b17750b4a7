"""Every server that speaks OpenAI's chat completions. Whatever goes wrong there leaves here as one ModelError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from framework.llm.assembly import Assembly, as_dict
from framework.llm.chat import (
    chat_to_message,
    chat_to_usage,
    message_to_chat,
    repair,
    settings_to_chat,
    tool_choice_to_chat,
    tool_names,
    tool_to_chat,
    wire_names,
)
from framework.llm.client import Delta, FinishReason, ModelInfo, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import ToolCall

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

T = TypeVar("T")
SDK_TIMEOUT = 600.0
"""Seconds; a net below the deadline that the engine sets."""
QUOTED_CHARS = 300
"""How much of a provider's own words an error repeats."""


class OpenAIModel:
    """A model behind chat completions. The SDK is loaded with the first question.

    Args:
        provider: who serves it, the first half of its name.
        model: the name the server knows it by.
        api_key: empty for a server that asks for none.
        base_url: up to and with `/v1`; None is the SDK's own choice.
    """

    def __init__(self, provider: str, model: str, *, api_key: str, base_url: str | None = None) -> None:
        url = urlsplit(base_url or "")
        self._info = ModelInfo(provider, model, server_address=url.hostname)
        self._api_key = api_key
        self._base_url = base_url
        # Neither a user's password nor a key in the query belongs into an error.
        self._address = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if base_url else provider
        self._client: AsyncOpenAI | None = None

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask; raises ModelError."""
        create: Any = self._connect().chat.completions.create
        body = self._body(request)
        if not request.stream:
            yield Delta(reply=self._whole(await self._guard(create(**body)), request))
            return
        chunks = await self._guard(create(**body, stream=True, stream_options={"include_usage": True}))
        answer = Assembly()
        try:
            while (chunk := await self._guard(anext(chunks, None))) is not None:
                if delta := answer.take(chunk):
                    yield delta
        finally:
            await chunks.close()
        yield Delta(reply=self._reply(answer, request))

    async def close(self) -> None:
        """Give connections back."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _connect(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI

            # Never None: the SDK would then send the key of its own environment variable to any server.
            self._client = AsyncOpenAI(
                api_key=self._api_key or "none", base_url=self._base_url, max_retries=0, timeout=SDK_TIMEOUT
            )
        return self._client

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        names = wire_names(request.tools)
        messages = [message_to_chat(message, names, provider=self._info.provider) for message in request.messages]
        body = {"model": self._info.model, "messages": messages, **settings_to_chat(request.settings)}
        if "max_tokens" in body and self._info.provider == "openai" and self._base_url is None:
            # OpenAI's reasoning models refuse the old name; most other servers know only that one.
            body["max_completion_tokens"] = body.pop("max_tokens")
        if request.tools:
            body["tools"] = [tool_to_chat(tool) for tool in request.tools]
            body["tool_choice"] = tool_choice_to_chat(request.settings.tool_choice or "auto", names)
        return body

    def _whole(self, completion: Any, request: ModelRequest) -> ModelReply:
        if isinstance(completion, str):
            raise self._error("the server answered with a page, not a completion: is base_url right?", retryable=True)
        choices = getattr(completion, "choices", None)
        if not isinstance(choices, list) or not choices:
            reported = getattr(completion, "error", None)
            raise self._reported(reported) if reported else self._error("the answer is empty", retryable=True)
        answer = Assembly()
        answer.take(completion)
        answer.message = as_dict(getattr(choices[0], "message", None))
        return self._reply(answer, request)

    def _reply(self, answer: Assembly, request: ModelRequest) -> ModelReply:
        chat = answer.message or answer.assembled()
        if chat.get("refusal"):
            raise self._error("refused", str(chat["refusal"]))
        message = chat_to_message(
            {**chat, "role": "assistant"}, tool_names(request.tools), provider=self._info.provider
        )
        taken = {call.id for earlier in request.messages for call in earlier.tool_calls}
        message = message.model_copy(update={"tool_calls": _unique_ids(message.tool_calls, taken)})
        return ModelReply(
            message=message,
            finish_reason=self._finish_reason(answer, calls=bool(message.tool_calls)),
            usage=chat_to_usage(as_dict(answer.usage)),
            model=answer.model,
            response_id=answer.response_id,
        )

    def _finish_reason(self, answer: Assembly, *, calls: bool) -> FinishReason:
        """Decide whether the answer is whole: tool calls of one that is not must never run."""
        match answer.finish:
            case "stop" | "tool_calls" | "function_call":
                return "tool_calls" if calls else "stop"
            case "length" | "model_length":
                if calls:
                    raise self._error("a tool call was cut by max_tokens: raise model_settings.max_tokens")
                return "length"
            case "content_filter" | "sensitive":
                raise self._error("refused: the provider's content filter stopped the answer")
            case "":
                nothing = "the server streamed nothing: is base_url right?"
                broken = "the answer broke off before its end"
                raise self._error(broken if answer.chunks else nothing, retryable=True)
            case other if calls or "error" in other or other in ("abort", "insufficient_system_resource"):
                raise self._error("the answer ended with a finish_reason of its own", other, retryable=True)
            case _:
                return "stop"

    async def _guard(self, call: Awaitable[T]) -> T:
        """Await the SDK. Not all it raises is its own: raw transport errors and bad JSON come through as they are."""
        import httpx2
        from openai import OpenAIError

        try:
            return await call
        except (OpenAIError, httpx2.HTTPError, ValueError) as error:
            failure = self._explain(error)
        raise failure  # out here it has no context: the SDK's error holds the request, and with it the key

    def _explain(self, error: Exception) -> ModelError:
        import httpx2
        import openai

        root = error if isinstance(error, httpx2.HTTPError) else error.__cause__ or error
        if isinstance(error, openai.APIStatusError):
            return self._explain_status(error)
        if isinstance(root, httpx2.TimeoutException):
            return self._error(f"no answer in time from {self._address}", retryable=True)
        if isinstance(error, (openai.APIConnectionError, httpx2.HTTPError)):
            unreached = isinstance(root, (httpx2.ConnectError, httpx2.UnsupportedProtocol))
            hint = "failed: is the server up, is base_url right?" if unreached else "broke before the answer was whole"
            return self._error(f"the connection to {self._address} {hint} ({type(root).__name__})", retryable=True)
        if isinstance(error, openai.APIError):
            return self._reported(error.body, error.message)
        return self._error("the server's answer is not JSON: is base_url right?", retryable=True)

    def _explain_status(self, error: APIStatusError) -> ModelError:
        status, code, words = error.status_code, error.code, _words(error.body)
        if code == "content_filter":
            return self._error("refused", words or "by the content filter")
        if status == 401:  # its words often repeat a part of the key
            return self._error("the key was refused: set a valid one")
        if status == 404:
            return self._error(f"no such model at {self._address}, or base_url is wrong", words)
        if status == 429 and code == "insufficient_quota":
            return self._error("the account's quota is used up", words)
        if status == 429:
            wait = error.response.headers.get("retry-after")
            return self._error(f"rate limited{f', retry after {wait} s' if wait else ''}", words, retryable=True)
        if status >= 500 or status in (408, 409):
            return self._error(f"the provider failed ({status})", words, retryable=True)
        return self._error(f"the request was refused ({status})", words)

    def _reported(self, body: object, words: str = "") -> ModelError:
        """Explain an error told inside an answer of status 200."""
        code = body.get("code") if isinstance(body, Mapping) else None
        final = isinstance(code, int) and 400 <= code < 500 and code not in (408, 409, 429)
        return self._error("the provider reported an error", _words(body) or words, retryable=not final)

    def _error(self, problem: str, quoted: str = "", *, retryable: bool = False) -> ModelError:
        """One line: the model, the problem in our words, and what the provider says of it."""
        words = repair(" ".join(quoted.split()))
        words = words.replace(self._api_key, "***") if self._api_key else words
        cut = words if len(words) <= QUOTED_CHARS else words[: QUOTED_CHARS - 1] + "…"
        text = f"{self._info.name}: {problem}: {cut}" if cut else f"{self._info.name}: {problem}"
        return ModelError(text, retryable=retryable)


def _words(body: object) -> str:
    """What a provider says in an error's body; a proxy's HTML page says nothing."""
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail")
    return body if isinstance(body, str) and not body.lstrip().startswith("<") else ""


def _unique_ids(calls: Iterable[ToolCall], taken: set[str]) -> tuple[ToolCall, ...]:
    """Give a new id to a call without one, or with one that the conversation has already: some servers count from 0."""
    unique = []
    for call in calls:
        call_id = call.id if call.id and call.id not in taken else f"call_{uuid4().hex[:16]}"
        taken.add(call_id)
        unique.append(call.model_copy(update={"id": call_id}))
    return tuple(unique)
