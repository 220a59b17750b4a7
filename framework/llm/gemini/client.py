"""Client for Gemini, through Google's SDK. Every failure is raised as a ModelError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from framework.llm.client import Delta, ModelReply, ModelRequest, whole_reply
from framework.llm.gemini.format import GEMINI_MEDIA_TYPES, ResponseAssembler, request_to_arguments
from framework.llm.http_client import SDK_TIMEOUT, create_http_client
from framework.llm.openai_format import tool_names
from framework.llm.provider_client import ProviderClient
from framework.llm.provider_errors import message_in, parse_retry_after
from framework.llm.reply_check import FinishReasons, ProviderResponse, to_reply
from framework.types.certificates import trusted_certificates
from framework.types.errors import ModelError

if TYPE_CHECKING:
    import httpx2
    from google.genai import Client
    from google.genai.types import HttpOptions

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


class GeminiModel(ProviderClient):
    """A model behind `generateContent`; the options are those of `ProviderClient`.

    A `base_url` has a version, such as `/v1beta`, or none.
    """

    provider = "gemini"
    media_types = frozenset(GEMINI_MEDIA_TYPES)

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._client: Client | None = None
        self._http: httpx2.AsyncClient | None = None
        self._responses: WeakKeyDictionary[asyncio.Task[Any], httpx2.Response] = WeakKeyDictionary()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Send the request and yield the reply's deltas; raise ModelError if it fails."""
        models: Any = self._connected().aio.models
        arguments = request_to_arguments(request, self._info)
        assembler = ResponseAssembler(_FINISH_REASONS, self._info.source)
        if not self._info.is_streamed(request):
            assembler.add_response(await self._guard(models.generate_content(**arguments)))
            for piece in whole_reply(self._reply(assembler, request), request):
                yield piece
            return
        chunks = await self._guard(models.generate_content_stream(**arguments))
        response = None
        try:
            while (chunk := await self._guard(anext(chunks, None))) is not None:
                response = response or self._responses.pop(_task(), None)
                delta = assembler.add_response(chunk)
                if delta:
                    yield delta
        finally:
            await chunks.aclose()
            if response is not None:  # the SDK leaves it open when its generators are closed early
                await response.aclose()
        yield Delta(reply=self._reply(assembler, request))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None and self._http is not None:
            self._client.close()
            await self._http.aclose()
            self._client = self._http = None

    def _connected(self) -> Client:
        self._client = self._client or self._errors.create_client(self._connect)
        return self._client

    def _connect(self) -> Client:
        from google.genai.types import HttpOptions, HttpRetryOptions

        # With its own HTTP client: the SDK would prefer an installed aiohttp, which has other errors and retries.
        self._http = create_http_client(SDK_TIMEOUT, self._remember)
        address, version = _address_and_version(self._base_url)
        options = HttpOptions(
            base_url=address,
            api_version=version,
            timeout=int(SDK_TIMEOUT * 1000),
            retry_options=HttpRetryOptions(attempts=1),
            httpx_async_client=self._http,
            headers=dict(self._headers) or None,
            extra_body=dict(self._extra_body) or None,
        )
        return self._create_sdk(options)

    def _create_sdk(self, options: HttpOptions) -> Client:
        from google.genai import Client

        trust = trusted_certificates()
        # Without them, the SDK reads the certificates twice, for a synchronous client and WebSockets that are not used.
        options.client_args, options.async_client_args = {"verify": trust}, {"ssl": trust}
        return Client(enterprise=False, api_key=self._api_key or "none", http_options=options)

    async def _remember(self, response: httpx2.Response) -> None:
        self._responses[_task()] = response

    def _reply(self, assembler: ResponseAssembler, request: ModelRequest) -> ModelReply:
        response = ProviderResponse(
            message=assembler.message(tool_names(request.tools)),
            finish_reason=assembler.finish_reason,
            usage=assembler.usage,
            model=assembler.model,
            response_id=assembler.response_id,
            chunks=assembler.chunks,
            refusal=assembler.refusal or None,
        )
        return to_reply(response, request, self._info, _FINISH_REASONS, self._errors)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from google.genai.errors import APIError

        return (APIError,)

    def _explain(self, error: Any) -> ModelError | None:
        headers = getattr(error.response, "headers", None) or {}
        wait = parse_retry_after({str(key).lower(): str(value) for key, value in headers.items()})
        message = message_in(error.message)
        if not isinstance(error.code, int) or error.code < 300:
            return self._errors.from_body(message)
        return self._errors.from_status(error.code, message, wait=_retry_delay(error.details) if wait is None else wait)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "model requests need a running task"
    return task


def _address_and_version(base_url: str | None) -> tuple[str | None, str | None]:
    """Split a base URL into address and API version, as the SDK requires; None for the SDK's default."""
    head, _, tail = (base_url or "").rstrip("/").rpartition("/")
    return (head, tail) if tail in ("v1", "v1beta", "v1alpha") else (base_url, None)


def _retry_delay(details: object) -> float | None:
    """Return the delay in an error's `RetryInfo`, in seconds."""
    error = details.get("error") if isinstance(details, Mapping) else None
    entries = error.get("details") if isinstance(error, Mapping) else None
    for detail in entries if isinstance(entries, list) else ():
        if isinstance(detail, Mapping) and str(detail.get("retryDelay", "")).endswith("s"):
            return parse_retry_after({"retry-after": str(detail["retryDelay"])[:-1]})
    return None
