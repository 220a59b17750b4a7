"""What makes a list of messages a conversation that every model takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framework.types.frozen import Frozen
from framework.types.messages import Message, ToolCall

MAX_MESSAGE_CHARS = 1_000_000
"""Of one message that comes in: no model reads more, and a store should not have to keep it."""


class Summary(Frozen):
    """What stands for the beginning of a conversation that has grown long."""

    upto: int
    """It stands for so many of the conversation's messages, counted from the first."""
    text: str
    """What the model made of them."""
    events: tuple[str, ...] = ()
    """Failures, denials and what humans decided, word for word, a line each: no model can leave them out."""
    facts: tuple[str, ...] = ()
    """Numbers, dates, names of files and the like that the user wrote and `text` leaves out."""


def is_unicode(text: str) -> bool:
    """Is it text that can be stored and sent? Half a surrogate pair, which JSON can hold, is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def transcript_errors(messages: Sequence[Message]) -> Iterator[str]:
    """What is wrong with them: texts that are too long, calls without an answer, answers without a call."""
    open_calls: dict[str, ToolCall] = {}
    for number, message in enumerate(messages, 1):
        if not is_unicode(message.content):
            yield f"message {number} is not Unicode text: it holds half a character"
        if len(message.content) > MAX_MESSAGE_CHARS:
            size = f"{len(message.content)} characters; at most {MAX_MESSAGE_CHARS} are taken"
            yield f"message {number} has {size}"
        if message.role == "tool":
            if open_calls.pop(message.tool_call_id or "", None) is None:
                yield f"message {number} answers the call {message.tool_call_id!r}, which no message before it asks for"
        else:
            yield from _unanswered(open_calls, number - 1)
            open_calls = {call.id: call for call in message.tool_calls}
    yield from _unanswered(open_calls, len(messages))


def _unanswered(open_calls: dict[str, ToolCall], last: int) -> Iterator[str]:
    for call in open_calls.values():
        yield f"the call {call.id!r} of {call.tool} is not answered by message {last} or one before it"
