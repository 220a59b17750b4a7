"""Client for Claude through Anthropic's SDK: messages as content blocks, requests, and streamed responses.

Every failure is raised as a ModelError.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from framework.llm.capabilities import THINKING_TOKENS, Capabilities
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest, whole_reply
from framework.llm.http_client import SDK_TIMEOUT, create_http_client, read_unstreamed
from framework.llm.message_shape import (
    Base64,
    leading_instructions,
    mark_notices,
    merged_fields,
    missing_file,
    wire_schema,
)
from framework.llm.openai_format import PARAGRAPH, reported_cost, to_wire_name, token_count, tool_names, wire_names
from framework.llm.provider_client import (
    FinishReasons,
    ProviderClient,
    ProviderResponse,
    as_dict,
    as_list,
    index_key,
    merge_finish_reason,
    to_reply,
)
from framework.llm.provider_errors import is_bare_error, message_in, parse_retry_after
from framework.types.errors import ModelError
from framework.types.media import MessagePart, TextPart
from framework.types.messages import REFUSED_STATUSES, Message, Reasoning, ToolCall, ToolDefinition, Usage, parse_call
from framework.types.spec import ModelSettings
from framework.types.text import fix_surrogates

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic

_DEFAULT_MAX_TOKENS = 4096
"""Default for `max_tokens`, which this API requires."""
_SAMPLING_VERSION = "2023-06-01"
"""The last version of the API that accepts `temperature`, `top_p` and `top_k`."""
_THINKING_BLOCKS = ("thinking", "redacted_thinking")
_CACHE = {"type": "ephemeral"}
_EFFORT = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh"}
ANSWER_TOOL = "agentsd.answer"
"""The tool that accepts a structured answer: this API enforces a schema only for the arguments of a tool."""
_ANSWER_DESCRIPTION = "Give your final answer: call this, and nothing else, once you have all you need."
ANTHROPIC_MEDIA_TYPES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"))
"""Media types of files that the API accepts."""
_HIDDEN_TOOL: _Block = {
    "name": "agentsd__hidden",
    "description": "Not available.",
    "input_schema": {"type": "object", "properties": {}},
    "defer_loading": True,
}
"""A tool that the model never sees: the first deferred tool of a request changes its beginning, later ones do not."""
_MAX_FILES, _MAX_FILES_IN_SMALL_WINDOW, _SMALL_WINDOW = 600, 100, 200_000
_EMPTY_TEXT = "(empty)"
"""Replaces an empty text, which the API rejects."""

_Block = dict[str, Any]


def request_to_body(request: ModelRequest, info: ModelInfo) -> dict[str, Any]:
    """Return the arguments of `messages.create`."""
    names, settings, supported = wire_names(request.tools), request.settings, info.capabilities
    late = request.late_tools(supported)
    system, tools = _system(request.messages), _tools(request.tools, late)
    if tools and supported.late_tools and request.found is not None:
        tools.append(_HIDDEN_TOOL)
    choice = supported.tool_choice(settings.tool_choice) if tools else "auto"
    stamp = thinking_stamp(info.source, system, tools)
    last_user = max(
        (position for position, message in enumerate(request.messages) if message.role == "user"), default=-1
    )

    def keeps_thinking(position: int, data: Mapping[str, Any]) -> bool:
        """Return whether thinking is sent back: only within the current turn, and only with an unchanged stamp."""
        return position > last_user and data.get("stamp") == stamp

    turns = to_turns(request.messages, names, keeps_thinking, request.scratch.files.base64, late)
    if tools or any(turn["role"] == "assistant" for turn in turns):  # a single question is not sent again
        _cache_conversation(turns, request.messages)
    body: dict[str, Any] = {
        "model": info.model,
        "max_tokens": _max_tokens(settings, supported),
        "messages": turns,
        **_thinking(
            settings, supported, forced=choice not in ("auto", "none"), in_tool_turn=_in_turn_without_thinking(turns)
        ),
    }
    if system:
        body["system"] = system
    if tools:
        body |= {"tools": tools, "tool_choice": _tool_choice(choice, names)}
        if settings.parallel_tool_calls is not None and choice != "none":
            body["tool_choice"]["disable_parallel_tool_use"] = not settings.parallel_tool_calls
    if settings.service_tier:
        body["service_tier"] = settings.service_tier
    if settings.stop:
        body["stop_sequences"] = list(settings.stop)
    sampling = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
    sampling = {key: value for key, value in sampling.items() if value is not None}
    if sampling and body.get("thinking", {}).get("type") not in (
        "adaptive",
        "enabled",
    ):  # these control sampling
        body |= {"extra_body": sampling, "extra_headers": {"anthropic-version": _SAMPLING_VERSION}}
    return body


def max_files(supported: Capabilities) -> int:
    """Return how many files a request can have, which depends on the context window: see `build-with-claude/vision`."""
    return _MAX_FILES if (supported.context_window or 0) > _SMALL_WINDOW else _MAX_FILES_IN_SMALL_WINDOW


def thinking_stamp(source: str, system: Sequence[_Block], tools: Sequence[_Block]) -> str:
    """Return a digest of what thinking is bound to: models reject their own thinking after any other prefix."""
    first = [tool for tool in tools if "defer_loading" not in tool]
    context = json.dumps([source, system, first], sort_keys=True)
    return blake2b(context.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def content_to_message(content: Iterable[Mapping[str, Any]], names: Mapping[str, str], *, stamp: str) -> Message:
    """Return a response's blocks as a message. Thinking is kept unchanged, with its position among the other blocks."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    outline: list[_Block | str] = []
    is_apart = False
    for block in content:
        match block.get("type"):
            case "text":
                texts.append((PARAGRAPH if is_apart and texts else "") + str(block.get("text") or ""))
                is_apart = False
                outline.append("text")
            case "tool_use":
                name = fix_surrogates(str(block.get("name") or ""))
                calls.append(
                    parse_call(fix_surrogates(str(block.get("id") or "")), names.get(name, name), block.get("input"))
                )
                outline.append("call")
            case "thinking" | "redacted_thinking":
                thoughts.append(str(block.get("thinking") or ""))
                outline.append(
                    {key: fix_surrogates(part) if isinstance(part, str) else part for key, part in block.items()}
                )
            case _:  # a tool that the provider executes, between two texts
                is_apart = True
    reasoning = None
    if thoughts:
        data = {"stamp": stamp, "outline": outline}
        reasoning = Reasoning(text=fix_surrogates("\n".join(filter(None, thoughts))), provider="anthropic", data=data)
    return Message(
        role="assistant", content=fix_surrogates("".join(texts)), tool_calls=tuple(calls), reasoning=reasoning
    )


