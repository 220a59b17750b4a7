"""The one interface every model is behind.

A client's `stream` yields `Delta`s; the last one carries the whole `ModelReply`. A stream that ends without a reply was
cut off, and nothing of it is executed. Every piece of an answer is a `Delta`, an empty one where there is nothing to
show, such as a piece of a tool call: that is how the engine knows that the answer has begun.

A client asks once. Trying again, deadlines and fallbacks are the engine's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from framework.llm.capabilities import Capabilities, known_capabilities
from framework.llm.request_cache import RequestCache
from framework.types.messages import Message, ToolDefinition, Usage
from framework.types.server_address import server_address
from framework.types.spec import ModelSettings

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model before it is asked."""

    provider: str
    model: str
    typed: bool = False
    """Answers `ModelRequest.output` by itself, as JSON in the reply's text; without it Instructor sees to that."""
    stand_in: bool = False
    """No language model: it answers in our own types, by rules or a script."""
    answer_tool: bool = False
    """Gives answers of a schema as the arguments of a tool (`ModelRequest.json_by_tool`)."""
    server_address: str | None = None
    server_port: int | None = None
    capabilities: Capabilities = field(default_factory=Capabilities)

    @property
    def has_price(self) -> bool:
        """Whether its cost is known. Stand-ins are free."""
        return self.stand_in or self.capabilities.prices is not None

    def holds_schema(self, *, with_tools: bool) -> bool:
        """Return whether an answer is held to a schema by the provider, so that the prompt need not contain it."""
        can = self.capabilities
        return self.answer_tool or bool(can.json_schema and (can.json_with_tools or not with_tools))

    @property
    def name(self) -> str:
        """`provider/model`."""
        return f"{self.provider}/{self.model}" if self.model else self.provider

    @property
    def wire_name(self) -> str:
        """The server's own name for the model; a stand-in goes by its provider's."""
        return self.model or self.provider


def served_model(provider: str, model: str, base_url: str | None, said: Capabilities | None) -> ModelInfo:
    """A model on a server: what is said of it, and beside that what is known of it."""
    can = (said or Capabilities()).over(known_capabilities(f"{provider}/{model}"))
    host, port = server_address(base_url)
    return ModelInfo(provider, model, server_address=host, server_port=port, capabilities=can)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)
    stream: bool = False
    """Somebody listens to deltas; otherwise the wire is not streamed."""
    output: type[BaseModel] | None = None
    """The type the answer must have."""
    json: Mapping[str, Any] | None = None
    """The answer is to be one JSON object, of this schema where it is not empty: for models that can be held to it."""
    json_by_tool: bool = False
    """A provider that cannot hold an answer to a schema may take it as the arguments of a tool instead."""
    scratch: RequestCache = field(default_factory=RequestCache, repr=False, compare=False)
    """The same in all requests of a run whose messages are the same objects."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why an answer cannot be used."""

    reason: str
    """In our words."""
    near: str = ""
    """The model's words at the place of the mistake."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole answer."""

    message: Message
    finish_reason: FinishReason
    usage: Usage
    model: str = ""
    """The model that answered, by its own word."""
    response_id: str = ""
    unusable: Unusable | None = None
    """It does not follow the protocol the model was told: nothing of it is shown, carried out or kept."""
    message_id: str = ""
    """Id of the message in events; set by the engine, clients leave it empty."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer; the last one has the reply."""

    text: str = ""
    reasoning: str = ""
    reply: ModelReply | None = None


class ModelClient(Protocol):
    """A model that can be asked."""

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Ask once; raises ModelError. Closing the iterator, or cancelling the task, closes the connection."""
        ...

    async def close(self) -> None:
        """Give connections back."""
        ...
