"""Signals between the processes of a store: hints to look at it now, and texts in progress.

A signal may be lost or come twice, so nothing depends on one: the store has the truth, and is read after each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

SignalKind = Literal["events", "cancel", "ready", "listen", "deltas"]
FOLLOWED_SECONDS = 5.0
"""How long a run counts as followed after a `listen`. Followers repeat it more often."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal. It reaches every process that listens, also the one that sent it."""

    kind: SignalKind
    """`events`: the run has new events in the store. `cancel`: cancellation of the run was requested. `ready`: queued
    runs can begin. `listen`: a process follows the run. `deltas`: a piece of a text that a model is writing."""
    run_id: str = ""
    seq: int = 0
    """Number of the last event."""
    body: str = ""
    """With `deltas`: the piece, as JSON. With `listen`: `NEW` until the process that executes the run has answered."""


MISSED = Signal("events")
"""Signals of any kind may have been missed: look at the store."""
NEW = "new"
SignalCallback = Callable[[Signal], object]
"""Receives a signal in the event loop. It returns at once."""


class Signals(Protocol):
    """The part of a store that connects its processes."""

    @property
    def hears(self) -> bool:
        """Whether signals of other processes arrive. If not, look at the store from time to time."""
        ...

    async def listen(self, callback: SignalCallback) -> Callable[[], None]:
        """Pass signals to a callback until the returned function is called.

        The first call opens the connection that receives them. `MISSED` comes whenever signals begin to arrive, at
        first or again.
        """
        ...

    def is_followed(self, run_id: str) -> bool:
        """Return whether another process may follow the run now, so that its events are worth a signal."""
        ...

    async def signal(self, *signals: Signal) -> None:
        """Send signals; raises StoreError. Those that are too large are left out."""
        ...
