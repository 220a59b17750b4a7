"""Conversations and tools as requests: the forms that receivers accept, as JSON encoded once."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from operator import is_
from typing import Any, Generic, Literal, TypeVar

import orjson

from framework.llm.capabilities import Capabilities
from framework.types.flat_schema import flat_schema
from framework.types.media import MediaPart, TextPart
from framework.types.messages import Message, ToolDefinition, wire_keys
from framework.types.text import estimate_tokens, shorten

NOTICE_TAG = "runtime_notice"
"""Encloses text of the runtime within a user or tool message."""
_NOTICE = re.compile(rf"<(?=\s*/?\s*{NOTICE_TAG}\b)", re.IGNORECASE)
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_SHORT_ID_LENGTH = 9
_UNANSWERED = "(no answer)"


def marked_notice(text: str) -> str:
    """Return the text of the runtime, marked as such, for a message that users or tools wrote."""
    return f"<{NOTICE_TAG}>\n{escape_notices(text).strip()}\n</{NOTICE_TAG}>"


def escape_notices(text: str) -> str:
    """Return the text of a user or a tool, in which nothing passes for a notice of the runtime."""
    return _NOTICE.sub("&lt;", text)


def mark_notices(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with its late system messages marked: for APIs that accept them as texts of the user."""
    leading = leading_instructions(messages)
    return [*messages[:leading], *map(_marked, messages[leading:])]


def leading_instructions(messages: Sequence[Message]) -> int:
    """Return how many system messages a conversation starts with."""
    return next((position for position, message in enumerate(messages) if message.role != "system"), len(messages))


def _marked(message: Message) -> Message:
    if message.role == "system":
        return message.model_copy(update={"content": marked_notice(message.content)})
    return message if message.role == "assistant" else _escaped(message)


def short_call_id(call_id: str) -> str:
    """Return an id of nine letters and digits, the same for the same id."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    digest = sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    return b64encode(digest, altchars=b"ab")[:_SHORT_ID_LENGTH].decode()


class ConversationShape:
    """The form of one run's conversation for one model. Turns that did not change keep their message objects."""

    def __init__(self) -> None:
        self._complete: list[Message] = []
        """The conversation as it was given last, without its last turn, which may grow."""
        self._form: list[Message] = []
        """The form of that part."""
        self._last: tuple[Sequence[Message], Sequence[Message]] = (), ()
        """The last turn, and its form."""

    def shaped(self, messages: Sequence[Message], accepted: Capabilities) -> Sequence[Message]:
        """Return the conversation in a form that the model accepts, without dropping any text.

        Args:
            messages: the conversation, with texts of the runtime as later system messages, compared by identity.
            accepted: what the model accepts.
        """
        if _accepts_all(accepted):
            return messages
        rest = messages[len(self._complete) :]
        if not _begins_with(messages, self._complete) or (self._complete and rest and rest[0].role != "assistant"):
            self._complete, self._form, rest = [], [], messages
        turns = [(turn, self._shaped_turn(turn, accepted)) for turn in _split_turns(rest)]
        for turn, form in turns[:-1]:
            self._complete += turn
            self._form += form
        self._last = turns[-1] if turns else ((), ())
        return [*self._form, *self._last[1]]

    def _shaped_turn(self, turn: Sequence[Message], accepted: Capabilities) -> Sequence[Message]:
        known, form = self._last
        is_known = len(known) == len(turn) and _begins_with(turn, known)
        return form if is_known else _shaped_turn(turn, accepted)


def _begins_with(messages: Sequence[Message], beginning: Sequence[Message]) -> bool:
    return len(beginning) <= len(messages) and all(map(is_, beginning, messages))


def _accepts_all(accepted: Capabilities) -> bool:
    return bool(
        accepted.late_system and accepted.parallel_calls and accepted.repeated_roles and accepted.call_ids == "any"
    )


