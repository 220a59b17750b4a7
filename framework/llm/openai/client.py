"""Client for every server with OpenAI's chat completions API. Every failure is raised as a ModelError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from framework.llm.capabilities import Capabilities
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest, served_model
from framework.llm.http_client import SDK_TIMEOUT, read_unstreamed
from framework.llm.openai_format import (
    CHAT_MEDIA_TYPES,
    chat_to_message,
    chat_to_usage,
    message_to_chat,
    result_files_to_chat,
    settings_to_chat,
    tool_choice_to_chat,
    tool_names,
    tool_to_chat,
    wire_names,
)
from framework.llm.provider_errors import ProviderErrors, message_in, parse_retry_after
from framework.llm.reply_check import FinishReasons, ProviderResponse, to_reply
from framework.llm.request_cache import ToolsetCache, encode_json, json_object
from framework.llm.stream_assembler import StreamAssembler, as_dict
from framework.types.errors import ModelError
from framework.types.messages import ToolDefinition

if TYPE_CHECKING:
    from framework.llm.openai.connection import Connection

T = TypeVar("T")
_FINISH_REASONS: FinishReasons = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "abort": "error",
    "insufficient_system_resource": "error",
}


@dataclass(frozen=True, slots=True)
class _EncodedTools:
    """A tool list as JSON, with its name mappings."""

    json: bytes
    wire_names: dict[str, str]
    """Tool name -> name in the API."""
    tool_names: dict[str, str]
    """Name in the API -> tool name."""

    @classmethod
    def of(cls, tools: tuple[ToolDefinition, ...]) -> _EncodedTools:
        return cls(encode_json([tool_to_chat(tool) for tool in tools]), wire_names(tools), tool_names(tools))


class OpenAIModel:
    """A model behind chat completions. The SDK is loaded with the first request.

    Args:
        provider: the first part of the model name.
        model: the model's name on the server.
        api_key: empty for a server that requires none.
        base_url: the URL up to and including `/v1`; None for the SDK's default.
        capabilities: override the known ones.
    """

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self._info = served_model(provider, model, base_url, capabilities, media_types=CHAT_MEDIA_TYPES)
        self._api_key = api_key
        self._base_url = base_url
        self._errors = ProviderErrors(self._info.name, api_key, base_url, usual_path="/v1")
        self._connection: Connection | None = None
        self._toolsets = ToolsetCache(_EncodedTools.of)

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Send the request and yield the reply's deltas; raise ModelError if it fails."""
        if request.media:
            await request.scratch.files.add(request.media)
        settings = self._settings(request)
        streamed = request.stream or self._must_stream(settings)
        body = self._body(request, settings, streamed=streamed)
        if request.scratch.files:
            body = await request.scratch.files.insert(body)
        if not streamed:
            yield Delta(reply=self._parse_body(await self._guard(self._connected().post(body)), request))
            return
        chunks = await self._guard(self._connected().stream(body))
        assembler = StreamAssembler(_FINISH_REASONS)
        try:
            if (unstreamed := await self._guard(read_unstreamed(chunks.response))) is not None:
                reply = self._parse_body(unstreamed, request)
                if request.stream:
                    yield Delta(text=reply.message.content)
                yield Delta(reply=reply)
                return
            while (chunk := await self._guard(anext(chunks, None))) is not None:
                delta = assembler.add_chunk(chunk)
                if delta and request.stream:
                    yield delta
        finally:
            await chunks.close()
        yield Delta(reply=self._reply(assembler, request))

    async def close(self) -> None:
        """Close the connections."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._errors.create_client(self._connect)
        return self._connection

    def _connect(self) -> Connection:
        from framework.llm.openai.connection import Connection

        return Connection(self._api_key, self._base_url, SDK_TIMEOUT)

    def _body(self, request: ModelRequest, settings: dict[str, Any], *, streamed: bool) -> bytes:
        """Return the request as JSON."""
        tools = self._toolsets.get(request.tools)
        encoded = request.scratch.messages_for(self._info.name)

        def encode(position: int) -> bytes:
            return self._encode(request, position, tools.wire_names)

        fields = {"messages": encoded.chunks(request.messages, encode)}
        if request.tools:
            fields["tools"] = (tools.json,)
        if streamed:
            settings = {**settings, "stream": True, "stream_options": {"include_usage": True}}
        return json_object(settings, **fields)

    def _encode(self, request: ModelRequest, position: int, names: Mapping[str, str]) -> bytes:
        """Return a message as JSON, followed by the files of its turn's results if it is the last of them."""
        messages, base64 = request.messages, request.scratch.files.placeholder
        encoded = encode_json(message_to_chat(messages[position], names, provider=self._info.provider, base64=base64))
        result_files = result_files_to_chat(messages, position, base64)
        return encoded if result_files is None else encoded + b"," + encode_json(result_files)

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        """Return the fields of the request except its messages and tools."""
        names, supported = self._toolsets.get(request.tools).wire_names, self._info.capabilities
        body = {"model": self._info.model, **settings_to_chat(request.settings)}
        body.update(_thinking(body.pop("reasoning_effort", None), supported))
        if "max_tokens" in body and self._info.provider == "openai" and self._base_url is None:
            # OpenAI's reasoning models reject the old name; most other servers know only that one.
            body["max_completion_tokens"] = body.pop("max_tokens")
        may_set_format = supported.json_with_tools or not request.tools  # most servers accept one of the two
        if (
            request.json is not None and may_set_format and not body.get("enable_thinking")
        ):  # Qwen accepts one of the two
            body.update(_response_format(request.json, supported))
        if request.tools:
            choice = supported.tool_choice(request.settings.tool_choice)
            if len(names) == 1 and choice in names:
                choice = "required"  # equivalent; llama.cpp and others ignore a choice that names a tool
            body["tool_choice"] = tool_choice_to_chat(choice, names)
        return body

    def _must_stream(self, settings: Mapping[str, Any]) -> bool:
        # Qwen's open models think in streamed replies only.
        return bool(self._info.capabilities.stream_only or settings.get("enable_thinking"))

    def _parse_body(self, body: Any, request: ModelRequest) -> ModelReply:
        if isinstance(body, str):
            raise self._errors.web_page()
        body = body if isinstance(body, dict) else {}
        if not isinstance(body.get("choices"), list) or not body["choices"]:
            error = body.get("error")
            raise self._body_error(error) if error else self._errors.empty_answer()
        assembler = StreamAssembler(_FINISH_REASONS)
        assembler.set_response(body)
        return self._reply(assembler, request)

    def _reply(self, assembler: StreamAssembler, request: ModelRequest) -> ModelReply:
        chat = assembler.message or assembler.assembled_message()
        response = ProviderResponse(
            message=chat_to_message(
                {**chat, "role": "assistant"},
                self._toolsets.get(request.tools).tool_names,
                provider=self._info.provider,
            ),
            finish_reason=assembler.finish_reason,
            usage=chat_to_usage(as_dict(assembler.usage)),
            model=assembler.model,
            response_id=assembler.response_id,
            chunks=assembler.chunks,
            refusal=str(chat["refusal"]) if chat.get("refusal") else None,
        )
        return to_reply(response, request, self._info, _FINISH_REASONS, self._errors)

    async def _guard(self, call: Awaitable[T]) -> T:
        from openai import OpenAIError

        return await self._errors.guard(call, OpenAIError, self._explain)

    def _explain(self, error: Exception) -> ModelError | None:
        import openai

        if isinstance(error, openai.APIStatusError):
            wait = parse_retry_after(error.response.headers)
            return self._errors.from_status(error.status_code, message_in(error.body), code=error.code, wait=wait)
        if isinstance(error, openai.APIError) and not isinstance(error, openai.APIConnectionError):
            return self._body_error(error.body, error.message)
        return None

    def _body_error(self, body: object, message: str = "") -> ModelError:
        code = body.get("code") if isinstance(body, Mapping) else None
        return self._errors.from_body(message_in(body) or message, code=code)


def _response_format(schema: Mapping[str, Any], supported: Capabilities) -> dict[str, Any]:
    """Return the strictest `response_format` that the model supports, if any."""
    if schema and supported.json_schema:
        named = {"name": "answer", "schema": schema}  # not `strict`, which forbids optional fields
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"response_format": {"type": "json_object"}} if supported.json_object else {}


def _thinking(effort: str | None, supported: Capabilities) -> dict[str, Any]:
    """Return the reasoning effort in the model's own parameter; one that is only a switch is off at `minimal`."""
    if effort is None or supported.thinking == "none":
        return {}
    match supported.thinking:
        case "enable_thinking":
            return {"enable_thinking": effort != "minimal"}
        case "thinking_type":
            return {"thinking": {"type": "disabled" if effort == "minimal" else "enabled"}}
        case _:
            return {"reasoning_effort": effort}
