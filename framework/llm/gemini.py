"""Client for Gemini through Google's SDK: messages as contents, requests, and streamed responses.

Every failure is raised as a ModelError.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from framework.llm.capabilities import THINKING_TOKENS, Capabilities
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest, whole_reply
from framework.llm.http_client import SDK_TIMEOUT, create_http_client
from framework.llm.message_shape import gemini_parameters, leading_instructions, mark_notices
from framework.llm.openai_format import (
    FOREIGN_SIGNATURE,
    origin_of_files,
    to_wire_name,
    token_count,
    tool_names,
    wire_names,
)
from framework.llm.provider_client import FinishReasons, ProviderClient, ProviderResponse, merge_finish_reason, to_reply
from framework.llm.provider_errors import message_in, parse_retry_after
from framework.types.errors import ModelError
from framework.types.http import trusted_certificates
from framework.types.media import MediaPart, MessagePart
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition, Usage, parse_call
from framework.types.spec import ModelSettings
from framework.types.text import fix_surrogates

if TYPE_CHECKING:
    import httpx2
    from google.genai import Client
    from google.genai.types import HttpOptions

GEMINI_MEDIA_TYPES: Mapping[str, str] = {
    "image/png": "image/png",
    "image/jpeg": "image/jpeg",
    "image/webp": "image/webp",
    "application/pdf": "application/pdf",
    "audio/wav": "audio/wav",
    "audio/mpeg": "audio/mp3",
    "audio/ogg": "audio/ogg",
    "audio/flac": "audio/flac",
}
"""Media types of files that the API accepts, and its names for them."""
_RESULT_KINDS = ("image", "pdf")
"""Kinds of files that Gemini 3 accepts inside a function response."""

_Part = dict[str, Any]


def request_to_arguments(request: ModelRequest, info: ModelInfo) -> dict[str, Any]:
    """Return the arguments of `generate_content`."""
    names, settings = wire_names(request.tools), request.settings
    leading = leading_instructions(request.messages)
    system = "\n\n".join(message.content for message in request.messages[:leading] if message.content.strip())
    config: dict[str, Any] = {
        "system_instruction": system or None,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_tokens,
        "stop_sequences": list(settings.stop) or None,
        "seed": settings.seed,
        "top_k": settings.top_k,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
        "service_tier": settings.service_tier,
        "thinking_config": _thinking(settings, info.capabilities),
        "automatic_function_calling": {"disable": True},
        # The SDK would send further requests on its own, past the budget.
        "automatic_continuation": False,
    }
    if request.tools:
        config["tools"] = [{"function_declarations": [_declaration(tool) for tool in request.tools]}]
        choice = _tool_choice(info.capabilities.tool_choice(settings.tool_choice), names)
        config["tool_config"] = {"function_calling_config": choice}
    elif request.json is not None and info.capabilities.json_schema:  # the API accepts tools or a format
        config |= {"response_mime_type": "application/json", "response_json_schema": dict(request.json) or None}
    contents = to_contents(request.messages[leading:], names, info.capabilities, request.media, info.source)
    config = {key: value for key, value in config.items() if value is not None}
    return {"model": info.model, "contents": contents, "config": config}


class ResponseAssembler:
    """Accumulates a response, streamed or not: accepts responses, returns deltas."""

    def __init__(self, reasons: FinishReasons, source: str = "") -> None:
        self._reasons, self._source = reasons, source
        self.chunks = 0
        self.finish_reason = self.model = self.response_id = self.refusal = ""
        self.usage = Usage()
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Any] = []
        self._signatures: dict[str, Any] = {"text": None, "calls": []}

    def add_response(self, response: Any) -> Delta | None:
        """Add a response, or a chunk of a streamed one; return its delta, or None if it has no content."""
        self.chunks += 1
        self.model = str(response.model_version or self.model)
        self.response_id = str(response.response_id or self.response_id)
        if response.usage_metadata is not None:
            self.usage = _usage(response.usage_metadata)
        feedback = response.prompt_feedback
        if feedback is not None and feedback.block_reason:
            self.refusal = str(feedback.block_reason_message or feedback.block_reason.value)
        if not response.candidates:
            return None
        candidate = response.candidates[0]
        if candidate.finish_reason:
            self.finish_reason = merge_finish_reason(self.finish_reason, candidate.finish_reason.value, self._reasons)
        parts = candidate.content.parts if candidate.content else None
        deltas = [self.add_part(part) for part in parts or ()]
        text, reasoning = "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)
        return Delta(text=text, reasoning=reasoning) if deltas else None

    def message(self, names: Mapping[str, str]) -> Message:
        """Return the message received so far; `names` maps names in the API to tools."""
        reasoning = None
        if self._thoughts or self._signatures["text"] or any(self._signatures["calls"]):
            text = fix_surrogates("".join(self._thoughts))
            data = self._signatures | ({"source": self._source} if self._source else {})
            reasoning = Reasoning(text=text, provider="gemini", data=data)
        calls = tuple(_call(call, names) for call in self._calls)
        return Message(
            role="assistant", content=fix_surrogates("".join(self._texts)), tool_calls=calls, reasoning=reasoning
        )

    def add_part(self, part: Any) -> Delta:
        """Add one part and return its delta."""
        signature = b64encode(part.thought_signature).decode() if part.thought_signature else None
        if part.function_call is not None:
            self._calls.append(part.function_call)
            self._signatures["calls"].append(signature)
            return Delta()
        text = part.text or ""
        if part.thought:
            self._thoughts.append(text)
            return Delta(reasoning=fix_surrogates(text))
        self._signatures["text"] = signature or self._signatures["text"]
        self._texts.append(text)
        return Delta(text=fix_surrogates(text))


def _call(call: Any, names: Mapping[str, str]) -> ToolCall:
    name = fix_surrogates(str(call.name or ""))
    return parse_call(fix_surrogates(str(call.id or "")), names.get(name, name), call.args)


def _usage(usage: Any) -> Usage:
    """Return the token counts; this API counts thinking separately from the answer."""
    prompt = token_count(usage.prompt_token_count) + token_count(usage.tool_use_prompt_token_count)
    completion = token_count(usage.candidates_token_count) + token_count(usage.thoughts_token_count)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=token_count(usage.total_token_count) or prompt + completion,
        cached_tokens=token_count(usage.cached_content_token_count),
    )


def _declaration(tool: ToolDefinition) -> dict[str, Any]:
    declaration = {"name": tool.wire_name, "description": tool.description}
    parameters = gemini_parameters(tool.parameters)
    return {**declaration, "parameters_json_schema": parameters} if parameters else declaration


def _tool_choice(choice: str, names: Mapping[str, str]) -> dict[str, Any]:
    match choice:
        case "auto" | "none":
            return {"mode": choice.upper()}
        case "required":
            return {"mode": "ANY"}
        case tool:
            return {"mode": "ANY", "allowed_function_names": [to_wire_name(tool, names)]}


def _thinking(settings: ModelSettings, supported: Capabilities) -> dict[str, Any] | None:
    """Return the parameters of thinking. Models with levels always think: their lowest one stands for `none`."""
    level = supported.reasoning_level(settings.reasoning)
    if level is None or supported.thinking == "none":
        return None
    shown = {"include_thoughts": level != "none"}
    if supported.thinking == "thinking_budget":
        return {**shown, "thinking_budget": THINKING_TOKENS[level]}
    return {**shown, "thinking_level": "MINIMAL" if level == "none" else level.upper()}


def to_contents(
    messages: Sequence[Message],
    names: Mapping[str, str],
    supported: Capabilities,
    media: Mapping[str, bytes],
    source: str = "",
) -> list[dict[str, Any]]:
    """Return the conversation with adjacent messages of one role merged; system messages become marked user texts.

    `media` has the contents of the files, by digest. Signatures of another `source`, a model's server, are omitted.
    """
    contents: list[dict[str, Any]] = []
    name_by_id: dict[str, str] = {}
    beside: list[_Part] = []
    for position, message in enumerate(mark_notices(messages)):
        if message.role == "assistant":
            name_by_id |= {call.id: to_wire_name(call.tool, names) for call in message.tool_calls}
            parts = _model_parts(message, names, supported, source)
        elif message.role == "tool":
            name = name_by_id.get(message.tool_call_id or "", "unknown")
            result, files = _result_parts(message, name, supported, media)
            parts, beside = [result], [*beside, *files]
            if all(following.role != "tool" for following in messages[position + 1 : position + 2]):
                parts, beside = [*parts, *beside], []  # after all results of the turn
        elif message.parts:
            parts = _user_parts(message.parts, media)
        else:
            parts = [{"text": message.content}]
        role = "model" if message.role == "assistant" else "user"
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _result_parts(
    message: Message, name: str, supported: Capabilities, media: Mapping[str, bytes]
) -> tuple[_Part, list[_Part]]:
    """Return a tool's result, and the files to send beside it: models before Gemini 3 accept none inside of it."""
    call_id = message.tool_call_id or ""
    response: dict[str, Any] = {"id": call_id, "name": name, "response": {"output": message.content}}
    inside: list[_Part] = []
    beside: list[_Part] = []
    for file in message.media:
        part = _file_part(file, media)
        if supported.thinking == "thinking_level" and file.kind in _RESULT_KINDS and "inline_data" in part:
            inside.append(part)
        else:
            beside += ({"text": origin_of_files(name, call_id)}, part)
    if inside:
        response["parts"] = inside
    return {"function_response": response}, beside


