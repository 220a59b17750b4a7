"""Every server that speaks OpenAI's chat completions. Whatever goes wrong there leaves here as one ModelError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from framework.llm.capabilities import Capabilities
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest, served_model
from framework.llm.http_client import read_unstreamed
from framework.llm.openai_format import (
    chat_to_message,
    chat_to_usage,
    message_to_chat,
    settings_to_chat,
    tool_choice_to_chat,
    tool_names,
    tool_to_chat,
    wire_names,
)
from framework.llm.provider_errors import ProviderErrors, message_in, parse_retry_after
from framework.llm.reply_check import FinishReasons, ProviderAnswer, to_reply
from framework.llm.request_cache import ToolsetCache, encode_json, json_object
from framework.llm.stream_assembler import StreamAssembler, as_dict
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolDefinition

if TYPE_CHECKING:
    from framework.llm.openai.connection import Connection

T = TypeVar("T")
SDK_TIMEOUT = 600.0
"""Seconds; a net below the deadline that the engine sets."""
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
class _Tools:
    """A list of tools as the wire has it, and its names there."""

    messages_for: bytes
    names: dict[str, str]
    """By our names."""
    back: dict[str, str]
    """By the wire's."""

    @classmethod
    def of(cls, tools: tuple[ToolDefinition, ...]) -> _Tools:
        return cls(encode_json([tool_to_chat(tool) for tool in tools]), wire_names(tools), tool_names(tools))


