"""Requests of OpenAI clients: their messages, and the tools that they execute themselves, as an input of a run."""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from framework.config.agents.compile import Agent
from framework.engine.runtime.request import RunOptions, UserMessage, may_contain_files
from framework.llm.message_formats import exported, imported_with_files
from framework.llm.openai_format import content_text
from framework.store.types import OPEN_STATUSES
from framework.tools.toolset import CLIENT
from framework.types.errors import RequestError
from framework.types.file import File
from framework.types.flat_schema import ANY_OBJECT
from framework.types.media import TextPart
from framework.types.messages import Message, ToolDefinition
from framework.types.state import CLIENT_RESULT, ClientTools, Confirmation, Decision, Reject, Respond, RunState
from framework.types.text import canonical_call, content_digest, fix_surrogates

_MAX_METADATA = 16
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]
_Tokens = Annotated[int, Field(gt=0, le=100_000_000)]


class _Body(BaseModel):
    """Fields of both APIs."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    model: str
    """Name of an agent, or `auto`: the router chooses one."""
    stream: bool | None = None
    """Send the answer as server-sent events."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Applies if the agent's file sets none, as do `top_p`, `seed` and `stop`."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling."""
    user: str | None = None
    metadata: Annotated[dict[_Key, _Value], Field(max_length=_MAX_METADATA)] | None = None
    """Stored with the run, for tools and lists."""
    tools: Any = None
    """Functions that the client executes. Offered to the model if the agent's file allows `client.NAME`, or the key
    has `client_tools`; otherwise ignored, unless `tool_choice` forces one function."""
    tool_choice: Any = None
    """A function of `tools`, or `required` if it is the only one: its arguments are the answer. With several offered
    functions, `required` lets the model choose one."""
    store: bool | None = None
    """Keep the response, for `previous_response_id`. Chat completions do not support it: `true` is an error."""


class StreamOptions(BaseModel):
    """Options of a streamed chat completion."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    include_usage: bool | None = None
    """Send a last chunk with the number of tokens."""


class ChatCompletionBody(_Body):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """The conversation. System messages follow the agent's instructions."""
    stream_options: StreamOptions | None = None
    """Options of a streamed answer."""
    max_tokens: _Tokens | None = None
    """Can lower the agent's limit of an answer, as can `max_completion_tokens`."""
    max_completion_tokens: _Tokens | None = None
    """The same."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """Seed for sampling."""
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    """Texts that end the answer."""
    response_format: dict[str, Any] | None = None
    """Type `json_schema`, `json_object` or `text`."""
    n: int | None = None
    """Number of answers: 1."""
    functions: Any = None
    """The older form of `tools`: ignored."""
    function_call: Any = None
    """The older form of `tool_choice`: only `auto` and `none` are supported."""
    modalities: list[str] | None = None
    """Only `["text"]` is supported."""


class ResponseBody(_Body):
    """Body of `POST /v1/responses`."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    """The user's message, or the conversation."""
    instructions: str | None = None
    max_output_tokens: _Tokens | None = None
    """Can lower the agent's limit of an answer."""
    text: dict[str, Any] | None = None
    """`format` has the type `json_schema`, `json_object` or `text`."""
    previous_response_id: str | None = None
    """A response with `store: true`: `input` contains the results of its calls, or the next message."""
    conversation: Any = None
    """Not supported: the header `X-Conversation-Id` names a conversation that the server keeps."""
    background: bool | None = None
    """Not supported: `true` is an error."""
    prompt: Any = None
    """Not supported: instructions are in the agent's file."""


