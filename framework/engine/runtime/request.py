"""A caller's request: its options, decisions and identity, and the first state of a run that it starts."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails

from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.config.templates.prompt_check import placeholders
from framework.llm.openai_format import content_text
from framework.tools.arguments import SchemaArguments
from framework.tools.form import checked_values
from framework.tools.tool_source import client_tool
from framework.types.errors import ConfigError, RequestError, ToolError
from framework.types.file import File, media_parts
from framework.types.flat_schema import ANY_OBJECT
from framework.types.grant import Remember
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, MediaPart, MessagePart, TextPart, file_size
from framework.types.messages import MAX_MESSAGE_CHARS, Message, ToolCall, ToolDefinition, is_unicode, revalidate_call
from framework.types.spec import Limits, ModelSettings
from framework.types.state import (
    MAX_PRIORITY,
    QUEUE_NAME,
    Approve,
    ClientTools,
    Confirmation,
    Decision,
    Edit,
    QueuePlace,
    Reject,
    Respond,
    RunRequest,
    RunState,
)
from framework.types.text import MAX_JSON_DEPTH, InputText, did_you_mean, fix_surrogates, read_json

if TYPE_CHECKING:
    from framework.llm.message_formats import Form


def require_type(name: str, value: object, *types: type) -> None:
    """Raise RequestError unless the value has one of the types. The error names the value's type, not the value."""
    if not isinstance(value, types):
        expected = " or ".join(one.__name__ for one in types)
        raise RequestError(f"{name}: expected {expected}, got {type(value).__name__}", param=name)


GivenHistory = Sequence[Message | Mapping[str, Any]] | str
"""Messages: `RunResult.messages`, the same as dicts or JSON text, or messages in OpenAI's chat completions format."""


def message_list(history: GivenHistory | None) -> list[Any]:
    """Return a history as a list of messages, whose format is not checked here; raises RequestError."""
    try:
        given = read_json(history) if isinstance(history, str) else list(history or ())
    except ValueError as error:
        raise RequestError(f"history: invalid JSON: {error}", param="history") from None
    if isinstance(given, Mapping):
        given = given.get("messages")
    if not isinstance(given, list):
        raise RequestError("history: expected a list of messages, or an object with 'messages'", param="history")
    return given


def read_history(
    messages: Sequence[Any], tools: Iterable[ToolDefinition] = ()
) -> tuple[list[Message], dict[str, bytes]]:
    """Return messages, and the contents of the files in them by digest; raises RequestError.

    System messages are dropped: the agent has its own.
    """
    from framework.llm.message_formats import imported_with_files

    entries = [message.model_dump() if isinstance(message, Message) else message for message in messages]
    form: Form = "openai" if any(map(_is_openai, entries)) else "messages"
    try:
        read, files = imported_with_files(entries, form, tools, what="history")
    except RequestError as error:
        raise RequestError(error.message, param="history") from None
    return [message for message in read if message.role != "system"], files


def may_contain_files(messages: Sequence[Any]) -> bool:
    """Return whether messages are dicts that may contain files, which take long to decode."""
    return any(
        isinstance(message, Mapping) and (message.get("parts") or isinstance(message.get("content"), list))
        for message in messages
    )


def _is_openai(message: object) -> bool:
    """Return whether a message uses a form that OpenAI's chat completions allow and agentsd's format does not."""
    if not isinstance(message, Mapping):
        return False
    content, called = message.get("content", ""), message.get("tool_calls")
    functions = isinstance(called, list) and any(isinstance(call, Mapping) and "function" in call for call in called)
    return functions or content is None or isinstance(content, list) or message.get("role") == "developer"


UserMessage = str | File | Sequence[str | File]
"""A user's message: a text, or texts and files in order, such as `["What is this?", File.from_path("a.png")]`."""


