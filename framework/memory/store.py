"""Where runs and conversations are kept. In memory here; the protocol is what a database implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from framework.types.errors import RunNotFound
from framework.types.messages import Message
from framework.types.state import RunState


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far, and by which agent last."""

    id: str
    messages: tuple[Message, ...] = ()
    agent: str | None = None
    open_run: str | None = None
    """A run that goes on, or waits for a human."""
    session: Mapping[str, Any] = field(default_factory=dict)
    """What tools keep from turn to turn."""

    def opened_by(self, run_id: str) -> Conversation:
        """The conversation while a run goes on in it."""
        return replace(self, open_run=run_id)


class Store(Protocol):
    """Keeps RunStates and conversations. Raises StoreError when it cannot."""

    async def save_run(self, state: RunState) -> None:
        """Keep a root run's state as it is now."""
        ...

    async def load_run(self, run_id: str) -> RunState:
        """Give a state back; raises RunNotFound."""
        ...

    async def runs(self) -> Sequence[RunState]:
        """All runs, oldest first."""
        ...

    async def conversation(self, conversation_id: str) -> Conversation:
        """A conversation; an unknown id is a new, empty one."""
        ...

    async def save_conversation(self, conversation: Conversation) -> None:
        """Keep a conversation as it is now."""
        ...


class MemoryStore:
    """Keeps everything in this process, until it ends. Finished runs are forgotten past `keep_runs`, oldest first."""

    def __init__(self, keep_runs: int = 1000) -> None:
        self._runs: dict[str, RunState] = {}
        self._conversations: dict[str, Conversation] = {}
        self._keep_runs = keep_runs

    async def save_run(self, state: RunState) -> None:
        self._runs[state.run_id] = state
        if len(self._runs) > self._keep_runs:
            finished = (run for run, kept in self._runs.items() if kept.status not in ("running", "paused"))
            if oldest := next(finished, None):
                del self._runs[oldest]

    async def load_run(self, run_id: str) -> RunState:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunNotFound(f"there is no run {run_id!r}") from None

    async def runs(self) -> Sequence[RunState]:
        return tuple(self._runs.values())

    async def conversation(self, conversation_id: str) -> Conversation:
        return self._conversations.get(conversation_id, Conversation(conversation_id))

    async def save_conversation(self, conversation: Conversation) -> None:
        self._conversations[conversation.id] = conversation
