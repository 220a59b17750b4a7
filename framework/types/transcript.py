"""Checks that a list of messages is a conversation that every model accepts, and summaries of long conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framework.types.frozen import Frozen
from framework.types.messages import Message, ToolCall

MAX_MESSAGE_CHARS = 1_000_000
"""Maximum length of one incoming message. No model accepts more, and stores should not have to store it."""


class Summary(Frozen):
    """A summary that replaces the beginning of a long conversation."""

    upto: int
    """Number of messages that the summary replaces, counted from the first."""
    text: str
    """Summary written by the model."""
    events: tuple[str, ...] = ()
    """Failures, denials and decisions of people, verbatim, one per line, so that no model can omit them."""
    facts: tuple[str, ...] = ()
    """Numbers, dates, file names and the like that the user wrote and `text` omits."""


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