def _split_turns(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the start up to the first assistant message, then each assistant message with what follows it."""
    first = 0
    for position in range(1, len(messages)):
        if messages[position].role == "assistant" and messages[position - 1].role != "assistant":
            yield messages[first:position]
            first = position
    if messages:
        yield messages[first:]


def _shaped_turn(turn: Sequence[Message], accepted: Capabilities) -> Sequence[Message]:
    if not accepted.late_system:
        turn = list(_with_marked_notices(turn))
    if not accepted.parallel_calls:
        turn = list(_one_call_a_message(turn))
    if not accepted.repeated_roles:
        turn = list(_alternating(turn))
    if accepted.call_ids != "any":
        turn = [_with_short_ids(message) for message in turn]
    return turn


def _with_marked_notices(turn: Sequence[Message]) -> Iterator[Message]:
    """Yield one system message at the start; later ones become part of the message before them."""
    leading = leading_instructions(turn)
    if leading == 1:
        yield turn[0]
    elif leading:
        yield Message(role="system", content="\n\n".join(message.content for message in turn[:leading]))
    last: Message | None = None
    for message in turn[leading:]:
        if message.role != "system":
            if last is not None:
                yield last
            last = message if message.role == "assistant" else _escaped(message)
        elif last is None or last.role == "assistant":
            if last is not None:
                yield last
            last = Message(role="user", content=marked_notice(message.content))
        else:
            last = _with_text(last, marked_notice(message.content))
    if last is not None:
        yield last


def _escaped(message: Message) -> Message:
    if not _NOTICE.search(message.content):
        return message
    parts = tuple(
        part.model_copy(update={"text": escape_notices(part.text)}) if isinstance(part, TextPart) else part
        for part in message.parts
    )
    return message.model_copy(update={"content": escape_notices(message.content), "parts": parts})


def _with_text(message: Message, text: str) -> Message:
    """Return a message with a text at its end."""
    content = "\n\n".join(part for part in (message.content, text) if part)
    parts = (*message.parts, TextPart(text=text)) if message.parts else ()
    return message.model_copy(update={"content": content, "parts": parts})


def _one_call_a_message(turn: Sequence[Message]) -> Iterator[Message]:
    """Yield a message for each call of a turn, followed by its result."""
    results: Mapping[str | None, Message] = {m.tool_call_id: m for m in turn if m.role == "tool"}
    answered = sum(message.role == "tool" for message in turn)
    calls = [call for message in turn for call in message.tool_calls]
    can_split = len(calls) > 1 and [call.id for call in calls if call.id in results] == [call.id for call in calls]
    if not can_split or answered != len(calls) or len(results) != answered:
        yield from turn
        return
    last_result = max(position for position, message in enumerate(turn) if message.role == "tool")
    for position, message in enumerate(turn):
        if message.role == "tool" and position <= last_result:
            continue
        if not message.tool_calls:
            yield message
        for number, call in enumerate(message.tool_calls):
            kept = {} if number == 0 else {"content": "", "reasoning": None}
            yield message.model_copy(update={"tool_calls": (call,), **kept})
            yield results[call.id]


def _alternating(turn: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with adjacent ones of one role merged.

    Between results that the model has not answered and the user's next message goes an answer that says so.
    """
    last: Message | None = None
    for message in turn:
        if last is None:
            last = message
        elif message.role == last.role == "user":
            last = merged_messages(last, message)
        elif message.role == last.role == "assistant" and not last.tool_calls:
            content = "\n\n".join(text for text in (last.content, message.content) if text)
            last = message.model_copy(update={"content": content})
        else:
            yield last
            if message.role == "user" and last.role == "tool":
                yield Message(role="assistant", content=_UNANSWERED)
            last = message
    if last is not None:
        yield last


def merged_messages(first: Message, second: Message) -> Message:
    """Return two messages of the user as one."""
    if not second.parts:
        return _with_text(first, second.content)
    return Message.of_parts("user", (*(first.parts or (TextPart(text=first.content),)), *second.parts))


def _with_short_ids(message: Message) -> Message:
    if message.tool_call_id:
        return message.model_copy(update={"tool_call_id": short_call_id(message.tool_call_id)})
    if not message.tool_calls:
        return message
    calls = [call.model_copy(update={"id": short_call_id(call.id)}) for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": tuple(calls)})


T = TypeVar("T")

Base64 = Callable[[MediaPart], str | None]
"""Returns a file's contents in base64; None if they are missing."""
MAX_TOOLSETS = 64
"""Tool lists in a `ToolsetCache`; the least recently used one is dropped."""


def encode_json(value: Any) -> bytes:
    """Return the value as JSON, including values orjson rejects: integers above 64 bits and lone surrogates."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


class EncodedMessages:
    """The messages of one run as JSON in one provider's format."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._chunks: list[bytes] = []

    def chunks(self, messages: Sequence[Message], encode: Callable[[int], bytes]) -> Sequence[bytes]:
        """Return the messages as the chunks of a JSON array; encode only those after the part that is unchanged.

        Messages are compared by identity. `encode` returns the JSON of the message at a position, and may add messages
        after it, separated by commas.
        """
        unchanged = len(self._messages)
        if len(messages) < unchanged or not all(map(is_, self._messages, messages)):
            unchanged = sum(1 for _ in takewhile(bool, map(is_, self._messages, messages)))
        del self._messages[unchanged:], self._chunks[unchanged:]
        for position in range(unchanged, len(messages)):
            self._messages.append(messages[position])
            self._chunks.append((b"," if self._chunks else b"") + encode(position))
        return (b"[", *self._chunks, b"]")


class EncodedFiles:
    """The files of one run in base64."""

    def __init__(self) -> None:
        self._by_digest: dict[str, str] = {}

    async def add(self, files: Mapping[str, bytes]) -> None:
        """Encode the files that are new, by digest, in a thread."""
        for digest, data in files.items():
            if digest not in self._by_digest:
                self._by_digest[digest] = (await asyncio.to_thread(b64encode, data)).decode("ascii")

    def base64(self, part: MediaPart) -> str | None:
        """Return a file's contents, or None if it is missing."""
        return self._by_digest.get(part.digest)


def missing_file(part: MediaPart) -> None:
    """Return no contents, for conversations whose files are not available."""


class RequestCache:
    """The encoded messages of one run, by client, and its encoded files.

    Two clients may serve a model of one name, with other capabilities and at another server.
    """

    def __init__(self) -> None:
        self._by_client: dict[object, EncodedMessages] = {}
        self._shapes: dict[object, ConversationShape] = {}
        self.files = EncodedFiles()

    def messages_for(self, client: object) -> EncodedMessages:
        """Return the run's messages as this client sends them."""
        return self._by_client.setdefault(client, EncodedMessages())

    def shape_for(self, client: object) -> ConversationShape:
        """Return the form of the run's conversation for this client."""
        return self._shapes.setdefault(client, ConversationShape())


class ToolsetCache(Generic[T]):
    """Values derived from tool lists, for the `MAX_TOOLSETS` lists used last. Lists are compared by identity."""

    def __init__(self, derive: Callable[[tuple[ToolDefinition, ...]], T]) -> None:
        self._derive = derive
        self._values: dict[int, tuple[tuple[ToolDefinition, ...], T]] = {}

    def get(self, tools: tuple[ToolDefinition, ...]) -> T:
        """Return the value derived from this list."""
        cached = self._values.pop(id(tools), None)
        value = cached[1] if cached and cached[0] is tools else self._derive(tools)
        self._values[id(tools)] = tools, value  # holding the list keeps its id from being reused
        if len(self._values) > MAX_TOOLSETS:
            del self._values[next(iter(self._values))]
        return value


def merged_fields(body: dict[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with the fields of an alias's `extra_body`. Objects that both contain are merged."""
    merged = dict(body)
    for name, value in added.items():
        own = merged.get(name)
        merged[name] = merged_fields(own, value) if isinstance(own, dict) and isinstance(value, Mapping) else value
    return merged


def json_object(body: dict[str, Any], **encoded: Sequence[bytes]) -> bytes:
    """Return a JSON object with the fields of `body` and with fields that are already encoded, in chunks."""
    parts, comma = [encode_json(body)[:-1]], b"," if body else b""
    for name, chunks in encoded.items():
        parts += (comma, b'"', name.encode(), b'":', *chunks)
        comma = b","
    parts.append(b"}")
    return b"".join(parts)


_MESSAGE_OVERHEAD = 4
"""Tokens per message in addition to its text."""
_TOKENS_PER_FILE = 1600
"""Tokens of a file whose own estimate is unknown: those of a large image."""


def message_tokens(message: Message) -> int:
    """Return the estimated number of tokens of a message, with its tool calls and files.

    For the formulas of files see `framework.types.media`.
    """
    calls = [[call.tool, call.arguments] for call in message.tool_calls]
    text = message.content + (encode_json(calls).decode() if calls else "")
    files = sum(part.tokens or _TOKENS_PER_FILE for part in message.media) if message.parts else 0
    return _MESSAGE_OVERHEAD + estimate_tokens(text) + files


def tool_tokens(tools: Iterable[ToolDefinition]) -> int:
    """Return the estimated number of tokens of the definitions of tools."""
    return estimate_tokens("".join(tool.canonical_json for tool in tools))


# The model sees less of the schema, but arguments are still validated against the complete one. A provider refuses a
# whole request for one schema that it does not accept, so each rule here is one that a provider is known to enforce:
#
# - all: an object at the root, without `anyOf`, `oneOf`, `allOf`, `not`, `enum` or a reference beside it;
# - OpenAI, and the servers and gateways with its API: lists have `items`, choices are not empty;
# - Mistral: no `$schema` and no `$id`, at any depth;
# - Anthropic: draft 2020-12, and names of arguments of 1 to 64 letters, digits, `_`, `.` and `-` (at the root);
# - Gemini: the subset in `_KEPT` and below.
#
# No tool is sent in a provider's strict mode: it forbids optional arguments, and OpenAI then refuses most schemas.


SchemaForm = Literal["openai", "anthropic", "gemini"]
"""The form of schemas, by the API format of the provider."""
_Schema = dict[str, Any]

_KEPT = ("type", "title", "description", "minItems", "maxItems", "minimum", "maximum", "required")
_FORMATS = ("date-time", "date", "time")
_SUBSCHEMAS = ("items", "additionalProperties")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "$defs")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords with schemas by name, in any provider's form."""
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SCHEMAS = ("items", "additionalProperties", "contains", "not")
_MAX_SHOWN_CHARS = 80
_BLAMED = tuple(
    map(
        re.compile,
        (r"function_declarations\[(\d+)\]", r"\b(?:function|tool) [`'\"]?([\w.-]+\w)", r"\btools[.\[](\d+)"),
    )
)
"""Where messages of Gemini, OpenAI and Anthropic name the tool that they reject."""
_OF_HISTORY = re.compile(r"\b(?:messages|contents|input)[.\[]\d|\bthought_signature\b")
"""Messages about an earlier call, not about the definition of its tool."""
OF_LATE_TOOLS = re.compile(r"\b(?:defer_loading|tool_reference|additional_tools)\b|\bTool reference\b")
"""Messages of servers that do not accept found tools within the conversation: no tool is at fault."""
_WORD = re.compile(r"[\w.-]+")
_QUOTES = ("`", "'", '"')
_MAX_DIGITS = 6


def wire_schema(schema: Mapping[str, Any], api: SchemaForm) -> _Schema:
    """Return the schema of a tool's arguments as it is sent to a provider; an accepted one is unchanged."""
    sent: _Schema = {"type": "object", **_corrected(flat_schema(schema))}
    if api == "gemini":
        return {**_clean(sent), "type": "object"}
    for keyword in ("enum", "const"):
        sent.pop(keyword, None)
    properties = sent.get("properties")
    if api == "anthropic" and isinstance(properties, Mapping):
        real = wire_keys(properties)
        if any(wire != name for wire, name in real.items()):
            sent["properties"] = {wire: properties[name] for wire, name in real.items()}
            wires = {name: wire for wire, name in real.items()}
            sent["required"] = [wires.get(name, name) for name in sent.get("required", ())]
    return sent


def gemini_parameters(schema: Mapping[str, Any]) -> _Schema | None:
    """Return a function's parameters, or None if it has none: Gemini rejects an object without properties."""
    parameters = wire_schema(schema, "gemini")
    return parameters if parameters.get("properties") else None


def schema_changes(written: object, sent: object, place: str = "") -> Iterator[str]:
    """Yield what differs between a schema and the one that is sent, such as `properties.n.format: removed`."""
    if not isinstance(written, Mapping) or not isinstance(sent, Mapping):
        if written != sent:
            yield f"{place}: sent as {shorten(str(sent), _MAX_SHOWN_CHARS)}"
        return
    prefix = f"{place}." if place else ""
    for key in dict.fromkeys((*written, *sent)):
        if key not in sent:
            yield f"{prefix}{key}: removed"
        elif key not in written:
            yield f"{prefix}{key}: added"
        else:
            yield from schema_changes(written[key], sent[key], f"{prefix}{key}")


def blamed_tool(message: str, tools: Sequence[ToolDefinition]) -> ToolDefinition | None:
    """Return the tool that a provider's message about a rejected request names, by its name or its position."""
    if OF_LATE_TOOLS.search(message):
        return None
    by_name = {tool.name: tool for tool in tools} | {tool.wire_name: tool for tool in tools}
    for pattern in _BLAMED:
        for found in pattern.finditer(message):
            named = by_name.get(found[1])
            if named is None and found[1].isdecimal() and len(found[1]) < _MAX_DIGITS and int(found[1]) < len(tools):
                named = tools[int(found[1])]
            if named is not None:
                return named
    if _OF_HISTORY.search(message):
        return None
    # A name without quotes may be a word of the sentence, unless it is one that no sentence has.
    words = {
        found[0].rstrip(".-")
        for found in _WORD.finditer(message)
        if message.endswith(_QUOTES, 0, found.start()) or not found[0].rstrip(".-").isalpha()
    }
    named_tools = {tool.name: tool for name, tool in by_name.items() if name in words}
    return next(iter(named_tools.values())) if len(named_tools) == 1 else None


# --- every provider


def _corrected(node: Any) -> Any:
    """Return a schema without what every provider refuses."""
    if node is True:
        return {}
    if not isinstance(node, Mapping):
        return node
    # Mistral cannot compile the first two; the third is OpenAPI's.
    names = (key for key in node if key not in ("$schema", "$id", "nullable"))
    fixed: _Schema = {key: _corrected_part(key, node[key]) for key in names}
    kinds = node.get("type")
    if "array" in (kinds if isinstance(kinds, list) else [kinds]):
        fixed.setdefault("items", {})
    if isinstance(fixed.get("items"), list):  # an older draft's tuple
        fixed["prefixItems"], fixed["items"] = fixed["items"], fixed.pop("additionalItems", {})
    if fixed.get("enum") == []:
        del fixed["enum"]
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(flag := fixed.get(exclusive), bool):  # draft 4
            del fixed[exclusive]
            if flag and limit in fixed:
                fixed[exclusive] = fixed.pop(limit)
    return fixed


def _corrected_part(key: str, value: Any) -> Any:
    if key in _SCHEMA_MAPS and isinstance(value, Mapping):
        return {name: _corrected(part) for name, part in value.items()}
    if key in _SCHEMA_LISTS and isinstance(value, list):
        return [_corrected(part) for part in value]
    return _corrected(value) if key in _SCHEMAS and isinstance(value, Mapping) else value


# --- Gemini


def _clean(node: object) -> _Schema:
    if not isinstance(node, Mapping):  # `true` or `false`: no constraint
        return {}
    if "$ref" in node:
        return _reference(str(node["$ref"]))
    node = _merged_schema(node)
    cleaned: _Schema = {key: node[key] for key in _KEPT if key in node}
    cleaned |= {key: _clean(node[key]) for key in _SUBSCHEMAS if isinstance(node.get(key), Mapping)}
    cleaned |= {
        key: [_clean(option) for option in node[key]] for key in _SUBSCHEMA_LISTS if isinstance(node.get(key), list)
    }
    cleaned |= {key: _clean_all(node[key]) for key in _SUBSCHEMA_MAPS if isinstance(node.get(key), Mapping)}
    if node.get("additionalProperties") is False:
        cleaned["additionalProperties"] = False
    if node.get("format") in _FORMATS:
        cleaned["format"] = node["format"]
    if choices := _choices(node):
        cleaned["enum"] = choices
    if "minimum" not in cleaned and isinstance(node.get("exclusiveMinimum"), (int, float)):
        cleaned["minimum"] = node["exclusiveMinimum"]
    if "maximum" not in cleaned and isinstance(node.get("exclusiveMaximum"), (int, float)):
        cleaned["maximum"] = node["exclusiveMaximum"]
    return cleaned


def _clean_all(nodes: Mapping[str, Any]) -> _Schema:
    return {name: _clean(node) for name, node in nodes.items()}


def _reference(target: str) -> _Schema:
    """Return a local reference, without its siblings; drop any other."""
    local = target.replace("#/definitions/", "#/$defs/", 1)
    return {"$ref": local} if local.startswith("#/$defs/") else {}


def _merged_schema(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the node merged with its `allOf`, and with `definitions` of older drafts renamed to `$defs`."""
    merged: _Schema = {}
    parts = node.get("allOf")
    for part in [*(parts if isinstance(parts, list) else []), node]:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            key = "$defs" if key == "definitions" else key
            before = merged.get(key)
            if isinstance(before, dict) and isinstance(value, Mapping):
                merged[key] = {**before, **value}
            elif key == "required" and isinstance(before, list) and isinstance(value, list):
                merged[key] = list(dict.fromkeys([*before, *value]))
            else:
                merged[key] = value
    return merged


def _choices(node: Mapping[str, Any]) -> list[str | int | float]:
    """Return an enum of strings and numbers. Any other is dropped: a part of it would exclude valid values."""
    choices = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(choices, list):
        return []
    plain = [choice for choice in choices if isinstance(choice, (str, int, float)) and not isinstance(choice, bool)]
    return plain if len(plain) == len(choices) else []
