"""What travels between the runtime, the models and the tools."""

from __future__ import annotations

import json
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import Field

from framework.types.digest import content_digest
from framework.types.frozen import Frozen
from framework.types.text import one_line

WIRE_NAME_LENGTH = 64


class ToolCall(Frozen):
    """The model asks for a tool."""

    id: str
    """Unique within its run."""
    tool: str
    """The tool's name, such as `read_file` or `docs.search`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """The arguments by name."""
    invalid: str | None = None
    """Why the provider's text could not be read as arguments; such a call is answered, never run."""


class Reasoning(Frozen):
    """What a model thought before it answered; only the provider that made `data` may get it back."""

    text: str = ""
    """The readable part."""
    provider: str = ""
    """Who made it."""
    data: dict[str, Any] | None = None
    """The provider's own form, opaque to us."""


class Message(Frozen):
    """One entry of a conversation, neutral to the provider."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    """The text."""
    tool_calls: tuple[ToolCall, ...] = ()
    """On an assistant message: the tools it asks for."""
    tool_call_id: str | None = None
    """On a tool message: the call that it answers."""
    reasoning: Reasoning | None = None
    """On an assistant message: what the model thought."""
    status: Literal["success", "error", "cancelled", "denied"] | None = None
    """On a tool message: how the call ended, where that is known."""
    decision: str | None = None
    """On a tool message: what a human said about the call, such as `approve` or `reject: too much`."""


_SUMMARY_CHARS = 200
"""Length of a tool's summary."""
REFUSED_STATUSES = ("denied", "cancelled")
"""Statuses of calls that a rule or a human has refused."""


class ToolResult(Frozen):
    """What came of a tool call; only `output` or `error` reach the model."""

    status: Literal["success", "error", "cancelled", "denied"]
    output: Any = None
    """Text or JSON data, uncut."""
    error: str | None = None
    """Why it failed, in words the model can act on."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """For people and traces: the denying rule, a timeout, an error's class."""
    elapsed_ms: float = 0.0


class Usage(Frozen):
    """Tokens and money, as the provider counted them."""

    prompt_tokens: int = 0
    """Input tokens, cached ones included."""
    completion_tokens: int = 0
    """Output tokens, reasoning included."""
    total_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that the provider read from its cache."""
    cache_write_tokens: int = 0
    """The part of the input that the provider put into its cache, where that has a price of its own."""
    cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """0 where no price is known."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


class ToolDefinition(Frozen):
    """What a model is told of a tool."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments: an object."""

    @property
    def summary(self) -> str:
        """The first paragraph of the description in one line of at most 200 characters."""
        return one_line(self.description.strip().split("\n\n")[0], _SUMMARY_CHARS)

    @property
    def wire_name(self) -> str:
        """The name in the form every provider takes: letters, digits, `_`, `-`, at most 64 characters."""
        return wire_name(self.name)

    @cached_property
    def canonical_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(self.model_dump(), sort_keys=True, ensure_ascii=False)

    @cached_property
    def contract(self) -> str:
        """Digest of all of it: what a human approved, and what a server may change behind one's back."""
        return content_digest(self.canonical_json)


def wire_name(name: str) -> str:
    """Replace `.` by `__`; past 64 characters, end in a hash of the whole name."""
    wire = name.replace(".", "__")
    if len(wire) <= WIRE_NAME_LENGTH:
        return wire
    return wire[: WIRE_NAME_LENGTH - 9] + "_" + blake2b(name.encode(), digest_size=4).hexdigest()
