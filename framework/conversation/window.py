"""Which part of a conversation the model gets to see: pure functions over messages."""

from __future__ import annotations

from collections.abc import Sequence

from framework.types.messages import Message


def last_messages(messages: Sequence[Message], window: int) -> list[Message]:
    """At most `window` messages from the end, beginning with a user's: a call is never split from its answer.

    Of a turn that is longer than the window, its user's message and the last rounds are left.
    """
    start = max(0, len(messages) - window)
    first = next((place for place in range(start, len(messages)) if messages[place].role == "user"), None)
    if first is not None:
        return list(messages[first:])
    said = next((place for place in range(start - 1, -1, -1) if messages[place].role == "user"), None)
    if said is None:
        return []
    rest = next((place for place in range(start + 1, len(messages)) if messages[place].role != "tool"), len(messages))
    return [messages[said], *messages[rest:]]
