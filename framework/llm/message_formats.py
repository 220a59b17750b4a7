"""Exports and imports conversations as JSON data, in a neutral format or that of OpenAI, Anthropic or Gemini.

What a format cannot express is lost: reasoning is exported only to the format of the provider that created it, and
Anthropic and Gemini allow no two consecutive messages of one role.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from framework.llm.anthropic.format import content_to_message, to_turns
from framework.llm.capabilities import Capabilities
from framework.llm.gemini.format import ResponseAssembler, to_contents
from framework.llm.openai_format import chat_to_message, content_text, message_to_chat, tool_names, wire_names
from framework.types.errors import RequestError
from framework.types.messages import Message, ToolDefinition
from framework.types.text import fix_surrogates
from framework.types.transcript import transcript_errors

Form = Literal["messages", "openai", "anthropic", "gemini"]
FORMS: tuple[Form, ...] = get_args(Form)
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MESSAGES = TypeAdapter(list[Message])
_URL_SAFE = str.maketrans("+/", "-_")
_IMPORTED = ""
"""Stamp of imported reasoning; it matches no request, so that the reasoning is never sent to a model."""

_Names = Mapping[str, str]


def exported(messages: Sequence[Message], form: Form, tools: Iterable[ToolDefinition] = ()) -> Any:
    """Return messages as JSON data in a format.

    Args:
        messages: a complete conversation.
        form: the format; `messages` is the neutral one, which is lossless.
        tools: definitions of the tools whose name in the API is not derived from their name.
    """
    names = wire_names(tools)
    match form:
        case "messages":
            return [message.model_dump(mode="json", exclude_defaults=True) for message in messages]
        case "openai":
            providers = (message.reasoning.provider if message.reasoning else "" for message in messages)
            return [
                message_to_chat(m, names, provider=provider) for m, provider in zip(messages, providers, strict=True)
            ]
        case "anthropic":
            return _with_system(messages, "system", "messages", to_turns(messages, names, lambda *_: True))
        case "gemini":
            others = [message for message in messages if message.role != "system"]
            contents = [_as_json(content) for content in to_contents(others, names, Capabilities())]
            return _with_system(messages, "system_instruction", "contents", contents)


def imported(
    data: Any, form: Form, tools: Iterable[ToolDefinition] = (), *, what: str = "this conversation"
) -> list[Message]:
    """Return the messages in JSON data of a format.

    Args:
        data: the list of messages, or the object that contains it, as in the provider's API.
        form: the format of the data.
        tools: definitions of the tools, to restore their names.
        what: description of the data in errors, such as a file name.

    Raises:
        RequestError: the data is not in that format, or not a conversation that a model accepts.
    """
    names = tool_names(tools)
    try:
        messages = list(_READERS[form](data, names))
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise RequestError(f"{what}: {place}: {detail['msg']}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{what} is not in the format {form!r}: {error}") from None
    if problem := next(transcript_errors(messages), None):
        raise RequestError(f"{what}: {problem}")
    return messages


def _with_system(messages: Sequence[Message], key: str, turns_key: str, turns: list[Any]) -> dict[str, Any]:
    text = "\n\n".join(message.content for message in messages if message.role == "system")
    system: Any = {"parts": [{"text": text}]} if key == "system_instruction" else text
    return {**({key: system} if text else {}), turns_key: turns}


def _as_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with signatures in base64; the SDK requires bytes."""
    parts = [
        {key: b64encode(value).decode() if isinstance(value, bytes) else value for key, value in part.items()}
        for part in content["parts"]
    ]
    return {**content, "parts": parts}


# --- import


def _neutral(data: Any, names: _Names) -> Iterator[Message]:  # noqa: ARG001 - all readers have one signature
    yield from _MESSAGES.validate_python(_items(data, "messages"))


def _openai(data: Any, names: _Names) -> Iterator[Message]:
    for number, chat in enumerate(_items(data, "messages"), 1):
        if not isinstance(chat, Mapping) or chat.get("role") not in _ROLES:
            raise ValueError(f"message {number} has an invalid role; allowed: {', '.join(_ROLES)}")
        yield chat_to_message(chat, names)


