"""The protocol of a store for runs and conversations, and the types it uses.

Only one process at a time writes a run: the holder of its `RunRecord`. A process gets the record by beginning a
run, or by taking over one that no process holds. Writes through a record that was taken over by another are rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from framework.store.conversation_lists import ConversationInfo, ConversationQuery
from framework.store.period import Period
from framework.store.run_record import RunRecord
from framework.store.signals import Signals
from framework.store.usage import Grouping, UsageReport
from framework.store.work import UNLIMITED, RunLimits, WorkStore
from framework.types.budget import BudgetUse, CounterKey
from framework.types.events import Event
from framework.types.fleet import Backlog
from framework.types.messages import Message, Summary
from framework.types.report import Status
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import Decision, MadeDecision, Rating, RatingValue, RunState
from framework.types.trace import SpanRecord

OPEN_STATUSES: tuple[Status, ...] = ("queued", "paused", "running")
ANSWERED_STATUSES: tuple[Status, ...] = ("completed", "stopped")
"""Statuses of runs whose messages become part of their conversation."""
PREVIEW_CHARS = 200
"""Length of the user's message in lists of runs."""
SEARCHED_RUNS = 20_000
"""Number of runs in which texts are looked up. It bounds the time: messages have no index."""
EMPTY_FORK_SECONDS = 24 * 60 * 60.0
"""How long a forked conversation without turns is kept until its first run begins."""
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
    """The agent that answered last."""
    open_run: str | None = None
    """Id of the run that is in progress or paused, if any."""
    session: Mapping[str, Any] = field(default_factory=dict)
    """Values that tools keep across turns."""
    turns: int = 0
    """Number of runs begun in it; 0 for a new conversation."""
    user: str | None = None
    tenant: str | None = None
    """User and tenant of its runs, which own the conversation."""
    summary: Summary | None = None
    """Summary that replaces the beginning of the messages in requests to a model."""
    waiting: int = 0
    """Number of its runs that wait in the queue."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""

    @property
    def is_stored(self) -> bool:
        """Whether a run of it began or waits. Otherwise it is new."""
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
class RunInfo:
    """One run, as shown in lists."""

    run_id: str
    status: Status
    finish_reason: str
    agent: str
    generation: int
    digest: str
    message: str
    """The beginning of the user's message."""
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
    """What it waits for until it begins or continues: `conversation` (the runs before it), `capacity` (a free process),
    `handed_on` (a process that can execute it) or a limit, such as `agent:support`."""
    refusals: Mapping[str, str] | None = None
    """What processes lacked that handed it on, by their names."""
    rating: Rating | None = None
    copied_from: str | None = None
    """Id of the run that it is a copy of, in a forked conversation."""

    @property
    def orphaned(self) -> bool:
        """Whether its process ended before the run did, and no other has taken it over."""
        return self.status == "running" and not self.held and self.waits_for is None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Filter for a list of runs. Unset fields match everything.

    The copied turns of forked conversations match only if `run_id` or `conversation_id` is set: their originals are
    listed and counted.
    """

    run_id: str | None = None
    statuses: Collection[Status] = ()
    conversation_id: str | None = None
    agent: str | None = None
    user: str | None = None
    tenant: str | None = None
    without_tenant: bool = False
    """Only runs that have no tenant."""
    without_user: bool = False
    """Only runs that have no user."""
    agents: Collection[str] | None = None
    """Only runs of these agents."""
    generation: int | None = None
    digest: str | None = None
    """Only runs on configurations whose digest begins with this."""
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


class Store(WorkStore, Signals, Protocol):
    """Stores runs and conversations. Every method raises StoreError if the storage fails."""

    durable: bool
    """Whether data outlives the process, so that each step must be written. Otherwise records hold the state object."""
    files: tuple[Path, ...]
    """Absolute paths of the store's own files. Tools cannot read or write them."""
    keeps_spans: bool
    """Whether traces are stored. If not, spans are recorded only with a TracerProvider."""

    def now(self) -> float:
        """Return the time of the store as Unix time, by which everything in it expires or is old.

        All processes of a store agree on it, whatever the time of day of their machines.
        """
        ...

    async def begin(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Save a new run with the user's message, before any of its work begins.

        If the run is queued and claimed by this store, it leaves the queue.

        Args:
            state: the first state.
            conversation: the conversation as loaded; the run becomes its next turn.
            blueprint: the files of the agent; only durable stores need them.
            limits: limits of which a queued run must have a slot. It keeps them until it ends, pauses or is released.

        Returns:
            Its record. If `cancel_requested` is set, which only a queued run can have, the caller must end the run.

        Raises:
            ConversationBusy: another run of the conversation is open, or began since it was loaded. Runs that are not
                queued also wait for those in the queue.
            RunBlocked: a limit is reached. The run is released and waits in its place, until a slot is free.
            RunTaken: the run is queued, and this store has no claim on it.
        """
        ...

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Save a request as a queued run, and return the run's id. If the run can begin, it is ready, and offered.

        Args:
            request: the request. Its conversation exists, and belongs to its user and tenant, from now on.
            idempotency: if a request with the same scope, key and digest is stored already, nothing is saved, and the
                id of the earlier run is returned.

        Raises:
            ConversationBusy: a run of the conversation is open or waits, and `request.queue` is not set.
            QueueFull: too many runs of the conversation wait.
            IdempotencyConflict: the key was used for a different request.
        """
        ...

    async def save_decisions(self, state: RunState, decisions: Mapping[str, Decision], by: Deciders = NOBODY) -> None:
        """Save decisions about a paused run, and offer the run, so that any process resumes it.

        The arguments are those of `take`. Then the run is in progress, and no process holds it.

        Raises:
            RunBusy: a process holds the run, or took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        ...

    async def take(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Claim a paused or orphaned run that has not changed since it was loaded, and save decisions.

        A queued run can be taken too, to end it: it stays queued until its last write.

        Args:
            state: the state that `load_run` returned.
            decisions: decisions by confirmation id; each confirmation may be decided once.
            by: who made them.
            limits: limits of which the run must have a slot, as for `begin`.

        Returns:
            Its record. If `cancel_requested` is set, the caller must end the run instead of resuming it.

        Raises:
            RunBlocked: a limit is reached. The decisions are saved, and the run waits for a slot as for a process.
            RunBusy: another process holds the run, or took it over first.
            DecisionRefused: a confirmation was already decided.
        """
        ...

    async def load_run(self, run_id: str) -> RunState:
        """Return the last saved state of a run; raises RunNotFound. A queued run has its message, but no history."""
        ...

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first; raises RequestError if `before` names no such run."""
        ...

    async def count_runs(self, query: RunQuery) -> int:
        """Return the number of runs that match. `orphaned`, `before` and `limit` have no effect."""
        ...

    async def usage(self, query: RunQuery, by: Grouping, period: Period) -> UsageReport:
        """Return figures of the matching runs that were added in a period: in total, over time and by group.

        The store counts without loading states. `since`, `until` and the paging of the query have no effect.
        """
        ...

    async def count_waiting(self) -> Mapping[Status, int]:
        """Return the numbers of queued and of paused runs, including those of other processes."""
        ...

    async def backlog(self, query: RunQuery) -> Backlog:
        """Return how many of the matching runs wait, where and why. Only the owner and agents of the query are used."""
        ...

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return a run's events with a number above `after`, in their wire format; raises RunNotFound."""
        ...

    async def events_named(self, run_id: str, name: str) -> Sequence[Mapping[str, Any]]:
        """Return a run's events of one name, such as `plan`, in their wire format; raises RunNotFound."""
        ...

    async def decisions(self, run_id: str) -> Sequence[MadeDecision]:
        """Return the decisions about a run, in the order they were made; raises RunNotFound."""
        ...

    async def latest_decisions(self, run_ids: Collection[str], limit: int) -> Sequence[MadeDecision]:
        """Return the latest decisions about these runs, the latest first. Unknown runs have none."""
        ...

    async def rate(self, run_id: str, rating: Rating | None) -> None:
        """Save a rating of a run in place of an earlier one; None deletes it. Raises RunNotFound."""
        ...

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """Return the stored spans of a run, sorted by start; raises RunNotFound."""
        ...

    async def request_cancel(self, run_id: str) -> bool:
        """Request cancellation from the holder of a run. Return False if no process holds it; raises RunNotFound.

        A queued run is held while it is claimed.
        """
        ...

    async def blueprint(self, digest: str) -> Blueprint | None:
        """Return a stored blueprint, or None."""
        ...

    async def save_media(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Save files by digest, before messages of the run refer to them.

        A file is stored once. It is deleted with the last run that refers to it, or, if the run never begins, by
        `prune` after an hour.
        """
        ...

    async def load_media(self, digests: Collection[str], of: RunQuery | None = None) -> Mapping[str, bytes]:
        """Return the stored files with these digests, by digest. Those that are not stored are missing.

        Args:
            digests: the digests of the files.
            of: only files that a run with this owner refers to; its other fields are ignored. None: of any owner.
        """
        ...

    async def conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> Conversation:
        """Return the conversation of a tenant and user; for an unknown id, or one that has expired, a new one."""
        ...

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first; raises RequestError for an invalid cursor."""
        ...

    async def fork(self, conversation: Conversation, turns: Sequence[CopiedTurn]) -> None:
        """Save a new conversation with copies of ended runs as its turns, in one transaction.

        Without turns it expires after `EMPTY_FORK_SECONDS`, unless a run begins.

        Raises:
            ConversationBusy: a conversation with this id exists.
        """
        ...

    async def replace_session(self, conversation: Conversation) -> None:
        """Save the session values of a conversation that has not changed since it was loaded.

        Raises:
            ConversationBusy: a run of it is open, or began since it was loaded.
        """
        ...

    async def delete_conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> int:
        """Delete a conversation with all its runs, also those that wait, and return the number of runs.

        Raises:
            RequestError: the conversation does not exist.
            ConversationBusy: a run of it is in progress, or about to begin.
        """
        ...

    async def count_use(self, uses: Sequence[BudgetUse]) -> None:
        """Add to the counters of shared budgets, for a run that is not stored. A stored run's record does it."""
        ...

    async def budget_uses(self, keys: Collection[CounterKey] | None = None) -> Sequence[BudgetUse]:
        """Return the counters of shared budgets, as all processes of the store have written them until now.

        Args:
            keys: the counters to return; those that are still 0 may be missing. None: all counters.
        """
        ...

    async def prune(
        self, before: float | None, now: float, *, dry_run: bool = False, trust_clock: bool = False
    ) -> Pruned:
        """Delete old runs, expired conversations and idempotency keys, and return how much was deleted.

        Args:
            before: delete runs that ended before this Unix time, with their events and traces. If a run is a turn of a
                conversation that remains, its messages remain too. The counters of budgets whose day or month ended
                before are deleted too. None: delete no runs.
            now: delete conversations that have expired by this Unix time: that of the store, see `now`.
            dry_run: delete nothing, and return how much would be deleted.
            trust_clock: delete although the clock may be wrong.

        Raises:
            ClockRefused: `now` is more than a day ahead of the store's clock; or nothing was saved for more than a day
                before this process opened the store, at most a day ago, so that its clock may be wrong.
        """
        ...

    async def close(self) -> None:
        """Close the store's connections and files."""
        ...
