"""The runs of a store in memory: their records, and what is read of them and their conversations."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from framework.store.clock import StoreClock
from framework.store.conversation_lists import ConversationInfo, ConversationQuery
from framework.store.memory_lists import (
    conversation_info,
    has_owner,
    run_info,
    select_conversations,
    select_runs,
    texts_of,
)
from framework.store.memory_packing import UNPACKED_BYTES, CompressedRun, compress_run
from framework.store.memory_tables import (
    ConversationKey,
    ConversationTimes,
    MemoryCounters,
    MemoryMedia,
    MemoryQueue,
    MemorySlots,
)
from framework.store.memory_usage import MeasuredRun, memory_report
from framework.store.period import Period
from framework.store.protocol import Blueprint, Conversation, RunInfo, RunQuery
from framework.store.usage import Grouping, UsageReport
from framework.store.work import QueueSize
from framework.types.budget import BudgetUse, CounterKey
from framework.types.errors import RunNotFound, StoreError
from framework.types.events import Event, wire
from framework.types.report import Status
from framework.types.state import MadeDecision, Rating, RunState
from framework.types.trace import SpanRecord


class RunEnds(Protocol):
    """What a run changes in its store besides its own record."""

    def now(self) -> float:
        """Return the time of the store."""
        ...

    def add_use(self, uses: Sequence[BudgetUse]) -> None:
        """Add to the counters of shared budgets."""
        ...

    def record_end(self, state: RunState) -> None:
        """Record that a run has ended or paused."""
        ...


@dataclass(slots=True)
class MemoryRecord:
    """A run in memory. It refers to the live state object, so only its end is written. Then it is packed."""

    live: RunState | None
    """Its state; None once it is packed."""
    store: RunEnds
    turn: int
    created_at: float
    updated_at: float
    held: bool = True
    cancel_requested: bool = False
    held_back_until: float = 0.0
    """Before this time on the monotonic clock, the run cannot be claimed."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Why processes could not execute it, by their names."""
    key: ConversationKey | None = None
    """The conversation of the run."""
    priority: int = 0
    spans: list[SpanRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    decisions: list[MadeDecision] = field(default_factory=list)
    rating: Rating | None = None
    packed: CompressedRun | None = None
    """The run, if it has ended, and its parts are JSON."""

    @property
    def state(self) -> RunState:
        """The live state object; of a packed run, a new one."""
        if self.packed is not None:
            return self.packed.state
        assert self.live is not None
        return self.live

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.packed.measured.info.run_id if self.packed is not None else self.state.run_id

    @property
    def status(self) -> Status:
        """Status of the run."""
        return self.packed.measured.info.status if self.packed is not None else self.state.status

    @property
    def measured(self) -> MeasuredRun:
        """The run as shown in lists, and its figures."""
        return self.packed.measured if self.packed is not None else MeasuredRun.of(self.state, self.info)

    @property
    def info(self) -> RunInfo:
        """The run as shown in lists, without what the queue knows of it."""
        if self.packed is not None:
            return self.packed.measured.info
        return run_info(self.state, self.turn, (self.created_at, self.updated_at), held=self.held)

    @property
    def texts(self) -> str:
        """What the user and the model wrote, in lower case; of a packed run, the beginning."""
        return self.packed.texts if self.packed is not None else texts_of(self.state.messages)

    @property
    def size(self) -> int:
        """Estimated number of bytes of a run that has ended, in memory."""
        return UNPACKED_BYTES if self.packed is None else self.packed.size

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Save events, spans, the use of budgets, and the end of the run. The state object is shared."""
        self.events.extend(events)
        self.spans.extend(spans)
        self.store.add_use(uses)
        if last:
            self.live, self.updated_at, self.held = state, self.store.now(), False
            if state.status != "paused":
                self.pack(state)
            self.store.record_end(state)

    def pack(self, state: RunState) -> None:
        """Replace the state, the events and the spans by their packed form. What is no JSON stays as it is."""
        self.packed = compress_run(state, self.events, self.spans, self.measured, is_turn=self.key is not None)
        if self.packed is not None:
            self.live, self.events, self.spans = None, [], []

    async def release(self) -> None:
        """Release the run."""
        self.held = False


class MemoryRuns:
    """The runs and conversations of a store in memory, for reading."""

    def __init__(self, clock: StoreClock) -> None:
        self.clock = clock
        """The time of the store."""
        self._runs: dict[str, MemoryRecord] = {}
        self._added = 0
        """Number of runs that were ever added."""
        self._conversations: dict[ConversationKey, Conversation] = {}
        self._times: dict[ConversationKey, ConversationTimes] = {}
        self._media, self._counters = MemoryMedia(), MemoryCounters()
        self._queue, self._slots = MemoryQueue(), MemorySlots()

    def now(self) -> float:
        """Return the time of the store."""
        return self.clock()

    async def load_run(self, run_id: str) -> RunState:
        """Return the live state object of a run, not a copy; of a run that has ended, a new one."""
        try:
            return self._record(run_id).state
        except ValueError as error:  # such as data that is nested too deeply to be read again
            raise StoreError(f"run {run_id} cannot be read: {type(error).__name__}") from None

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first."""
        infos = (
            replace(
                one.info,
                priority=one.priority,
                waits_for=self._waits_for(run_id, one),
                refusals=one.refusals or None,
                rating=one.rating,
            )
            for run_id, one in self._runs.items()
        )
        search = query.search.lower() if query is not None and query.search else None
        said = [run_id for run_id, one in self._runs.items() if search is not None and search in one.texts]
        return select_runs(infos, query or RunQuery(), said)

    async def count_runs(self, query: RunQuery) -> int:
        """Count the matching runs."""
        return len(await self.runs(replace(query, before=None, limit=None)))

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first."""
        infos = (self._conversation_info(key, one) for key, one in self._conversations.items())
        search = query.search.lower() if query is not None and query.search else None
        kept = self._conversations.items()
        said = [key for key, one in kept if search is not None and search in texts_of(one.messages)]
        return select_conversations(infos, query or ConversationQuery(), said)

    async def usage(self, query: RunQuery, by: Grouping, period: Period) -> UsageReport:
        """Return figures of the matching runs that are kept."""
        return memory_report((one.measured for one in self._runs.values()), query, by, period)

    async def count_waiting(self) -> Mapping[Status, int]:
        """Count the queued and the paused runs."""
        paused = sum(one.status == "paused" for one in self._runs.values())
        return {"queued": len(self._queue), "paused": paused}

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the events that were written."""
        record = self._record(run_id)
        if record.packed is not None:
            return list(record.packed.events(after))
        return [wire(event) for event in record.events if event.seq > after]

    async def events_named(self, run_id: str, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the events of one name."""
        return [event for event in await self.events(run_id) if event["event"] == name]

    async def decisions(self, run_id: str) -> Sequence[MadeDecision]:
        """Return the decisions about a run."""
        return list(self._record(run_id).decisions)

    async def latest_decisions(self, run_ids: Collection[str], limit: int) -> Sequence[MadeDecision]:
        """Return the latest decisions about runs."""
        found = [one for run_id in run_ids if run_id in self._runs for one in self._runs[run_id].decisions]
        return sorted(found, key=lambda one: one.at, reverse=True)[:limit]

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """Return the run's spans, if traces are stored."""
        record = self._record(run_id)
        if record.packed is not None:
            return record.packed.spans
        return sorted(record.spans, key=lambda span: span.start_ns)

    async def blueprint(self, digest: str) -> Blueprint | None:  # noqa: ARG002 - the protocol's
        """Return None: blueprints are not stored."""
        return None

    async def load_media(self, digests: Collection[str], of: RunQuery | None = None) -> Mapping[str, bytes]:
        """Return the stored files with these digests."""
        if of is not None:
            digests = [one for one in digests if any(self._has_owner(user, of) for user in self._media.users(one))]
        return self._media.get(digests)

    async def budget_uses(self, keys: Collection[CounterKey] | None = None) -> Sequence[BudgetUse]:
        """Return the counters of shared budgets."""
        return self._counters.load(keys)

    async def queue_size(self) -> QueueSize:
        """Return how many runs wait in the queue."""
        return QueueSize(len(self._queue), self._added)

    def _has_owner(self, one: str | ConversationKey, query: RunQuery) -> bool:
        """Return whether a run, by its id, or a conversation, by its key, has the owner that a query names."""
        if not isinstance(one, str):
            return has_owner(query, *one[1:])
        return one in self._runs and has_owner(query, self._runs[one].info.tenant, self._runs[one].info.user)

    def _turns(self, key: ConversationKey) -> list[MemoryRecord]:
        return [record for record in self._runs.values() if record.key == key]

    def _conversation_info(self, key: ConversationKey, conversation: Conversation) -> ConversationInfo:
        turns = self._turns(key)
        times = self._times.get(key) or ConversationTimes(turns[-1].updated_at if turns else 0.0, None)
        created_at = turns[0].created_at if turns else times.updated_at
        return conversation_info(conversation, created_at, times, [turn.info for turn in turns])

    def _has_expired(self, key: ConversationKey, now: float) -> bool:
        times, kept = self._times.get(key), self._conversations.get(key)
        if times is None or kept is None or kept.open_run or self._queue.waiting(key):
            return False
        return times.expires_at <= now

    def _waits_for(self, run_id: str, record: MemoryRecord) -> str | None:
        if record.held or (limit := self._slots.waits_for(run_id)) is not None or run_id not in self._queue:
            return None if record.held else limit
        if time.monotonic() < record.held_back_until:
            return "handed_on"
        return "capacity" if self._is_next(run_id) else "conversation"

    def _is_next(self, run_id: str) -> bool:
        """Return whether a queued run is the first of its conversation, and no run of that is open."""
        if (key := self._runs[run_id].key) is None:
            return True
        return self._queue.is_first(run_id, key) and not self._conversations[key].open_run

    def _record(self, run_id: str) -> MemoryRecord:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunNotFound(f"there is no run {run_id!r}") from None