@dataclass(frozen=True, slots=True)
class UserInput:
    """The content of a user's message, in order."""

    content: tuple[str | File | MediaPart, ...]
    """Texts, new files, and references to files that the store contains already."""

    @property
    def files(self) -> tuple[File, ...]:
        """The new files."""
        return tuple(item for item in self.content if isinstance(item, File))

    async def to_message(self) -> Message:
        """Return the message; raises RequestError if its files are too large together."""
        if len(self.content) == 1 and isinstance(self.content[0], str):
            return Message(role="user", content=self.content[0])
        new = iter(await media_parts(self.files))
        message = Message.of_parts(
            "user", [_part(next(new) if isinstance(item, File) else item) for item in self.content]
        )
        if (size := sum(part.size for part in message.media)) > MAX_REQUEST_MEDIA_BYTES:
            limit = file_size(MAX_REQUEST_MEDIA_BYTES)
            raise RequestError(f"the files of the message have {file_size(size)}; at most {limit} together are allowed")
        return message


def read_input(message: object) -> UserInput:
    """Return a caller's message; raises RequestError if it is not a `UserMessage`."""
    if isinstance(message, str | File):
        return UserInput((message,))
    if not isinstance(message, list | tuple):
        raise RequestError(f"message: expected str, File or a list of them, got {type(message).__name__}")
    for number, item in enumerate(message, 1):
        if not isinstance(item, str | File):
            raise RequestError(f"message: item {number} is not str or File, but {type(item).__name__}{_hint(item)}")
    return UserInput(tuple(message))


def input_of_message(message: object) -> UserInput:
    """Return the content of the user's message at the end of a history; raises RequestError for any other message."""
    role = message.role if isinstance(message, Message) else isinstance(message, Mapping) and message.get("role")
    if role != "user":
        raise RequestError("history: without a message, the last entry must be a user message", param="history")
    if not may_contain_files([message]) and isinstance(message, Mapping):
        return UserInput((content_text(message.get("content")),))
    (read,), files = read_history([message])
    return UserInput(tuple(_item(part, files) for part in read.parts) or (read.content,))


def input_of_stored(message: Message) -> UserInput:
    """Return the content of a message whose files are stored."""
    return UserInput(tuple(_item(part, {}) for part in message.parts) or (message.content,))


def _item(part: MessagePart, files: Mapping[str, bytes]) -> str | File | MediaPart:
    """Return a part as an item of a message; a file whose contents are given as a `File`."""
    if isinstance(part, TextPart):
        return part.text
    return File(files[part.digest], part.media_type, part.name) if part.digest in files else part


def _part(item: str | MediaPart) -> MessagePart:
    return TextPart(text=item) if isinstance(item, str) else item


def _hint(item: object) -> str:
    match item:
        case Message() | Mapping():
            return "; pass messages as history=[…]"
        case PathLike():
            return "; pass File.from_path(…)"
        case bytes():
            return "; pass File.from_bytes(…)"
    return ""


_MAX_ID_CHARS = 200
"""Length limit of a conversation id, a user and a tenant."""
_MAX_INSTRUCTIONS_CHARS = 100_000
"""Length limit of a caller's instructions."""


