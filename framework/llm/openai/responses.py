"""Client for OpenAI's Responses API: messages as its items, requests, and streamed responses.

Every failure is raised as a ModelError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from framework.llm.capabilities import Capabilities, with_cost
from framework.llm.client import Delta, ModelReply, ModelRequest
from framework.llm.message_shape import Base64, encode_json, json_object, missing_file, wire_schema
from framework.llm.openai.client import OpenAIExchange
from framework.llm.openai_format import PARAGRAPH, chat_to_call, content_text, read_usage, to_wire_name, token_count
from framework.llm.provider_client import (
    FinishReasons,
    ProviderResponse,
    as_dict,
    as_list,
    merge_finish_reason,
    to_reply,
)
from framework.types.errors import ModelError
from framework.types.media import MessagePart, TextPart
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition, Usage
from framework.types.spec import ModelSettings
from framework.types.text import fix_surrogates

RESPONSE_STATUSES: FinishReasons = {
    "completed": "stop",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "incomplete": "length",
    "cancelled": "error",
    "in_progress": "error",
    "queued": "error",
}
"""Statuses of responses, and reasons of incomplete ones."""

RESPONSE_MEDIA_TYPES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"))
"""Media types of files that the API can express."""

_ANSWERS = ("message", "function_call", "custom_tool_call")
_Item = dict[str, Any]


def tool_to_function(definition: ToolDefinition) -> _Item:
    """Return a tool in the format of the API. It is not `strict`, which forbids optional arguments."""
    return {
        "type": "function",
        "name": definition.wire_name,
        "description": definition.description,
        "parameters": wire_schema(definition.parameters, "openai"),
        "strict": False,
    }


def function_choice(choice: str, names: Mapping[str, str]) -> str | _Item:
    """Return `auto`, `none` and `required` unchanged, and a tool's name as the choice of that function."""
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "name": to_wire_name(choice, names)}


def settings_to_fields(settings: ModelSettings) -> dict[str, Any]:
    """Return the settings that are set, except those that require tools, and `reasoning`."""
    fields = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_tokens,
        "text": {"verbosity": settings.verbosity} if settings.verbosity else None,
        "service_tier": settings.service_tier,
    }
    return {key: value for key, value in fields.items() if value is not None}


# --- requests


def message_to_items(
    message: Message,
    names: Mapping[str, str],
    *,
    provider: str,
    source: str,
    base64: Base64 = missing_file,
) -> list[_Item]:
    """Return a message as one or more input items; reasoning of another provider, model or server is omitted."""
    content = [item for part in message.parts if (item := _input(part, base64))] if message.parts else message.content
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id or "", "output": content}]
    if message.role != "assistant":
        return [{"role": message.role, "content": content}]
    calls = [_call_item(call, names) for call in message.tool_calls]
    outline = _outline(message.reasoning, provider, source)
    items = _by_outline(outline, message.content, calls) if outline else _plain(message.content, calls)
    return items or [_message_item(message.content)]


def _input(part: MessagePart, base64: Base64) -> _Item | None:
    """Return a part of a message, with a description in place of a file that the API does not accept."""
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text} if part.text.strip() else None
    contents = base64(part) if part.media_type in RESPONSE_MEDIA_TYPES else None
    if contents is None:
        return {"type": "input_text", "text": part.description}
    url = f"data:{part.media_type};base64,{contents}"
    if part.kind == "image":
        return {"type": "input_image", "detail": "auto", "image_url": url}
    return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": url}


def _plain(content: str, calls: Sequence[_Item]) -> list[_Item]:
    return [*([_message_item(content)] if content else []), *calls]


def _call_item(call: ToolCall, names: Mapping[str, str]) -> _Item:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    name = to_wire_name(call.tool, names)
    return {"type": "function_call", "call_id": call.id, "name": name, "arguments": arguments}


def _outline(reasoning: Reasoning | None, provider: str, source: str) -> list[_Item]:
    """Return the outline of the response, or an empty list if it is from another model or server."""
    data = (reasoning.data if reasoning is not None and reasoning.provider == provider else None) or {}
    return [as_dict(entry) for entry in as_list(data.get("outline"))] if data.get("source") == source else []


