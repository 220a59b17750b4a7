"""The interface of every model client: request, deltas and reply; and a model that replies from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel

from framework.llm.capabilities import Capabilities, UnsupportedSetting, known_capabilities, listed_name
from framework.llm.message_shape import RequestCache
from framework.types.errors import ModelError, RequestError
from framework.types.http import server_address
from framework.types.media import MEDIA_TYPES, MediaKind, MediaPart
from framework.types.messages import Message, ToolCall, ToolDefinition, Usage
from framework.types.spec import ModelSettings
from framework.types.spec import Protocol as ToolProtocol
from framework.types.text import shorten

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]
_ALL_MEDIA_TYPES = frozenset(MEDIA_TYPES)
_NOT_IN_RESPONSES = ("stop", "seed", "top_k", "min_p", "frequency_penalty", "presence_penalty")
"""Settings that OpenAI's Responses API does not support."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's identity and capabilities, known before the first request."""

    provider: str
    model: str
    typed: bool = False
    """The client supports `ModelRequest.output`, and replies with JSON text; for other clients Instructor is used."""
    stand_in: bool = False
    """Not a language model: replies come from rules, a script or a recording, and cost nothing."""
    single_call: bool = False
    """The model calls at most one tool per turn."""
    describes_json: bool = False
    """The client describes `ModelRequest.json` to the model in its own way: the prompt must not."""
    answer_tool: bool = False
    """Structured replies are requested as the arguments of a tool (see `ModelRequest.json_by_tool`)."""
    any_schema: bool = False
    """The server enforces every JSON Schema; large providers require an object at its top level, and more."""
    server_address: str | None = None
    server_port: int | None = None
    media_types: frozenset[str] = _ALL_MEDIA_TYPES
    """Media types of the files that the provider's API can express."""
    max_files: int | None = None
    """Files that the provider accepts in one request; None if it documents no limit."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    stream: bool | None = None
    """Whether HTTP responses are always (True) or never (False) streamed; None: if `ModelRequest.stream` is set."""

    def is_streamed(self, request: ModelRequest) -> bool:
        """Return whether the HTTP response to a request is streamed, and deltas arrive while it is generated."""
        return request.stream if self.stream is None else self.stream

    def accepts(self, file: MediaPart) -> bool | None:
        """Return whether the model accepts a file in a message; None if that is unknown."""
        if file.media_type not in self.media_types:
            return False
        supported = self.capabilities
        return {"image": supported.images, "pdf": supported.pdf, "audio": supported.audio}[file.kind]

    @property
    def has_price(self) -> bool:
        """Whether the cost of a call is known. A `stand_in` is free."""
        return self.stand_in or self.capabilities.prices is not None

    def holds_schema(self, *, with_tools: bool) -> bool:
        """Return whether the provider enforces a JSON Schema and shows it to the model: the prompt need not contain it.

        Your own servers (`any_schema`) enforce it without showing it.
        """
        supported = self.capabilities
        enforced = supported.json_schema and (supported.json_with_tools or not with_tools)
        return self.answer_tool or bool(enforced and not self.any_schema)

    def needs_json_protocol(self, protocol: ToolProtocol) -> bool:
        """Return whether the tools of an agent with this `protocol` are written as JSON for the model."""
        needs_json = protocol == "json" or (protocol == "auto" and self.capabilities.tools is False)
        return needs_json and not self.stand_in

    def unsupported_settings(self, settings: ModelSettings) -> Iterator[UnsupportedSetting]:
        """Yield the settings that the provider, its API or the model does not support."""
        supported = self.capabilities
        for refused in supported.refused_settings or ():
            if getattr(settings, refused) not in (None, ()):
                is_its_api = self.provider == listed_name(self.name).partition("/")[0] and self.provider != "openai"
                subject = self.provider if is_its_api else self.name  # `openai/` is any server
                hint = "remove it from model_settings"
                yield UnsupportedSetting(refused, f"{subject} does not support {refused}", hint)
        for name in _NOT_IN_RESPONSES if supported.api == "responses" else ():
            if getattr(settings, name) not in (None, ()):
                problem = f"the Responses API of {self.name} does not support {name}"
                hint = "remove it from model_settings, or set `api: chat` at an alias of the model in agentsd.yaml"
                yield UnsupportedSetting(name, problem, hint)
        level, levels = settings.reasoning, supported.reasoning_levels
        if level is not None and levels and level not in levels:
            problem = f"{self.name} does not support reasoning: {level}"
            yield UnsupportedSetting("reasoning", problem, f"use one of its levels: {', '.join(levels)}")

    @property
    def name(self) -> str:
        """`provider/model`."""
        return f"{self.provider}/{self.model}" if self.model else self.provider

    @property
    def source(self) -> str:
        """The model and the host, to which signed or encrypted thoughts are bound; a port may change between runs."""
        return f"{self.model}@{self.server_address or ''}"

    @property
    def wire_name(self) -> str:
        """The model's name on the server; the provider's name for a `stand_in`."""
        return self.model or self.provider


def served_model(
    provider: str,
    model: str,
    base_url: str | None,
    configured: Capabilities | None,
    media_types: frozenset[str] = _ALL_MEDIA_TYPES,
    stream: bool | None = None,
) -> ModelInfo:
    """Return the info of a model on a server; `configured` capabilities override the known ones.

    `stream` is as in `ModelInfo`; a model that supports only streamed requests is always streamed.
    """
    capabilities = (configured or Capabilities()).over(known_capabilities(f"{provider}/{model}", base_url))
    host, port = server_address(base_url)
    return ModelInfo(
        provider,
        model,
        server_address=host,
        server_port=port,
        media_types=media_types,
        capabilities=capabilities,
        stream=True if stream is None and capabilities.stream_only else stream,
    )


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)
    stream: bool = False
    """Whether to yield each piece of text as it arrives. Otherwise deltas may be merged, or only the reply yielded."""
    output: type[BaseModel] | None = None
    """The type of the reply, for a `typed` client."""
    json: Mapping[str, Any] | None = None
    """Ask the provider to enforce a JSON object that fits this schema, or any JSON object if the schema is empty."""
    json_by_tool: bool = False
    """A provider that enforces no schema for replies may request them as the arguments of a tool instead."""
    media: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """Contents of the files in `messages`, by digest. The engine loads them before the call; if one is missing, the
    client sends the description of the file."""
    found: Mapping[str, Sequence[str]] | None = None
    """Names of the tools that searches have added to `tools`, by the id of the search's call; None for an agent without
    deferred tools."""
    continued: ModelReply | None = None
    """The cut reply that this request asks the model to continue, which `messages` contains; for the engine."""
    scratch: RequestCache = field(default_factory=RequestCache, repr=False, compare=False)
    """Cache of encoded messages, shared by the requests of one run."""

    def late_tools(self, supported: Capabilities) -> Mapping[int, Sequence[ToolDefinition]]:
        """Return the tools that the model gets with the results that found them, by the position of the result.

        All are tools of the request. The first tool is never one of them, nor one that the model must call: providers
        refuse a request without any tool at its beginning.
        """
        if not supported.late_tools or not self.found:
            return {}
        tools = {tool.name: tool for tool in self.tools[1:] if tool.name != self.settings.tool_choice}
        results = {one.tool_call_id: n for n, one in enumerate(self.messages) if one.status == "success"}
        return {
            results[call_id]: late
            for call_id, names in self.found.items()
            if call_id in results and (late := [tools.pop(name) for name in names if name in tools])
        }


def other_seed(request: ModelRequest, retries: int) -> ModelRequest:
    """Return the request with another seed, if it has one: with the same one, the model writes the same again."""
    seed = request.settings.seed
    if seed is None or not retries:
        return request
    return replace(request, settings=request.settings.model_copy(update={"seed": seed ^ retries}))


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a reply in the JSON protocol is invalid."""

    reason: str
    """The mistake."""
    near: str = ""
    """The reply's text around the mistake."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A complete reply."""

    message: Message
    finish_reason: FinishReason
    usage: Usage
    model: str = ""
    """The model that replied, as the provider reports it."""
    response_id: str = ""
    unusable: Unusable | None = None
    """Set if the reply violates the JSON protocol: it is not shown, executed or stored."""
    lacks_finish_reason: bool = False
    """The server ended its stream without saying why the reply ends."""
    message_id: str = ""
    """Id of the message in events. The engine sets it; clients leave it empty."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A chunk of a reply; the last one contains the complete reply."""

    text: str = ""
    reasoning: str = ""
    reply: ModelReply | None = None


