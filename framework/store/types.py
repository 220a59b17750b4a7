"""What a store takes and returns: runs, conversations, their lists, queued work, signals, and the right to write."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from framework.types.budget import BudgetUse
from framework.types.errors import RequestError
from framework.types.events import Event
from framework.types.frozen import Frozen
from framework.types.messages import Message, Summary
from framework.types.report import SpanRecord, Status
from framework.types.spec import MemoryScope
from framework.types.state import Rating, RatingValue, RunState


@dataclass(frozen=True, slots=True)
class ConversationCursor:
    """The sort key of a conversation: lists contain the latest turn first."""

    updated_at: float
    id: str
    tenant: str | None
    user: str | None = None

    def encode(self) -> str:
        """Return the cursor as text for URLs."""
        return urlsafe_b64encode(json.dumps(astuple(self)).encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> ConversationCursor:
        """Return the cursor from its text; raises RequestError if it is not one."""
        try:
            match json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4))):
                case [float(updated_at), str(conversation_id), str() | None as tenant, str() | None as user]:
                    return cls(updated_at, conversation_id, tenant, user)
        except ValueError:  # not base64, or not JSON
            pass
        raise RequestError("cursor: not a cursor of this list; start again without it", param="cursor")


SEARCHED_CONVERSATIONS = 10_000
"""Number of conversations in which texts are looked up. It bounds the time: titles have no index."""


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """One conversation, as shown in lists."""

    id: str
    agent: str | None
    turns: int
    created_at: float
    """Unix time in seconds, like the other times."""
    updated_at: float
    expires_at: float | None = None
    """When it may be deleted; None: never."""
    open_run: str | None = None
    user: str | None = None
    tenant: str | None = None
    title: str = ""
    """The start of the user's message of its first stored run."""
    status: Status | None = None
    """Status of its last stored run; None if all were deleted."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""
    handed_to: str | None = None
    """The agent that answers the next message instead of `agent`, which has handed the conversation over."""

    @property
    def cursor(self) -> str:
        """Position in a list of conversations: pass it as `ConversationQuery.cursor` to get the next page."""
        return ConversationCursor(self.updated_at, self.id, self.tenant, self.user).encode()


@dataclass(frozen=True, slots=True)
class OwnerQuery:
    """Filter for the owner of what a list contains. Unset fields match everything."""

    user: str | None = None
    tenant: str | None = None
    without_tenant: bool = False
    """Only what has no tenant."""
    without_user: bool = False
    """Only what has no user."""


@dataclass(frozen=True, slots=True)
class ConversationQuery(OwnerQuery):
    """Filter for a list of conversations, sorted by latest turn first."""

    id: str | None = None
    """Several conversations may have this id, each of another tenant or user."""
    agent: str | None = None
    agents: Collection[str] | None = None
    """Only conversations that one of these agents answered last."""
    before: float | None = None
    """Only conversations whose latest turn is older than this Unix time."""
    search: str | None = None
    """Only conversations whose title, agent or id contains this, in any case of ASCII letters, among the latest
    `SEARCHED_CONVERSATIONS` that match the other filters; or with a run among the newest `SEARCHED_TEXTS` of the store
    in which any message of the user or the model contains it."""
    cursor: str | None = None
    """Only conversations after the one with this `ConversationInfo.cursor`. Used for paging."""
    limit: int | None = None


DEFAULT_LEASE_SECONDS = 6.0
"""How long the lease of a process lasts without renewal. After that, other processes may take over its runs."""


@dataclass(frozen=True, slots=True)
class OfferedRun:
    """A run that needs a process: it can start, it was interrupted, or a confirmation of it expired."""

    run_id: str
    queue: str | None
    """The named queue of the run; None: the workers of its agent execute it."""
    agent: str
    """Its agent; empty if none is chosen yet."""
    priority: int
    """Runs with a higher one start first."""


class Offers(Protocol):
    """Delivers offered runs to processes that can execute them."""

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Offer runs in the transaction that is open on the connection of the database's driver.

        Called in a thread of the store. If the transaction is rolled back, the runs are not offered.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkScope:
    """The runs that a process executes. With neither option it executes all."""

    agents: frozenset[str] | None = None
    """Runs of these agents that name no queue."""
    queues: frozenset[str] | None = None
    """Runs that name one of these queues, whatever their agent."""

    def includes(self, queue: str | None, agent: str) -> bool:
        """Return whether a run with this queue and agent is among them."""
        if self.agents is None and self.queues is None:
            return True
        return agent in (self.agents or ()) if queue is None else queue in (self.queues or ())


EVERYTHING = WorkScope()


RunLimits = Mapping[str, int]
"""Limits on the number of runs in progress, by key, such as `agent:support`."""
Allowed = Callable[[str], int | None]
"""Returns the limit with a key; None if there is none any more."""
UNLIMITED: RunLimits = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QueueSize:
    """The queue of a store at some moment."""

    waiting: int
    """Number of queued runs."""
    added: int
    """Number of runs that were ever added to the store, whether they were queued or started at once."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that uses a store. Its lease covers all the runs that it holds."""

    id: str
    name: str
    started_at: float
    """Unix time of the database's clock, like `seen_at`."""
    seen_at: float
    """When it last renewed its lease."""
    is_alive: bool
    holds: int
    """Number of runs that it holds, including queued ones that it has claimed."""
    info: Mapping[str, Any]
    """What the process reports about itself, as JSON data."""