Body = TypeVar("Body", ChatCompletionBody, ResponseBody)
_OWN_TOOLS = "agents call the tools of their own files"
_UNSUPPORTED: Mapping[str, str] = {
    "conversation": "send the header X-Conversation-Id",
    "background": "submit the run with POST /agent/runs",
    "prompt": "instructions are in the agent's file",
}
"""Fields whose effect a client would miss if they were ignored, and what to do instead."""
_SYSTEM = ("system", "developer")
_PART_TYPES = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Types of text parts in items of the Responses API, and the key of their text."""
_CONTINUE: Mapping[str, Any] = {"role": "user", "content": "Continue."}
"""The user's message of a conversation that ends with an answer to continue, or with the result of a call."""


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The messages of a request."""

    instructions: str
    """The text of all system messages."""
    message: UserMessage
    """The last message, or one that asks to continue."""
    history: tuple[dict[str, Any], ...] = ()
    """The messages before it, as JSON data in agentsd's format."""
    messages: tuple[Message, ...] = ()
    """All messages as they were sent, without system messages."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Results of calls at the end, by the id of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest(_Conversation):
    """A request of either API."""

    model: str
    """Name of an agent, or `auto`."""
    options: RunOptions
    """Instructions, schema and sampling settings."""
    user: str | None = None
    """The user that the client names."""
    metadata: Mapping[str, str] | None = None
    """The client's own data."""
    stream: bool = False
    include_usage: bool = False
    """Whether it wants a last chunk with the number of tokens."""
    function: str = ""
    """Name of the client's function that the answer calls: the answer's data are its arguments."""
    ignored: tuple[str, ...] = ()
    """Fields that have no effect here, although the client may expect one."""
    ends_with_result: bool = False
    """Whether the last message is the result of a call, in `history`, and `message` only continues from it."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The client's functions that the model may call."""
    is_call_required: bool = False
    previous: str | None = None
    """Id of the response that the request continues; `messages` do not contain what precedes it."""
    is_stored: bool = False
    """Whether later requests may name the response by its id."""

    @property
    def wants_data(self) -> bool:
        """Whether the answer must be JSON of a schema."""
        return "output_schema" in self.options


async def read_body(read: Callable[[Body], ClientRequest], body: Body, messages: object) -> ClientRequest:
    """Return the request in a body, read in a thread if its messages may contain files, which take long to decode."""
    if isinstance(messages, list) and may_contain_files(messages):
        return await asyncio.to_thread(read, body)
    return read(body)


