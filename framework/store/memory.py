"""A store that keeps runs and conversations in memory, until the process ends."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from framework.store.memory_lists import run_info, select_conversations, select_runs
from framework.store.memory_tables import ConversationKey, MemoryCounters, MemoryIdempotency, MemoryMedia, MemoryQueue
from framework.store.protocol import (
    ANSWERED_STATUSES,
    OPEN_STATUSES,
    Blueprint,
    Conversation,
    ConversationInfo,
    ConversationQuery,
    Pruned,
    RunInfo,
    RunQuery,
    RunRecord,
)
from framework.store.queue_rules import check_queue, overtaken
from framework.types.budget import BudgetUse, CounterKey
from framework.types.errors import ConversationBusy, RequestError, RunBusy, RunNotFound, RunTaken
from framework.types.events import Event, wire
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import Decision, RunState
from framework.types.status import Status
from framework.types.trace import SpanRecord

SWEEP_SECONDS = 60.0
"""Minimum interval between two deletions of expired conversations."""


@dataclass(slots=True)
class MemoryRecord:
    """A run in memory. It refers to the live state object, so only its end is written."""

    state: RunState
    store: MemoryStore
    turn: int
    created_at: float
    updated_at: float
    held: bool = True
    cancel_requested: bool = False
    key: ConversationKey | None = None
    """The conversation of the run."""
    spans: list[SpanRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

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
            self.state, self.updated_at, self.held = state, time.time(), False
            self.store.record_end(state)

    async def release(self) -> None:
        """Release the run."""
        self.held = False


@dataclass(frozen=True, slots=True)
class _Times:
    """When a conversation's last turn ended, and how many seconds it is kept after that."""

    updated_at: float
    ttl: float | None

    @property
    def expires_at(self) -> float:
        return float("inf") if self.ttl is None else self.updated_at + self.ttl