class CommonOptions(TypedDict, total=False):
    """Options of a run, apart from the type of its answer. All are optional; None means not given."""

    agent: str | None
    """Name of the agent. Without it, the router chooses."""
    conversation: str | None
    """Id of the conversation that the run continues. An unknown id starts a new conversation."""
    reroute: bool | None
    """Whether the router chooses the agent even if the conversation has one. Default: the last agent continues."""
    handed_to: str | None
    """The agent that answers instead, if `agent` has handed the earlier messages over. A conversation has that."""
    history: GivenHistory | None
    """Earlier messages: `RunResult.messages`, the same as dicts or JSON text, or messages in OpenAI's chat completions
    format. Excludes `conversation`. Without a message, the last entry is the message."""
    inputs: Mapping[str, Any] | None
    """Values of the variables that the agent declares."""
    model: str | None
    """Model that the agent and its sub-agents use in place of their configured models and fallbacks."""
    limits: Mapping[str, Any] | None
    """Limits that replace the agent's, by key, e.g. `{"max_steps": 3}`."""
    lower_limits: Mapping[str, Any] | None
    """Limits that may only lower the agent's, by key. A higher one is an error."""
    model_settings: Mapping[str, Any] | None
    """Sampling settings that replace the agent's, e.g. `{"temperature": 0}`."""
    default_model_settings: Mapping[str, Any] | None
    """Sampling settings that apply where the agent's file sets none. `max_tokens` can also lower the agent's."""
    instructions: str | None
    """The caller's own instructions. They follow the agent's in the system message, marked as the caller's, and change
    neither its rules nor its limits."""
    base_path: str | Path | None
    """Base directory of file tools. Default: the setting `tools.base_path`."""
    locale: str | None
    """Language of the prompt templates. Default: the setting `locale`."""
    user: str | None
    """Owner of the run and of its conversation."""
    tenant: str | None
    """Tenant of the run and of its conversation."""
    metadata: Mapping[str, Any] | None
    """The caller's own data, passed to tools unchanged."""
    output_schema: Mapping[str, Any] | None
    """JSON Schema of an object: the answer's data. Excludes `output_type`. Default: the agent's `output_schema`."""
    client_tools: Mapping[str, Any] | None
    """Tools that the caller executes itself, as JSON data of `ClientTools`. The run pauses for their results."""


class RunOptions(CommonOptions, total=False):
    """Options of a run, in addition to its message. All are optional; None means not given."""

    output_type: type[BaseModel] | None
    """Type of the answer's data. Default: the agent's `output_schema`."""


_TYPES: Mapping[str, tuple[type, ...]] = {
    "agent": (str,),
    "conversation": (str,),
    "history": (str, Sequence),
    "inputs": (Mapping,),
    "model": (str,),
    "limits": (Mapping,),
    "lower_limits": (Mapping,),
    "model_settings": (Mapping,),
    "default_model_settings": (Mapping,),
    "instructions": (str,),
    "base_path": (str, PathLike),
    "locale": (str,),
    "user": (str,),
    "tenant": (str,),
    "metadata": (Mapping,),
    "output_type": (type,),
    "reroute": (bool,),
    "handed_to": (str,),
    "output_schema": (Mapping,),
    "client_tools": (Mapping,),
}
"""Types accepted for each option, in addition to None."""


def check_request(message: object, given: Mapping[str, Any]) -> tuple[UserInput, RunOptions]:
    """Check a caller's message and options, and return them. Without a message, the last entry of `history` is used.

    Raises:
        RequestError: an option is unknown or has the wrong type, or there is no message.
    """
    for name, value in given.items():
        if name not in _TYPES:
            raise RequestError(f"unknown option {name!r}{_suggestion(name)}", param=name)
        if value is not None:
            require_type(name, value, *_TYPES[name])
    options = cast(RunOptions, {name: value for name, value in given.items() if value is not None})
    _check_output_type(options)
    _check_ids(options)
    _check_instructions(options.get("instructions") or "")
    _client_tools(options)
    if "history" in options:
        options["history"] = message_list(options["history"])
    if message is None and options.get("history"):
        *earlier, last = cast("list[object]", options["history"])
        return input_of_message(last), cast(RunOptions, {**options, "history": earlier})
    if message is None:
        raise RequestError("no message: pass one, or a history that ends with a user message", param="message")
    return read_input(message), options


def _suggestion(name: str) -> str:
    """Return a did-you-mean text for an unknown option, or an empty string."""
    for option, model in (("limits", Limits), ("model_settings", ModelSettings)):
        if name in model.model_fields:
            return f"; did you mean {option}={{{name!r}: …}}?"
    return did_you_mean(name, list(_TYPES))


