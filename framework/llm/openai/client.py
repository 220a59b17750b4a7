"""Client for OpenAI's chat completions and servers that imitate them, with what a local server says of its models."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from framework.llm.capabilities import Capabilities, OpenAIApi
from framework.llm.client import Delta, ModelReply, ModelRequest, merged_deltas, whole_reply
from framework.llm.http_client import SDK_TIMEOUT, is_local, read_unstreamed
from framework.llm.message_shape import ToolsetCache, encode_json, json_object, merged_fields
from framework.llm.openai_format import (
    CHAT_MEDIA_TYPES,
    chat_to_message,
    chat_to_usage,
    message_to_chat,
    result_files_to_chat,
    settings_to_chat,
    sign_calls,
    tool_choice_to_chat,
    tool_names,
    tool_to_chat,
    wire_names,
)
from framework.llm.provider_client import (
    FinishReasons,
    ProviderClient,
    ProviderResponse,
    StreamAssembler,
    as_dict,
    as_list,
    to_reply,
)
from framework.llm.provider_errors import is_bare_error, message_in, parse_retry_after
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolDefinition
from framework.types.spec import ReasoningLevel

if TYPE_CHECKING:
    import httpx2

    from framework.llm.openai.connection import SdkConnection


Fetch = Callable[[str, "dict[str, Any] | None"], Awaitable[object]]
"""Returns the JSON at a URL, for GET, or for POST with a body; None if there is none."""
_MAX_WINDOW = 1_000_000_000
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


async def ask_server(fetch: Fetch, base_url: str, model: str) -> Capabilities | None:
    """Return what the server reports about a model; the rest is unknown. None if it is none of these servers.

    Errors of `fetch` propagate.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    listed = _listed(await fetch(f"{base_url.rstrip('/')}/models", None), model)
    owner = listed.get("owned_by")
    if owner == "llamacpp":
        return await _ask_llama_cpp(fetch, root, model, listed)
    if window := _tokens(listed.get("max_model_len")):
        return Capabilities(context_window=window, json_schema=True if owner in ("vllm", "sglang") else None)
    return await _ask_lm_studio(fetch, root, model) or await _ask_ollama(fetch, root, model)


async def _ask_llama_cpp(fetch: Fetch, root: str, model: str, listed: Mapping[str, Any]) -> Capabilities:
    # Without `autoload`, a server of several models would load this one to answer.
    query = urlencode({"model": model, "autoload": "false"})
    props = as_dict(await fetch(f"{root}/props?{query}", None))
    window = _tokens(as_dict(props.get("default_generation_settings")).get("n_ctx"))
    modalities = as_dict(props.get("modalities"))
    return Capabilities(
        json_schema=True,
        context_window=window or _tokens(as_dict(listed.get("meta")).get("n_ctx")),
        images=_flag(modalities.get("vision")),
        audio=_flag(modalities.get("audio")),
    )


async def _ask_lm_studio(fetch: Fetch, root: str, model: str) -> Capabilities | None:
    for entry in _objects(as_dict(await fetch(f"{root}/api/v1/models", None)).get("models")):
        instances = _objects(entry.get("loaded_instances"))
        loaded = [each for each in instances if each.get("id") == model]
        if entry.get("key") == model or loaded:
            config = as_dict((loaded or instances or [{}])[0].get("config"))
            vision = _flag(as_dict(entry.get("capabilities")).get("vision"))
            return Capabilities(json_schema=True, context_window=_tokens(config.get("context_length")), images=vision)
    return None


async def _ask_ollama(fetch: Fetch, root: str, model: str) -> Capabilities | None:
    shown = as_dict(await fetch(f"{root}/api/show", {"model": model}))
    if "model_info" not in shown:
        return None
    set_window = _NUM_CTX.search(str(shown.get("parameters") or ""))
    window = _tokens(int(set_window[1])) if set_window else None
    for entry in _objects(as_dict(await fetch(f"{root}/api/ps", None)).get("models")):
        if entry.get("name") in (model, f"{model}:latest"):
            window = _tokens(entry.get("context_length")) or window
    can = _texts(shown.get("capabilities"))  # empty in older versions
    tools, images = ("tools" in can, "vision" in can) if can else (None, None)
    return Capabilities(json_schema=True, context_window=window, tools=tools, images=images)


def _listed(models: object, model: str) -> Mapping[str, Any]:
    """Return the entry of a model in `/v1/models`: llama.cpp serves its only model under every name."""
    entries = _objects(as_dict(models).get("data"))
    named = [entry for entry in entries if entry.get("id") == model or model in _texts(entry.get("aliases"))]
    return (named or (entries if len(entries) == 1 else []) or [{}])[0]


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in as_list(value) if isinstance(each, dict)]


def _texts(value: object) -> list[str]:
    return [each for each in as_list(value) if isinstance(each, str)]