def read_chat(body: ChatCompletionBody) -> ClientRequest:
    """Return the request in a body of chat completions; raises RequestError, whose `param` names the field."""
    _refuse_unsupported(body)
    if body.store:
        advice = "send the conversation with each request, or the header X-Conversation-Id"
        raise RequestError(f"store is not supported: responses are not kept here: {advice}", param="store")
    if body.n not in (None, 1):
        raise RequestError(f"n: only one answer is supported, not {body.n}", param="n")
    if any(kind != "text" for kind in body.modalities or ()):
        raise RequestError("modalities: only text is supported", param="modalities")
    limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    settings = {"stop": stop or None, "seed": body.seed, "max_tokens": min(limits, default=None)}
    return _request(
        body,
        _conversation(body.messages, "messages"),
        settings,
        lambda: _answer_format(body.response_format, "response_format", nested="json_schema"),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def read_response(body: ResponseBody) -> ClientRequest:
    """Return the request in a body of the Responses API; raises RequestError, whose `param` names the field."""
    _refuse_unsupported(body)
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    chat = list(_with_calls_together(_as_chat(items)))
    conversation = _results_only(chat) if body.previous_response_id else None
    conversation = conversation or _conversation(chat, "input")
    texts = [text for text in ((body.instructions or "").strip(), conversation.instructions) if text]
    return _request(
        body,
        replace(conversation, instructions="\n\n".join(texts)),
        {"max_tokens": body.max_output_tokens},
        lambda: _answer_format((body.text or {}).get("format"), "text.format"),
    )


def _request(
    body: ChatCompletionBody | ResponseBody,
    conversation: _Conversation,
    settings: Mapping[str, Any],
    answer_format: Callable[[], RunOptions],
    *,
    include_usage: bool = False,
) -> ClientRequest:
    function = _forced_function(body)
    options: RunOptions = {"output_schema": _parameters(function)} if function else answer_format()
    given = {"temperature": body.temperature, "top_p": body.top_p, **settings}
    if defaults := {name: value for name, value in given.items() if value is not None}:
        options["default_model_settings"] = defaults
    if conversation.instructions:
        options["instructions"] = conversation.instructions
    return ClientRequest(
        model=body.model,
        options=options,
        user=body.user,
        metadata=body.metadata,
        stream=bool(body.stream),
        include_usage=include_usage,
        function=str(function["name"]) if function else "",
        ignored=() if function else tuple(_ignored(body)),
        ends_with_result=bool(conversation.results),
        tools=() if function or body.tool_choice == "none" else tuple(_functions(body)),
        is_call_required=body.tool_choice == "required" and not function,
        **{one.name: getattr(conversation, one.name) for one in fields(conversation)},
        previous=body.previous_response_id if isinstance(body, ResponseBody) else None,
        is_stored=bool(body.store),
    )


def _refuse_unsupported(body: ChatCompletionBody | ResponseBody) -> None:
    """Raise RequestError for fields that are not supported. Empty ones and `false` have no effect."""
    for name, advice in _UNSUPPORTED.items():
        if getattr(body, name, None):
            raise RequestError(f"{name} is not supported: {advice}", param=name)


def _answer_format(given: object, param: str, *, nested: str | None = None) -> RunOptions:
    """Return the options for the format of the answer. `nested` is the key of the object around the schema."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    match kind:
        case "json_schema" if isinstance(given, Mapping):
            holder = given.get(nested) if nested else given
            schema = holder.get("schema") if isinstance(holder, Mapping) else None
            if not isinstance(schema, Mapping):
                place = f"{param}.{nested}.schema" if nested else f"{param}.schema"
                raise RequestError(f"{place}: expected a JSON Schema of an object", param=place)
            return {"output_schema": dict(schema)}
        case "json_object":
            return {"output_schema": ANY_OBJECT}
        case "text":
            return {}
    if given is None:
        return {}
    raise RequestError(f"{param}.type: expected json_schema, json_object or text, got {kind!r:.80}", param=param)


# --- tools of the client


def _forced_function(body: ChatCompletionBody | ResponseBody) -> Mapping[str, Any] | None:
    """Return the function that the answer must call, or None if the client leaves the choice to the model.

    Raises:
        RequestError: the client requires a call of a function that it does not describe.
    """
    if isinstance(body, ChatCompletionBody) and body.function_call not in (None, "auto", "none"):
        raise RequestError(f"function_call is not supported: {_OWN_TOOLS}: use tool_choice", param="function_call")
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        return None
    wanted = choice if isinstance(choice, Mapping) else {"type": choice}
    functions = _functions(body)
    match wanted.get("type"):
        case "function":
            named = wanted.get("function", wanted)
            names = [named.get("name") if isinstance(named, Mapping) else None]
        case "required":
            names = [function.get("name") for function in functions]
        case kind:
            raise RequestError(
                f"tool_choice: expected none, auto, required or a function, got {kind!r:.80}", param="tool_choice"
            )
    if len(names) > 1:
        return None
    found = [function for function in functions if names and function.get("name") == names[0] != ""]
    if not found or not isinstance(names[0], str):
        raise RequestError(f"tool_choice: no function {names[0] if names else ''!r:.80} in tools", param="tool_choice")
    return found[0]


def _functions(body: ChatCompletionBody | ResponseBody) -> list[Mapping[str, Any]]:
    """Return the functions among the client's tools; those of the Responses API are not nested."""
    tools = _mappings(body.tools)
    return _mappings([tool.get("function", tool) for tool in tools if tool.get("type") == "function"])


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, with the function's description; raises RequestError."""
    parameters, description = function.get("parameters"), function.get("description")
    if not isinstance(parameters, Mapping | None):
        raise RequestError("tools: parameters: expected a JSON Schema of an object", param="tools")
    described = {"description": description} if isinstance(description, str) else {}
    return {"type": "object", **described, **(parameters or {})}


def _ignored(body: ChatCompletionBody | ResponseBody) -> Iterator[str]:
    """Yield the names of the fields with tools that the model could call, if agents could."""
    if body.tools and body.tool_choice != "none":
        yield "tools"
    if isinstance(body, ChatCompletionBody) and body.functions and body.function_call != "none":
        yield "functions"


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


# --- messages


def _conversation(messages: Sequence[Mapping[str, Any]], field_name: str) -> _Conversation:
    """Return the conversation in messages in the format of chat completions; `field_name` contains them in the body."""
    for number, message in enumerate(messages):
        _check_parts(message.get("content"), f"{field_name}.{number}.content")
    others = [message for message in messages if message.get("role") not in _SYSTEM]
    if not any(message.get("role") == "user" for message in others):
        raise RequestError(f"{field_name}: there is no message of the user", param=field_name)
    is_continued = others[-1].get("role") != "user"
    try:
        read, files = imported_with_files([*others, *([_CONTINUE] if is_continued else [])], "openai", what=field_name)
    except RequestError as error:
        raise RequestError(error.message, param=field_name) from None
    *earlier, last = read
    history = tuple(exported(earlier, "messages", files=files))
    sent = tuple(earlier if is_continued else read)
    return _Conversation(_system_text(messages), _user_message(last, files), history, sent, _last_results(sent))


def _system_text(messages: Iterable[Mapping[str, Any]]) -> str:
    system = (content_text(message.get("content")).strip() for message in messages if message.get("role") in _SYSTEM)
    return "\n\n".join(text for text in system if text)


def _last_results(messages: Sequence[Message]) -> dict[str, str]:
    """Return the results of calls that follow the last message of the user or the assistant."""
    results: dict[str, str] = {}
    for message in reversed(messages):
        if message.role != "tool" or message.tool_call_id is None:
            break
        results[message.tool_call_id] = message.content
    return results


def _results_only(messages: Sequence[Mapping[str, Any]]) -> _Conversation | None:
    """Return the results of calls of an earlier response; None if there are none, but messages.

    Raises:
        RequestError: there are both.
    """
    others = [message for message in messages if message.get("role") not in _SYSTEM]
    results = [message for message in others if message.get("role") == "tool"]
    if not results:
        return None
    if len(results) < len(others):
        raise RequestError("input: send the results of calls without further messages", param="input")
    texts = {str(message.get("tool_call_id")): content_text(message.get("content")) for message in results}
    return _Conversation(_system_text(messages), "", results=texts)


def _user_message(message: Message, files: Mapping[str, bytes]) -> UserMessage:
    """Return a message's text, or its texts and files in order."""
    if not message.media:
        return message.content
    return [
        part.text if isinstance(part, TextPart) else File(files[part.digest], part.media_type, part.name)
        for part in message.parts
    ]


def _check_parts(content: object, place: str) -> None:
    """Raise RequestError for a part that is not an object, or whose file would have to be fetched."""
    for number, part in enumerate(content if isinstance(content, list) else ()):
        here = f"{place}.{number}"
        if not isinstance(part, Mapping):
            raise RequestError(f"{here}: expected an object with a type", param=here)
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        if isinstance(url, str) and not url.startswith("data:"):
            shown, advice = url.partition("?")[0], "send the image as a data URL"
            raise RequestError(
                f"{here}.image_url: nothing is fetched from {shown!r:.80}: {advice}", param=f"{here}.image_url"
            )


def _as_chat(items: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages among the items of the Responses API, in the format of chat completions.

    Reasoning is left out: it belongs to answers that the agent has given.
    """
    for number, item in enumerate(items):
        place = f"input.{number}"
        match item.get("type", "message"):
            case "message":
                yield {"role": item.get("role"), "content": _chat_content(item.get("content"), f"{place}.content")}
            case "reasoning":
                continue
            case "function_call":
                called = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": called}
                yield {"role": "assistant", "content": None, "tool_calls": [call]}
            case "function_call_output":
                content = _chat_content(item.get("output"), f"{place}.output")
                yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
            case "item_reference":
                advice = "send the item itself (AI SDK: providerOptions.openai.store = false), or previous_response_id"
                raise RequestError(f"{place}: items are not kept here: {advice}", param=place)
            case kind:
                raise RequestError(f"{place}: items of type {kind!r:.80} are not supported: send messages", param=place)


def _with_calls_together(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages, with consecutive calls in one: each is an item of its own in the Responses API."""
    calls: list[Any] = []
    for message in messages:
        if "tool_calls" in message:
            calls += message["tool_calls"]
            continue
        if calls:
            yield {"role": "assistant", "content": None, "tool_calls": calls}
            calls = []
        yield message
    if calls:
        yield {"role": "assistant", "content": None, "tool_calls": calls}


def _chat_content(content: object, place: str) -> object:
    """Return the content of an item as that of a chat message."""
    if not isinstance(content, list):
        return content
    return [_chat_part(part, f"{place}.{number}") for number, part in enumerate(content)]


def _chat_part(part: object, place: str) -> Mapping[str, Any]:
    if not isinstance(part, Mapping):
        raise RequestError(f"{place}: expected an object with a type", param=place)
    kind = part.get("type")
    if key := _PART_TYPES.get(str(kind)):
        return {"type": "text", "text": part.get(key)}
    if kind == "input_image" and part.get("image_url"):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    if kind == "input_file" and part.get("file_data"):
        return {"type": "file", "file": {"file_data": part["file_data"], "filename": part.get("filename")}}
    advice = "send text, or the contents of a file as a data URL"
    raise RequestError(f"{place}: content of type {kind!r:.80} is not supported in this form: {advice}", param=place)


MAX_CLIENT_TOOLS = 128
"""Number of tools of one request that are offered: providers accept no more."""
_MAX_LISTED = 20
_RUN = "run_"
_CALL_ID = re.compile(r"call_([A-Za-z0-9_-]{22})[0-9a-f]{12}")
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})(?:_[0-9]{1,12})?")
_OTHERS = "agents call the tools of their own files"


