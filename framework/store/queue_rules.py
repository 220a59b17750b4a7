"""Rules of the queue that every store applies: limits, idempotency, and their errors."""

from __future__ import annotations

from framework.store.protocol import Conversation
from framework.types.errors import ConversationBusy, IdempotencyConflict, QueueFull
from framework.types.run_request import IdempotencyKey, RunRequest

MAX_WAITING_RUNS = 20
"""Maximum number of runs of one conversation that wait in the queue."""
IDEMPOTENCY_SECONDS = 24 * 3600.0
"""How long an idempotency key is valid after its request was saved."""


def check_queue(request: RunRequest, open_run: str | None, waiting: int) -> None:
    """Check whether a request may wait in the queue of its conversation.

    Args:
        request: the request.
        open_run: the open run of the conversation, if any.
        waiting: number of runs of the conversation that wait.

    Raises:
        ConversationBusy: the request would have to wait, and `queue` is not set.
        QueueFull: too many runs wait.
    """
    if not request.queue and (open_run or waiting):
        reason = f"run {open_run} is open" if open_run else f"{waiting} of its runs wait"
        advice = "set `queue`, and the message waits for its turn"
        raise ConversationBusy(
            f"conversation {request.conversation_id!r} is busy: {reason}; {advice}", run_id=open_run or ""
        )
    if waiting >= MAX_WAITING_RUNS:
        raise QueueFull(
            f"conversation {request.conversation_id!r} has {waiting} waiting runs, the maximum: wait for one to begin"
        )


def check_same_request(idempotency: IdempotencyKey, digest: str) -> None:
    """Raise IdempotencyConflict unless the stored request with this key has the same digest."""
    if idempotency.digest != digest:
        raise IdempotencyConflict(
            "the idempotency key was used for a different request in the last 24 hours: use a new key for a new request"
        )


def exists_already(conversation: Conversation) -> ConversationBusy:
    """Return the error of a fork whose id another conversation of its owner has."""
    return ConversationBusy(f"conversation {conversation.id!r} exists already: choose another id for the fork")


def overtaken(conversation: Conversation) -> ConversationBusy:
    """Return the error of a run whose conversation has changed since it was loaded."""
    return ConversationBusy(f"conversation {conversation.id!r} is busy: another run of it began first or waits")