def _by_outline(outline: Sequence[_Item], content: str, calls: Sequence[_Item]) -> list[_Item]:
    """Return the items in their original order; what is not in the outline comes last.

    The text and the calls may have changed since: hooks replace texts, and calls of one id are merged.
    """
    texts = _split(content, [token_count(entry["chars"]) for entry in outline if "chars" in entry])
    remaining = list(calls)
    items: list[_Item] = []
    for entry in outline:
        match entry.get("type"):
            case "reasoning":
                items.append(entry)
            case "message" if text := entry.get("text") or (texts.pop(0) if texts else ""):
                items.append(
                    {**_message_item(text), "status": "completed", **_named("id", entry), **_named("phase", entry)}
                )
            case "function_call" if call := next((c for c in remaining if c["call_id"] == entry.get("call_id")), None):
                remaining.remove(call)
                items.append({**call, **_named("id", entry)})
    items += _plain(PARAGRAPH.join(filter(None, texts)), remaining)
    while items and items[-1].get("type") == "reasoning":  # rejected without the item that it led to
        items.pop()
    return items


def _message_item(text: str) -> _Item:
    """Return a message of the assistant. llama.cpp rejects one whose content is a string."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def _split(content: str, lengths: Sequence[int]) -> list[str]:
    """Return the texts of several messages, or the whole text as the first of them if it has changed."""
    if len(content) != sum(lengths) + len(PARAGRAPH) * (len(lengths) - 1):
        return [content]
    texts, start = [], 0
    for length in lengths:
        texts.append(content[start : start + length])
        start += length + len(PARAGRAPH)
    return texts


# --- responses


def items_to_message(
    items: Iterable[Mapping[str, Any]], names: Mapping[str, str], *, provider: str, source: str
) -> Message:
    """Return the output items of a response, which are untrusted, as a message. Items of other types are ignored."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    outline: list[_Item] = []
    items = list(items)
    has_answer = any(item.get("type") in _ANSWERS and not is_commentary(item) for item in items)
    for item in items:
        match item.get("type"):
            case "message":
                if text := fix_surrogates(content_text(item.get("content"))):
                    is_thought = has_answer and is_commentary(item)
                    (thoughts if is_thought else texts).append(text)
                    size = {"text": text} if is_thought else {"chars": len(text)}
                    outline.append({"type": "message", **size, **_named("id", item), **_named("phase", item)})
            case "function_call" | "custom_tool_call":
                call = _call(item, names)
                calls.append(call)
                outline.append({"type": "function_call", "call_id": call.id, **_named("id", item)})
            case "reasoning":
                thoughts += _texts(item.get("summary")) or _texts(item.get("content"))
                outline += _kept_reasoning(item)
    reasoning = None
    has_state = any(entry["type"] == "reasoning" or "phase" in entry for entry in outline)
    if thoughts or has_state:
        data = {"source": source, "outline": outline} if has_state else None
        reasoning = Reasoning(text=PARAGRAPH.join(thoughts), provider=provider, data=data)
    return Message(role="assistant", content=PARAGRAPH.join(texts), tool_calls=tuple(calls), reasoning=reasoning)


