"""An AG-UI request as a message and options of a run.

The server keeps the messages of a thread: of those in the request, it reads the last one, which must be the user's, and
the text of system and developer messages.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from ag_ui.core import (
    AudioPart,
    ContentPart,
    DataSource,
    DeveloperMessage,
    DocumentPart,
    ImagePart,
    RunAgentInput,
    SystemMessage,
    TextPart,
    UserMessage,
)
from pydantic import ConfigDict, ValidationError

from framework.server.errors import validation_error
from framework.types.errors import RequestError
from framework.types.file import File
from framework.types.frozen import Frozen


class ForwardedProps(Frozen):
    """The keys of `forwardedProps` that agentsd reads; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    inputs: dict[str, Any] | None = None
    """Values of the variables that the agent declares."""
    locale: str | None = None
    """Language of the prompt templates."""
    user: str | None = None
    """User of the thread, if the key does not fix one."""
    on_disconnect: str | None = None
    """`cancel`: the run is cancelled when the client leaves; otherwise it continues."""


def read_agui_request(data: object) -> tuple[RunAgentInput, ForwardedProps]:
    """Return the request of a client; raises RequestError if it is invalid."""
    try:
        request = RunAgentInput.model_validate(data)
        props = request.forwarded_props if isinstance(request.forwarded_props, dict) else {}
        forwarded = ForwardedProps.model_validate(props)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise validation_error([{**one, "loc": ("body", *one["loc"])} for one in found]) from None
    if request.tools:
        raise RequestError(
            "tools: tools that the client executes are not supported; give the agent tools in its file instead",
            param="tools",
        )
    if forwarded.on_disconnect not in (None, "cancel", "continue"):
        raise RequestError("forwardedProps.on_disconnect: expected 'cancel' or 'continue'", param="forwardedProps")
    return request, forwarded


def message_of(request: RunAgentInput) -> str | list[str | File]:
    """Return the message of a new run; raises RequestError if the last message is not the user's."""
    last = request.messages[-1] if request.messages else None
    if not isinstance(last, UserMessage):
        found = f"it is of the role {last.role!r}" if last else "there is none"
        raise RequestError(f"messages: the last message must be the user's, but {found}", param="messages")
    return last.content if isinstance(last.content, str) else [_content(part) for part in last.content]


def instructions_of(request: RunAgentInput) -> str:
    """Return what the client adds to the agent's instructions: system and developer messages, and the context."""
    return "\n\n".join(_instructions(request))


def _instructions(request: RunAgentInput) -> Iterator[str]:
    yield from (
        message.content for message in request.messages if isinstance(message, SystemMessage | DeveloperMessage)
    )
    yield from (f"{context.description}: {context.value}" for context in request.context or ())


def _content(part: ContentPart) -> str | File:
    match part:
        case TextPart(text=text):
            return text
        case ImagePart(source=DataSource() as source) | AudioPart(source=DataSource() as source):
            return _file(source)
        case DocumentPart(source=DataSource() as source):
            return _file(source)
    raise RequestError(
        f"messages: a part of the type {part.type!r} with this source is not supported: send text, or an image, audio "
        "or a document with its bytes in base64 (source.type: data)",
        param="messages",
    )


def _file(source: DataSource) -> File:
    try:
        content = b64decode(source.value, validate=True)
    except ValueError:
        raise RequestError("messages: source.value is not base64", param="messages") from None
    return File.from_bytes(content, media_type=source.mime_type)