SignalKind = Literal["events", "cancel", "ready", "listen", "deltas"]
FOLLOWED_SECONDS = 5.0
"""How long a run counts as followed after a `listen`. Followers repeat it more often."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal. It reaches every process that listens, also the one that sent it."""

    kind: SignalKind
    """`events`: the run has new events in the store. `cancel`: cancellation of the run was requested. `ready`: queued
    runs can start. `listen`: a process follows the run. `deltas`: a piece of a text that a model is writing."""
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


class UnstoredRecord:
    """Record of a run that is not stored. Only its use of shared budgets is."""

    cancel_requested = False

    def __init__(self, count_use: Callable[[Sequence[BudgetUse]], Awaitable[None]]) -> None:
        """Initialize. `count_use`: that of the store with the counters."""
        self._count_use = count_use

    async def write(
        self,
        state: RunState,  # noqa: ARG002 - as RunRecord
        events: Sequence[Event] = (),  # noqa: ARG002 - as RunRecord
        spans: Sequence[SpanRecord] = (),  # noqa: ARG002 - as RunRecord
        *,
        last: bool = False,  # noqa: ARG002 - as RunRecord
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Count the use of shared budgets."""
        if uses:
            await self._count_use(uses)

    async def release(self) -> None:
        """Do nothing."""


OPEN_STATUSES: tuple[Status, ...] = ("queued", "paused", "running")
ANSWERED_STATUSES: tuple[Status, ...] = ("completed", "stopped")
"""Statuses of runs whose messages become part of their conversation."""
PREVIEW_CHARS = 200
"""Length of the user's message in lists of runs."""
SEARCHED_RUNS = 20_000
"""Number of runs in which texts are looked up. It bounds the time: messages have no index."""
EMPTY_FORK_SECONDS = 24 * 60 * 60.0
"""How long a forked conversation without turns is kept until its first run starts."""
SEARCHED_TEXTS = 5_000
"""Number of newest runs whose whole messages and answers are searched."""
Deciders = Mapping[str, str | None]
"""The user who made each decision, by confirmation id. None or missing: an unnamed caller, or nobody, because the
confirmation expired."""
NOBODY: Deciders = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages and session values of a conversation so far."""

    id: str
    """Unique within its tenant and user: equal ids of two tenants, or of two users, are two conversations."""
    messages: tuple[Message, ...] = ()
    """Messages of the turns that completed or were stopped by a limit. They are the history of the next run."""
    agent: str | None = None
    """The agent of its last answer: the one that answered, or that has handed the conversation over."""
    open_run: str | None = None
    """Id of the run that is in progress or paused, if any."""
    session: Mapping[str, Any] = field(default_factory=dict)
    """Values that tools keep across turns."""
    turns: int = 0
    """Number of runs started in it; 0 for a new conversation."""
    user: str | None = None
    tenant: str | None = None
    """User and tenant of its runs, which own the conversation."""
    summary: Summary | None = None
    """Summary that replaces the start of the messages in requests to a model."""
    waiting: int = 0
    """Number of its runs that wait in the queue."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""
    handed_to: str | None = None
    """The agent that answers the next message instead of `agent`, which has handed the conversation over."""

    @property
    def is_stored(self) -> bool:
        """Whether a run of it started or waits. Otherwise it is new."""
        return self.turns > 0 or self.waiting > 0


@dataclass(frozen=True, slots=True)
class CopiedTurn:
    """A copy of a run that has ended, as a turn of a forked conversation."""

    state: RunState
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Amount of data that `prune` deleted."""

    runs: int = 0
    """Number of runs, with their events, messages, decisions and traces."""
    conversations: int = 0
    files: int = field(default=0, compare=False)
    """Number of files in messages that no run refers to any more; 0 if they were only to be counted."""
    versions: int = field(default=0, compare=False)
    """Number of archived versions of agents that no run refers to any more; likewise."""
    freed_bytes: int = field(default=0, compare=False)
    """Number of bytes by which the store's file shrank; 0 if it is not a file."""

    def __add__(self, other: Pruned) -> Pruned:
        """Return the sums."""
        return Pruned(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The files of an agent, stored so that its runs can be resumed after the project's files have changed."""

    digest: str
    """Digest of all the files."""
    files: Mapping[str, str]
    """Agent files and templates of the agent and its sub-agents, by path relative to the project root."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run with all that a replay needs, as it was loaded from a store, which is not needed any more."""

    state: RunState
    events: Sequence[Mapping[str, Any]]
    """Its events in wire format."""
    blueprint: Blueprint | None
    """The files that it ran on, if they are stored."""
    rating: Rating | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, as shown in lists."""

    run_id: str
    status: Status
    finish_reason: str
    agent: str
    generation: int
    digest: str
    message: str
    """The start of the user's message."""
    created_at: float
    """Unix time in seconds, like the other times."""
    updated_at: float
    conversation_id: str | None = None
    turn: int = 0
    """Number of the run in its conversation, from 1; 0 without a conversation."""
    user: str | None = None
    tenant: str | None = None
    trace_id: str | None = None
    steps: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    """Cost of the model calls whose cost is known; None if that is none of them."""
    elapsed_ms: float = 0.0
    """Active time in milliseconds, without the time it waited for a person."""
    expires_at: float | None = None
    """When the first of its pending confirmations expires."""
    held: bool = False
    """Whether a process is executing it."""
    attempts: int = 0
    """Number of times it was taken over since its last saved step."""
    crashes: int = 0
    """Number of processes that ended during its next step and held no other run."""
    priority: int = 0
    waits_for: str | None = None
    """What it waits for until it starts or continues: `conversation` (the runs before it), `capacity` (a free process),
    `handed_on` (a process that can execute it) or a limit, such as `agent:support`."""
    refusals: Mapping[str, str] | None = None
    """What the processes that released it for others lacked, by their names."""
    rating: Rating | None = None
    copied_from: str | None = None
    """Id of the run that it is a copy of, in a forked conversation."""

    @property
    def orphaned(self) -> bool:
        """Whether its process ended before the run did, and no other has taken it over."""
        return self.status == "running" and not self.held and self.waits_for is None


@dataclass(frozen=True, slots=True)
class DecidedCall:
    """A tool call that a person decided about, or nobody in time."""

    agent: str
    tool: str
    arguments: Mapping[str, Any]
    """The arguments that were asked about."""
    decision: Literal["approve", "edit", "reject", "respond", "expired"]
    by: str | None


@dataclass(frozen=True, slots=True)
class DecidedCalls:
    """Calls of a period that rules or people decided about."""

    calls: Sequence[DecidedCall] = ()
    """In the order of the decisions."""
    asked: Sequence[tuple[str, str, Mapping[str, Any]]] = ()
    """Agent, tool and arguments of the calls that still wait."""
    denied: Collection[tuple[str, str]] = ()
    """Agent of the run, and error, of the calls that rules denied; each text once."""


@dataclass(frozen=True, slots=True)
class RunQuery(OwnerQuery):
    """Filter for a list of runs.

    The copied turns of forked conversations match only if `run_id` or `conversation_id` is set: their originals are
    listed and counted.
    """

    run_id: str | None = None
    statuses: Collection[Status] = ()
    conversation_id: str | None = None
    agent: str | None = None
    agents: Collection[str] | None = None
    """Only runs of these agents."""
    generation: int | None = None
    digest: str | None = None
    """Only runs on configurations whose digest starts with this."""
    text: str | None = None
    """Only runs whose `RunInfo.message` contains this, in any case of ASCII letters, among the newest `SEARCHED_RUNS`
    of the store."""
    search: str | None = None
    """The same, for runs whose message, agent, id or conversation's id contains this, or, among the newest
    `SEARCHED_TEXTS` of the store, any message of the user or the model."""
    rating: RatingValue | None = None
    """Only runs that were rated so."""
    since: float | None = None
    """Only runs added at this Unix time or later."""
    until: float | None = None
    """Only runs added before this Unix time."""
    orphaned: bool = False
    """Only runs in progress that no process executes."""
    min_attempts: int = 0
    """Only runs with at least this many `RunInfo.attempts`."""
    max_attempts: int | None = None
    """Only runs with at most this many."""
    expired_at: float | None = None
    """Only paused runs with a confirmation that expires by this Unix time."""
    newest_first: bool = False
    before: str | None = None
    """Only runs added before the run with this id, which must have a matching owner and agent. Used for paging."""
    limit: int | None = None

    @classmethod
    def of_owner(cls, tenant: str | None, user: str | None) -> RunQuery:
        """Return the query for all runs of a tenant and user; None: those that have none."""
        return cls(tenant=tenant, without_tenant=tenant is None, user=user, without_user=user is None)

    @classmethod
    def of_conversation(cls, conversation: Conversation | ConversationInfo) -> RunQuery:
        """Return the query for all runs of a conversation."""
        return replace(cls.of_owner(conversation.tenant, conversation.user), conversation_id=conversation.id)


_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that belong to a SQLite database."""


def database_paths(url: str, root: Path) -> tuple[Path, ...]:
    """Return the absolute paths of a store's database files, or nothing if the URL names a server."""
    scheme, mark, rest = url.partition(":///")
    name = rest.partition("?")[0].removeprefix("file:")
    if not mark or not scheme.startswith("sqlite") or not name:
        return ()
    file = (root / name).resolve()
    return tuple(file.with_name(f"{file.name}{suffix}") for suffix in _SUFFIXES)


@dataclass(frozen=True, slots=True)
class GrantQuery(OwnerQuery):
    """Filter for grants."""

    id: str | None = None
    agent: str | None = None
    """Name of the agent, or of an agent with its callers, as in `desk/billing`."""
    among: str | None = None
    """Name of the agent that may call the tool, or of one of its callers."""
    tool: str | None = None
    active_at: float | None = None
    """Only grants that have neither expired nor been revoked at this Unix time."""
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class NoteQuery(OwnerQuery):
    """Filter for a list of notes."""

    ids: Collection[str] | None = None
    agents: Collection[str] | None = None
    """Only notes that these agents saved."""
    scope: MemoryScope | None = None
    search: str | None = None
    """Only notes that contain this text, in upper or lower case."""
    before: str | None = None
    """Only notes saved before the note with this id. Used for paging."""
    limit: int | None = None


class CaseResult(Frozen):
    """What became of the attempts at a case, or of a stored run that was scored."""

    agent: str
    name: str
    """Name of the case; empty for a stored run."""
    at: datetime | None = None
    """When it was saved."""
    source: Literal["test", "gate", "runs"]
    """`test`: by `agentsd test`; `gate`: before an edit; `runs`: by `agentsd test --runs`."""
    digest: str
    """Digest of the generation."""
    model: str | None = None
    """The real model that was called; None for scripts."""
    attempts: int
    passed: int
    """Number of attempts that passed."""
    unknown: int = 0
    """Number of attempts without a result, because the model or the judge failed. They count as not passed."""
    cost_usd: float | None = None
    """Cost of the attempts; None if it is unknown."""
    elapsed_ms: float = 0.0
    failure: str = ""
    """Why the first attempt failed that did."""
    run_id: str | None = None
    """The stored run. Runs of cases are not stored."""