def parse_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the token counts; this API counts cached input separately."""
    cached = token_count(usage.get("cache_read_input_tokens"))
    cache_write = token_count(usage.get("cache_creation_input_tokens"))
    prompt = token_count(usage.get("input_tokens")) + cached + cache_write
    completion = token_count(usage.get("output_tokens"))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        cached_tokens=cached,
        cache_write_tokens=cache_write,
        **reported_cost(usage),
    )


def _system(messages: Sequence[Message]) -> list[_Block]:
    """Return the leading instructions, marked for caching: with the tools before them, they repeat in every request."""
    leading = messages[: leading_instructions(messages)]
    text = "\n\n".join(message.content for message in leading if message.content.strip())
    return [{"type": "text", "text": text, "cache_control": _CACHE}] if text else []


def _tools(definitions: Sequence[ToolDefinition], late: Mapping[int, Sequence[ToolDefinition]]) -> list[_Block]:
    """Return the tools: the late ones deferred, the last one of the others, which all requests repeat, marked."""
    deferred = {tool.name for found in late.values() for tool in found}
    tools: list[_Block] = [
        {
            "name": tool.wire_name,
            "description": tool.description,
            "input_schema": wire_schema(tool.parameters, "anthropic"),
            **({"defer_loading": True} if tool.name in deferred else {}),
        }
        for tool in definitions
    ]
    if first := [tool for tool in tools if "defer_loading" not in tool]:
        first[-1]["cache_control"] = _CACHE
    return tools


def _cache_conversation(turns: Sequence[_Block], messages: Sequence[Message]) -> None:
    """Mark the conversation for caching, without trailing instructions, which the next request does not repeat.

    The API rejects a mark on an empty text.
    """
    repeated = list(messages)
    while repeated and repeated[-1].role == "system":
        repeated.pop()
    last = repeated[-1] if repeated else None
    if last and last.role in ("user", "tool") and (last.parts or last.content.strip()):
        turns[-1]["content"][len(repeated) - len(messages) - 1]["cache_control"] = _CACHE


def to_turns(
    messages: Sequence[Message],
    names: Mapping[str, str],
    keeps_thinking: Callable[[int, Mapping[str, Any]], bool],
    base64: Base64 = missing_file,
    late: Mapping[int, Sequence[ToolDefinition]] = MappingProxyType({}),
) -> list[_Block]:
    """Return the conversation with adjacent messages of one role merged; late system messages as marked texts.

    Leading system messages are omitted. `keeps_thinking` returns whether the thinking of the message at a position,
    with this data, is sent back. References to `late` tools take the place of the text that lists them: a result has
    either of the two.
    """
    turns: list[_Block] = []
    leading = leading_instructions(messages)
    for position, message in enumerate(mark_notices(messages)[leading:], leading):
        if message.role == "assistant":
            blocks = _assistant(message, names, partial(keeps_thinking, position))
        elif message.role == "tool":
            result = {"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id or "")}
            failed = {"is_error": True} if message.status in ("error", *REFUSED_STATUSES) else {}
            content = _parts(message.parts, base64) if message.parts else message.content
            if found := late.get(position):
                content = [{"type": "tool_reference", "tool_name": tool.wire_name} for tool in found]
            blocks = [{**result, "content": content, **failed}]
        elif message.parts:
            blocks = _parts(message.parts, base64)
        else:
            blocks = [{"type": "text", "text": message.content if message.content.strip() else _EMPTY_TEXT}]
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _parts(parts: Sequence[MessagePart], base64: Base64) -> list[_Block]:
    """Return the parts of a message, with descriptions in place of files that the API does not accept."""
    return [block for part in parts if (block := _part(part, base64))]


def _part(part: MessagePart, base64: Base64) -> _Block | None:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    contents = base64(part) if part.media_type in ANTHROPIC_MEDIA_TYPES else None
    if contents is None:
        return {"type": "text", "text": part.description}
    source = {"type": "base64", "media_type": part.media_type, "data": contents}
    if part.kind == "image":
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, **({"title": part.name} if part.name else {})}


def _assistant(
    message: Message, names: Mapping[str, str], keeps_thinking: Callable[[Mapping[str, Any]], bool]
) -> list[_Block]:
    texts: list[_Block] = [{"type": "text", "text": message.content}] if message.content.strip() else []
    calls: list[_Block] = [
        {
            "type": "tool_use",
            "id": _call_id(call.id),
            "name": to_wire_name(call.tool, names),
            "input": call.arguments,
        }
        for call in message.tool_calls
    ]
    data = message.reasoning.data if message.reasoning and message.reasoning.provider == "anthropic" else None
    if not calls or not data or not keeps_thinking(data):
        return texts + calls
    blocks: list[_Block] = []
    for part in data["outline"]:
        if isinstance(part, dict):
            blocks.append(part)
        elif remaining := texts if part == "text" else calls:
            blocks.append(remaining.pop(0))
    return blocks + texts + calls


def _in_turn_without_thinking(turns: Sequence[_Block]) -> bool:
    """Return whether a turn with tool calls is open that started without thinking: a budget is then rejected."""
    for turn in reversed(turns):
        if turn["role"] == "assistant":
            has_calls = any(block["type"] == "tool_use" for block in turn["content"])
            return has_calls and turn["content"][0]["type"] not in _THINKING_BLOCKS
        if not any(block["type"] == "tool_result" for block in turn["content"]):
            return False
    return False


def _tool_choice(choice: str, names: Mapping[str, str]) -> _Block:
    match choice:
        case "auto" | "none":
            return {"type": choice}
        case "required":
            return {"type": "any"}
        case tool:
            return {"type": "tool", "name": to_wire_name(tool, names)}


def _max_tokens(settings: ModelSettings, supported: Capabilities) -> int:
    if settings.max_tokens:
        return settings.max_tokens
    level = supported.reasoning_level(settings.reasoning)
    thinking = THINKING_TOKENS[level] if level and supported.thinking != "none" else 0
    return min(_DEFAULT_MAX_TOKENS + thinking, supported.max_output or _DEFAULT_MAX_TOKENS + thinking)


def _thinking(settings: ModelSettings, supported: Capabilities, *, forced: bool, in_tool_turn: bool) -> dict[str, Any]:
    """Return the parameters of thinking; a model that is forced to call a tool must not think."""
    level = supported.reasoning_level(settings.reasoning)
    if supported.thinking == "adaptive_thinking" and (forced or level == "none"):
        return {"thinking": {"type": "disabled"}}
    if level in (None, "none") or supported.thinking == "none" or forced:
        return {}
    if supported.thinking != "thinking_budget":
        thinking = {"type": "adaptive", "display": "summarized"}
        return {"thinking": thinking, "output_config": {"effort": _EFFORT[level]}}
    minimum = THINKING_TOKENS["minimal"]
    budget = min(THINKING_TOKENS[level], _max_tokens(settings, supported) - minimum)
    return {} if in_tool_turn or budget < minimum else {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _call_id(call_id: str) -> str:
    """Return the id with the characters replaced that this API rejects; other providers allow them."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id) or "unknown"