class UnknownCall(RequestError):
    """No run waits for the result of a call: it was never made, or belongs to another tenant."""

    code = "unknown_call"


class HistoryChanged(RequestError):
    """The messages before the calls are not those that the run started with."""

    code = "history_changed"


class PreviousResponseNotFound(RequestError):
    """No stored response has the id."""

    code = "previous_response_not_found"


# --- what is offered


def offered_tools(
    asked: ClientRequest, agents: Sequence[Agent], key: str, history: str
) -> tuple[ClientTools | None, tuple[str, ...]]:
    """Return the tools of a request that are offered to the model, and the fields that are ignored.

    `key` is the name of the API key, if it allows the client's tools, and `history` the digest of the messages, if the
    request with results repeats them.

    Raises:
        RequestError: a tool is invalid or has the name of one of the agent's own, there are too many, or a call is
            required that nothing allows.
    """
    names = [str(tool.get("name")) for tool in asked.tools]
    allowed = {name for name in names if _is_allowed(name, agents, key)}
    if not allowed:
        if asked.is_call_required:
            advice = "name the function whose arguments are the answer, or leave tool_choice out"
            raise RequestError(
                f"tool_choice: required with {len(names)} functions: {_OTHERS}: {advice}", param="tool_choice"
            )
        return (ClientTools(stored=True) if asked.is_stored else None), asked.ignored
    offered = [tool for tool in asked.tools if str(tool.get("name")) in allowed]
    if len(offered) > MAX_CLIENT_TOOLS:
        raise RequestError(f"tools: {len(offered)} functions; at most {MAX_CLIENT_TOOLS} are accepted", param="tools")
    if len(allowed) < len(offered):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"tools: two functions are named {twice!r}", param="tools")
    if len(agents) == 1:
        _refuse_own_names(allowed, agents[0])
    left_out = [f"tools.{name}" for name in dict.fromkeys(names) if name not in allowed and name.isascii()]
    others = [field for field in asked.ignored if field != "tools"]
    client = ClientTools(
        tools=tuple(map(_declared, offered)),
        required=asked.is_call_required,
        key=key,
        history=history,
        stored=asked.is_stored,
    )
    return client, (*others, *left_out[:_MAX_LISTED])