class OpenAIModel:
    """A model behind chat completions. The SDK is loaded with the first question.

    Args:
        provider: who serves it, the first half of its name.
        model: the name the server knows it by.
        api_key: empty for a server that asks for none.
        base_url: up to and with `/v1`; None is the SDK's own choice.
        capabilities: over those known of the model.
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
        self._info = served_model(provider, model, base_url, capabilities)
        self._api_key = api_key
        self._base_url = base_url
        self._failures = ProviderErrors(self._info.name, api_key, base_url, usual_end="/v1")
        self._connection: Connection | None = None
        self._toolsets = ToolsetCache(_Tools.of)

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask; raises ModelError."""
        settings = self._settings(request)
        streamed = request.stream or self._must_stream(settings)
        body = self._body(request, settings, streamed=streamed)
        if not streamed:
            yield Delta(reply=self._whole(await self._guard(self._connected().whole(body)), request))
            return
        chunks = await self._guard(self._connected().stream(body))
        answer = StreamAssembler(_FINISH_REASONS)
        try:
            if (whole := await self._guard(read_unstreamed(chunks.response))) is not None:
                reply = self._whole(whole, request)
                if request.stream:
                    yield Delta(text=reply.message.content)
                yield Delta(reply=reply)
                return
            while (chunk := await self._guard(anext(chunks, None))) is not None:
                delta = answer.take(chunk)
                if delta and request.stream:
                    yield delta
        finally:
            await chunks.close()
        yield Delta(reply=self._reply(answer, request))

    async def close(self) -> None:
        """Give connections back."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._failures.set_up(self._connect)
        return self._connection

    def _connect(self) -> Connection:
        from framework.llm.openai.connection import Connection

        return Connection(self._api_key, self._base_url, SDK_TIMEOUT)

    def _body(self, request: ModelRequest, settings: dict[str, Any], *, streamed: bool) -> bytes:
        """The request as it is sent."""
        tools = self._toolsets.of(request.tools)
        written = request.scratch.messages_for(self._info.name)
        ready = {"messages": written.pieces(request.messages, lambda message: self._chat(message, tools.names))}
        if request.tools:
            ready["tools"] = (tools.messages_for,)
        if streamed:
            settings = {**settings, "stream": True, "stream_options": {"include_usage": True}}
        return json_object(settings, **ready)

    def _chat(self, message: Message, names: Mapping[str, str]) -> dict[str, Any]:
        return message_to_chat(message, names, provider=self._info.provider)

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        """All of a request but its messages and tools."""
        names, can = self._toolsets.of(request.tools).names, self._info.capabilities
        body = {"model": self._info.model, **settings_to_chat(request.settings)}
        body.update(_thinking(body.pop("reasoning_effort", None), can))
        if "max_tokens" in body and self._info.provider == "openai" and self._base_url is None:
            # OpenAI's reasoning models refuse the old name; most other servers know only that one.
            body["max_completion_tokens"] = body.pop("max_tokens")
        free = can.json_with_tools or not request.tools  # most servers take either tools or a form
        if request.json is not None and free and not body.get("enable_thinking"):  # Qwen takes a form or thinking
            body.update(_held_to_json(request.json, can))
        if request.tools:
            choice = can.tool_choice(request.settings.tool_choice)
            if len(names) == 1 and choice in names:
                choice = "required"  # the same order, and llama.cpp and others ignore the form that names a tool
            body["tool_choice"] = tool_choice_to_chat(choice, names)
        return body

    def _must_stream(self, settings: Mapping[str, Any]) -> bool:
        # Qwen's open models think in streamed answers only.
        return bool(self._info.capabilities.stream_only or settings.get("enable_thinking"))

    def _whole(self, body: Any, request: ModelRequest) -> ModelReply:
        if isinstance(body, str):
            raise self._failures.page()
        body = body if isinstance(body, dict) else {}
        if not isinstance(body.get("choices"), list) or not body["choices"]:
            reported = body.get("error")
            raise self._reported(reported) if reported else self._failures.empty()
        answer = StreamAssembler(_FINISH_REASONS)
        answer.take_whole(body)
        return self._reply(answer, request)

    def _reply(self, assembly: StreamAssembler, request: ModelRequest) -> ModelReply:
        chat = assembly.message or assembly.assembled()
        answer = ProviderAnswer(
            message=chat_to_message(
                {**chat, "role": "assistant"}, self._toolsets.of(request.tools).back, provider=self._info.provider
            ),
            finish_reason=assembly.finish,
            usage=chat_to_usage(as_dict(assembly.usage)),
            model=assembly.model,
            response_id=assembly.response_id,
            pieces=assembly.chunks,
            refusal=str(chat["refusal"]) if chat.get("refusal") else None,
        )
        return to_reply(answer, request, self._info, _FINISH_REASONS, self._failures)

    async def _guard(self, call: Awaitable[T]) -> T:
        from openai import OpenAIError

        return await self._failures.guard(call, OpenAIError, self._explain)

    def _explain(self, error: Exception) -> ModelError | None:
        import openai

        if isinstance(error, openai.APIStatusError):
            wait = parse_retry_after(error.response.headers)
            return self._failures.status(error.status_code, message_in(error.body), code=error.code, wait=wait)
        if isinstance(error, openai.APIError) and not isinstance(error, openai.APIConnectionError):
            return self._reported(error.body, error.message)
        return None

    def _reported(self, body: object, words: str = "") -> ModelError:
        code = body.get("code") if isinstance(body, Mapping) else None
        return self._failures.reported(message_in(body) or words, code=code)


def _held_to_json(schema: Mapping[str, Any], can: Capabilities) -> dict[str, Any]:
    """The strictest form of JSON that the model knows."""
    if schema and can.json_schema:
        form = {"name": "answer", "schema": schema}  # not `strict`: that takes no schema with optional fields
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    return {"response_format": {"type": "json_object"}} if can.json_object else {}


def _thinking(effort: str | None, can: Capabilities) -> dict[str, Any]:
    """How long to think, in the parameter that the model knows; those with a switch are off at `minimal`."""
    if effort is None or can.thinking == "none":
        return {}
    match can.thinking:
        case "enable_thinking":
            return {"enable_thinking": effort != "minimal"}
        case "thinking_type":
            return {"thinking": {"type": "disabled" if effort == "minimal" else "enabled"}}
        case _:
            return {"reasoning_effort": effort}
