"""Which part of a conversation the model gets to see: pure functions over messages."""

from __future__ import annotations

from collections.abc import Sequence

from framework.types.messages import Message


def last_messages(messages: Sequence[Message], window: int) -> list[Message]:
    """At most `window` messages from the end, starting at a user's turn: a call is never split from its result."""
    start = max(0, len(messages) - window)
    while start < len(messages) and messages[start].role != "user":
        start += 1
    return list(messages[start:])