def _is_allowed(name: str, agents: Iterable[Agent], key: str) -> bool:
    """Return whether a rule of some agent, or the key, allows a client's tool, and no rule of that agent denies it."""
    full = f"{CLIENT}{name}"
    toolsets = (agent.toolset for agent in agents)
    return any((key or toolset.client_rule(full)) and not toolset.unconditional_deny(full) for toolset in toolsets)


def _refuse_own_names(names: Iterable[str], agent: Agent) -> None:
    own = {tool.definition.wire_name: tool.name for tool in agent.toolset.tools.values()}
    for name in names:
        if taken := own.get(name) or (name if name in agent.toolset.tools else None):
            raise RequestError(
                f"tools: the agent {agent.name!r} has a tool named {name!r} itself ({taken}): rename the function",
                param="tools",
            )


def _declared(function: Mapping[str, Any]) -> ToolDefinition:
    description, parameters = function.get("description"), function.get("parameters")
    if not isinstance(parameters, Mapping | None) or not isinstance(description, str | None):
        name = str(function.get("name"))
        expected = "expected a text as the description, and a JSON Schema of an object as the parameters"
        raise RequestError(f"tools: {name:.80}: {expected}", param="tools")
    schema = {"type": "object", "properties": {}, **(parameters or {})}
    return ToolDefinition(name=str(function.get("name")), description=description or "", parameters=schema)


