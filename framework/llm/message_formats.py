"""A conversation as data, out and back: neutral to providers, or as the APIs of OpenAI, Anthropic and Gemini have it.

What a form cannot say gets lost on the way: what a model thought goes only into the form of the provider that made it,
and Anthropic and Gemini know no two messages of one speaker in a row.
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
"""Names no model: what was thought elsewhere is never sent back to one."""

_Names = Mapping[str, str]


def exported(messages: Sequence[Message], form: Form, tools: Iterable[ToolDefinition] = ()) -> Any:
    """Messages as JSON data in a form.

    Args:
        messages: a whole conversation.
        form: `messages` is ours; it holds everything.
        tools: those whose names on the wire may be no plain derivation of their own.
    """
    names = wire_names(tools)
    match form:
        case "messages":
            return [message.model_dump(mode="json", exclude_defaults=True) for message in messages]
        case "openai":
            makers = ((m, m.reasoning.provider if m.reasoning else "") for m in messages)
            return [message_to_chat(message, names, provider=maker) for message, maker in makers]
        case "anthropic":
            return _with_system(messages, "system", "messages", to_turns(messages, names, lambda *_: True))
        case "gemini":
            rest = [message for message in messages if message.role != "system"]
            contents = [_as_json(content) for content in to_contents(rest, names, Capabilities())]
            return _with_system(messages, "system_instruction", "contents", contents)


def imported(
    data: Any, form: Form, tools: Iterable[ToolDefinition] = (), *, what: str = "this conversation"
) -> list[Message]:
    """Messages out of JSON data in a form.

    Args:
        data: the list of messages, or the object that holds it, as the provider's API has it.
        form: which form it is.
        tools: those whose names on the wire are turned back into their own.
        what: how errors call the data, such as the name of its file.

    Raises:
        RequestError: it is not that form, or no conversation that a model would take.
    """
    names = tool_names(tools)
    try:
        messages = list(_READERS[form](data, names))
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise RequestError(f"{what}: {place}: {detail['msg']}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{what} has not the form {form!r}: {error}") from None
    if found := next(transcript_errors(messages), None):
        raise RequestError(f"{what}: {found}")
    return messages


def _with_system(messages: Sequence[Message], key: str, rest: str, turns: list[Any]) -> dict[str, Any]:
    text = "\n\n".join(message.content for message in messages if message.role == "system")
    told: Any = {"parts": [{"text": text}]} if key == "system_instruction" else text
    return {**({key: told} if text else {}), rest: turns}


def _as_json(content: dict[str, Any]) -> dict[str, Any]:
    """Signatures are bytes for the SDK and base64 in JSON."""
    parts = [
        {key: b64encode(value).decode() if isinstance(value, bytes) else value for key, value in part.items()}
        for part in content["parts"]
    ]
    return {**content, "parts": parts}


# --- reading


def _neutral(data: Any, names: _Names) -> Iterator[Message]:  # noqa: ARG001 - one signature for all
    yield from _MESSAGES.validate_python(_items(data, "messages"))


def _openai(data: Any, names: _Names) -> Iterator[Message]:
    for number, chat in enumerate(_items(data, "messages"), 1):
        if not isinstance(chat, Mapping) or chat.get("role") not in _ROLES:
            raise ValueError(f"message {number} has no role of {', '.join(_ROLES)}")
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
            yield from _of_user(blocks)


def _of_user(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """A turn of the user's: answers to calls, and what was said, each run of texts in one message."""
    texts: list[str] = []
    for block in blocks:
        if block["type"] == "tool_result":
            yield from _said(texts)
            content, failed = block.get("content"), block.get("is_error")
            yield Message(
                role="tool",
                tool_call_id=str(block["tool_use_id"]),
                content=fix_surrogates(content_text(content)),
                status="error" if failed else None,
            )
        else:
            texts.append(str(block["text"]))
    yield from _said(texts)


def _said(texts: list[str]) -> Iterator[Message]:
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
            message = _of_model(parts, names, number)
            open_calls = [(call.id, call.tool) for call in message.tool_calls]
            yield message
        else:
            yield from _of_gemini_user(parts, names, open_calls)


def _of_model(parts: Sequence[Mapping[str, Any]], names: _Names, number: int) -> Message:
    """A turn of the model's; calls without an id, as older models make them, get one."""
    assembler = ResponseAssembler({})
    for place, part in enumerate(parts):
        call = _key(part, "function_call")
        signature = str(_key(part, "thought_signature") or "").translate(_URL_SAFE)
        if call is not None:
            call_id = call.get("id") or f"call_{number}_{place}"
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


def _of_gemini_user(
    parts: Sequence[Mapping[str, Any]], names: _Names, open_calls: list[tuple[str, str]]
) -> Iterator[Message]:
    texts: list[str] = []
    for part in parts:
        answer = _key(part, "function_response")
        if answer is None:
            texts.append(str(part["text"]))
            continue
        yield from _said(texts)
        tool = names.get(answer.get("name", ""), answer.get("name", ""))
        asked = next((i for i, n in open_calls if answer.get("id") in (i, None, "") and n == tool), answer.get("id"))
        open_calls[:] = [(call_id, name) for call_id, name in open_calls if call_id != asked]
        content = answer.get("response") or {}
        output = content.get("output") if content.keys() == {"output"} else None
        text = output if isinstance(output, str) else json.dumps(content, ensure_ascii=False)
        yield Message(
            role="tool",
            tool_call_id=asked,
            content=fix_surrogates(text),
            status="error" if "error" in content else None,
        )
    yield from _said(texts)


def _items(data: Any, key: str) -> list[Any]:
    """The list itself, or the one in an object."""
    items = data.get(key) if isinstance(data, Mapping) else data
    if not isinstance(items, list):
        raise ValueError(f"a list of messages is expected, or an object with {key!r}")
    return items


def _key(data: Mapping[str, Any], name: str) -> Any:
    """A value of Gemini's, whose keys are written in two ways: `function_call` and `functionCall`."""
    first, *others = name.split("_")
    camel = first + "".join(other.capitalize() for other in others)
    return data[name] if name in data else data.get(camel)


_READERS = {"messages": _neutral, "openai": _openai, "anthropic": _anthropic, "gemini": _gemini}
