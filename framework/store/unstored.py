"""The record of a run that is not stored."""

from __future__ import annotations

from collections.abc import Sequence

from framework.store.protocol import Store
from framework.types.budget import BudgetUse
from framework.types.events import Event
from framework.types.state import RunState
from framework.types.trace import SpanRecord


class UnstoredRecord:
    """Record of a run that is not stored. Only its use of shared budgets is."""

    cancel_requested = False

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(
        self,
        state: RunState,  # noqa: ARG002 - the protocol's
        events: Sequence[Event] = (),  # noqa: ARG002 - the protocol's
        spans: Sequence[SpanRecord] = (),  # noqa: ARG002 - the protocol's
        *,
        last: bool = False,  # noqa: ARG002 - the protocol's
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Count the use of shared budgets."""
        if uses:
            await self._store.count_use(uses)

    async def release(self) -> None:
        """Do nothing."""