def _check_output_type(options: RunOptions) -> None:
    output_type: object = options.get("output_type")
    schema = options.get("output_schema")
    if output_type is not None and not (isinstance(output_type, type) and issubclass(output_type, BaseModel)):
        raise RequestError(f"output_type: expected a Pydantic model class, got {output_type!r}", param="output_type")
    if schema is None:
        return
    if output_type is not None:
        raise RequestError("output_type and output_schema exclude each other: pass one of them")
    try:
        SchemaArguments(json.loads(json.dumps(schema, allow_nan=False)))
    except ConfigError as error:
        raise RequestError(f"output_schema: {error.message}", param="output_schema") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"output_schema: it is not JSON data: {error}", param="output_schema") from None


def _check_instructions(text: str) -> None:
    if len(text) > _MAX_INSTRUCTIONS_CHARS:
        limit = f"at most {_MAX_INSTRUCTIONS_CHARS} are allowed: shorten them"
        raise RequestError(f"instructions: {len(text)} characters; {limit}", param="instructions")


def _client_tools(options: RunOptions) -> ClientTools | None:
    """Return the tools of the client, if there are any; raises RequestError for an invalid one."""
    if (given := options.get("client_tools")) is None:
        return None
    try:
        client = ClientTools.model_validate(given)
        for declared in client.tools:
            client_tool(declared)
    except ValidationError as error:
        raise RequestError(f"client_tools: {_error_text(error)}", param="client_tools") from None
    except ConfigError as error:
        raise RequestError(f"client_tools: {error.message}", param="client_tools") from None
    return client


def _check_ids(options: RunOptions) -> None:
    """Raise RequestError for ids that stores do not accept."""
    given = {"conversation": options.get("conversation"), "user": options.get("user"), "tenant": options.get("tenant")}
    for name, value in given.items():
        if value is not None and not (value.isprintable() and len(value) <= _MAX_ID_CHARS):
            raise RequestError(f"{name}: expected at most {_MAX_ID_CHARS} printable characters", param=name)


T = TypeVar("T", Limits, ModelSettings)
_MAX_INPUTS_CHARS = 256 * 1024
"""Size limit of a request's inputs as JSON. Larger than a rendered prompt, because templates may use only a part."""

_STORED_OPTIONS = (
    "inputs", "metadata", "model_settings", "default_model_settings", "locale", "instructions", "output_schema"
)  # fmt: skip
"""Options that are stored as the caller passes them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Identity of the caller who requests a run, a conversation or stored data."""

    user: str | None = None
    tenant: str | None = None
    single_user: bool = False
    """The host serves a single user: a caller without a user or tenant can access the data of any."""

    def can_access(self, user: str | None, tenant: str | None) -> bool:
        """Return whether the caller can access data of this user and tenant, which must equal the caller's own."""
        return self._matches(self.user, user) and self._matches(self.tenant, tenant)

    def _matches(self, value: str | None, owner: str | None) -> bool:
        return value == owner or (value is None and self.single_user)


RUNTIME_CALLER = Caller(single_user=True)
"""The runtime itself, when it resumes interrupted runs and runs with expired confirmations."""


def check_unrouted(message: Message, options: RunOptions) -> None:
    """Raise RequestError for a message or options that no agent accepts."""
    _check_message(message, options)
    unrouted_limits(options)
    run_model_settings(ModelSettings(), options)


