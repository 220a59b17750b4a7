"""The request bodies of `/v1`: the fields of OpenAI's API that have an effect here. Others are ignored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

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
    """The user of the run, unless the key has one."""
    metadata: Annotated[dict[_Key, _Value], Field(max_length=_MAX_METADATA)] | None = None
    """Stored with the run, for tools and lists."""
    tools: Any = None
    """Ignored, because agents call their own tools, unless `tool_choice` forces one function."""
    tool_choice: Any = None
    """A function of `tools`, or `required` if it is the only one: its arguments are the answer."""
    store: bool | None = None
    """Not supported: `true` is an error."""


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
    """The caller's own instructions, which follow those of the agent."""
    max_output_tokens: _Tokens | None = None
    """Can lower the agent's limit of an answer."""
    text: dict[str, Any] | None = None
    """`format` has the type `json_schema`, `json_object` or `text`."""
    previous_response_id: str | None = None
    """Not supported: the conversation is in `input`."""
    conversation: Any = None
    """Not supported: the header `X-Conversation-Id` names a conversation that the server keeps."""
    background: bool | None = None
    """Not supported: `true` is an error."""
    prompt: Any = None
    """Not supported: instructions are in the agent's file."""