# --- ids


def client_call_id(run_id: str, confirmation_id: str) -> str:
    """Return the id of a call for its client: 39 characters, which contain the run. Providers accept 40."""
    run = urlsafe_b64encode(bytes.fromhex(run_id.removeprefix(_RUN))).decode().rstrip("=")
    return f"call_{run}{sha256(confirmation_id.encode()).hexdigest()[:12]}"


def run_of_call(call_id: str) -> str | None:
    """Return the id of the run that made a call; None for an id that no run gave."""
    found = _CALL_ID.fullmatch(call_id)
    return f"{_RUN}{urlsafe_b64decode(found[1] + '==').hex()}" if found else None


def run_of_calls(call_ids: Iterable[str]) -> str | None:
    """Return the run whose calls these are, or None if none of them is a call of a run.

    Raises:
        UnknownCall: they are not of one run.
    """
    runs = {run_of_call(call_id): call_id for call_id in call_ids}
    if len(runs) > 1:
        raise UnknownCall(f"the results are of calls of several runs, such as {[*runs.values()][-1]!r:.80}")
    return next(iter(runs), None)


def run_of_response(response_id: str) -> str:
    """Return the id of the run that a response is of; raises PreviousResponseNotFound."""
    if not (found := _RESPONSE_ID.fullmatch(response_id)):
        raise previous_not_found(response_id)
    return f"{_RUN}{found[1]}"


def previous_not_found(response_id: str) -> PreviousResponseNotFound:
    """Return the error for an id of no stored response."""
    advice = "only responses to requests with store: true are kept; or send the conversation, or X-Conversation-Id"
    return PreviousResponseNotFound(f"there is no response {response_id!r:.80}: {advice}", param="previous_response_id")


# --- what comes back


