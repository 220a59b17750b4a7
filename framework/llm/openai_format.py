"""Our messages in the form of the chat-completions wire, and back. Pure: no I/O, no SDK.

`names` maps tool names: on the way out tool -> wire (see `wire_names`), on the way in wire -> tool (see `tool_names`).
A name that it does not know is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from framework.types.messages import WIRE_NAME_LENGTH, Message, Reasoning, ToolCall, ToolDefinition, Usage, wire_name
from framework.types.spec import ModelSettings
from framework.types.strict_json import read_object
from framework.types.text import fix_surrogates

MAX_NAME_CHARS, MAX_ID_CHARS = 256, 10_000
"""Of a tool's name and of a call's id, which some servers use to carry data of their own. What is longer is cut."""
MAX_TOKEN_COUNT = 1_000_000_000
"""More in one call are no count."""
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers beyond OpenAI's put what the model thought."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "tool": "tool", "function": "tool"}


def unique_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls of one answer, each once: repeats have the same id, tool and arguments."""
    kept: list[ToolCall] = []
    for call in calls:
        same_id = (other for other in kept if call.id and other.id == call.id)
        if not any(_content(other) == _content(call) for other in same_id):
            kept.append(call)
    return tuple(kept)


def _content(call: ToolCall) -> str:
    return json.dumps([call.tool, call.arguments, call.invalid], sort_keys=True, default=str)  # 1 is not True here


def wire_names(definitions: Iterable[ToolDefinition]) -> dict[str, str]:
    """Tool name -> name on the wire."""
    return {definition.name: definition.wire_name for definition in definitions}


def tool_names(definitions: Iterable[ToolDefinition]) -> dict[str, str]:
    """Name on the wire -> tool name."""
    return {definition.wire_name: definition.name for definition in definitions}


def tool_to_chat(definition: ToolDefinition) -> dict[str, Any]:
    """A tool as a provider is offered it."""
    function = {
        "name": definition.wire_name,
        "description": definition.description,
        "parameters": definition.parameters,
    }
    return {"type": "function", "function": function}


def chat_to_tool(chat: Mapping[str, Any]) -> ToolDefinition:
    """A tool in the wire's form as a definition; raises KeyError where there is no function name."""
    function = chat["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolDefinition(
        name=function["name"], description=function.get("description") or "", parameters=dict(parameters)
    )


def tool_choice_to_chat(choice: str, names: Mapping[str, str]) -> str | dict[str, Any]:
    """`auto`, `none` and `required` as they are, a tool's name as the order to call it."""
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": to_wire_name(choice, names)}}


def to_wire_name(tool: str, names: Mapping[str, str]) -> str:
    """A name that every provider takes, even for a tool that the model made up: the history would be refused for it."""
    return names.get(tool) or re.sub(r"[^a-zA-Z0-9_-]", "_", wire_name(tool))[:WIRE_NAME_LENGTH] or "unknown"


def settings_to_chat(settings: ModelSettings) -> dict[str, Any]:
    """The settings that are set, without `tool_choice`, which makes sense only beside tools."""
    chat = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "stop": list(settings.stop) or None,
        "seed": settings.seed,
        "reasoning_effort": settings.reasoning,
    }
    return {key: value for key, value in chat.items() if value is not None}