def _anthropic(data: Any, names: _Names) -> Iterator[Message]:
    if isinstance(data, Mapping) and data.get("system"):
        yield Message(role="system", content=fix_surrogates(content_text(data["system"])))
    for turn in _items(data, "messages"):
        content = turn["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if turn["role"] == "assistant":
            yield content_to_message(blocks, names, stamp=_IMPORTED)
        else:
            yield from _anthropic_user(blocks)


def _anthropic_user(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """Yield the messages of a user turn: tool results, and one message for adjacent texts."""
    texts: list[str] = []
    for block in blocks:
        if block["type"] == "tool_result":
            yield from _user_text(texts)
            content = block.get("content")
            yield Message(
                role="tool",
                tool_call_id=str(block["tool_use_id"]),
                content=fix_surrogates(content_text(content)),
                status="error" if block.get("is_error") else None,
            )
        else:
            texts.append(str(block["text"]))
    yield from _user_text(texts)


def _user_text(texts: list[str]) -> Iterator[Message]:
    if texts:
        yield Message(role="user", content=fix_surrogates("\n\n".join(texts)))
        texts.clear()


def _gemini(data: Any, names: _Names) -> Iterator[Message]:
    system = _key(data, "system_instruction") if isinstance(data, Mapping) else None
    if system:
        text = system if isinstance(system, str) else content_text(system.get("parts"))
        yield Message(role="system", content=fix_surrogates(text))
    open_calls: list[tuple[str, str]] = []
    for number, content in enumerate(_items(data, "contents")):
        parts = content["parts"]
        if content.get("role") == "model":
            message = _gemini_model(parts, names, number)
            open_calls = [(call.id, call.tool) for call in message.tool_calls]
            yield message
        else:
            yield from _gemini_user(parts, names, open_calls)


def _gemini_model(parts: Sequence[Mapping[str, Any]], names: _Names, number: int) -> Message:
    """Return the message of a model turn; calls without an id, as older models create them, get one."""
    assembler = ResponseAssembler({})
    for position, part in enumerate(parts):
        call = _key(part, "function_call")
        signature = str(_key(part, "thought_signature") or "").translate(_URL_SAFE)
        if call is not None:
            call_id = call.get("id") or f"call_{number}_{position}"
            call = SimpleNamespace(id=call_id, name=call["name"], args=call.get("args"))
        assembler.add_part(
            SimpleNamespace(
                thought_signature=b64decode(signature, b"-_", validate=True) if signature else None,
                function_call=call,
                text=part.get("text"),
                thought=part.get("thought"),
            )
        )
    return assembler.message(names)


def _gemini_user(
    parts: Sequence[Mapping[str, Any]], names: _Names, open_calls: list[tuple[str, str]]
) -> Iterator[Message]:
    texts: list[str] = []
    for part in parts:
        result = _key(part, "function_response")
        if result is None:
            texts.append(str(part["text"]))
            continue
        yield from _user_text(texts)
        tool = names.get(result.get("name", ""), result.get("name", ""))
        matching = (i for i, n in open_calls if result.get("id") in (i, None, "") and n == tool)
        call_id = next(matching, result.get("id"))
        open_calls[:] = [(other_id, name) for other_id, name in open_calls if other_id != call_id]
        content = result.get("response") or {}
        output = content.get("output") if content.keys() == {"output"} else None
        text = output if isinstance(output, str) else json.dumps(content, ensure_ascii=False)
        yield Message(
            role="tool",
            tool_call_id=call_id,
            content=fix_surrogates(text),
            status="error" if "error" in content else None,
        )
    yield from _user_text(texts)


def _items(data: Any, key: str) -> list[Any]:
    """Return the list itself, or the one in an object."""
    items = data.get(key) if isinstance(data, Mapping) else data
    if not isinstance(items, list):
        raise ValueError(f"expected a list of messages or an object with {key!r}")
    return items


def _key(data: Mapping[str, Any], name: str) -> Any:
    """Return a value of Gemini's JSON, whose keys have two spellings: `function_call` and `functionCall`."""
    first, *others = name.split("_")
    camel = first + "".join(other.capitalize() for other in others)
    return data[name] if name in data else data.get(camel)


_READERS = {"messages": _neutral, "openai": _openai, "anthropic": _anthropic, "gemini": _gemini}