# --- typed answers as the arguments of a tool


def with_answer_tool(request: ModelRequest) -> ModelRequest:
    """Return the request with an answer tool added, if it asks for JSON of a schema by tool.

    The model is forced to call it only without other tools and without thinking, which excludes a forced choice.
    """
    settings = request.settings
    if not request.json or not request.json_by_tool or settings.tool_choice == "none":
        return request
    answer = ToolDefinition(name=ANSWER_TOOL, description=_ANSWER_DESCRIPTION, parameters=dict(request.json))
    if not request.tools:
        forced = ANSWER_TOOL if settings.reasoning in (None, "none") else None
        settings = settings.model_copy(update={"tool_choice": forced})
    return replace(request, tools=(*request.tools, answer), settings=settings)


def without_answer_tool(reply: ModelReply) -> ModelReply:
    """Return the reply with the answer tool's arguments as its text; next to calls of other tools they are dropped."""
    message = reply.message
    others = tuple(call for call in message.tool_calls if call.tool != ANSWER_TOOL)
    if len(others) == len(message.tool_calls):
        return reply
    answers = [call for call in message.tool_calls if call.tool == ANSWER_TOOL and not call.invalid]
    # The data of the thinking refers to the calls that are removed.
    reasoning = message.reasoning.model_copy(update={"data": None}) if message.reasoning else None
    changed = {"tool_calls": others, "reasoning": reasoning}
    if others or not answers:
        return replace(reply, message=message.model_copy(update=changed))
    text = json.dumps(answers[0].arguments, ensure_ascii=False)
    return replace(reply, message=message.model_copy(update={**changed, "content": text}), finish_reason="stop")


