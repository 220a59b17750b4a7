"""Where runs and conversations are kept: the protocol of a store, and what goes through it.

A run is written by one process at a time: whoever holds its `RunRecord`. Records are had by beginning a run or by
taking over one that nobody holds; every write through a record that was taken over meanwhile is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from framework.types.events import Event
from framework.types.messages import Message
from framework.types.state import Decision, RunState
from framework.types.status import Status
from framework.types.trace import SpanRecord
from framework.types.transcript import Summary


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far, and by which agent last."""

    id: str
    messages: tuple[Message, ...] = ()
    """Of the turns that ended well: what the next run is told of."""
    agent: str | None = None
    """Who answered last."""
    open_run: str | None = None
    """A run that goes on, or waits for a human."""
    session: Mapping[str, Any] = field(default_factory=dict)
    """What tools keep from turn to turn."""
    turns: int = 0
    """How many runs were begun in it; none: it is new."""
    user: str | None = None
    tenant: str | None = None
    """Whose it is: that of its first run."""
    summary: Summary | None = None
    """What stands for its beginning where a model is told of it."""


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """A conversation as lists show it."""

    id: str
    agent: str | None
    turns: int
    created_at: float
    """Seconds since 1970; so are the other times."""
    updated_at: float
    expires_at: float | None = None
    """When it is not kept any more; none: it is kept for ever."""
    open_run: str | None = None
    user: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationQuery:
    """Which conversations a list is to show, those with the latest turn first; what is left out does not matter."""

    agent: str | None = None
    user: str | None = None
    tenant: str | None = None
    before: float | None = None
    """Only those whose latest turn is older than this: for the next page."""
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """How much was deleted."""

    runs: int = 0
    conversations: int = 0
    freed_bytes: int = field(default=0, compare=False)
    """By how much the store's file has shrunk, where it is a file."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The files an agent is made of, kept so that its runs can go on when the project's are others."""

    digest: str
    """Of all the files."""
    files: Mapping[str, str]
    """Agent files and templates by their path below the root; the agent's own and those of its sub-agents."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as lists show it."""

    run_id: str
    status: Status
    finish_reason: str
    agent: str
    generation: int
    digest: str
    message: str
    """The beginning of what the user wrote."""
    created_at: float
    """Seconds since 1970; so are the other times."""
    updated_at: float
    conversation_id: str | None = None
    turn: int = 0
    """Its number in the conversation."""
    user: str | None = None
    tenant: str | None = None
    trace_id: str | None = None
    steps: int = 0
    tokens: int = 0
    expires_at: float | None = None
    """When the first of the questions it waits with expires."""
    held: bool = False
    """A process works on it."""
    attempts: int = 0
    """How often it was taken over since a step of it was last put on record."""

    @property
    def orphaned(self) -> bool:
        """It was under way when its process ended, and nobody has taken it over."""
        return self.status == "running" and not self.held


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs a list is to show; what is left out does not matter."""

    statuses: Collection[Status] = ()
    conversation_id: str | None = None
    agent: str | None = None
    user: str | None = None
    tenant: str | None = None
    orphaned: bool = False
    """Only those that nobody works on although they have not ended."""
    expired_at: float | None = None
    """Only those that wait with a question that has expired by then."""
    newest_first: bool = False
    limit: int | None = None


class RunRecord(Protocol):
    """A run that this process holds. One write at a time; what each of them gets is written whole or not at all."""

    cancel_requested: bool
    """Somebody wants the run to end, as of the last write, or since before it was taken over."""

    async def write(
        self, state: RunState, events: Sequence[Event] = (), spans: Sequence[SpanRecord] = (), *, last: bool = False
    ) -> None:
        """Put on record what has changed, and events with it.

        Args:
            state: the run as it is now; read before anything is waited for.
            events: since the last write; their numbers go on from there.
            spans: of its trace, that have ended since the last write that had some.
            last: the run has ended, or waits for a human: it is let go, and so is its conversation once it has ended.

        Raises:
            RunTaken: another process has taken the run over; nothing was written.
            StoreError: it could not be written.
        """
        ...

    async def release(self) -> None:
        """Let a run go that has not ended, as it was last written: whoever wants to may take it over."""
        ...


class NullRecord:
    """Of what nothing is kept."""

    cancel_requested = False

    async def write(
        self, state: RunState, events: Sequence[Event] = (), spans: Sequence[SpanRecord] = (), *, last: bool = False
    ) -> None:
        """Nothing."""

    async def release(self) -> None:
        """Nothing."""


class Store(Protocol):
    """Keeps runs and conversations. Every method raises StoreError when it cannot do its work."""

    durable: bool
    """What is kept outlasts the process, so each step has to be written. Otherwise records keep the state itself."""
    files: tuple[Path, ...]
    """Absolute paths of the files that it keeps its data in: tools neither read nor write them."""
    keeps_spans: bool
    """Traces are kept, too: without that, and without a TracerProvider, there is nothing to record."""

    async def begin(self, state: RunState, conversation: Conversation | None, blueprint: Blueprint | None) -> RunRecord:
        """Put a new run on record, with the user's message, before anything is done.

        Args:
            state: its first state.
            conversation: as it was loaded; the run becomes its next turn.
            blueprint: what its agent is made of; only durable stores need it.

        Raises:
            ConversationBusy: another run of the conversation goes on or waits, or was faster.
        """
        ...

    async def take(self, state: RunState, decisions: Mapping[str, Decision], by: str | None = None) -> RunRecord:
        """Take over a run that waits or was left behind, exactly as it was loaded, with what a human decided.

        Args:
            state: as `load_run` gave it.
            decisions: by confirmation; each may be decided once.
            by: who decided.

        Returns:
            Its record; one with `cancel_requested` is to be ended, not gone on with.

        Raises:
            RunBusy: somebody else works on it, or was faster.
        """
        ...

    async def load_run(self, run_id: str) -> RunState:
        """A run as it was last written; raises RunNotFound."""
        ...

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """All runs, or some; oldest first unless said otherwise."""
        ...

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """What a run has told since event number `after`, in the form of the wire; raises RunNotFound."""
        ...

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """The run's trace as far as it was kept, by when the spans began; raises RunNotFound."""
        ...

    async def request_cancel(self, run_id: str) -> bool:
        """Ask whoever holds a run to end it; says whether anybody does. Raises RunNotFound."""
        ...

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Renew the leases of this store's runs.

        Returns:
            By run id, whether a cancel request is on record. Contains only runs that this store still holds. A missing
            id means no more than that: the run has paused or ended, or another process has taken it over.
        """
        ...

    async def blueprint(self, digest: str) -> Blueprint | None:
        """What was kept of an agent, if it was."""
        ...

    async def conversation(self, conversation_id: str) -> Conversation:
        """A conversation; an unknown id is a new, empty one, and so is one that has expired."""
        ...

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """All conversations, or some."""
        ...

    async def replace_session(self, conversation: Conversation) -> None:
        """Keep a conversation's session values, exactly as it was loaded otherwise.

        Raises:
            ConversationBusy: a run of it is open, or began since it was loaded.
        """
        ...

    async def delete_conversation(self, conversation_id: str) -> int:
        """Delete a conversation with all its runs, and whatever is on record of them; says how many runs it had.

        Raises:
            RequestError: there is none.
            ConversationBusy: a run of it goes on.
        """
        ...

    async def prune(self, before: float | None, now: float, *, dry_run: bool = False) -> Pruned:
        """Delete what has been kept for long enough.

        Args:
            before: runs that ended before this, and what was told of them; of those that are turns of a conversation
                that is kept, the messages stay. None: no runs.
            now: conversations that have expired by then.
            dry_run: only say how much it would be.
        """
        ...

    async def close(self) -> None:
        """Give back what the store has open."""
        ...
