"""Client for every server with OpenAI's chat completions API. Every failure is raised as a ModelError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.llm.capabilities import Capabilities
from framework.llm.client import ModelReply, ModelRequest
from framework.llm.openai.exchange import OpenAIExchange
from framework.llm.openai_format import (
    CHAT_MEDIA_TYPES,
    chat_to_message,
    chat_to_usage,
    message_to_chat,
    result_files_to_chat,
    settings_to_chat,
    sign_calls,
    tool_choice_to_chat,
    tool_to_chat,
)
from framework.llm.reply_check import FinishReasons, ProviderResponse, to_reply
from framework.llm.request_cache import encode_json, json_object
from framework.llm.stream_assembler import StreamAssembler, as_dict
from framework.types.messages import Message, ToolDefinition
from framework.types.spec import ReasoningLevel

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
_FILES_FOLLOW = "The files of these results follow."
"""A message of the model between results and their files, for templates that refuse a user message after a result."""


class OpenAIModel(OpenAIExchange[StreamAssembler]):
    """A model behind chat completions."""

    api = "chat"
    media_types = CHAT_MEDIA_TYPES

    def _tool(self, definition: ToolDefinition) -> dict[str, Any]:
        return tool_to_chat(definition)

    def _body(self, request: ModelRequest, settings: dict[str, Any], *, streamed: bool) -> bytes:
        tools = self._toolsets.get(request.tools)
        name = self._info.name
        messages = request.scratch.shape_for(name).shaped(request.messages, self._info.capabilities)

        def encode(position: int) -> bytes:
            return self._encode(messages, position, request, tools.wire_names)

        fields = {"messages": request.scratch.messages_for(name).chunks(messages, encode)}
        if request.tools:
            fields["tools"] = (tools.json,)
        if streamed:
            settings = {**settings, "stream": True}
            if self._requests_usage:
                settings["stream_options"] = {"include_usage": True}
        return json_object(settings, **fields)

    def _encode(
        self, messages: Sequence[Message], position: int, request: ModelRequest, names: Mapping[str, str]
    ) -> bytes:
        """Return a message as JSON, followed by the files of its turn's results if it is the last of them."""
        base64, supported = request.scratch.files.base64, self._info.capabilities
        chat = message_to_chat(
            messages[position], names, provider=self._info.provider, source=self._info.source, base64=base64
        )
        if supported.needs_reasoning and chat["role"] == "assistant":
            chat.setdefault("reasoning_content", "")
        if supported.call_signatures and "tool_calls" in chat:
            sign_calls(chat, supported.call_signatures)
        if chat["content"] is None and not supported.null_content:
            chat["content"] = ""
        added = [chat]
        if result_files := result_files_to_chat(messages, position, base64):
            bridge = [] if supported.repeated_roles else [{"role": "assistant", "content": _FILES_FOLLOW}]
            added += (*bridge, result_files)
        return b",".join(map(encode_json, added))

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        names, supported = self._toolsets.get(request.tools).wire_names, self._info.capabilities
        body = {"model": self._info.model, **settings_to_chat(request.settings)}
        if request.tools and request.settings.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.settings.parallel_tool_calls
        for refused in supported.refused_settings or ():  # of a fallback model; for others it is an error
            body.pop(refused, None)
        body.update(_thinking(request.settings.reasoning, supported))
        if "max_tokens" in body and (self._azure_version or (self._info.provider == "openai" and not self._base_url)):
            # OpenAI's reasoning models reject the old name; most other servers know only that one.
            body["max_completion_tokens"] = body.pop("max_tokens")
        may_set_format = supported.json_with_tools or not request.tools  # most servers accept one of the two
        if (
            request.json is not None and may_set_format and not body.get("enable_thinking")
        ):  # Qwen accepts one of the two
            body.update(_response_format(request.json, supported))
        if request.tools:
            body["tool_choice"] = tool_choice_to_chat(self._tool_choice(request, names), names)
        return body

    def _must_stream(self, settings: Mapping[str, Any]) -> bool:
        return bool(settings.get("enable_thinking"))  # Qwen's open models think in streamed replies only

    def _parse_body(self, body: Any, request: ModelRequest) -> ModelReply:
        if isinstance(body, str):
            raise self._errors.web_page()
        body = body if isinstance(body, dict) else {}
        if not isinstance(body.get("choices"), list) or not body["choices"]:
            error = body.get("error")
            raise self._body_error(error) if error else self._errors.empty_answer()
        assembler = self._assembler()
        assembler.set_response(body)
        return self._reply(assembler, request)

    def _assembler(self) -> StreamAssembler:
        return StreamAssembler(_FINISH_REASONS)

    def _reply(self, assembler: StreamAssembler, request: ModelRequest) -> ModelReply:
        chat = assembler.message or assembler.assembled_message()
        response = ProviderResponse(
            message=chat_to_message(
                {**chat, "role": "assistant"},
                self._toolsets.get(request.tools).tool_names,
                provider=self._info.provider,
                source=self._info.source,
            ),
            finish_reason=assembler.finish_reason,
            usage=chat_to_usage(as_dict(assembler.usage)),
            model=assembler.model,
            response_id=assembler.response_id,
            chunks=assembler.chunks,
            refusal=str(chat["refusal"]) if chat.get("refusal") else None,
            is_ended=assembler.is_ended,
        )
        return to_reply(response, request, self._info, _FINISH_REASONS, self._errors)


def _response_format(schema: Mapping[str, Any], supported: Capabilities) -> dict[str, Any]:
    """Return the strictest `response_format` that the model supports, if any."""
    if schema and supported.json_schema:
        named = {"name": "answer", "schema": schema}  # not `strict`, which forbids optional fields
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"response_format": {"type": "json_object"}} if supported.json_object else {}


def _thinking(level: ReasoningLevel | None, supported: Capabilities) -> dict[str, Any]:
    """Return the level in the model's own parameter; one that is only a switch is off at `none` and `minimal`."""
    level = supported.reasoning_level(level)
    if level is None or supported.thinking == "none":
        return {}
    is_on = level not in ("none", "minimal")
    match supported.thinking:
        case "enable_thinking":
            return {"enable_thinking": is_on}
        case "thinking_type":
            return {"thinking": {"type": "enabled" if is_on else "disabled"}}
        case _:
            return {"reasoning_effort": level}