_FINISH_REASONS: FinishReasons = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "tool_calls": "tool_calls",  # this and `length`: of servers that imitate the API
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "error",
}
_OWN_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
"""Types of blocks that the model writes; others are those of tools that the provider executes."""
_PERMANENT_ERRORS = {
    "authentication_error": 401,
    "billing_error": 402,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "permission_error": 403,
    "request_too_large": 413,
    "validationException": 400,  # of Bedrock
}
"""Error types inside streams, mapped to the HTTP status of the same error before a stream. A retry does not help."""


class AnthropicModel(ProviderClient):
    """A model behind the Messages API, at a `base_url` without `/v1`; the options are those of `ProviderClient`."""

    provider = "anthropic"
    media_types = ANTHROPIC_MEDIA_TYPES
    sampling_version = ""
    """For a server that has the API's version in the body: the last one that accepts `temperature` and `top_p`."""

    def __init__(self, model: str, *, base_url: str | None = None, **options: Any) -> None:
        super().__init__(model, base_url=base_url, **options)
        self._info = replace(self._info, answer_tool=True, max_files=max_files(self._info.capabilities))
        self._base_url = base_url.rstrip("/").removesuffix("/v1") if base_url else None
        self._client: AsyncAnthropic | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Send the request and yield the reply's deltas; raise ModelError if it fails."""
        create: Any = (await self._connected()).messages.create
        request = with_answer_tool(request)
        if request.media:
            await request.scratch.files.add(request.media)
        body = self._body(request)
        assembler = MessageAssembler()
        if not self._info.is_streamed(request):
            assembler.response = self._validated(await self._guard(create(**body)))
            for piece in whole_reply(without_answer_tool(self._reply(assembler, body, request)), request):
                yield piece
            return
        events = await self._guard(create(**body, stream=True))
        try:
            if (message := await self._guard(read_unstreamed(events.response))) is not None:
                assembler.response = self._validated(message)
                for piece in whole_reply(without_answer_tool(self._reply(assembler, body, request)), request):
                    yield piece
                return
            while (event := await self._guard(anext(events, None))) is not None:
                delta = assembler.add_event(as_dict(event))
                if assembler.is_spliced:
                    problem = "a second answer began within the first one, as after a failover of a proxy"
                    raise self._errors.error(problem, retryable=True).of_type("incomplete_answer")
                if delta:
                    yield delta
        finally:
            await events.close()
        streamed = self._reply(assembler, body, request)
        reply = without_answer_tool(streamed)
        if request.stream and reply.message.content != streamed.message.content:
            yield Delta(text=reply.message.content)
        yield Delta(reply=reply)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _connected(self) -> AsyncAnthropic:
        self._client = self._client or self._errors.create_client(self._connect)
        return self._client

    def _connect(self) -> AsyncAnthropic:
        # Its spans would duplicate ours.
        return self._create_sdk(
            max_retries=0,
            timeout=SDK_TIMEOUT,
            default_headers=self._headers,
            http_client=create_http_client(SDK_TIMEOUT, auth=self._auth()),
            open_telemetry=False,
        )

    def _auth(self) -> httpx2.Auth | None:
        """Return what signs each request; None for a server that checks a key."""
        return None

    def _create_sdk(self, **options: Any) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic

        # Never without a key: the SDK would search the environment and the disk.
        return AsyncAnthropic(api_key=self._api_key or "none", base_url=self._base_url, **options)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body = request_to_body(request, self._info)
        if self._extra_body:
            # Objects of the request are merged here; the SDK would replace them.
            own = {name: body[name] for name in self._extra_body if name in body}
            body["extra_body"] = {**body.get("extra_body", {}), **merged_fields(own, self._extra_body)}
        if self.sampling_version and (sampling := body.get("extra_body")):
            body["extra_body"] = {**sampling, "anthropic_version": self.sampling_version}
        return body

    def _validated(self, message: Any) -> dict[str, Any]:
        if isinstance(message, str):
            raise self._errors.web_page()
        response = as_dict(message)
        if response.get("type") == "error" or response.get("error") or is_bare_error(response):
            raise self._body_error(response)
        if not isinstance(response.get("content"), list):
            raise self._errors.empty_answer()
        return {**response, "stop_reason": response.get("stop_reason") or "end_turn"}  # it is complete

    def _reply(self, assembler: MessageAssembler, body: Mapping[str, Any], request: ModelRequest) -> ModelReply:
        received = assembler.response
        stop_reason = str(received.get("stop_reason") or "")
        stamp = thinking_stamp(self._info.source, body.get("system", ()), body.get("tools", ()))
        refusal = str(as_dict(received.get("stop_details")).get("explanation") or "")
        response = ProviderResponse(
            message=content_to_message(assembler.content(), tool_names(request.tools), stamp=stamp),
            finish_reason=stop_reason,
            usage=parse_usage(as_dict(received.get("usage"))),
            model=str(received.get("model") or ""),
            response_id=str(received.get("id") or ""),
            chunks=assembler.events,
            refusal=refusal if stop_reason == "refusal" else None,
            is_ended=assembler.is_ended,
        )
        return to_reply(response, request, self._info, _FINISH_REASONS, self._errors)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from anthropic import AnthropicError

        return (AnthropicError,)

    def _explain(self, error: Exception) -> ModelError | None:
        import anthropic

        if isinstance(error, anthropic.APIStatusError) and error.status_code >= 300:
            wait = parse_retry_after(error.response.headers)
            return self._errors.from_status(error.status_code, message_in(_unwrapped(error.body)), wait=wait)
        if isinstance(error, anthropic.APIError) and not isinstance(error, anthropic.APIConnectionError):
            return self._body_error(error.body)
        return None

    def _body_error(self, body: object) -> ModelError:
        error = _unwrapped(body)
        error_type = error.get("type") if isinstance(error, Mapping) else None
        return self._errors.from_body(message_in(error), code=_PERMANENT_ERRORS.get(str(error_type)))


