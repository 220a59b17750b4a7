"""The beginning of a long conversation as a summary: pure functions over messages.

A model writes the summary's text, and may leave anything out. What must not get lost is therefore not left to it:
failures, denials and decisions are taken over word for word, and so is what identifies the things that the user spoke
of, where the text does not name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from framework.types.messages import Message, ToolCall
from framework.types.text import one_line
from framework.types.transcript import Summary

_MAX_EVENT_CHARS = 300
"""Of a failure or a denial, and of the arguments that led to it."""
_MAX_MESSAGE_CHARS = 2000
"""Of a user's message: what is longer is not said but pasted, and only its beginning counts."""
_MAX_FACT_CHARS = 80
_EDGES = ".,;:!?()[]{}<>\"'`“”‘’「」『』，。；：！？（）、"
_NAMING = re.compile(r"\d|[^\s/\\]+[/\\][^\s]|[^\s@]@[^\s@]|\w\.\w|\w_\w")
"""A number or date, a path, an address, a file name or host, an identifier."""
_WIDE = re.compile(r"([\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]+)")


def summarized_count(messages: Sequence[Message], keep: int, size: Callable[[Message], int]) -> int:
    """How many messages from the first on a summary is to stand for.

    Args:
        messages: a conversation's turns.
        keep: what comes after them is at most so large, and begins with a user's message.
        size: of one message.
    """
    left, start = keep, len(messages)
    for place in range(len(messages) - 1, -1, -1):
        left -= size(messages[place])
        if left < 0:
            break
        if messages[place].role == "user":
            start = place
    return start


def extend_summary(before: Summary | None, gone: Sequence[Message], text: str) -> Summary:
    """The summary of what another one stood for and of the messages after it.

    Args:
        before: the summary so far.
        gone: the messages that come after what it stands for, whole turns.
        text: what a model made of both.
    """
    events = (*(before.events if before else ()), *events_of(gone))
    facts = [*(before.facts if before else ()), *_facts(before.text if before else ""), *facts_of(gone)]
    named = {*_facts(text)}
    return Summary(
        upto=(before.upto if before else 0) + len(gone),
        text=text,
        events=tuple(dict.fromkeys(events)),
        facts=tuple(fact for fact in dict.fromkeys(facts) if fact not in named),
    )


def events_of(messages: Iterable[Message]) -> Iterator[str]:
    """Failures, denials and decisions, a line each, in order."""
    calls: dict[str, ToolCall] = {}
    for message in messages:
        calls |= {call.id: call for call in message.tool_calls}
        if message.role == "tool" and (message.decision or message.status not in (None, "success")):
            yield _event(calls.get(message.tool_call_id or ""), message)


def facts_of(messages: Iterable[Message]) -> Iterator[str]:
    """What identifies the things that users spoke of: numbers, dates, paths, addresses, identifiers."""
    for message in messages:
        if message.role == "user":
            yield from _facts(message.content[:_MAX_MESSAGE_CHARS])


def _facts(text: str) -> Iterator[str]:
    for word in _WIDE.sub(" ", text).split():
        fact = word.strip(_EDGES)[:_MAX_FACT_CHARS]
        if _NAMING.search(fact):
            yield fact


def _event(call: ToolCall | None, message: Message) -> str:
    asked = (
        f"{call.tool} {one_line(json.dumps(call.arguments, ensure_ascii=False), _MAX_EVENT_CHARS)}"
        if call
        else "a call"
    )
    decided = f"; a human said {one_line(message.decision, _MAX_EVENT_CHARS)}" if message.decision else ""
    return f"{asked}: {message.status or 'answered'}: {one_line(message.content, _MAX_EVENT_CHARS)}{decided}"
