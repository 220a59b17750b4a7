"""Messages of a conversation, and the transcript that a store keeps of it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from framework.types.frozen import Frozen
from framework.types.media import MediaPart, MessagePart, described_text, joined_text, without_files
from framework.types.text import content_digest, fix_surrogates, one_line, read_object

WIRE_NAME_LENGTH = 64
MAX_NAME_CHARS, MAX_ID_CHARS = 256, 10_000
"""Limits of a tool's name and of a call's id, in which some servers embed data. Longer ones are cut."""
_WIRE_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_IN_KEYS = re.compile(r"[^a-zA-Z0-9_.-]")


class ToolCall(Frozen):
    """A tool call that the model requested."""

    id: str
    """Id of the call, unique within its run."""
    tool: str
    """Name of the tool, such as `read_file` or `docs.search`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments by name."""
    invalid: str | None = None
    """Why the arguments could not be parsed. Such a call is answered with this error and never executed."""


class Reasoning(Frozen):
    """Reasoning of a model. `data` is sent back only to the provider that produced it."""

    text: str = ""
    """Readable text of the reasoning."""
    provider: str = ""
    """Provider that produced it."""
    data: dict[str, Any] | None = None
    """Reasoning in the provider's own format, not interpreted by the runtime."""


class Message(Frozen):
    """One message of a conversation, in a form that is independent of the provider."""

    role: Literal["system", "user", "assistant", "tool"]
    """Role of the author."""
    content: str = ""
    """Text of the message."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Requested tool calls (assistant messages)."""
    tool_call_id: str | None = None
    """Id of the call that the message answers (tool messages)."""
    reasoning: Reasoning | None = None
    """Reasoning of the model (assistant messages)."""
    status: Literal["success", "error", "cancelled", "denied"] | None = None
    """Outcome of the call, if known (tool messages)."""
    decision: str | None = None
    """Decision of a person about the call, such as `approve` or `reject: too much` (tool messages)."""
    parts: tuple[MessagePart, ...] = ()
    """Texts and files of the message, in order; empty for a message of text only. `content` is the text of its text
    parts."""

    @field_validator("parts")
    @classmethod
    def _match_content(cls, parts: tuple[MessagePart, ...], info: ValidationInfo) -> tuple[MessagePart, ...]:
        if parts and info.data.get("content") != joined_text(parts):
            raise ValueError("content must be the text of the text parts, joined by empty lines")
        return parts

    @classmethod
    def of_parts(cls, role: Literal["user", "tool"], parts: Sequence[MessagePart], **fields: Any) -> Message:
        """Return a message with these parts; one of text only if they contain no file."""
        files = any(isinstance(part, MediaPart) for part in parts)
        return cls(role=role, content=joined_text(parts), parts=tuple(parts) if files else (), **fields)

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """The files of the message."""
        return tuple(part for part in self.parts if isinstance(part, MediaPart))

    @property
    def description(self) -> str:
        """The text of the message, with a description such as `[image/png 12.3 kB chart.png]` for each file."""
        return described_text(self.parts) if self.parts else self.content

    def without(self, omitted: Collection[MediaPart]) -> Message:
        """Return the message with descriptions in place of some of its files, for a model that does not get them."""
        parts = without_files(self.parts, omitted)
        files = any(isinstance(part, MediaPart) for part in parts)
        return self.model_copy(update={"content": joined_text(parts), "parts": tuple(parts) if files else ()})

    @property
    def as_text(self) -> Message:
        """The message with descriptions in place of all its files."""
        return self.without(self.media) if self.parts else self


def late_guidance(text: str) -> Message:
    """Return a text of the runtime for the end of a conversation: a limit, a plan, a correction.

    It is a system message. Clients put it into the last message, marked, for models that accept none so late.
    """
    return Message(role="system", content=text)


_SUMMARY_CHARS = 200
"""Maximum length of the summary of a tool."""
REFUSED_STATUSES = ("denied", "cancelled")
"""Statuses of calls that a rule, a hook or a person refused."""


HOST = "host"
"""Key of a result's metadata: what the service that executed the call says of it."""