class MemoryStore:
    """A store in memory. It keeps the newest `keep_runs` runs with their events, plus those that are open."""

    durable = False
    files: tuple[Path, ...] = ()

    def __init__(self, keep_runs: int = 1000, *, keep_spans: bool = False) -> None:
        self.keeps_spans = keep_spans
        self._runs: dict[str, MemoryRecord] = {}
        self._conversations: dict[ConversationKey, Conversation] = {}
        self._times: dict[ConversationKey, _Times] = {}
        self._media, self._counters = MemoryMedia(), MemoryCounters()
        self._queue, self._idempotency = MemoryQueue(), MemoryIdempotency()
        self._keep_runs = keep_runs
        self._swept_at = 0.0
        """When expired conversations were last deleted, as Unix time."""

    async def begin(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,  # noqa: ARG002 - the agent object lives as long as the run
    ) -> RunRecord:
        """Save a new run, or begin a claimed one. The record refers to the state object."""
        await self._sweep()
        now, key = time.time(), None
        record = self._runs.get(state.run_id) if state.run_id in self._queue else None
        if record is not None and not record.held:
            raise RunTaken(f"run {state.run_id} is queued, and not claimed: claim it first")
        turn = 0
        if conversation is not None:
            key = conversation.tenant, conversation.id
            current = await self.conversation(conversation.id, conversation.tenant)
            is_overtaken = current.waiting > 0 and record is None
            if current.open_run or current.turns != conversation.turns or is_overtaken:
                raise overtaken(conversation)
            turn = current.turns + 1
            user = current.user if current.is_stored else state.user
            self._conversations[key] = replace(current, open_run=state.run_id, turns=turn, user=user, waiting=0)
        if record is not None:
            self._queue.remove(state.run_id, key)
            record.state, record.turn, record.updated_at = state, turn, now
            return record
        return self._add(MemoryRecord(state, self, turn, now, now, key=key))

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Save a queued run."""
        if idempotency is not None and (earlier := self._idempotency.find(idempotency)) is not None:
            return earlier
        await self._sweep()
        now, key = time.time(), None
        if request.conversation_id is not None:
            key = request.tenant, request.conversation_id
            conversation = await self.conversation(request.conversation_id, request.tenant)
            check_queue(request, conversation.open_run, conversation.waiting)
            if not conversation.is_stored:
                self._conversations[key] = replace(conversation, user=request.user)
        if idempotency is not None:
            self._idempotency.add(idempotency, request.run_id)
        self._queue.add(request, key)
        self._add(MemoryRecord(request.queued_state(), self, 0, now, now, held=False, key=key))
        return request.run_id

    async def claim(self, limit: int, *, run_id: str | None = None) -> Sequence[RunRequest]:
        """Claim queued runs. No other process can claim them."""
        able = (one for one in self._queue if run_id in (None, one.run_id) and self._can_begin(one.run_id))
        claimed = list(islice(able, limit))
        for request in claimed:
            self._runs[request.run_id].held = True
        return claimed

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims."""
        for run_id in run_ids:
            if run_id in self._queue:
                self._runs[run_id].held = False

    async def take(self, state: RunState, decisions: Mapping[str, Decision], by: str | None = None) -> RunRecord:  # noqa: ARG002 - the protocol's
        """Claim a run that is not held."""
        record = self._record(state.run_id)
        if record.held:
            raise RunBusy(f"run {state.run_id} is already in progress")
        record.held = True
        return record

    async def load_run(self, run_id: str) -> RunState:
        """Return the live state object of a run, not a copy."""
        return self._record(run_id).state

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first."""
        infos = (
            run_info(one.state, one.turn, (one.created_at, one.updated_at), held=one.held)
            for one in self._runs.values()
        )
        return select_runs(infos, query or RunQuery())

    async def count_waiting(self) -> Mapping[Status, int]:
        """Count the queued and the paused runs."""
        paused = sum(one.state.status == "paused" for one in self._runs.values())
        return {"queued": sum(1 for _ in self._queue), "paused": paused}

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the events that were written."""
        return [wire(event) for event in self._record(run_id).events if event.seq > after]

    async def spans(self, run_id: str) -> Sequence[SpanRecord]:
        """Return the run's spans, if traces are stored."""
        return sorted(self._record(run_id).spans, key=lambda span: span.start_ns)

    async def request_cancel(self, run_id: str) -> bool:
        """Request cancellation of a run in progress."""
        record = self._record(run_id)
        record.cancel_requested = record.cancel_requested or record.held
        return record.held

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Return the runs in progress. No other process can take them over."""
        records = {run_id: self._runs[run_id] for run_id in run_ids if run_id in self._runs}
        return {run_id: record.cancel_requested for run_id, record in records.items() if record.held}

    async def blueprint(self, digest: str) -> Blueprint | None:  # noqa: ARG002 - the protocol's
        """Return None: blueprints are not stored."""
        return None

    async def save_media(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Keep files as long as the run, or the conversation that it is a turn of."""
        self._media.add(run_id, files)

    async def load_media(self, digests: Collection[str]) -> Mapping[str, bytes]:
        """Return the stored files with these digests."""
        return self._media.get(digests)

    async def conversation(self, conversation_id: str, tenant: str | None = None) -> Conversation:
        """Return a conversation. For an unknown id, or one that has expired, return a new, empty one."""
        key = tenant, conversation_id
        if self._has_expired(key, time.time()):
            self._delete_with_runs(key)
        stored = self._conversations.get(key) or Conversation(conversation_id, tenant=tenant)
        return replace(stored, waiting=waiting) if (waiting := self._queue.waiting(key)) else stored

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first."""
        infos = (self._conversation_info(key, one) for key, one in self._conversations.items())
        return select_conversations(infos, query or ConversationQuery())

    async def replace_session(self, conversation: Conversation) -> None:
        """Save the session values; raises ConversationBusy."""
        current = await self.conversation(conversation.id, conversation.tenant)
        if current.open_run is not None or current.turns != conversation.turns:
            raise overtaken(conversation)
        self._conversations[conversation.tenant, conversation.id] = replace(current, session=dict(conversation.session))

    async def delete_conversation(self, conversation_id: str, tenant: str | None = None) -> int:
        """Delete a conversation with its runs."""
        key = tenant, conversation_id
        if key not in self._conversations:
            raise RequestError(f"there is no conversation {conversation_id!r}")
        if any(record.held for record in self._turns(key)):
            raise ConversationBusy(f"conversation {conversation_id!r} is busy: a run of it is in progress")
        return self._delete_with_runs(key)

    async def prune(self, before: float | None, now: float, *, dry_run: bool = False) -> Pruned:
        """Delete old runs and expired conversations."""
        expired = [key for key in self._conversations if self._has_expired(key, now)]
        old = [
            run_id
            for run_id, record in self._runs.items()
            if before is not None and record.state.status not in OPEN_STATUSES and record.updated_at < before
        ]
        runs = {*old, *(record.state.run_id for key in expired for record in self._turns(key))}
        if not dry_run:
            for key in expired:
                self._delete_with_runs(key)
            for run_id in runs & self._runs.keys():
                self._drop(run_id)
            self._counters.drop_ended(before)
            self._idempotency.drop_expired(now)
        return Pruned(len(runs), len(expired))

    async def count_use(self, uses: Sequence[BudgetUse]) -> None:
        """Add to the counters of shared budgets."""
        self.add_use(uses)

    async def budget_uses(self, keys: Collection[CounterKey] | None = None) -> Sequence[BudgetUse]:
        """Return the counters of shared budgets."""
        return self._counters.load(keys)

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    def add_use(self, uses: Sequence[BudgetUse]) -> None:
        """Add to the counters of shared budgets."""
        self._counters.add(uses)

    def record_end(self, state: RunState) -> None:
        """Close the conversation's open turn. Add its messages if the run completed or was stopped by a limit."""
        key = self._runs[state.run_id].key
        self._queue.remove(state.run_id, key)
        if key is None or state.status == "paused":
            return
        conversation = self._conversations[key]
        if conversation.open_run != state.run_id:  # the run never began
            if not conversation.turns and not self._queue.waiting(key):
                self._delete_conversation(key)
            return
        if state.status in ANSWERED_STATUSES:
            messages, session = (*conversation.messages, *state.messages), dict(state.session)
            conversation = replace(conversation, messages=messages, agent=state.agent, session=session)
        summary = state.summary or conversation.summary
        self._conversations[key] = replace(conversation, open_run=None, summary=summary)
        self._times[key] = _Times(time.time(), state.conversation_ttl)

    async def _sweep(self) -> None:
        """Delete expired conversations, once a minute."""
        if (now := time.time()) >= self._swept_at + SWEEP_SECONDS:
            self._swept_at = now
            await self.prune(None, now)

    def _add(self, record: MemoryRecord) -> MemoryRecord:
        """Add a run, and delete the oldest one that has ended if there are too many."""
        self._runs[record.state.run_id] = record
        if len(self._runs) > self._keep_runs:
            ended = (run_id for run_id, kept in self._runs.items() if kept.state.status not in OPEN_STATUSES)
            if oldest := next(ended, None):
                self._drop(oldest)
        return record

    def _drop(self, run_id: str) -> None:
        """Delete a run that has ended. Its messages stay in its conversation."""
        self._media.drop(run_id, still_used_by=self._runs.pop(run_id).key)
        self._counters.drop(("run", run_id, None))
        self._idempotency.drop(run_id)

    def _can_begin(self, run_id: str) -> bool:
        record = self._runs[run_id]
        if record.held or record.key is None:
            return not record.held
        return self._queue.is_first(run_id, record.key) and not self._conversations[record.key].open_run

    def _turns(self, key: ConversationKey) -> list[MemoryRecord]:
        return [record for record in self._runs.values() if record.key == key]

    def _has_expired(self, key: ConversationKey, now: float) -> bool:
        times, kept = self._times.get(key), self._conversations.get(key)
        if times is None or kept is None or kept.open_run or self._queue.waiting(key):
            return False
        return times.expires_at <= now

    def _delete_with_runs(self, key: ConversationKey) -> int:
        turns = [record.state.run_id for record in self._turns(key)]
        for run_id in turns:
            self._queue.remove(run_id, key)
            self._drop(run_id)
        self._delete_conversation(key)
        return len(turns)

    def _delete_conversation(self, key: ConversationKey) -> None:
        tenant, conversation_id = key
        self._times.pop(key, None)
        del self._conversations[key]
        self._media.drop(key)
        self._counters.drop(("conversation", conversation_id, tenant))

    def _conversation_info(self, key: ConversationKey, conversation: Conversation) -> ConversationInfo:
        turns = self._turns(key)
        times = self._times.get(key) or _Times(turns[-1].updated_at if turns else 0.0, None)
        return ConversationInfo(
            id=conversation.id,
            agent=conversation.agent,
            turns=conversation.turns,
            created_at=turns[0].created_at if turns else times.updated_at,
            updated_at=times.updated_at,
            expires_at=None if times.ttl is None else times.expires_at,
            open_run=conversation.open_run,
            user=conversation.user,
            tenant=conversation.tenant,
        )

    def _record(self, run_id: str) -> MemoryRecord:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunNotFound(f"there is no run {run_id!r}") from None
