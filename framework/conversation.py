"""Long conversations: which turns a model still sees, and how older ones are summarized."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from framework.types.messages import Message, Summary, ToolCall
from framework.types.text import one_line


def last_messages(messages: Sequence[Message], window: int) -> list[Message]:
    """Return at most `window` messages from the end, start with a user's, so that no call loses its result.

    Of a turn that is longer than the window, its user's message and the last rounds remain.
    """
    start = max(0, len(messages) - window)
    first_user = next((at for at in range(start, len(messages)) if messages[at].role == "user"), None)
    if first_user is not None:
        return list(messages[first_user:])
    turn_start = next((at for at in range(start - 1, -1, -1) if messages[at].role == "user"), None)
    if turn_start is None:
        return []
    rounds = next((at for at in range(start + 1, len(messages)) if messages[at].role != "tool"), len(messages))
    return [messages[turn_start], *messages[rounds:]]


_MAX_EVENT_CHARS = 300
"""Limit of a failure or a denial, and of the arguments of its call."""
_MAX_MESSAGE_CHARS = 2000
"""Characters of a user's message that are searched for facts; longer ones are usually pasted text."""
_MAX_FACT_CHARS = 80
_EDGES = ".,;:!?()[]{}<>\"'`“”‘’「」『』，。；：！？（）、"
_IDENTIFIER = re.compile(r"\d|[^\s/\\]+[/\\][^\s]|[^\s@]@[^\s@]|\w\.\w|\w_\w")
"""A number or date, a path, an e-mail address, a file name or host, or a name with underscores."""
_WIDE = re.compile(r"([\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]+)")


def summarized_count(messages: Sequence[Message], keep: int, size: Callable[[Message], int]) -> int:
    """Return how many messages, from the first on, to replace with a summary.

    The messages after them start with a user's message.

    Args:
        messages: the turns of a conversation.
        keep: maximum total size of the messages that remain.
        size: returns the size of a message, such as its tokens.
    """
    remaining, start = keep, len(messages)
    for position in range(len(messages) - 1, -1, -1):
        remaining -= size(messages[position])
        if remaining < 0:
            break
        if messages[position].role == "user":
            start = position
    return start


def extend_summary(previous: Summary | None, messages: Sequence[Message], text: str) -> Summary:
    """Return the summary of everything in a previous summary and of the messages after it.

    Args:
        previous: the summary so far.
        messages: complete turns that follow it.
        text: the model's summary of both.
    """
    events = (*(previous.events if previous else ()), *events_of(messages))
    facts = [*(previous.facts if previous else ()), *_facts(previous.text if previous else ""), *facts_of(messages)]
    mentioned = {*_facts(text)}
    return Summary(
        upto=(previous.upto if previous else 0) + len(messages),
        text=text,
        events=tuple(dict.fromkeys(events)),
        facts=tuple(fact for fact in dict.fromkeys(facts) if fact not in mentioned),
    )


def events_of(messages: Iterable[Message]) -> Iterator[str]:
    """Yield one line for each failure, denial and decision, in order."""
    calls: dict[str, ToolCall] = {}
    for message in messages:
        calls |= {call.id: call for call in message.tool_calls}
        if message.role == "tool" and (message.decision or message.status not in (None, "success")):
            yield _event(calls.get(message.tool_call_id or ""), message)


def facts_of(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the identifiers in users' messages: numbers, dates, paths, addresses, names with underscores, files."""
    for message in messages:
        if message.role == "user":
            yield from _facts(message.content[:_MAX_MESSAGE_CHARS])
            yield from (part.description for part in message.media)


def _facts(text: str) -> Iterator[str]:
    for word in _WIDE.sub(" ", text).split():
        fact = word.strip(_EDGES)[:_MAX_FACT_CHARS]
        if _IDENTIFIER.search(fact):
            yield fact


def _event(call: ToolCall | None, message: Message) -> str:
    request = "a call"
    if call:
        request = f"{call.tool} {one_line(json.dumps(call.arguments, ensure_ascii=False), _MAX_EVENT_CHARS)}"
    decision = f"; a human said {one_line(message.decision, _MAX_EVENT_CHARS)}" if message.decision else ""
    return f"{request}: {message.status or 'answered'}: {one_line(message.content, _MAX_EVENT_CHARS)}{decision}"
