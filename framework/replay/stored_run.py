"""A stored run with everything that replaying or exporting it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.store.types import Blueprint, RunQuery
from framework.types.errors import RequestError
from framework.types.state import Rating, RunState

if TYPE_CHECKING:
    from framework.store.store import Store


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was loaded from a store, which is not needed any more."""

    state: RunState
    events: Sequence[Mapping[str, Any]]
    """Its events in wire format."""
    blueprint: Blueprint | None
    """The files that it ran on, if they are stored."""
    rating: Rating | None = None


async def load_stored_run(store: Store, state: RunState) -> StoredRun:
    """Load the events and files of a run.

    Raises:
        RequestError: the run has not started, or its calls were pruned.
    """
    if state.status == "queued":
        raise RequestError(f"run {state.run_id} is queued: it has not begun")
    events = await store.events(state.run_id)
    if not events and state.status not in ("running", "paused"):
        raise RequestError(f"only the messages of run {state.run_id} are left: its calls were pruned")
    blueprint = await store.blueprint(state.blueprint) if state.blueprint else None
    infos = await store.runs(RunQuery(run_id=state.run_id))
    return StoredRun(state, events, blueprint, infos[0].rating if infos else None)
