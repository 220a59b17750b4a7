"""Puts a conversation into the order and form that the receiver's chat template accepts.

Chat templates differ: many accept a system message at the beginning only, some want user and assistant to alternate,
one tool call a message, or call ids of nine letters and digits. A profile (`Capabilities`) says what is known of a
model; what is unknown is taken as forbidden, because every template accepts the strictest form.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from operator import is_

from framework.llm.capabilities import Capabilities
from framework.types.media import TextPart
from framework.types.messages import Message

NOTICE_TAG = "runtime_notice"
"""Encloses text of the runtime within a user or tool message."""
_NOTICE = re.compile(rf"<(?=\s*/?\s*{NOTICE_TAG}\b)", re.IGNORECASE)
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_SHORT_ID_LENGTH = 9
_UNANSWERED = "(no answer)"


def marked_notice(text: str) -> str:
    """Return the text of the runtime, marked as such, for a message that users or tools wrote."""
    return f"<{NOTICE_TAG}>\n{escape_notices(text).strip()}\n</{NOTICE_TAG}>"


def escape_notices(text: str) -> str:
    """Return the text of a user or a tool, in which nothing passes for a notice of the runtime."""
    return _NOTICE.sub("&lt;", text)


def mark_notices(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with its late system messages marked: for APIs that accept them as texts of the user."""
    leading = leading_instructions(messages)
    return [*messages[:leading], *map(_marked, messages[leading:])]


def leading_instructions(messages: Sequence[Message]) -> int:
    """Return how many system messages a conversation begins with."""
    return next((position for position, message in enumerate(messages) if message.role != "system"), len(messages))


def _marked(message: Message) -> Message:
    if message.role == "system":
        return message.model_copy(update={"content": marked_notice(message.content)})
    return message if message.role == "assistant" else _escaped(message)


def short_call_id(call_id: str) -> str:
    """Return an id of nine letters and digits, the same for the same id."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    digest = sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    return b64encode(digest, altchars=b"ab")[:_SHORT_ID_LENGTH].decode()


class ConversationShape:
    """The form of one run's conversation for one model. Turns that did not change keep their message objects."""

    def __init__(self) -> None:
        self._complete: list[Message] = []
        """The conversation as it was given last, without its last turn, which may grow."""
        self._form: list[Message] = []
        """The form of that part."""
        self._last: tuple[Sequence[Message], Sequence[Message]] = (), ()
        """The last turn, and its form."""

    def shaped(self, messages: Sequence[Message], accepted: Capabilities) -> Sequence[Message]:
        """Return the conversation in a form that the model accepts, without dropping any text.

        Args:
            messages: the conversation: an optional system message, then turns of user, assistant and tools, and
                texts of the runtime as later system messages. Messages are compared by identity.
            accepted: what the model accepts.
        """
        if _accepts_all(accepted):
            return messages
        rest = messages[len(self._complete) :]
        if not _begins_with(messages, self._complete) or (self._complete and rest and rest[0].role != "assistant"):
            self._complete, self._form, rest = [], [], messages
        turns = [(turn, self._shaped_turn(turn, accepted)) for turn in _split_turns(rest)]
        for turn, form in turns[:-1]:
            self._complete += turn
            self._form += form
        self._last = turns[-1] if turns else ((), ())
        return [*self._form, *self._last[1]]

    def _shaped_turn(self, turn: Sequence[Message], accepted: Capabilities) -> Sequence[Message]:
        known, form = self._last
        is_known = len(known) == len(turn) and _begins_with(turn, known)
        return form if is_known else _shaped_turn(turn, accepted)


def _begins_with(messages: Sequence[Message], beginning: Sequence[Message]) -> bool:
    return len(beginning) <= len(messages) and all(map(is_, beginning, messages))


def _accepts_all(accepted: Capabilities) -> bool:
    return bool(
        accepted.late_system and accepted.parallel_calls and accepted.repeated_roles and accepted.call_ids == "any"
    )


