"""Conversations as JSON, neutral or in the format of OpenAI, Anthropic or Gemini.

A file must be in the data itself, in base64. Nothing is fetched from URLs or from a provider's storage.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from framework.llm.anthropic import content_to_message, to_turns
from framework.llm.capabilities import Capabilities
from framework.llm.gemini import ResponseAssembler, to_contents
from framework.llm.message_shape import Base64
from framework.llm.openai_format import (
    chat_to_message,
    content_text,
    message_to_chat,
    result_files_to_chat,
    tool_names,
    wire_names,
)
from framework.types.errors import RequestError
from framework.types.file import File
from framework.types.media import MediaPart, MessagePart, TextPart
from framework.types.messages import Message, ToolDefinition, transcript_errors
from framework.types.text import fix_surrogates, shorten

_STANDARD_BASE64 = str.maketrans("-_", "+/")
_MAX_QUOTED_CHARS = 80


class ImportedFiles:
    """The files of one conversation, collected while it is read. Invalid ones raise ValueError or RequestError."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        """Contents by digest."""

    def add(self, base64: object, media_type: object, name: object = None) -> MediaPart:
        """Add a file in base64, and return the part of a message that refers to it."""
        if not isinstance(base64, str):
            raise ValueError("a file has no contents in base64")
        text = base64.translate(_STANDARD_BASE64)
        try:
            contents = b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError:
            raise ValueError("the contents of a file are not valid base64") from None
        file = File.from_bytes(
            contents,
            name=name if isinstance(name, str) and name else None,
            media_type=media_type if isinstance(media_type, str) else None,
        )
        self.contents[file.part.digest] = contents
        return file.part

    def chat_part(self, part: Mapping[str, Any]) -> MessagePart:
        """Return a part of a chat message."""
        match part.get("type"):
            case "text":
                return TextPart(text=str(part["text"]))
            case "image_url":
                image = part["image_url"]
                return self._data_url(image if isinstance(image, str) else image["url"])
            case "file" if "file_data" in part["file"]:
                return self._data_url(part["file"]["file_data"], part["file"].get("filename"))
            case "input_audio":
                sound = part["input_audio"]
                return self.add(sound["data"], f"audio/{sound['format']}")
            case kind:
                raise ValueError(unsupported(kind))

    def claude_part(self, block: Mapping[str, Any]) -> MessagePart:
        """Return a block of a Claude message or tool result."""
        if block["type"] == "text":
            return TextPart(text=str(block["text"]))
        if block["type"] not in ("image", "document"):
            raise ValueError(unsupported(block["type"]))
        source = block["source"]
        match source["type"]:
            case "base64":
                return self.add(source["data"], source["media_type"], block.get("title"))
            case "text":
                return TextPart(text=str(source["data"]))
            case "url":
                raise ValueError(_remote(source["url"]))
            case kind:
                raise ValueError(unsupported(kind))

    def gemini_part(self, part: Mapping[str, Any]) -> MessagePart:
        """Return a part of a message or tool result of Gemini, whose keys have two spellings."""
        if isinstance(text := part.get("text"), str):
            return TextPart(text=text)
        inline, remote = (part.get(f"{kind}_data", part.get(f"{kind}Data")) for kind in ("inline", "file"))
        if isinstance(inline, Mapping):
            return self.add(inline.get("data"), inline.get("mime_type", inline.get("mimeType")))
        if isinstance(remote, Mapping):
            raise ValueError(_remote(remote.get("file_uri", remote.get("fileUri"))))
        raise ValueError(unsupported(next((key for key, value in part.items() if value is not None), "nothing")))

    def _data_url(self, url: object, name: object = None) -> MediaPart:
        """Add the file in a data URL; `file_data` is also allowed to be base64 alone."""
        text = str(url)
        head, comma, data = text.partition(",")
        if not comma and ":" not in head:
            return self.add(text, None, name)
        if not head.startswith("data:") or not head.endswith(";base64"):
            raise ValueError(_remote(text))
        return self.add(data, head.removeprefix("data:").removesuffix(";base64"), name)


def _remote(url: object) -> str:
    shown = shorten(str(url).partition("?")[0], _MAX_QUOTED_CHARS)
    return f"the file {shown!r} is not in the data, and nothing is fetched: replace it by a data URL with its contents"


def unsupported(kind: object) -> str:
    """Return the error for content of a kind that no message can contain."""
    return f"content of type {shorten(str(kind), _MAX_QUOTED_CHARS)!r} is not supported: use text, or files in base64"


Form = Literal["messages", "openai", "anthropic", "gemini"]
FORMS: tuple[Form, ...] = get_args(Form)
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MESSAGES = TypeAdapter(list[Message])
_URL_SAFE = str.maketrans("+/", "-_")
_GEMINI = Capabilities()
"""Capabilities of no particular model: the files of tool results are beside them, as every model accepts."""
_IMPORTED = ""
"""Stamp of imported reasoning; it matches no request, so that the reasoning is never sent to a model."""

_Names = Mapping[str, str]


def exported(
    messages: Sequence[Message],
    form: Form,
    tools: Iterable[ToolDefinition] = (),
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Any:
    """Return messages as JSON data in a format.

    Args:
        messages: a complete conversation.
        form: the format; `messages` is the neutral one, which is lossless.
        tools: definitions of the tools whose name in the API is not derived from their name.
        files: contents of the files in the messages, by digest.
    """
    names = wire_names(tools)

    def base64(part: MediaPart) -> str | None:
        return b64encode(files[part.digest]).decode() if part.digest in files else None

    match form:
        case "messages":
            return [_to_neutral(message, base64) for message in messages]
        case "openai":
            return [chat for place in range(len(messages)) for chat in _to_openai(messages, place, names, base64)]
        case "anthropic":
            return _with_system(messages, "system", "messages", to_turns(messages, names, lambda *_: True, base64))
        case "gemini":
            others = [message for message in messages if message.role != "system"]
            contents = _as_json(to_contents(others, names, _GEMINI, files))
            return _with_system(messages, "system_instruction", "contents", contents)


def imported(
    data: Any, form: Form, tools: Iterable[ToolDefinition] = (), *, what: str = "this conversation"
) -> list[Message]:
    """Return the messages in JSON data of a format, which must not contain files: see `imported_with_files`."""
    messages, files = imported_with_files(data, form, tools, what=what)
    if files:
        raise RequestError(f"{what} contains files, which are not supported here")
    return messages


def imported_with_files(
    data: Any, form: Form, tools: Iterable[ToolDefinition] = (), *, what: str = "this conversation"
) -> tuple[list[Message], dict[str, bytes]]:
    """Return the messages in JSON data of a format, and the contents of their files by digest.

    Args:
        data: the list of messages, or the object that contains it, as in the provider's API.
        form: the format of the data.
        tools: definitions of the tools, to restore their names.
        what: description of the data in errors, such as a file name.

    Raises:
        RequestError: the data is not in that format, or not a conversation that a model accepts.
    """
    names, files = tool_names(tools), ImportedFiles()
    try:
        messages = list(_READERS[form](data, names, files))
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise RequestError(f"{what}: {place}: {detail['msg']}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{what} is not in the format {form!r}: {error}") from None
    except RequestError as error:
        raise RequestError(f"{what}: {error.message}") from None
    if problem := next(transcript_errors(messages), None):
        raise RequestError(f"{what}: {problem}")
    return messages, files.contents


def _to_neutral(message: Message, base64: Base64) -> dict[str, Any]:
    """Return a message with the contents of its files as `data`."""
    data = message.model_dump(mode="json", exclude_defaults=True)
    for part, dumped in zip(message.parts, data.get("parts", ()), strict=True):
        if isinstance(part, MediaPart) and (contents := base64(part)) is not None:
            dumped["data"] = contents
    return data


def _to_openai(messages: Sequence[Message], place: int, names: _Names, base64: Base64) -> Iterator[dict[str, Any]]:
    message = messages[place]
    provider = message.reasoning.provider if message.reasoning else ""
    yield message_to_chat(message, names, provider=provider, base64=base64)
    if files := result_files_to_chat(messages, place, base64):
        yield files


def _with_system(messages: Sequence[Message], key: str, turns_key: str, turns: list[Any]) -> dict[str, Any]:
    text = "\n\n".join(message.content for message in messages if message.role == "system")
    system: Any = {"parts": [{"text": text}]} if key == "system_instruction" else text
    return {**({key: system} if text else {}), turns_key: turns}


def _as_json(value: Any) -> Any:
    """Return data with bytes in base64: the SDK requires bytes for signatures and files."""
    if isinstance(value, dict):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_json(inner) for inner in value]
    return b64encode(value).decode() if isinstance(value, bytes) else value


# --- import


def _neutral(data: Any, names: _Names, files: ImportedFiles) -> Iterator[Message]:  # noqa: ARG001 - all readers have one signature
    yield from _MESSAGES.validate_python([_with_files_read(item, files) for item in _items(data, "messages")])


def _with_files_read(message: Any, files: ImportedFiles) -> Any:
    """Return a message whose files with `data` are replaced by references to them."""
    parts = message.get("parts") if isinstance(message, Mapping) else None
    if not isinstance(parts, list):
        return message
    return {**message, "parts": [_neutral_part(part, files) for part in parts]}


def _neutral_part(part: Any, files: ImportedFiles) -> Any:
    if not isinstance(part, Mapping) or "data" not in part:
        return part
    read = files.add(part["data"], part.get("media_type"), part.get("name"))
    if part.get("digest", read.digest) != read.digest:
        raise ValueError(f"the contents of the file with digest {part['digest']!r:.80} are not the ones it stands for")
    return read


def _openai(data: Any, names: _Names, files: ImportedFiles) -> Iterator[Message]:
    for number, chat in enumerate(_items(data, "messages"), 1):
        if not isinstance(chat, Mapping) or chat.get("role") not in _ROLES:
            raise ValueError(f"message {number} has an invalid role; allowed: {', '.join(_ROLES)}")
        content = chat.get("content")
        if chat["role"] == "user" and isinstance(content, list) and any(part.get("type") != "text" for part in content):
            yield Message.of_parts("user", [_clean(files.chat_part(part)) for part in content])
        else:
            yield chat_to_message(chat, names)


def _anthropic(data: Any, names: _Names, files: ImportedFiles) -> Iterator[Message]:
    if isinstance(data, Mapping) and data.get("system"):
        yield Message(role="system", content=fix_surrogates(content_text(data["system"])))
    for turn in _items(data, "messages"):
        content = turn["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if turn["role"] == "assistant":
            yield content_to_message(blocks, names, stamp=_IMPORTED)
        else:
            yield from _anthropic_user(blocks, files)


def _anthropic_user(blocks: Sequence[Mapping[str, Any]], files: ImportedFiles) -> Iterator[Message]:
    """Yield the messages of a user turn: tool results, and one message for adjacent texts and files."""
    parts: list[MessagePart] = []
    for block in blocks:
        if block["type"] == "tool_result":
            yield from _user_message(parts)
            yield _anthropic_result(block, files)
        else:
            parts.append(_clean(files.claude_part(block)))
    yield from _user_message(parts)


def _anthropic_result(block: Mapping[str, Any], files: ImportedFiles) -> Message:
    fields = {"tool_call_id": str(block["tool_use_id"]), "status": "error" if block.get("is_error") else None}
    content = block.get("content")
    if isinstance(content, list) and any(inner["type"] in ("image", "document") for inner in content):
        return Message.of_parts("tool", [_clean(files.claude_part(inner)) for inner in content], **fields)
    return Message(role="tool", content=fix_surrogates(content_text(content)), **fields)


def _user_message(parts: list[MessagePart]) -> Iterator[Message]:
    if parts:
        yield Message.of_parts("user", parts)
        parts.clear()


def _clean(part: MessagePart) -> MessagePart:
    return TextPart(text=fix_surrogates(part.text)) if isinstance(part, TextPart) else part


def _gemini(data: Any, names: _Names, files: ImportedFiles) -> Iterator[Message]:
    system = _key(data, "system_instruction") if isinstance(data, Mapping) else None
    if system:
        text = system if isinstance(system, str) else content_text(system.get("parts"))
        yield Message(role="system", content=fix_surrogates(text))
    open_calls: list[tuple[str, str]] = []
    for number, content in enumerate(_items(data, "contents")):
        parts = [part for part in content.get("parts") or () if part is not None]
        if content.get("role") == "model":
            message = _gemini_model(parts, names, number)
            open_calls = [(call.id, call.tool) for call in message.tool_calls]
            yield message
        else:
            yield from _gemini_user(parts, names, open_calls, files)


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
                text=part.get("text") if call or "text" in part else _gemini_code(part),
                thought=part.get("thought"),
            )
        )
    return assembler.message(names)


def _gemini_code(part: Mapping[str, Any]) -> str:
    """Return code that the provider executed, or its output, as text; raise ValueError for a part of another kind."""
    code, result = _key(part, "executable_code"), _key(part, "code_execution_result")
    if code is not None:
        return f"\n\n```{str(code.get('language') or '').lower()}\n{code.get('code') or ''}\n```\n\n"
    if result is not None:
        return f"\n\n```\n{result.get('output') or ''}\n```\n\n"
    if _key(part, "thought_signature") is None:
        raise ValueError(unsupported(next(iter(part), "nothing")))
    return ""


def _gemini_user(
    parts: Sequence[Mapping[str, Any]], names: _Names, open_calls: list[tuple[str, str]], files: ImportedFiles
) -> Iterator[Message]:
    found: list[MessagePart] = []
    for part in parts:
        result = _key(part, "function_response")
        if result is not None:
            yield from _user_message(found)
            yield _gemini_result(result, names, open_calls, files)
        else:
            found.append(_clean(files.gemini_part(part)))
    yield from _user_message(found)


def _gemini_result(
    result: Mapping[str, Any], names: _Names, open_calls: list[tuple[str, str]], files: ImportedFiles
) -> Message:
    tool = names.get(result.get("name", ""), result.get("name", ""))
    matching = (i for i, n in open_calls if result.get("id") in (i, None, "") and n == tool)
    call_id = next(matching, result.get("id"))
    open_calls[:] = [(other_id, name) for other_id, name in open_calls if other_id != call_id]
    content = result.get("response") or {}
    output = content.get("output") if content.keys() == {"output"} else None
    text = fix_surrogates(output if isinstance(output, str) else json.dumps(content, ensure_ascii=False))
    media = [_clean(files.gemini_part(part)) for part in result.get("parts") or ()]
    fields = {"tool_call_id": call_id, "status": "error" if "error" in content else None}
    return Message.of_parts("tool", (TextPart(text=text), *media), **fields)


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