def initial_state(
    message: Message, agent: Agent, generation: Generation, options: RunOptions, history: Sequence[Message] = ()
) -> RunState:
    """Return the first state of a run; raises RequestError for a message or options that the agent does not accept."""
    _check_message(message, options)
    base_path, output_type = options.get("base_path"), options.get("output_type")
    return RunState(
        agent=agent.name,
        generation=generation.number,
        digest=generation.digest,
        conversation_id=options.get("conversation"),
        conversation_ttl=agent.spec.conversation.ttl,
        user=options.get("user"),
        tenant=options.get("tenant"),
        locale=options.get("locale") or generation.settings.locale,
        inputs=_all_inputs(agent, options.get("inputs") or {}),
        metadata=dict(options.get("metadata") or {}),
        base_path=str(base_path) if base_path else None,
        model=options.get("model"),
        limits=_run_limits(agent, options),
        model_settings=run_model_settings(agent.spec.model_settings, options),
        caller_instructions=(options.get("instructions") or "").strip(),
        output_schema=output_type.model_json_schema() if output_type else _given_schema(options, agent),
        client=None if (client := options.get("client_tools")) is None else ClientTools.model_validate(client),
        history=[*history],
        messages=[message],
    )


def unrouted_limits(options: RunOptions) -> Limits:
    """Return the caller's limits before the agent is known; raises RequestError for invalid ones."""
    limits = _override(Limits(), Limits, options.get("limits") or {}, "limits")
    lower = options.get("lower_limits") or {}
    given = _override(limits, Limits, lower, "lower_limits")
    return _override(limits, Limits, {name: lower[name] for name in lower if not _is_above(given, limits, name)}, "")


def _run_limits(agent: Agent, options: RunOptions) -> Limits:
    """Return an agent's limits with the caller's; raises RequestError for invalid ones."""
    limits = _override(agent.spec.runtime_policy, Limits, options.get("limits") or {}, "limits")
    lower = options.get("lower_limits") or {}
    given = _override(limits, Limits, lower, "lower_limits")
    for name in lower:
        if _is_above(given, limits, name):
            own, place = getattr(limits, name), agent.place("runtime_policy", name)
            message = f"{name}: {getattr(given, name)} is above the limit of agent {agent.name!r} ({place})"
            raise RequestError(f"{message}; at most {own} is allowed", param=name)
    return given


def _is_above(given: Limits, limits: Limits, name: str) -> bool:
    value, own = getattr(given, name), getattr(limits, name)
    return own is not None and (value is None or value > own)


def run_model_settings(own: ModelSettings, options: RunOptions) -> ModelSettings:
    """Return an agent's sampling settings with the caller's; raises RequestError for invalid ones."""
    defaults = options.get("default_model_settings") or {}
    given = _override(ModelSettings(), ModelSettings, defaults, "default_model_settings")
    free = {name: getattr(given, name) for name in defaults if getattr(own, name) in (None, ())}
    if own.max_tokens and given.max_tokens:
        free["max_tokens"] = min(own.max_tokens, given.max_tokens)
    changes = {**free, **(options.get("model_settings") or {})}
    return _override(own, ModelSettings, changes, "model_settings")


def _given_schema(options: RunOptions, agent: Agent) -> dict[str, Any] | None:
    """Return the schema of the answer: the caller's, unless that accepts any object and the agent has its own."""
    schema, own = options.get("output_schema"), agent.spec.output_schema
    return own if schema is None or (own is not None and schema == ANY_OBJECT) else dict(schema)


def _check_message(message: Message, options: RunOptions) -> None:
    """Raise RequestError for a message that is empty, too long or not Unicode, and for such options."""
    text = message.content
    if not text.strip() and not message.parts:
        raise RequestError("the message is empty", param="message")
    if len(text) > MAX_MESSAGE_CHARS:
        raise RequestError(
            f"the message has {len(text)} characters; at most {MAX_MESSAGE_CHARS} are allowed", param="message"
        )
    for name, value in {
        "message": message.description,
        **{name: options.get(name) for name in _STORED_OPTIONS},
    }.items():
        if value and not is_unicode(json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)):
            raise RequestError(f"{name} is not valid Unicode text: it contains an unpaired surrogate", param=name)
    if options.get("history") and options.get("conversation"):
        raise RequestError("history and conversation exclude each other: pass one of them")