class MessageAssembler:
    """Accumulates a streamed response: accepts events, returns deltas. The SDK does not check their types."""

    def __init__(self) -> None:
        self.events = 0
        self.response: dict[str, Any] = {}
        """The response; if it is streamed, without its content."""
        self.is_ended = False
        """Whether the server has ended the stream."""
        self._blocks: dict[object, dict[str, Any]] = {}
        self._fragments: dict[tuple[object, str], list[str]] = {}
        self._thought_in: object = None
        """Index of the block with the last fragment of thinking."""
        self.is_spliced = False
        """Whether another response started within this one: their blocks must not be merged."""
        self._gap: Literal["", "open", "due"] = ""
        """Whether a text was shown, and a paragraph is due before the next one."""

    def add_event(self, event: Mapping[str, Any]) -> Delta | None:
        """Add an event; return its delta, which is empty if nothing can be shown yet, or None if it has no content."""
        self.events += 1
        index = index_key(event.get("index"))
        match event.get("type"):
            case "message_start":
                message = as_dict(event.get("message"))
                self.is_spliced = bool(self._blocks) and message.get("id") != self.response.get("id")
                self.response.update(message)
            case "content_block_start":
                block = self._blocks[index] = dict(as_dict(event.get("content_block")))
                kind = block.get("type")
                if self._gap and kind not in _OWN_BLOCKS:
                    self._gap = "due"
                begun = {kind: block.get(kind)} if kind in ("text", "thinking") else {}
                block.update(dict.fromkeys(begun, ""))
                return self._add_fragment(index, begun)
            case "content_block_delta":
                return self._add_fragment(index, as_dict(event.get("delta")))
            case "message_delta":
                change = as_dict(event.get("delta"))
                stop_reason = merge_finish_reason(
                    str(self.response.get("stop_reason") or ""), change.get("stop_reason"), _FINISH_REASONS
                )
                self.response.update(change, usage=self._usage(as_dict(event.get("usage"))), stop_reason=stop_reason)
            case "message_stop":
                self.is_ended = True
        return None

    def content(self) -> list[dict[str, Any]]:
        """Return the blocks received so far."""
        if not self._blocks:
            return [as_dict(block) for block in as_list(self.response.get("content"))]
        return [self._merged(index, dict(block)) for index, block in self._blocks.items()]

    def _add_fragment(self, index: object, delta: Mapping[str, Any]) -> Delta:
        if isinstance(arguments := delta.get("partial_json"), dict):
            delta = {"partial_json": json.dumps(arguments)}
        for field in ("text", "thinking", "signature", "partial_json"):
            if isinstance(fragment := delta.get(field), str) and fragment:
                is_next = field == "thinking" and self._thought_in not in (None, index)
                self._fragments.setdefault((index, field), []).append(fragment)
                if field == "text":
                    before, self._gap = PARAGRAPH if self._gap == "due" else "", "open"
                    return Delta(text=before + fix_surrogates(fragment))
                if field == "thinking":
                    self._thought_in = index
                    return Delta(reasoning=("\n" if is_next else "") + fix_surrogates(fragment))
        return Delta()

    def _merged(self, index: object, block: dict[str, Any]) -> dict[str, Any]:
        for field in ("text", "thinking", "signature"):
            if (index, field) in self._fragments:
                block[field] = str(block.get(field) or "") + "".join(self._fragments[index, field])
        if (index, "partial_json") in self._fragments:
            block["input"] = "".join(self._fragments[index, "partial_json"])
        return block

    def _usage(self, later: Mapping[str, Any]) -> dict[str, Any]:
        """Return the token counts: the last event has the final ones, and omits those that have not changed."""
        return {
            **as_dict(self.response.get("usage")),
            **{key: value for key, value in later.items() if value is not None},
        }


def _unwrapped(body: object) -> object:
    """Return the error inside an `error` object, or the body unchanged."""
    return body.get("error", body) if isinstance(body, Mapping) else body
