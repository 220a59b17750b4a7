"""Earlier messages as the caller passes them: in agentsd's format or in OpenAI's, with files in base64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.types.errors import RequestError
from framework.types.messages import Message, ToolDefinition
from framework.types.strict_json import read_json

if TYPE_CHECKING:
    from framework.llm.message_formats import Form

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