def message_to_chat(message: Message, names: Mapping[str, str], *, provider: str = "") -> dict[str, Any]:
    """A message for the wire. Reasoning goes back only to the provider that made it, and only beside tool calls."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        chat["tool_call_id"] = message.tool_call_id or ""
    if message.tool_calls:
        chat["content"] = message.content or None
        chat["tool_calls"] = [_call_to_chat(call, names) for call in message.tool_calls]
        chat.update(_reasoning_to_chat(message.reasoning, provider))
    return chat


def chat_to_message(chat: Mapping[str, Any], names: Mapping[str, str] | None = None, *, provider: str = "") -> Message:
    """A message of the wire as ours. Of content in parts, the text parts are taken; a missing call id stays empty."""
    calls = chat.get("tool_calls")
    call_id = chat.get("tool_call_id")
    return Message.model_validate(
        {
            "role": _ROLES.get(str(chat.get("role")), "assistant"),
            "content": fix_surrogates(content_text(chat.get("content"))),
            "tool_calls": [chat_to_call(_mapping(call), names or {}) for call in calls]
            if isinstance(calls, list)
            else (),
            "tool_call_id": None if call_id is None else str(call_id),
            "reasoning": _chat_to_reasoning(chat, provider),
        }
    )


def chat_to_call(chat: Mapping[str, Any], names: Mapping[str, str]) -> ToolCall:
    """A tool call of the wire as ours; what cannot be read as arguments makes it an invalid one."""
    call_id = _short(chat.get("id"), MAX_ID_CHARS)
    if chat.get("type") == "custom":
        tool = _short(_mapping(chat.get("custom")).get("name"), MAX_NAME_CHARS)
        problem = "a custom tool call carries text: call the function with its arguments by name"
        return ToolCall(id=call_id, tool=names.get(tool, tool), invalid=problem)
    function = _mapping(chat.get("function"))
    tool = _short(function.get("name"), MAX_NAME_CHARS)
    return parse_call(call_id, names.get(tool, tool), function.get("arguments"))


def revalidate_call(call: ToolCall) -> ToolCall:
    """A call from any client, read as strictly as from the wire: what cannot be kept makes it an invalid one."""
    name, call_id = _short(call.tool, MAX_NAME_CHARS), _short(call.id, MAX_ID_CHARS)
    if call.invalid:
        return call.model_copy(update={"id": call_id, "tool": name, "arguments": {}})
    return parse_call(call_id, name, call.arguments)


def parse_call(call_id: str, tool: str, arguments: object) -> ToolCall:
    """A call with its arguments read strictly: one JSON object, its keys unique, its numbers finite. Never raises.

    Some servers send an object instead of its text, and nothing at all for a call without arguments: both are taken.
    """
    try:
        text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
        return ToolCall(id=call_id, tool=tool, arguments=read_object(text) if text.strip() else {})
    except (ValueError, TypeError) as error:
        return ToolCall(id=call_id, tool=tool, invalid=f"the arguments are not one JSON object: {error}")
    except RecursionError:  # of an object that a server sent instead of its text
        return ToolCall(id=call_id, tool=tool, invalid="the arguments nest too deep")


def usage_to_chat(usage: Usage) -> dict[str, Any]:
    """Token counts for the wire."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
    }


def chat_to_usage(chat: Mapping[str, Any]) -> Usage:
    """Token counts of the wire; what is missing or no count is 0, a missing total the sum."""
    details = _mapping(chat.get("prompt_tokens_details"))
    prompt, completion = token_count(chat.get("prompt_tokens")), token_count(chat.get("completion_tokens"))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=token_count(chat.get("total_tokens")) or prompt + completion,
        cached_tokens=token_count(details.get("cached_tokens")),
        cache_write_tokens=token_count(details.get("cache_write_tokens")),
    )


def content_text(content: object) -> str:
    """The text of a message's content, be it a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def _call_to_chat(call: ToolCall, names: Mapping[str, str]) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": to_wire_name(call.tool, names), "arguments": arguments},
    }


def _reasoning_to_chat(reasoning: Reasoning | None, provider: str) -> dict[str, str]:
    if reasoning is None or reasoning.provider != provider:
        return {}
    field = (reasoning.data or {}).get("field")
    return {field: reasoning.text} if field in REASONING_FIELDS else {}


def _chat_to_reasoning(chat: Mapping[str, Any], provider: str) -> Reasoning | None:
    for field in REASONING_FIELDS:
        text = chat.get(field)
        if isinstance(text, str) and text:
            return Reasoning(text=fix_surrogates(text), provider=provider, data={"field": field})
    return None


def _short(text: object, most: int) -> str:
    return fix_surrogates(str(text or "")[:most])


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, (dict, Mapping)) else {}  # dict first: asking an abstract class takes long


def token_count(value: object) -> int:
    """A count of tokens, also where a server writes it as a text or as `12.0`; 0 where it is none."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) else 0.0
    except (ValueError, OverflowError):
        return 0
    return int(number) if 0 < number <= MAX_TOKEN_COUNT else 0