class ToolResult(Frozen):
    """The result of a tool call. The model receives `output` or `error` only."""

    status: Literal["success", "error", "cancelled", "denied"]
    """Outcome of the call."""
    output: Any = None
    """Complete output: text or JSON data."""
    error: str | None = None
    """Error message that the model can act on."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Details for people and traces, such as the denying rule, a timeout, or the class of an exception."""
    elapsed_ms: float = 0.0
    """Duration in milliseconds."""
    media: tuple[MediaPart, ...] = ()
    """Files that the tool returned. `output` contains a description of each."""


class Usage(Frozen):
    """Tokens as counted by the provider, and their cost."""

    prompt_tokens: int = 0
    """Input tokens, cached tokens included."""
    completion_tokens: int = 0
    """Output tokens, reasoning included."""
    total_tokens: int = 0
    """Input and output tokens."""
    cached_tokens: int = 0
    """Input tokens that the provider read from its cache."""
    cache_write_tokens: int = 0
    """Input tokens that the provider wrote to its cache, if it charges for that separately."""
    cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 0.0
    """Cost in US dollars, of several calls that of those with a known one; None if it is unknown."""

    @model_serializer(mode="wrap")
    def _with_unknown_cost(  # type: ignore[no-untyped-def]  # a return type would become the schema
        self, dump: SerializerFunctionWrapHandler, info: SerializationInfo
    ):
        """Keep an unknown cost as null where other fields without a value are left out."""
        data = dump(self)
        return {**data, "cost_usd": None} if self.cost_usd is None and info.exclude_none else data

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_usd=_sum_of_known(self.cost_usd, other.cost_usd),
        )


def _sum_of_known(cost: float | None, other: float | None) -> float | None:
    """Return the sum of two costs; None if one is unknown and the other is 0."""
    is_known = cost is not None and other is not None
    return (cost or 0.0) + (other or 0.0) if is_known else (cost or other or None)


class ModelUse(Frozen):
    """What a run has used of one model, with all its sub-runs."""

    calls: int = 0
    """Calls that the provider counted, failed ones included."""
    usage: Usage = Usage()
    unpriced_calls: int = 0
    """Calls whose cost is unknown."""

    def plus(self, usage: Usage) -> ModelUse:
        """Return the use after another call."""
        unpriced = self.unpriced_calls + (usage.cost_usd is None)
        return ModelUse(calls=self.calls + 1, usage=self.usage + usage, unpriced_calls=unpriced)


class ToolDefinition(Frozen):
    """The definition of a tool as sent to models."""

    name: str
    """Full name of the tool."""
    description: str
    """Description of the tool, for the model."""
    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object schema."""
    wire: str = Field(default="", exclude=True, repr=False)
    """The name that models see, if it is not derived from `name`."""

    @property
    def summary(self) -> str:
        """The first paragraph of the description, as one line of at most 200 characters."""
        return one_line(self.description.strip().split("\n\n")[0], _SUMMARY_CHARS)

    @property
    def wire_name(self) -> str:
        """The name in a form that every provider accepts: letters, digits, `_`, `-`, at most 64 characters."""
        return self.wire or wire_name(self.name)

    @cached_property
    def canonical_json(self) -> str:
        """The definition as JSON with sorted keys, from which its digest is computed."""
        return json.dumps(self.model_dump(), sort_keys=True, ensure_ascii=False)

    @cached_property
    def contract(self) -> str:
        """Digest of the definition. It changes when a server changes its tool, so approvals are bound to it."""
        return content_digest(self.canonical_json)


def wire_name(name: str) -> str:
    """Return a tool's name as providers accept it: `.` becomes `__`; names over 64 characters end in a hash."""
    wire = name.replace(".", "__")
    if len(wire) <= WIRE_NAME_LENGTH:
        return wire
    return wire[: WIRE_NAME_LENGTH - 9] + "_" + blake2b(name.encode(), digest_size=4).hexdigest()


