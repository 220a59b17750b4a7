"""Gemini, through Google's own SDK. Whatever goes wrong there leaves here as one ModelError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from framework.llm.capabilities import Capabilities
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest, served_model
from framework.llm.gemini.format import ResponseAssembler, request_to_arguments
from framework.llm.http_client import create_http_client
from framework.llm.openai_format import tool_names
from framework.llm.provider_errors import ProviderErrors, message_in, parse_retry_after
from framework.llm.reply_check import FinishReasons, ProviderAnswer, to_reply
from framework.types.errors import ModelError

if TYPE_CHECKING:
    import httpx2
    from google.genai import Client

T = TypeVar("T")
SDK_TIMEOUT = 600.0
"""Seconds; a net below the deadline that the engine sets."""
_REFUSALS = (
    "SAFETY",
    "RECITATION",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "ESCALATION",
    "MODEL_ARMOR",
    "PUP_LIMITED_DISABLED",
)
_FAILURES = (
    "OTHER",
    "LANGUAGE",
    "MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "MISSING_THOUGHT_SIGNATURE",
    "MALFORMED_RESPONSE",
    "FINISH_REASON_UNSPECIFIED",
)
_FINISH_REASONS: FinishReasons = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(_REFUSALS, "content_filter"),
    **dict.fromkeys(_FAILURES, "error"),
}


class GeminiModel:
    """A model behind `generateContent`. The SDK is loaded with the first question.

    Args:
        model: the name the API knows it by.
        api_key: empty for a server that asks for none.
        base_url: of another server that speaks the same, with or without a version such as `/v1beta`; None is Google's.
        capabilities: over those known of the model.
    """

    def __init__(
        self, model: str, *, api_key: str, base_url: str | None = None, capabilities: Capabilities | None = None
    ) -> None:
        self._info = served_model("gemini", model, base_url, capabilities)
        self._api_key = api_key
        self._base_url = base_url
        self._failures = ProviderErrors(self._info.name, api_key, base_url)
        self._client: Client | None = None
        self._http: httpx2.AsyncClient | None = None
        self._responses: WeakKeyDictionary[asyncio.Task[Any], httpx2.Response] = WeakKeyDictionary()

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask; raises ModelError."""
        models: Any = self._connected().aio.models
        arguments = request_to_arguments(request, self._info)
        answer = ResponseAssembler(_FINISH_REASONS)
        if not request.stream and not self._info.capabilities.stream_only:
            answer.take(await self._guard(models.generate_content(**arguments)))
            yield Delta(reply=self._reply(answer, request))
            return
        chunks = await self._guard(models.generate_content_stream(**arguments))
        response = None
        try:
            while (chunk := await self._guard(anext(chunks, None))) is not None:
                response = response or self._responses.pop(_task(), None)
                delta = answer.take(chunk)
                if delta and request.stream:
                    yield delta
        finally:
            await chunks.aclose()
            if response is not None:  # the SDK leaves it open when its generators are left in the middle
                await response.aclose()
        yield Delta(reply=self._reply(answer, request))

    async def close(self) -> None:
        """Give connections back."""
        if self._client is not None and self._http is not None:
            self._client.close()
            await self._http.aclose()
            self._client = self._http = None

    def _connected(self) -> Client:
        self._client = self._client or self._failures.set_up(self._connect)
        return self._client

    def _connect(self) -> Client:
        from google.genai import Client
        from google.genai.types import HttpOptions, HttpRetryOptions

        # With a client of ours, or the SDK takes aiohttp where it finds it, and that has other errors and retries.
        self._http = create_http_client(SDK_TIMEOUT, self._remember)
        address, version = _address_and_version(self._base_url)
        options = HttpOptions(
            base_url=address,
            api_version=version,
            timeout=int(SDK_TIMEOUT * 1000),
            retry_options=HttpRetryOptions(attempts=1),
            httpx_async_client=self._http,
        )
        return Client(enterprise=False, api_key=self._api_key or "none", http_options=options)

    async def _remember(self, response: httpx2.Response) -> None:
        self._responses[_task()] = response

    def _reply(self, parts: ResponseAssembler, request: ModelRequest) -> ModelReply:
        answer = ProviderAnswer(
            message=parts.message(tool_names(request.tools)),
            finish_reason=parts.finish_reason,
            usage=parts.usage,
            model=parts.model,
            response_id=parts.response_id,
            pieces=parts.pieces,
            refusal=parts.blocked or None,
        )
        return to_reply(answer, request, self._info, _FINISH_REASONS, self._failures)

    async def _guard(self, call: Awaitable[T]) -> T:
        from google.genai.errors import APIError

        return await self._failures.guard(call, APIError, self._explain)

    def _explain(self, error: Any) -> ModelError | None:
        headers = getattr(error.response, "headers", None) or {}
        wait = parse_retry_after({str(key).lower(): str(value) for key, value in headers.items()})
        words = message_in(error.message)
        if not isinstance(error.code, int) or error.code < 300:
            return self._failures.reported(words)
        return self._failures.status(error.code, words, wait=_asked_wait(error.details) if wait is None else wait)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a client is asked from a task"
    return task


def _address_and_version(base_url: str | None) -> tuple[str | None, str | None]:
    """The SDK wants the version of the API apart; None is its own choice."""
    head, _, tail = (base_url or "").rstrip("/").rpartition("/")
    return (head, tail) if tail in ("v1", "v1beta", "v1alpha") else (base_url, None)


def _asked_wait(details: object) -> float | None:
    """The seconds that an error's `RetryInfo` asks to wait."""
    error = details.get("error") if isinstance(details, Mapping) else None
    listed = error.get("details") if isinstance(error, Mapping) else None
    for detail in listed if isinstance(listed, list) else ():
        if isinstance(detail, Mapping) and str(detail.get("retryDelay", "")).endswith("s"):
            return parse_retry_after({"retry-after": str(detail["retryDelay"])[:-1]})
    return None
