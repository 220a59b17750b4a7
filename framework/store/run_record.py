"""Exclusive write access to one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from framework.types.budget import BudgetUse
from framework.types.events import Event
from framework.types.state import RunState
from framework.types.trace import SpanRecord


class CancelAccepted(Exception):
    """The last write of a run was not done, because a cancel request was accepted: the run has to end as cancelled.

    The record is as before. The next write contains what this one did.
    """


class RunRecord(Protocol):
    """A run that this process holds. Writes are sequential, and each one is atomic."""

    cancel_requested: bool
    """Whether a cancel request was in the store at the last write, or when the run was taken over."""

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Save what has changed, together with new events and spans.

        Args:
            state: the current state; read before the first await.
            events: events since the last write, numbered consecutively.
            spans: spans that ended since the last write with spans.
            last: the run has ended or pauses. Its lease is released; once it has ended, its conversation is free too.
            uses: added to the counters of shared budgets, atomically with the rest.

        Raises:
            RunTaken: another process has taken over the run; nothing was written.
            CancelAccepted: it is the last write of a run that was completed or stopped, and a cancel request is in the
                store; nothing was written.
            StoreError: the write failed.
        """
        ...

    async def release(self) -> None:
        """Release a run that has not ended, in its last saved state. Any process may take it over."""
        ...