def is_commentary(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a message about the progress of the work, which is not part of the answer."""
    return item.get("type") == "message" and item.get("phase") == "commentary"


def refusal_in(items: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the explanation of a refusal, which may be empty, or None if nothing was refused."""
    parts = [as_dict(part) for item in items for part in as_list(item.get("content"))]
    refusals = [str(part.get("refusal") or "") for part in parts if part.get("type") == "refusal"]
    return " ".join(refusals) if refusals else None


def response_status(response: Mapping[str, Any], announced: str = "") -> str:
    """Return the status of a response, or the reason if it is incomplete; empty if it has none.

    `announced` is the status in the name of the event that contains it.
    """
    stated = str(response.get("status") or announced)
    status = stated if announced in ("", "completed") else announced
    reason = str(as_dict(response.get("incomplete_details")).get("reason") or "")
    return reason if status == "incomplete" and reason in RESPONSE_STATUSES else status


def response_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the token counts of a response. Output tokens include those of reasoning."""
    return read_usage(usage, prompt="input_tokens", completion="output_tokens")


def _call(item: Mapping[str, Any], names: Mapping[str, str]) -> ToolCall:
    """Return a call, by the rules for calls of chat completions, which contain the same values."""
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    kind = "custom" if item["type"] == "custom_tool_call" else "function"
    return chat_to_call({"id": item.get("call_id"), "type": kind, kind: function}, names)


def _kept_reasoning(item: Mapping[str, Any]) -> list[_Item]:
    """Return the item as it is sent back: encrypted, or as text, by servers that do not encrypt it."""
    kept: _Item = {"type": "reasoning", **_named("id", item)}
    kept["summary"] = [{"type": "summary_text", "text": text} for text in _texts(item.get("summary"))]
    if texts := _texts(item.get("content")):
        kept["content"] = [{"type": "reasoning_text", "text": text} for text in texts]
    kept |= _named("encrypted_content", item)
    return [kept] if {"content", "encrypted_content"} & kept.keys() else []


def _texts(parts: object) -> list[str]:
    texts = [as_dict(part).get("text") for part in as_list(parts)]
    return [fix_surrogates(text) for text in texts if isinstance(text, str) and text]


def _named(field: str, item: Mapping[str, Any]) -> dict[str, str]:
    """Return a text field of an item as a dict, empty if it is missing."""
    value = item.get(field)
    return {field: fix_surrogates(value)} if isinstance(value, str) and value else {}


class ResponsesAssembler:
    """Accumulates a response, streamed or not: accepts events, returns deltas. Events are untrusted.

    Texts are shown as they arrive; the reply consists of items that the server has declared complete.

    Args:
        error: creates the error for an `error` event.
    """

    def __init__(self, error: Callable[[Mapping[str, Any]], ModelError]) -> None:
        self.events = 0
        self.status = ""
        self.response: dict[str, Any] = {}
        """The response as last reported."""
        self._error = error
        self._done: dict[int, dict[str, Any]] = {}
        self._began: object = None
        """Id of the response that started last."""
        self._commentary: list[object] = []
        """Positions of messages that are shown as thoughts."""
        self._shown: dict[str, object] = {}
        """Kind of text -> position of the part that was shown last."""

    def add_chunk(self, chunk: Any) -> Delta | None:
        """Add an event; return its delta, which is empty if nothing can be shown yet, or None if it has no content.

        Raises:
            ModelError: the event reports an error.
        """
        if not (event := as_dict(chunk)):
            return None
        self.events += 1
        match event.get("type"):
            case "response.output_text.delta":
                return self._text(event.get("output_index"), event.get("delta"))
            case "response.output_item.added" if is_commentary(as_dict(event.get("item"))):
                self._commentary.append(event.get("output_index"))
                return Delta()
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                part = event.get("output_index"), event.get("summary_index"), event.get("content_index")
                return Delta(reasoning=self._fragment("reasoning", part, event.get("delta")))
            case "response.output_item.added" | "response.function_call_arguments.delta" | "response.refusal.delta":
                return Delta()
            case "response.output_item.done":
                return self._add_item(event.get("output_index"), as_dict(event.get("item")))
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                self.set_response(as_dict(event.get("response")), kind.removeprefix("response."))
            case "response.created":
                self._begin(as_dict(event.get("response")).get("id"))
            case "error":
                raise self._error(event)
        return None

    def set_response(self, response: Mapping[str, Any], announced: str = "completed") -> None:
        """Set the response at its end; `announced` is the status in the name of its event."""
        self.events += 1
        self.response = dict(response)
        self.status = merge_finish_reason(self.status, response_status(response, announced), RESPONSE_STATUSES)

    def items(self) -> list[dict[str, Any]]:
        """Return the complete items, from their own events or from the response; some servers send only one of them."""
        final = [as_dict(item) for item in as_list(self.response.get("output"))]
        return final if len(final) > len(self._done) else [self._done[index] for index in sorted(self._done)]

    def _add_item(self, index: object, item: dict[str, Any]) -> Delta:
        place = index if isinstance(index, int) else len(self._done)
        if place in self._done and self._done[place].get("id") != item.get("id"):  # some servers number every item 0
            place = max(self._done) + 1
        self._done[place] = item
        if item.get("type") != "message" or index in self._shown.values():
            return Delta()
        self._commentary += [index] if is_commentary(item) else []
        return self._text(index, content_text(item.get("content")))

    def _begin(self, response_id: object) -> None:
        """Note the response that starts; raise ModelError if another one has started to answer."""
        if self._began not in (None, response_id) and (self._shown or self._done):
            raise self._error({"message": "a second answer began within the first one"})
        self._began = response_id

    def _text(self, index: object, fragment: object) -> Delta:
        """Return the delta for a fragment of a message, which is a thought if it is commentary."""
        if index in self._commentary:
            return Delta(reasoning=self._fragment("reasoning", index, fragment))
        return Delta(text=self._fragment("text", index, fragment))

    def _fragment(self, kind: str, part: object, fragment: object) -> str:
        """Return a fragment as it is shown, with an empty line before it if it starts another part."""
        if not isinstance(fragment, str) or not fragment:
            return ""
        is_next = self._shown.setdefault(kind, part) != part
        self._shown[kind] = part
        return (PARAGRAPH if is_next else "") + fix_surrogates(fragment)


class ResponsesModel(OpenAIExchange):
    """A model behind the Responses API. The server keeps nothing: each request contains the conversation."""

    api = "responses"
    answer_field = "output"
    media_types = RESPONSE_MEDIA_TYPES

    def _tool(self, definition: ToolDefinition) -> dict[str, Any]:
        return tool_to_function(definition)

    def _body(self, request: ModelRequest, settings: dict[str, Any], *, streamed: bool) -> bytes:
        tools = self._toolsets.get(request.tools)
        provider, source, base64 = self._info.provider, self._info.source, request.scratch.files.base64
        encoded = request.scratch.messages_for(self)

        def encode(position: int) -> bytes:
            message = request.messages[position]
            items = message_to_items(message, tools.wire_names, provider=provider, source=source, base64=base64)
            return encode_json(items)[1:-1]

        late = request.late_tools(self._info.capabilities)
        chunks = list(encoded.chunks(request.messages, encode))
        for position, found in late.items():  # they follow the results of the turn
            while position + 1 < len(request.messages) and request.messages[position + 1].role == "tool":
                position += 1
            added = b",".join(tools.tools[tool.name] for tool in found)
            chunks[position + 1] += b',{"type":"additional_tools","role":"developer","tools":[%b]}' % added
        fields: dict[str, Sequence[bytes]] = {"input": chunks}
        if request.tools:
            fields["tools"] = (tools.json({tool.name for found in late.values() for tool in found}),)
        return json_object({**settings, "stream": True} if streamed else settings, **fields)

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        names, supported = self._toolsets.get(request.tools).wire_names, self._info.capabilities
        body: dict[str, Any] = {"model": self._info.model, "store": False, **settings_to_fields(request.settings)}
        if supported.thinking != "none":  # models that do not think reject both
            body["include"] = ["reasoning.encrypted_content"]
            if (level := supported.reasoning_level(request.settings.reasoning)) is not None:
                body["reasoning"] = {"effort": level}
        may_set_format = supported.json_with_tools or not request.tools
        if request.json is not None and may_set_format and (form := _text_format(request.json, supported)):
            body["text"] = {**body.get("text", {}), **form}
        if request.tools:
            body["tool_choice"] = function_choice(self._tool_choice(request, names), names)
            if request.settings.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.settings.parallel_tool_calls
        return body

    def _assembler(self) -> ResponsesAssembler:
        return ResponsesAssembler(self._body_error)

    def _reply(self, assembler: ResponsesAssembler, request: ModelRequest) -> ModelReply:
        received, items = assembler.response, assembler.items()
        usage = response_usage(as_dict(received.get("usage")))
        if assembler.status == "failed":
            error = self._body_error(received.get("error"))
            error.usage = with_cost(usage, self._info.capabilities) if usage.total_tokens else None
            raise error
        response = ProviderResponse(
            message=items_to_message(
                items,
                self._toolsets.get(request.tools).tool_names,
                provider=self._info.provider,
                source=self._info.source,
            ),
            finish_reason=assembler.status,
            usage=usage,
            model=str(received.get("model") or ""),
            response_id=str(received.get("id") or ""),
            chunks=assembler.events,
            refusal=refusal_in(items),
        )
        return to_reply(response, request, self._info, RESPONSE_STATUSES, self._errors)


def _text_format(schema: Mapping[str, Any], supported: Capabilities) -> dict[str, Any]:
    """Return the strictest `format` of a text that the model supports, if any."""
    if schema and supported.json_schema:
        named = {"name": "answer", "schema": schema, "strict": False}  # strict forbids optional fields
        return {"format": {"type": "json_schema", **named}}
    return {"format": {"type": "json_object"}} if supported.json_object else {}