def merged_deltas(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """Yield one delta for several that arrived together, for a request whose text nobody reads as it arrives."""
    if deltas:
        yield Delta("".join([delta.text for delta in deltas]), "".join([delta.reasoning for delta in deltas]))


def whole_reply(reply: ModelReply, request: ModelRequest) -> Iterator[Delta]:
    """Yield the deltas of a reply that was not streamed."""
    if request.stream:
        yield Delta(text=reply.message.content)
    yield Delta(reply=reply)


SendRequest = Callable[[ModelRequest], Awaitable[ModelReply]]
"""Sends a request and returns the complete reply."""


class ModelClient(Protocol):
    """A client of one model."""

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Send the request once and yield the reply's deltas; raise ModelError if it fails.

        Closing the iterator, or cancelling the task, closes the connection.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@runtime_checkable
class ProbingClient(ModelClient, Protocol):
    """A client whose server may be asked what its model can do, before `info` is used."""

    @property
    def needs_probe(self) -> bool:
        """Whether the server should be asked."""
        ...

    async def probe(self) -> None:
        """Ask the server, and add what it reports to `info`. A failure changes nothing."""
        ...


class LentClient:
    """A client whose connections stay open when a borrower closes it."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._client.info

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Send the request with the client."""
        return self._client.stream(request)

    async def close(self) -> None:
        """Do nothing: the owner closes the client."""


Turn = str | tuple[ToolCall, ...] | Message | BaseModel | BaseException
Script = Callable[[ModelRequest], Turn]
_SHOWN_CHARS = 80


def calls(*tools: tuple[str, dict[str, Any]], prefix: str = "c") -> tuple[ToolCall, ...]:
    """Return a turn that calls tools: `calls(("read_file", {"path": "a.txt"}))`. The ids are `c1`, `c2`, …"""
    return tuple(
        ToolCall(id=f"{prefix}{number}", tool=tool, arguments=arguments)
        for number, (tool, arguments) in enumerate(tools, 1)
    )


class ScriptedModel:
    """A model that replies from a script, one turn per request; `requests` records the requests it received.

    A turn is a text, tool calls, a message, a typed answer, or an exception to raise. Instead of turns, `script` can be
    a function that returns the turn for a request. A script that is too short, or contains anything else, fails the run
    with a message that says so; `mistakes` contains these messages.
    """

    def __init__(self, *turns: Turn, script: Script | None = None, tokens: int = 10) -> None:
        self._turns, self._length = list(turns), len(turns)
        self._script = script
        self._tokens = tokens
        self._info = ModelInfo(provider="scripted", model="", typed=True, stand_in=True)
        self.requests: list[ModelRequest] = []
        self.mistakes: list[str] = []
        """What is wrong with the script, as far as requests have shown."""

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the next turn; raise its exception, or ModelError if the script has no valid turn for the request."""
        self.requests.append(request)
        turn = self._script(request) if self._script else self._next()
        if isinstance(turn, BaseException):
            raise turn
        message = self._as_message(turn)
        if request.stream:
            for word in _words(message.reasoning.text if message.reasoning else ""):
                yield Delta(reasoning=word)
                await asyncio.sleep(0)  # as a network would, let readers run between two deltas
            for word in _words(message.content):
                yield Delta(text=word)
                await asyncio.sleep(0)
        half = self._tokens // 2
        usage = Usage(prompt_tokens=self._tokens - half, completion_tokens=half, total_tokens=self._tokens)
        yield Delta(reply=ModelReply(message, "tool_calls" if message.tool_calls else "stop", usage, "scripted"))

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _next(self) -> Turn:
        if not self._turns:
            turns = f"{self._length} turn" + ("" if self._length == 1 else "s")
            raise self._mistake(f"the script has {turns}, and the model received request {len(self.requests)}")
        return self._turns.pop(0)

    def _as_message(self, turn: Turn) -> Message:
        if isinstance(turn, Message):
            return turn
        if isinstance(turn, BaseModel):
            return Message(role="assistant", content=turn.model_dump_json(by_alias=True))
        if isinstance(turn, str):
            return Message(role="assistant", content=turn)
        if isinstance(turn, tuple) and all(isinstance(call, ToolCall) for call in turn):
            return Message(role="assistant", tool_calls=turn)
        given = f"turn {len(self.requests)} of the script is no turn: {shorten(repr(turn), _SHOWN_CHARS)}"
        raise self._mistake(
            f"{given}; write a text, calls((TOOL, ARGUMENTS)), a Message, a typed answer or an exception"
        )

    def _mistake(self, message: str) -> ModelError:
        self.mistakes.append(message)
        return ModelError(message)


def _words(text: str) -> Iterator[str]:
    for place, word in enumerate(text.split(" ") if text else ()):
        yield f" {word}" if place else word


_PLURALS: dict[MediaKind, str] = {"image": "images", "pdf": "PDFs", "audio": "audio"}
_CAPABILITIES: dict[MediaKind, str] = {"image": "images", "pdf": "pdf", "audio": "audio"}


def require_accepted(files: Sequence[MediaPart], model: str, info: ModelInfo) -> None:
    """Raise RequestError if a model is known not to accept one of the files, or not so many."""
    if info.max_files is not None and len(files) > info.max_files:
        raise RequestError(f"the message has {len(files)} files; {model} accepts at most {info.max_files}: send fewer")
    for part in files:
        if info.accepts(part) is False:
            refuses_kind = getattr(info.capabilities, _CAPABILITIES[part.kind]) is False
            what = _PLURALS[part.kind] if refuses_kind else part.media_type
            raise RequestError(
                f"{model} does not accept {what}: {part.description}; choose another model, or, if it does, set"
                f" `{_CAPABILITIES[part.kind]}: true` in the capabilities of its entry below `models` in agentsd.yaml"
            )