def wire_keys(names: Iterable[str]) -> dict[str, str]:
    """Return the argument with each name that every provider accepts; most names are such a name themselves.

    A name consists of 1 to 64 letters, digits, `_`, `.` and `-`: `$filter` becomes `_filter`.
    """
    keys = {name: name for name in names if _WIRE_KEY.fullmatch(name)}
    for name in names:
        if name not in keys:
            plain = _NOT_IN_KEYS.sub("_", name)[:WIRE_NAME_LENGTH] or "_"
            digest = blake2b(name.encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()
            keys[plain if plain not in keys else f"{plain[: WIRE_NAME_LENGTH - 9]}_{digest}"] = name
    return keys


def original_keys(arguments: Mapping[str, Any], declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with the names that their schema declares, where they were given as `wire_keys`."""
    if all(name in declared for name in arguments):
        return arguments
    keys = wire_keys(declared)
    restored = {name if name in declared else keys.get(name, name): value for name, value in arguments.items()}
    return restored if len(restored) == len(arguments) else arguments


def revalidate_call(call: ToolCall) -> ToolCall:
    """Return a call from any client, validated as strictly as one from an API; invalid arguments make it invalid."""
    name, call_id = truncated(call.tool, MAX_NAME_CHARS), truncated(call.id, MAX_ID_CHARS)
    if call.invalid:
        return call.model_copy(update={"id": call_id, "tool": name, "arguments": {}})
    return parse_call(call_id, name, call.arguments)


def parse_call(call_id: str, tool: str, arguments: object) -> ToolCall:
    """Return a call with its arguments parsed strictly: one JSON object, unique keys, finite numbers. Never raises.

    Some servers send an object instead of JSON text, JSON text that is encoded twice, and nothing for a call without
    arguments; all are accepted.
    """
    try:
        text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
        if text.startswith('"{'):
            text = json.loads(text)
        return ToolCall(id=call_id, tool=tool, arguments=read_object(text) if text.strip() else {})
    except (ValueError, TypeError) as error:
        return ToolCall(id=call_id, tool=tool, invalid=f"the arguments are not one JSON object: {error}")
    except RecursionError:  # from an object that a server sent instead of JSON text
        return ToolCall(id=call_id, tool=tool, invalid="the arguments are nested too deeply")


def truncated(text: object, max_chars: int) -> str:
    """Return the text of a name or an id, cut to a length, without lone surrogates."""
    return fix_surrogates(str(text or "")[:max_chars])


def unique_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls of one reply without duplicates, which have the same id, tool and arguments."""
    if len(calls) < 2:
        return tuple(calls)
    unique: list[ToolCall] = []
    for call in calls:
        same_id = (other for other in unique if call.id and other.id == call.id)
        if not any(_identity(other) == _identity(call) for other in same_id):
            unique.append(call)
    return tuple(unique)


def _identity(call: ToolCall) -> str:
    return json.dumps([call.tool, call.arguments, call.invalid], sort_keys=True, default=str)  # 1 is not True here


MAX_MESSAGE_CHARS = 1_000_000
"""Maximum length of one incoming message. No model accepts more, and stores should not have to store it."""


class Summary(Frozen):
    """A summary that replaces the start of a long conversation."""

    upto: int
    """Number of messages that the summary replaces, counted from the first."""
    text: str
    """Summary written by the model."""
    events: tuple[str, ...] = ()
    """Failures, denials and decisions of people, verbatim, one per line, so that no model can omit them."""
    facts: tuple[str, ...] = ()
    """Numbers, dates, file names and the like that the user wrote and `text` omits."""
    skills: tuple[str, ...] = ()
    """Names of the Agent Skills that were loaded; requests still contain the text of those that are allowed."""


def is_unicode(text: str) -> bool:
    """Return whether the text can be encoded. JSON can contain unpaired surrogates, which cannot be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def transcript_errors(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the errors of a list of messages: long or invalid texts, calls without results, results without calls."""
    open_calls: dict[str, ToolCall] = {}
    for number, message in enumerate(messages, 1):
        if not is_unicode(message.content):
            yield f"message {number} is not Unicode text: it contains an unpaired surrogate"
        if len(message.content) > MAX_MESSAGE_CHARS:
            yield f"message {number} has {len(message.content)} characters; the maximum is {MAX_MESSAGE_CHARS}"
        if message.role == "tool":
            if open_calls.pop(message.tool_call_id or "", None) is None:
                yield f"message {number} answers call {message.tool_call_id!r}, which no earlier message requests"
        else:
            yield from _unanswered(open_calls, number - 1)
            open_calls = {call.id: call for call in message.tool_calls}
    yield from _unanswered(open_calls, len(messages))


def _unanswered(open_calls: dict[str, ToolCall], last: int) -> Iterator[str]:
    for call in open_calls.values():
        yield f"call {call.id!r} of {call.tool} has no answer up to message {last}"