def _user_parts(parts: Sequence[MessagePart], media: Mapping[str, bytes]) -> list[_Part]:
    texts_and_files = (
        _file_part(part, media) if isinstance(part, MediaPart) else {"text": part.text} for part in parts
    )
    return [part for part in texts_and_files if part.get("text") != ""]


def _file_part(file: MediaPart, media: Mapping[str, bytes]) -> _Part:
    """Return a file as the SDK requires it, or its description if the API does not accept it."""
    contents = media.get(file.digest) if file.media_type in GEMINI_MEDIA_TYPES else None
    if contents is None:
        return {"text": file.description}
    return {"inline_data": {"mime_type": GEMINI_MEDIA_TYPES[file.media_type], "data": contents}}


def _model_parts(message: Message, names: Mapping[str, str], supported: Capabilities, source: str) -> list[_Part]:
    reasoning = message.reasoning
    data = (reasoning.data if reasoning and reasoning.provider == "gemini" else None) or {}
    if source and data.get("source", source) != source:
        data = {}
    parts: list[_Part] = []
    if message.content:
        parts.append(_signed({"text": message.content}, data.get("text")))
    signatures = [*data.get("calls", ()), *(None for _ in message.tool_calls)]
    for call, signature in zip(message.tool_calls, signatures, strict=False):
        function_call = {"id": call.id, "name": to_wire_name(call.tool, names), "args": call.arguments}
        parts.append(_signed({"function_call": function_call}, signature))
    calls = [part for part in parts if "function_call" in part]
    if calls and supported.thinking == "thinking_level" and not any("thought_signature" in part for part in calls):
        calls[0]["thought_signature"] = FOREIGN_SIGNATURE
    return parts


def _signed(part: _Part, signature: str | None) -> _Part:
    return {**part, "thought_signature": b64decode(signature)} if signature else part


_REFUSALS = (
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
    *("ESCALATION", "MODEL_ARMOR", "PUP_LIMITED_DISABLED"),
)
_FAILURES = (
    *("OTHER", "LANGUAGE", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
    *("MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE", "FINISH_REASON_UNSPECIFIED"),
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
