"""The options of a run, and the checks of their names and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, cast

from pydantic import BaseModel

from framework.llm.openai_format import content_text
from framework.types.errors import RequestError
from framework.types.messages import Message
from framework.types.spec import Limits, ModelSettings
from framework.types.strict_json import read_json
from framework.types.text import did_you_mean

_MAX_ID_CHARS = 200
"""Length limit of a conversation id, a user and a tenant."""


class RunOptions(TypedDict, total=False):
    """Options of a run, in addition to its message. All are optional; None means not given."""

    agent: str | None
    """Name of the agent. Without it, the router chooses."""
    conversation: str | None
    """Id of the conversation that the run continues. An unknown id starts a new conversation."""
    history: Sequence[Message | Mapping[str, Any]] | str | None
    """Earlier messages: `RunResult.messages`, the same as dicts or JSON text, or messages in OpenAI's chat completions
    format. Excludes `conversation`. Without a message, the last entry is the message."""
    inputs: Mapping[str, Any] | None
    """Values of the variables that the agent declares."""
    model: str | None
    """Model that the agent and its sub-agents use in place of their configured models and fallbacks."""
    limits: Mapping[str, Any] | None
    """Limits that replace the agent's, by key, e.g. `{"max_steps": 3}`."""
    model_settings: Mapping[str, Any] | None
    """Sampling settings that replace the agent's, e.g. `{"temperature": 0}`."""
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
    output_type: type[BaseModel] | None
    """Type of the answer's data. Default: the agent's `output_schema`."""


_TYPES: Mapping[str, tuple[type, ...]] = {
    "agent": (str,),
    "conversation": (str,),
    "history": (str, Sequence),
    "inputs": (Mapping,),
    "model": (str,),
    "limits": (Mapping,),
    "model_settings": (Mapping,),
    "base_path": (str, PathLike),
    "locale": (str,),
    "user": (str,),
    "tenant": (str,),
    "metadata": (Mapping,),
    "output_type": (type,),
}
"""Types accepted for each option, in addition to None."""


def check_request(message: object, given: Mapping[str, Any]) -> tuple[str, RunOptions]:
    """Check a caller's message and options, and return them. Without a message, the last entry of `history` is used.

    Raises:
        RequestError: an option is unknown or has the wrong type, or there is no message.
    """
    for name, value in given.items():
        if name not in _TYPES:
            raise RequestError(f"unknown option {name!r}{_suggestion(name)}")
        if value is not None:
            require_type(name, value, *_TYPES[name])
    options = cast(RunOptions, {name: value for name, value in given.items() if value is not None})
    _check_output_type(options.get("output_type"))
    _check_ids(options)
    if "history" in options:
        options["history"] = _message_list(options["history"])
    if message is None and options.get("history"):
        *earlier, last = cast("list[object]", options["history"])
        return _user_text(last), cast(RunOptions, {**options, "history": earlier})
    if message is None:
        raise RequestError("no message: pass one, or a history that ends with a user message")
    if isinstance(message, list | tuple):
        raise RequestError(f"message: expected str, got {type(message).__name__}; pass messages as history=[…]")
    require_type("message", message, str)
    return cast(str, message), options


def require_type(name: str, value: object, *types: type) -> None:
    """Raise RequestError unless the value has one of the types. The error names the value's type, not the value."""
    if not isinstance(value, types):
        expected = " or ".join(one.__name__ for one in types)
        raise RequestError(f"{name}: expected {expected}, got {type(value).__name__}")


def _suggestion(name: str) -> str:
    """Return a did-you-mean text for an unknown option, or an empty string."""
    for option, model in (("limits", Limits), ("model_settings", ModelSettings)):
        if name in model.model_fields:
            return f"; did you mean {option}={{{name!r}: …}}?"
    return did_you_mean(name, list(_TYPES))


def _check_output_type(output_type: object) -> None:
    if output_type is not None and not (isinstance(output_type, type) and issubclass(output_type, BaseModel)):
        raise RequestError(f"output_type: expected a Pydantic model class, got {output_type!r}")


def _check_ids(options: RunOptions) -> None:
    """Raise RequestError for ids that stores do not accept."""
    given = {"conversation": options.get("conversation"), "user": options.get("user"), "tenant": options.get("tenant")}
    for name, value in given.items():
        if value is not None and not (value.isprintable() and len(value) <= _MAX_ID_CHARS):
            raise RequestError(f"{name}: expected at most {_MAX_ID_CHARS} printable characters")


def _message_list(history: Sequence[Message | Mapping[str, Any]] | str | None) -> list[Any]:
    """Return a history as a list of messages. Their format is not checked here, except that content must be text."""
    try:
        given = read_json(history) if isinstance(history, str) else list(history or ())
    except ValueError as error:
        raise RequestError(f"history: invalid JSON: {error}") from None
    if isinstance(given, Mapping):
        given = given.get("messages")
    if not isinstance(given, list):
        raise RequestError("history: expected a list of messages, or an object with 'messages'")
    for number, message in enumerate(given, 1):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list) and any(not isinstance(p, Mapping) or p.get("type") != "text" for p in content):
            raise RequestError(f"history: message {number} has content other than text, which is not supported")
    return given


def _user_text(message: object) -> str:
    """Return the text of a user's message; raises RequestError for any other message."""
    if isinstance(message, Message):
        message = {"role": message.role, "content": message.content}
    if not isinstance(message, Mapping) or message.get("role") != "user":
        raise RequestError("history: without a message, the last entry must be a user message")
    return content_text(message.get("content"))
