"""A store that keeps runs and conversations in memory, until the process ends."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

from framework.store.clock import StoreClock
from framework.store.memory_backlog import OpenRun, count_backlog
from framework.store.memory_bounds import EndedRuns
from framework.store.memory_runs import MemoryRecord, MemoryRuns
from framework.store.memory_tables import ConversationKey, ConversationTimes, MemoryIdempotency
from framework.store.protocol import (
    ANSWERED_STATUSES,
    EMPTY_FORK_SECONDS,
    NOBODY,
    OPEN_STATUSES,
    Blueprint,
    Conversation,
    CopiedTurn,
    Deciders,
    Pruned,
    RunQuery,
)
from framework.store.queue_rules import check_queue, exists_already, overtaken
from framework.store.run_record import RunRecord
from framework.store.signals import NoSignals
from framework.store.work import EVERYTHING, UNLIMITED, Allowed, OfferedRun, Offers, ProcessInfo, RunLimits, WorkScope
from framework.types.budget import BudgetUse
from framework.types.errors import ConversationBusy, RequestError, RunBlocked, RunBusy, RunTaken
from framework.types.fleet import Backlog
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import Decision, MadeDecision, Rating, RunState

log = logging.getLogger(__name__)

DEFAULT_KEEP_BYTES = 64_000_000
_FULL = (
    "the runs that have ended need more than %g MB: the oldest ones are dropped from now on; keep runs in a "
    "database (store.url), or pass MemoryStore(keep_bytes=...)"
)
SWEEP_SECONDS = 60.0
"""Minimum interval between two deletions of expired conversations."""


class MemoryStore(MemoryRuns, NoSignals):
    """A store in memory. It keeps all runs that are open, and the newest that have ended, packed."""

    durable = False
    files: tuple[Path, ...] = ()

    def __init__(
        self,
        keep_runs: int = 1000,
        *,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
        keep_spans: bool = False,
        clock: StoreClock | None = None,
    ) -> None:
        """Initialize.

        Args:
            keep_runs: number of runs, open ones included, above which a new run replaces the one that ended first.
            keep_bytes: memory for the runs that have ended, with their files. Above it, those that ended first are
                dropped; the last one is kept whatever its size. Messages and files of conversations are not counted.
            keep_spans: keep the traces of the runs.
            clock: the time of the store. Default: that of this machine, as it was first read.
        """
        super().__init__(clock or StoreClock())
        self._ended, self._keep_bytes, self._was_full = EndedRuns(keep_bytes), keep_bytes, False
        self.keeps_spans, self.lease_seconds = keep_spans, math.inf  # no other process can take over a run
        self._idempotency = MemoryIdempotency()
        self._keep_runs = keep_runs
        name, now = f"{socket.gethostname()}:{os.getpid()}", self.now()
        self._process = ProcessInfo(name, name, now, now, is_alive=True, holds=0, info={})
        self._swept_at = 0.0
        """When expired conversations were last deleted, as Unix time."""

    def offer_through(self, offers: Offers) -> None:
        """Do nothing: no other process can execute these runs."""

    async def begin(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,  # noqa: ARG002 - the agent object lives as long as the run
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Save a new run, or begin a claimed one. The record refers to the state object."""
        await self._sweep()
        now, key = self.now(), None
        record = self._runs.get(state.run_id) if state.run_id in self._queue else None
        if record is not None and not record.held:
            raise RunTaken(f"run {state.run_id} is queued, and not claimed: claim it first")
        turn, current = 0, None
        if conversation is not None:
            current = await self.conversation(conversation.id, conversation.tenant, conversation.user)
            is_overtaken = current.waiting > 0 and record is None
            if current.open_run or current.turns != conversation.turns or is_overtaken:
                raise overtaken(conversation)
        if limits:
            self._take_slots(state.run_id, limits)
        if current is not None:
            key, turn = (current.id, current.tenant, current.user), current.turns + 1
            self._conversations[key] = replace(current, open_run=state.run_id, turns=turn, waiting=0)
        if record is not None:
            self._queue.remove(state.run_id, key, has_begun=True)
            record.live, record.turn, record.updated_at, record.refusals = state, turn, now, {}
            return record
        return self._add(MemoryRecord(state, self, turn, now, now, key=key))

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Save a queued run."""
        if idempotency is not None and (earlier := self._idempotency.find(idempotency, self.now())) is not None:
            return earlier
        await self._sweep()
        now, key = self.now(), None
        if request.conversation_id is not None:
            key = request.conversation_id, request.tenant, request.user
            conversation = await self.conversation(*key)
            check_queue(request, conversation.open_run, conversation.waiting)
            if not conversation.is_stored:
                self._conversations[key] = conversation
        if idempotency is not None:
            self._idempotency.add(idempotency, request.run_id, now)
        self._queue.add(request, key)
        state, priority = request.queued_state(), request.priority
        self._add(MemoryRecord(state, self, 0, now, now, held=False, key=key, priority=priority))
        return request.run_id

    async def claim(
        self, limit: int, *, run_id: str | None = None, scope: WorkScope = EVERYTHING
    ) -> Sequence[RunRequest]:
        """Claim queued runs. No other process can claim them."""
        wanted = (one for one in self._queue if run_id in (None, one.run_id) and _is_in(scope, one))
        claimed = list(islice((one for one in wanted if self._can_begin(one.run_id)), limit))
        for request in claimed:
            self._runs[request.run_id].held = True
        return claimed

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims."""
        for run_id in run_ids:
            if run_id in self._queue:
                self._runs[run_id].held = False

    async def hand_over(self, state: RunState, decisions: Mapping[str, Decision], by: Deciders = NOBODY) -> None:
        """Save the decisions. The run is in progress, and not held."""
        if state.run_id in self._queue:
            raise RunBusy(f"run {state.run_id} waits in the queue")
        await (await self.take(state, decisions, by)).release()
        self._set_in_progress(self._record(state.run_id), decisions)

    async def hand_on(self, run_id: str, reason: str, delay: float) -> None:
        """Release a run for a while, and keep the reason."""
        if (record := self._runs.get(run_id)) is not None and record.held:
            record.held, record.held_back_until = False, time.monotonic() + delay
            record.refusals[self._process.name] = reason

    async def sweep(
        self,
        limit: int,  # noqa: ARG002 - the protocol's
        allowed: Allowed | None = None,
    ) -> Sequence[OfferedRun]:
        """Let runs try again whose limit was raised. Return no runs: nothing is offered."""
        if allowed is not None:
            for key in self._slots.waited_for:
                self._wake_first(key, allowed(key))
        return ()

    async def keep_alive(self, name: str, info: Mapping[str, Any]) -> None:
        """Keep what this process reports."""
        self._process = replace(self._process, name=name, info=dict(info), seen_at=self.now())

    async def processes(self) -> Sequence[ProcessInfo]:
        """Return this process."""
        return [replace(self._process, holds=sum(record.held for record in self._runs.values()))]

    async def backlog(self, query: RunQuery) -> Backlog:
        """Count the matching runs that have not ended."""
        requests = {one.run_id: one for one in self._queue}
        infos = await self.runs(replace(query, statuses=OPEN_STATUSES))
        open_runs = (
            OpenRun(
                info,
                requests[info.run_id].queue_name if info.run_id in requests else None,
                info.run_id in requests and self._is_next(info.run_id),
                self._runs[info.run_id].refusals,
            )
            for info in infos
        )
        return count_backlog(open_runs, self.now())

    async def take(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Claim a run that is not held, and keep the decisions with those who made them."""
        record = self._record(state.run_id)
        if record.held:
            raise RunBusy(f"run {state.run_id} is already in progress")
        if record.packed is not None:
            raise RunBusy(f"run {state.run_id} has ended: it is {record.status}")
        record.held, now = True, datetime.fromtimestamp(self.now(), UTC)
        record.decisions += [
            MadeDecision(run_id=state.run_id, confirmation_id=key, decision=made, by=by.get(key), at=now)
            for key, made in decisions.items()
        ]
        self._slots.wake(state.run_id)
        if limits:
            try:
                self._take_slots(state.run_id, limits)
            except RunBlocked:
                self._set_in_progress(record, decisions)
                raise
        return record

    async def request_cancel(self, run_id: str) -> bool:
        """Request cancellation of a run in progress."""
        record = self._record(run_id)
        record.cancel_requested = record.cancel_requested or record.held
        return record.held

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        """Return the runs in progress. No other process can take them over."""
        records = {run_id: self._runs[run_id] for run_id in run_ids if run_id in self._runs}
        return {run_id: record.cancel_requested for run_id, record in records.items() if record.held}

    async def rate(self, run_id: str, rating: Rating | None) -> None:
        """Keep a rating."""
        self._record(run_id).rating = rating

    async def save_media(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Keep files as long as the run, or the conversation that it is a turn of."""
        self._media.add(run_id, files)

    async def conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> Conversation:
        """Return a conversation. For an unknown id, or one that has expired, return a new, empty one."""
        key = conversation_id, tenant, user
        if self._has_expired(key, self.now()):
            self._delete_with_runs(key)
        stored = self._conversations.get(key) or Conversation(conversation_id, tenant=tenant, user=user)
        return replace(stored, waiting=waiting) if (waiting := self._queue.waiting(key)) else stored

    async def fork(self, conversation: Conversation, turns: Sequence[CopiedTurn]) -> None:
        """Keep a new conversation with its turns."""
        key, now = (conversation.id, conversation.tenant, conversation.user), self.now()
        if self._has_expired(key, now):
            self._delete_with_runs(key)
        if key in self._conversations:
            raise exists_already(conversation)
        self._conversations[key] = conversation
        ttl = turns[-1].state.conversation_ttl if turns else EMPTY_FORK_SECONDS
        self._times[key] = ConversationTimes(now, ttl)
        for number, turn in enumerate(turns, 1):
            record = MemoryRecord(turn.state, self, number, now, now, held=False, key=key, events=[*turn.events])
            record.pack(turn.state)
            self._add(record)
            self._keep_within_bounds(record)

    async def replace_session(self, conversation: Conversation) -> None:
        """Save the session values; raises ConversationBusy."""
        key = conversation.id, conversation.tenant, conversation.user
        current = await self.conversation(*key)
        if current.open_run is not None or current.turns != conversation.turns:
            raise overtaken(conversation)
        self._conversations[key] = replace(current, session=dict(conversation.session))

    async def delete_conversation(
        self, conversation_id: str, tenant: str | None = None, user: str | None = None
    ) -> int:
        """Delete a conversation with its runs."""
        key = conversation_id, tenant, user
        if key not in self._conversations:
            raise RequestError(f"there is no conversation {conversation_id!r}")
        if any(record.held for record in self._turns(key)):
            raise ConversationBusy(f"conversation {conversation_id!r} is busy: a run of it is in progress")
        return self._delete_with_runs(key)

    async def prune(
        self,
        before: float | None,
        now: float,
        *,
        dry_run: bool = False,
        trust_clock: bool = False,  # noqa: ARG002 - nobody sets the clock of this process
    ) -> Pruned:
        """Delete old runs and expired conversations."""
        expired = [key for key in self._conversations if self._has_expired(key, now)]
        old = [
            run_id
            for run_id, record in self._runs.items()
            if before is not None and record.status not in OPEN_STATUSES and record.updated_at < before
        ]
        runs = {*old, *(record.run_id for key in expired for record in self._turns(key))}
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

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    def add_use(self, uses: Sequence[BudgetUse]) -> None:
        """Add to the counters of shared budgets."""
        self._counters.add(uses)

    def record_end(self, state: RunState) -> None:
        """Close the conversation's open turn. Add its messages if the run completed or was stopped by a limit."""
        record = self._runs[state.run_id]
        self._queue.remove(state.run_id, record.key)
        self._slots.wake(state.run_id)
        for freed in self._slots.free(state.run_id):
            self._wake_first(freed)
        if state.status == "paused":
            return
        if record.key is not None:
            self._close_turn(record.key, state)
        self._keep_within_bounds(record)

    def _close_turn(self, key: ConversationKey, state: RunState) -> None:
        """Close the conversation's open turn, or delete the conversation if no turn of it ever began."""
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
        self._times[key] = ConversationTimes(self.now(), state.conversation_ttl)

    def _keep_within_bounds(self, ended: MemoryRecord) -> None:
        """Count a run that has ended, and delete the oldest ones if they are too large together."""
        files = self._media.sizes(ended.run_id) if ended.key is None else {}  # a conversation keeps those of its turns
        self._ended.add(ended.run_id, ended.size, files)
        while (oldest := self._ended.surplus) is not None:
            self._drop(oldest)
            if not self._was_full:
                self._was_full = True
                log.warning(_FULL, self._keep_bytes / 1e6)

    async def _sweep(self) -> None:
        """Delete expired conversations, once a minute."""
        if (now := self.now()) >= self._swept_at + SWEEP_SECONDS:
            self._swept_at = now
            await self.prune(None, now)

    def _add(self, record: MemoryRecord) -> MemoryRecord:
        """Add a run, and delete the oldest one that has ended if there are too many."""
        self._runs[record.run_id] = record
        self._added += 1
        if len(self._runs) > self._keep_runs and (oldest := self._ended.oldest):
            self._drop(oldest)
        return record

    def _drop(self, run_id: str) -> None:
        """Delete a run that has ended. Its messages stay in its conversation."""
        self._ended.remove(run_id)
        self._media.drop(run_id, still_used_by=self._runs.pop(run_id).key)
        self._counters.drop(("run", run_id, None, None))
        self._idempotency.drop(run_id)

    def _set_in_progress(self, record: MemoryRecord, decisions: Mapping[str, Decision]) -> None:
        """Let a run be in progress that nobody holds."""
        record.state.decisions.update(decisions)
        record.state.status, record.state.pending = "running", []

    def _take_slots(self, run_id: str, limits: RunLimits) -> None:
        """Take a slot of each limit. If one is reached, let the run wait, and raise RunBlocked."""
        try:
            self._slots.take(limits, run_id)
        except RunBlocked as blocked:
            self._runs[run_id].held = False
            for key in limits.keys() - {blocked.key}:
                self._wake_first(key, limits[key])  # the run does not use the slot it was woken for
            raise
        for key, allowed in limits.items():
            self._wake_first(key, allowed)

    def _wake_first(self, key: str, allowed: int | None = None) -> None:
        """Let the first run that waits for a limit try again, if fewer hold a slot than are allowed.

        Runs that have begun before come first.
        """
        waiting = self._slots.waiting(key) if self._slots.has_room(key, allowed) else ()
        begun = (run_id for run_id in waiting if run_id not in self._queue)
        queued = (one.run_id for one in self._queue if one.run_id in waiting)
        if (first := next(chain(begun, queued), None)) is not None:
            self._slots.wake(first)

    def _can_begin(self, run_id: str) -> bool:
        record = self._runs[run_id]
        if record.held or time.monotonic() < record.held_back_until or self._slots.waits_for(run_id):
            return False
        return self._is_next(run_id)

    def _delete_with_runs(self, key: ConversationKey) -> int:
        turns = [record.run_id for record in self._turns(key)]
        for run_id in turns:
            self._queue.remove(run_id, key)
            self._drop(run_id)
        self._delete_conversation(key)
        return len(turns)

    def _delete_conversation(self, key: ConversationKey) -> None:
        self._times.pop(key, None)
        del self._conversations[key]
        self._media.drop(key)
        self._counters.drop(("conversation", *key))


def _is_in(scope: WorkScope, request: RunRequest) -> bool:
    return scope.includes(request.queue_name, request.options.get("agent") or "")
