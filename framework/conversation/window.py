"""The part of a conversation that is sent to the model: pure functions over messages."""

from __future__ import annotations

from collections.abc import Sequence

from framework.types.messages import Message


def last_messages(messages: Sequence[Message], window: int) -> list[Message]:
    """Return at most `window` messages from the end, beginning with a user's, so that no call loses its result.

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