def _split_turns(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the beginning up to the first assistant message, then each assistant message with what follows it."""
    first = 0
    for position in range(1, len(messages)):
        if messages[position].role == "assistant" and messages[position - 1].role != "assistant":
            yield messages[first:position]
            first = position
    if messages:
        yield messages[first:]


def _shaped_turn(turn: Sequence[Message], accepted: Capabilities) -> Sequence[Message]:
    if not accepted.late_system:
        turn = list(_with_marked_notices(turn))
    if not accepted.parallel_calls:
        turn = list(_one_call_a_message(turn))
    if not accepted.repeated_roles:
        turn = list(_alternating(turn))
    if accepted.call_ids != "any":
        turn = [_with_short_ids(message) for message in turn]
    return turn


def _with_marked_notices(turn: Sequence[Message]) -> Iterator[Message]:
    """Yield one system message at the beginning; later ones become part of the message before them."""
    leading = leading_instructions(turn)
    if leading == 1:
        yield turn[0]
    elif leading:
        yield Message(role="system", content="\n\n".join(message.content for message in turn[:leading]))
    last: Message | None = None
    for message in turn[leading:]:
        if message.role != "system":
            if last is not None:
                yield last
            last = message if message.role == "assistant" else _escaped(message)
        elif last is None or last.role == "assistant":
            if last is not None:
                yield last
            last = Message(role="user", content=marked_notice(message.content))
        else:
            last = _with_text(last, marked_notice(message.content))
    if last is not None:
        yield last


def _escaped(message: Message) -> Message:
    if not _NOTICE.search(message.content):
        return message
    parts = tuple(
        part.model_copy(update={"text": escape_notices(part.text)}) if isinstance(part, TextPart) else part
        for part in message.parts
    )
    return message.model_copy(update={"content": escape_notices(message.content), "parts": parts})


def _with_text(message: Message, text: str) -> Message:
    """Return a message with a text at its end."""
    content = "\n\n".join(part for part in (message.content, text) if part)
    parts = (*message.parts, TextPart(text=text)) if message.parts else ()
    return message.model_copy(update={"content": content, "parts": parts})


def _one_call_a_message(turn: Sequence[Message]) -> Iterator[Message]:
    """Yield a message for each call of a turn, followed by its result."""
    results: Mapping[str | None, Message] = {m.tool_call_id: m for m in turn if m.role == "tool"}
    answered = sum(message.role == "tool" for message in turn)
    calls = [call for message in turn for call in message.tool_calls]
    can_split = len(calls) > 1 and [call.id for call in calls if call.id in results] == [call.id for call in calls]
    if not can_split or answered != len(calls) or len(results) != answered:
        yield from turn
        return
    last_result = max(position for position, message in enumerate(turn) if message.role == "tool")
    for position, message in enumerate(turn):
        if message.role == "tool" and position <= last_result:
            continue
        if not message.tool_calls:
            yield message
        for number, call in enumerate(message.tool_calls):
            kept = {} if number == 0 else {"content": "", "reasoning": None}
            yield message.model_copy(update={"tool_calls": (call,), **kept})
            yield results[call.id]


def _alternating(turn: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with adjacent ones of one role merged.

    Between results that the model has not answered and the user's next message goes an answer that says so.
    """
    last: Message | None = None
    for message in turn:
        if last is None:
            last = message
        elif message.role == last.role == "user":
            last = _merged(last, message)
        elif message.role == last.role == "assistant" and not last.tool_calls:
            content = "\n\n".join(text for text in (last.content, message.content) if text)
            last = message.model_copy(update={"content": content})
        else:
            yield last
            if message.role == "user" and last.role == "tool":
                yield Message(role="assistant", content=_UNANSWERED)
            last = message
    if last is not None:
        yield last


def _merged(first: Message, second: Message) -> Message:
    """Return two messages of the user as one."""
    if not second.parts:
        return _with_text(first, second.content)
    return Message.of_parts("user", (*(first.parts or (TextPart(text=first.content),)), *second.parts))


def _with_short_ids(message: Message) -> Message:
    if message.tool_call_id:
        return message.model_copy(update={"tool_call_id": short_call_id(message.tool_call_id)})
    if not message.tool_calls:
        return message
    calls = [call.model_copy(update={"id": short_call_id(call.id)}) for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": tuple(calls)})