def history_digest(messages: Sequence[Message]) -> str:
    """Return the digest of a conversation up to its last message that is no text of the assistant.

    Clients repeat texts that preceded a call, or leave them out; nobody repeats reasoning and system messages exactly.
    """
    kept = list(messages)
    while kept and kept[-1].role == "assistant" and not kept[-1].tool_calls:
        kept.pop()
    lines = []
    for message in kept:
        calls = [f"{call.id} {canonical_call(call.tool, call.arguments)}" for call in message.tool_calls]
        files = [part.digest for part in message.media]
        lines.append(repr((message.role, message.content.strip(), files, calls, message.tool_call_id)))
    return content_digest("\n".join(lines))


def require_same_history(state: RunState, messages: Sequence[Message]) -> None:
    """Raise HistoryChanged unless messages repeat those of a run, its calls, and their results only."""
    begin = next(
        place
        for place, one in enumerate(messages)
        if any(run_of_call(call.id) == state.run_id for call in one.tool_calls)
    )
    is_same = (
        history_digest(messages[:begin]) == (state.client.history if state.client else "")
        and not any(message.role == "user" for message in messages[begin:])
        and all(run_of_call(call.id) == state.run_id for message in messages[begin:] for call in message.tool_calls)
    )
    if not is_same:
        advice = "send them unchanged, or leave the calls and their results out to ask anew"
        raise HistoryChanged(
            f"messages: those around the calls of run {state.run_id} are not the ones that it made them for: {advice}",
            param="messages",
        )


def results_in(state: RunState, messages: Iterable[Message]) -> dict[str, str]:
    """Return the results of calls of a run that messages contain, by the client's id of the call."""
    own = (message for message in messages if message.role == "tool" and message.tool_call_id)
    return {
        one.tool_call_id: one.content
        for one in own
        if one.tool_call_id and run_of_call(one.tool_call_id) == state.run_id
    }


def new_decisions(state: RunState, results: Mapping[str, str], param: str) -> dict[str, Decision]:
    """Return the decisions that results make; empty if the run has all of them already.

    The results are given by the client's id of the call; `param` is the field that contains them.

    Raises:
        UnknownCall: the run did not make one of the calls.
        RequestError: a result is missing, or differs from an earlier one, or the run has ended without it.
    """
    asked, decisions = _confirmations(state), dict[str, Decision]()
    for call_id, text in results.items():
        confirmation_id = asked.get(call_id)
        made = state.decisions.get(confirmation_id) if confirmation_id else None
        given = Respond(text=fix_surrogates(text))
        if isinstance(made, Reject) or (confirmation_id is None and state.status not in OPEN_STATUSES):
            ended = "it waits no longer for the result: no result came in time, or it was ended"
            raise RequestError(f"{call_id}: run {state.run_id} is {state.status}; {ended}", param=param)
        if confirmation_id is None:
            raise UnknownCall(f"no run waits for the result of the call {call_id!r:.80}", param=param)
        if made is None:
            decisions[confirmation_id] = given
        elif made != given:
            raise RequestError(f"{call_id}: another result was accepted before this one", param=param)
    missing = [call_id for call_id, one in asked.items() if one not in decisions and one not in state.decisions]
    if decisions and missing:
        raise RequestError(f"the result of {missing[0]} is missing: send those of all calls together", param=param)
    return decisions


def pause_of(events: Iterable[Mapping[str, Any]], state: RunState, call_ids: Collection[str]) -> int:
    """Return the number of the event with which a run paused for these calls."""
    waiting, last = False, 0
    for event in events:
        if event.get("event") == "confirm_required":
            waiting = waiting or client_call_id(state.run_id, str(event.get("id"))) in call_ids
        elif event.get("event") == "done":
            last, waiting = (int(event["seq"]) if waiting else last), False
    return last


def _confirmations(state: RunState) -> dict[str, str]:
    """Return the ids of what a run waits, or has waited, for, by the client's id of the call."""
    ids = (*(one.id for one in state.pending if is_client_call(one)), *state.decisions)
    return {client_call_id(state.run_id, one): one for one in ids if one.endswith(CLIENT_RESULT)}


def is_client_call(asked: Confirmation) -> bool:
    """Return whether a run waits for the client to execute a tool."""
    return asked.kind == "client_tool"