def _tokens(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value <= _MAX_WINDOW else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


_PATHS: Mapping[OpenAIApi, str] = {"chat": "chat/completions", "responses": "responses"}
"""Path of each API below the base URL."""
_USAGE_OPTION = re.compile("stream_options|include_usage")
_PROBE_TIMEOUT = 2.0
"""Seconds for all requests of a probe."""
_PROBE_INTERVAL = 60.0
"""Seconds after which a server is asked again for what it did not report: it may load its model later."""


@dataclass(frozen=True, slots=True)
class EncodedTools:
    """A tool list as JSON, with its name mappings."""

    tools: dict[str, bytes]
    """Each tool as JSON, by its name."""
    wire_names: dict[str, str]
    """Tool name -> name in the API."""
    tool_names: dict[str, str]
    """Name in the API -> tool name."""

    def json(self, omitted: Collection[str] = ()) -> bytes:
        """Return the list as JSON, without some of its tools."""
        return b"[" + b",".join(tool for name, tool in self.tools.items() if name not in omitted) + b"]"


class OpenAIExchange(ProviderClient, ABC):
    """The client of a model, except for the format of requests and responses.

    Args:
        provider: the first part of the model name.
        model: the model's name on the server.
        base_url: the URL up to and including `/v1`; None for the SDK's default. The resource's URL for Azure.
        capabilities: override the known ones.
        azure_version: version of Azure's API; None for all other servers.
        options: the other options of `ProviderClient`.
    """

    api: OpenAIApi
    answer_field: str
    """The field of a response with its choices or items."""

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
        azure_version: str | None = None,
        **options: Any,
    ) -> None:
        self.provider = provider
        configured = (capabilities or Capabilities()).model_copy(update={"api": self.api})
        usual_path = "" if azure_version else "/v1"
        super().__init__(model, base_url=base_url, capabilities=configured, usual_path=usual_path, **options)
        is_declared = base_url is not None and configured.json_schema is True
        self._info = replace(self._info, any_schema=is_declared)
        self._azure_version = azure_version
        self._connection: SdkConnection | None = None
        self._requests_usage = True
        """Whether streams request usage; False once the server has rejected the option."""
        self._toolsets = ToolsetCache(self._encoded_tools)
        self._probing = asyncio.Lock()
        self._next_probe = 0.0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Send the request and yield the reply's deltas; raise ModelError if it fails."""
        if request.media:
            await request.scratch.files.add(request.media)
        settings = merged_fields(self._settings(request), self._extra_body)
        if not (self._info.is_streamed(request) or self._must_stream(settings)):
            body = self._body(request, settings, streamed=False)
            reply = self._parse_body(await self._guard(self._connected().post(body)), request)
            for piece in whole_reply(reply, request):
                yield piece
            return
        response = await self._open_stream(request, settings)
        from framework.llm.openai.connection import read_events  # loaded by now

        assembler, events = self._assembler(), read_events(response)
        try:
            if (unstreamed := await self._guard(read_unstreamed(response))) is not None:
                for piece in whole_reply(self._parse_body(unstreamed, request), request):
                    yield piece
                return
            while (chunks := await self._guard(anext(events, None))) is not None:
                deltas = [delta for chunk in chunks if (delta := assembler.add_chunk(chunk)) is not None]
                for piece in deltas if request.stream else merged_deltas(deltas):
                    yield piece
        finally:
            await events.aclose()
            await response.aclose()  # the connection is kept only if it was read to its end
        yield Delta(reply=self._reply(assembler, request))

    @property
    def needs_probe(self) -> bool:
        """Whether the server is local, and capabilities are unknown that it may report."""
        if self._azure_version or self._next_probe == inf:
            return False
        known = self._info.capabilities
        return (known.context_window is None or known.json_schema is None) and is_local(self._base_url)

    async def probe(self) -> None:
        """Ask a local server for its context window and abilities, and add them to `info`; failures change nothing."""
        async with self._probing:
            if monotonic() < self._next_probe or not self.needs_probe:
                return
            self._next_probe = monotonic() + _PROBE_INTERVAL
            try:
                connection = self._connected()  # before the timeout starts, because it loads the SDK
                async with asyncio.timeout(_PROBE_TIMEOUT):
                    found = await self._guard(ask_server(connection.fetch, self._base_url or "", self._info.model))
            except (ModelError, TimeoutError):
                return  # the model call reports a server that cannot be reached
            if found is None:
                self._next_probe = inf
                return
            capabilities = self._info.capabilities.over(found)
            any_schema = self._info.any_schema or bool(found.json_schema and capabilities.json_schema)
            self._info = replace(self._info, capabilities=capabilities, any_schema=any_schema)

    async def close(self) -> None:
        """Close the connections."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    # --- what differs between the APIs

    @abstractmethod
    def _tool(self, definition: ToolDefinition) -> dict[str, Any]:
        """Return a tool in the format of the API."""

    @abstractmethod
    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        """Return the fields of the request except its messages and tools."""

    @abstractmethod
    def _body(self, request: ModelRequest, settings: dict[str, Any], *, streamed: bool) -> bytes:
        """Return the request as JSON."""

    @abstractmethod
    def _assembler(self) -> Any:
        """Return the assembler of one response, with `add_chunk` for a streamed one and `set_response` for others."""

    @abstractmethod
    def _reply(self, assembler: Any, request: ModelRequest) -> ModelReply:
        """Return the reply of a complete response; raise ModelError if it is incomplete or failed."""

    def _parse_body(self, body: Any, request: ModelRequest) -> ModelReply:
        """Return the reply in a response that was not streamed; raise ModelError if there is none."""
        if isinstance(body, str):
            raise self._errors.web_page()
        body = as_dict(body)
        answer = body.get(self.answer_field)
        if not isinstance(answer, list) or (self.api == "chat" and not answer):
            error = body.get("error") or (is_bare_error(body) and body)
            raise self._body_error(error) if error else self._errors.empty_answer()
        assembler = self._assembler()
        assembler.set_response(body)
        return self._reply(assembler, request)

    def _must_stream(self, settings: Mapping[str, Any]) -> bool:  # noqa: ARG002 - chat completions depend on them
        """Return whether the server supports these settings in streamed responses only."""
        return False

    def _tool_choice(self, request: ModelRequest, names: Mapping[str, str]) -> str:
        """Return `auto`, `none`, `required` or the tool that the model must call."""
        choice = self._info.capabilities.tool_choice(request.settings.tool_choice)
        # Equivalent for the only tool; llama.cpp and others ignore a choice that names a tool.
        return "required" if len(names) == 1 and choice in names else choice

    def _encoded_tools(self, tools: tuple[ToolDefinition, ...]) -> EncodedTools:
        encoded = {tool.name: encode_json(self._tool(tool)) for tool in tools}
        return EncodedTools(encoded, wire_names(tools), tool_names(tools))

    # --- the server

    async def _open_stream(self, request: ModelRequest, settings: dict[str, Any]) -> httpx2.Response:
        """Send a request for a stream; if the server rejects the option for usage, once more without it."""
        body = self._body(request, settings, streamed=True)
        try:
            return await self._guard(self._connected().stream(body))
        except ModelError as error:
            if not (self._requests_usage and _USAGE_OPTION.search(error.message)):
                raise
        self._requests_usage = False
        body = self._body(request, settings, streamed=True)
        return await self._guard(self._connected().stream(body))

    def _connected(self) -> SdkConnection:
        if self._connection is None:
            self._connection = self._errors.create_client(self._connect)
        return self._connection

    def _connect(self) -> SdkConnection:
        from framework.llm.openai.connection import SdkConnection

        azure = (self._info.model, self._azure_version) if self._azure_version else None
        return SdkConnection(self._api_key, self._base_url, SDK_TIMEOUT, _PATHS[self.api], self._headers, azure)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from openai import APIError

        return (APIError,)

    def _explain(self, error: Any) -> ModelError | None:
        from openai import APIConnectionError, APIStatusError

        if isinstance(error, APIStatusError):
            wait = parse_retry_after(error.response.headers)
            return self._errors.from_status(error.status_code, message_in(error.body), code=error.code, wait=wait)
        return None if isinstance(error, APIConnectionError) else self._body_error(error.body, error.message)

    def _body_error(self, body: object, message: str = "") -> ModelError:
        code = (body.get("code") or body.get("type")) if isinstance(body, Mapping) else None
        return self._errors.from_body(message_in(body) or message, code=code)


_FINISH_REASONS: FinishReasons = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "model_length": "length",
    "max_tokens": "length",
    "MAX_TOKENS": "length",
    "tool_use": "tool_calls",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "SAFETY": "content_filter",
    "abort": "error",
    "insufficient_system_resource": "error",
}
_FILES_FOLLOW = "The files of these results follow."
"""A message of the model between results and their files, for templates that refuse a user message after a result."""


class OpenAIModel(OpenAIExchange):
    """A model behind chat completions."""

    api = "chat"
    answer_field = "choices"
    media_types = CHAT_MEDIA_TYPES

    def _tool(self, definition: ToolDefinition) -> dict[str, Any]:
        return tool_to_chat(definition)

    def _body(self, request: ModelRequest, settings: dict[str, Any], *, streamed: bool) -> bytes:
        tools = self._toolsets.get(request.tools)
        messages = request.scratch.shape_for(self).shaped(request.messages, self._info.capabilities)

        def encode(position: int) -> bytes:
            return self._encode(messages, position, request, tools.wire_names)

        fields = {"messages": request.scratch.messages_for(self).chunks(messages, encode)}
        if request.tools:
            fields["tools"] = (tools.json(),)
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