def checked_inputs(agent: Agent, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of some inputs of an agent; raises RequestError for unknown names and values of another type."""
    checked = _all_inputs(agent, placeholders(agent.spec.inputs) | dict(values))
    return {name: checked[name] for name in values}


def _all_inputs(agent: Agent, values: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {name: field.type for name, field in agent.spec.inputs.items()}
    given = {
        name: value.value(kinds.get(name, "string")) if isinstance(value, InputText) else value
        for name, value in values.items()
    }
    try:
        inputs = agent.inputs.model_validate(given, strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise RequestError("; ".join(_input_problem(detail, agent) for detail in details), param="inputs") from None
    if (size := len(inputs.model_dump_json())) > _MAX_INPUTS_CHARS:
        raise RequestError(
            f"inputs of {agent.name!r}: {size} characters; at most {_MAX_INPUTS_CHARS} are allowed", param="inputs"
        )
    return inputs.model_dump()


def _input_problem(detail: ErrorDetails, agent: Agent) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    place = f"input {name!r} of agent {agent.name!r}"
    match detail["type"]:
        case "missing":
            return f"{place} is missing: pass inputs={{{name!r}: …}}, or -i {name}=VALUE on the command line"
        case "extra_forbidden":
            return f"unknown {place}{did_you_mean(name, list(agent.spec.inputs))}"
        case _:
            return f"{place}: {detail['msg']}"


def _override(base: T, model: type[T], changes: Mapping[str, Any], option: str) -> T:
    if not changes:
        return base
    values = {name: getattr(base, name) for name in model.model_fields}
    if unknown := [name for name in changes if name not in values]:
        raise RequestError(f"{option}: unknown key {unknown[0]!r}{did_you_mean(unknown[0], list(values))}")
    try:
        return model.model_validate({**values, **changes})
    except ValidationError as error:
        raise RequestError(f"{option}: {_error_text(error)}", param=option) from None


def _error_text(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}" for detail in details)


def check_decisions(pending: Sequence[Confirmation], decisions: Mapping[str, Decision]) -> None:
    """Raise RequestError if a decision does not fit the confirmation it is for."""
    for one in pending:
        match decisions.get(one.id):
            case Respond(values=values) if one.form is not None:
                _check_values(one, one.form, values)
            case Respond(values=dict()):
                raise RequestError(f"{one.id} has no form: respond with a text")
            case Respond() if one.url:
                raise RequestError(f"{one.id} has an address to visit: approve it afterwards, or reject it")
            case Respond(text=text) if one.choices and text not in one.choices:
                raise RequestError(f"{one.id}: not one of its choices ({', '.join(one.choices)}): {text!r}")
            case Respond(text=text) if one.kind == "ask_user" and not text.strip():
                raise RequestError(f"{one.id}: the answer is empty")
            case Edit() if one.url:
                raise RequestError(f"{one.id} has nothing to edit: approve it, or reject it")
            case Approve(remember=Remember()) if one.remember is None:
                raise RequestError(f"{one.id} cannot be remembered: approve it without `remember`")
            case Approve() | Edit() if not one.traits.can_approve:
                raise RequestError(f"{one.id} is a question: respond with an answer, or reject it")


def _check_values(one: Confirmation, form: Mapping[str, Any], values: Mapping[str, Any] | None) -> None:
    if values is None:
        names = ", ".join(form["properties"])
        raise RequestError(f"{one.id} is a form: respond with `values` for its fields ({names})")
    try:
        checked_values(form, values)
    except ToolError as error:
        raise RequestError(f"{one.id}: {error.message}") from None


def storable_decisions(decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """Return the decisions with their texts repaired for storage.

    Raises:
        RequestError: a value is not a decision, or the arguments of an edit cannot be stored.
    """
    require_type("decisions", decisions, Mapping)
    storable: dict[str, Decision] = {}
    for key, decision in decisions.items():
        match decision:
            case Edit(arguments=arguments):
                if problem := revalidate_call(ToolCall(id=key, tool="", arguments=arguments)).invalid:
                    raise RequestError(f"edit of {key}: {problem}")
                storable[key] = decision
            case Respond(values=dict(values)):
                if problem := revalidate_call(ToolCall(id=key, tool="", arguments=values)).invalid:
                    raise RequestError(f"values of {key}: {problem}")
                storable[key] = decision
            case Respond(text=text):
                storable[key] = Respond(text=fix_surrogates(text))
            case Reject(reason=reason):
                storable[key] = Reject(reason=fix_surrogates(reason))
            case Approve():
                storable[key] = decision
            case _:
                kind = type(decision).__name__
                raise RequestError(f"decision of {key}: expected Approve, Edit, Reject or Respond, got {kind}")
    return storable


_FIELDS = ("conversation", "user", "tenant")
"""Options that are fields of a request."""


def check_place(place: QueuePlace) -> None:
    """Check where a caller wants a request to wait; raises RequestError."""
    priority, queue_name = place.priority, place.queue_name
    require_type("priority", priority, int)
    if isinstance(priority, bool) or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        expected = f"expected a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        raise RequestError(f"priority: {expected}, got {priority!r}", param="priority")
    if queue_name is None:
        return
    require_type("queue_name", queue_name, str)
    if not re.fullmatch(QUEUE_NAME, queue_name):
        expected = "expected 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
        raise RequestError(f"queue_name: {expected}, got {queue_name!r}", param="queue_name")


async def stored_options(options: RunOptions) -> dict[str, Any]:
    """Return the options of a request as JSON data, except those that are fields of the request.

    `output_type` becomes `output_schema`. Raises RequestError if an option cannot be stored.
    """
    if options.get("history"):  # may be large
        return await asyncio.to_thread(_as_json, options)
    return _as_json(options)


def read_request(request: RunRequest) -> tuple[UserInput, RunOptions]:
    """Return the message and the options of a stored request."""
    fields = {"conversation": request.conversation_id, "user": request.user, "tenant": request.tenant}
    given = {name: value for name, value in fields.items() if value is not None}
    return input_of_stored(request.message), cast(RunOptions, {**request.options, **given})


def _as_json(options: RunOptions) -> dict[str, Any]:
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in _FIELDS}
    output_type: type[BaseModel] | None = given.pop("output_type", None)
    if output_type is not None:
        given["output_schema"] = _schema(output_type)
    return {name: _json_data(value, name) for name, value in given.items()}


def _schema(output_type: type[BaseModel]) -> dict[str, Any]:
    try:
        return output_type.model_json_schema()
    except PydanticUserError as error:
        raise RequestError(f"output_type: {output_type.__name__} has no JSON Schema: {error.message}") from None


def _json_data(value: object, place: str, depth: int = 1) -> Any:
    """Return a value as JSON data; raises RequestError, which names the place of what JSON cannot express."""
    if depth > MAX_JSON_DEPTH:
        raise RequestError(f"{place.partition('.')[0]} nests deeper than {MAX_JSON_DEPTH} levels")
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case str() if is_unicode(value):
            return value
        case str():
            raise RequestError(f"{place} is not valid Unicode text: it contains an unpaired surrogate")
        case Message():
            return value.model_dump(mode="json")
        case Mapping():
            return {_key(key, place): _json_data(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_json_data(item, f"{place}.{number}", depth + 1) for number, item in enumerate(value)]
        case PathLike() if isinstance(path := fspath(value), str):
            return path
    what = value if isinstance(value, float) else type(value).__name__
    raise RequestError(f"{place} cannot be stored: {what}; pass JSON data: texts, numbers, booleans, lists, objects")


def _key(key: object, place: str) -> str:
    if not (isinstance(key, str) and is_unicode(key)):
        raise RequestError(f"{place} cannot be stored: its keys must be texts, not {type(key).__name__}")
    return key
