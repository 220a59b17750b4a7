"""A store that keeps runs and conversations in memory, until the process ends."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from framework.store.protocol import (
    ANSWERED_STATUSES,
    OPEN_STATUSES,
    PREVIEW_CHARS,
    Blueprint,
    Conversation,
    ConversationInfo,
    ConversationQuery,
    Pruned,
    RunInfo,
    RunQuery,
    RunRecord,
)
from framework.types.budget import BudgetUse, CounterKey, CounterOwner
from framework.types.errors import ConversationBusy, RequestError, RunBusy, RunNotFound
from framework.types.events import Event
from framework.types.state import Decision, RunState
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
    spans: list[SpanRecord] = field(default_factory=list)

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),  # noqa: ARG002 - the protocol's
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Save spans, the use of budgets, and the end of the run. The state object is shared."""
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


class _MemoryMedia:
    """Files in messages by digest, and who uses them: runs, and conversations whose runs were deleted."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._digests: dict[str, set[str]] = {}

    def add(self, user: str, files: Mapping[str, bytes]) -> None:
        """Keep files for a run."""
        self._files.update({digest: body for digest, body in files.items() if digest not in self._files})
        self._digests.setdefault(user, set()).update(files)

    def get(self, digests: Collection[str]) -> Mapping[str, bytes]:
        """Return the files with these digests."""
        return {digest: self._files[digest] for digest in digests if digest in self._files}

    def drop(self, user: str, *, still_used_by: str | None = None) -> None:
        """Delete a user's files, except those that others use. The messages of a conversation outlive its runs."""
        dropped = self._digests.pop(user, set())
        if still_used_by is not None and dropped:
            self._digests.setdefault(still_used_by, set()).update(dropped)
        for digest in dropped.difference(*self._digests.values()):
            del self._files[digest]


class _MemoryCounters:
    """The counters of shared budgets."""

    def __init__(self) -> None:
        self._uses: dict[CounterKey, BudgetUse] = {}
        self._owned: dict[CounterOwner, set[CounterKey]] = {}

    def add(self, uses: Sequence[BudgetUse]) -> None:
        for use in uses:
            before = self._uses.get(use.key)
            self._uses[use.key] = before.plus(use.tokens, use.cost_usd) if before else use
            if before is None and (owner := use.owner):
                self._owned.setdefault(owner, set()).add(use.key)

    def load(self, keys: Collection[CounterKey] | None) -> list[BudgetUse]:
        return [self._uses[key] for key in (self._uses if keys is None else keys) if key in self._uses]

    def drop(self, owner: CounterOwner) -> None:
        """Delete the counters of a conversation or run."""
        for key in self._owned.pop(owner, ()):
            self._uses.pop(key, None)

    def drop_ended(self, before: float | None) -> None:
        """Delete the counters of periods that ended before a Unix time; None: none."""
        ended = [k for k, use in self._uses.items() if before and use.resets_at and use.resets_at.timestamp() < before]
        for key in ended:
            del self._uses[key]


class MemoryStore:
    """A store in memory. It keeps the newest `keep_runs` runs, plus those that are open; events are not stored."""

    durable = False
    files: tuple[Path, ...] = ()

    def __init__(self, keep_runs: int = 1000, *, keep_spans: bool = False) -> None:
        self.keeps_spans = keep_spans
        self._runs: dict[str, MemoryRecord] = {}
        self._conversations: dict[str, Conversation] = {}
        self._times: dict[str, _Times] = {}
        self._media = _MemoryMedia()
        self._counters = _MemoryCounters()
        self._keep_runs = keep_runs
        self._swept_at = 0.0
        """When expired conversations were last deleted, as Unix time."""

    async def begin(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,  # noqa: ARG002 - the agent object lives as long as the run
    ) -> RunRecord:
        """Save a new run. The record refers to the state object."""
        if (now := time.time()) >= self._swept_at + SWEEP_SECONDS:
            self._swept_at = now
            await self.prune(None, now)
        turn = 0
        if conversation is not None:
            current = await self.conversation(conversation.id)
            if current.open_run or current.turns != conversation.turns:
                raise ConversationBusy(f"conversation {conversation.id!r} is busy: another run of it began first")
            turn = current.turns + 1
            user, tenant = (current.user, current.tenant) if current.turns else (state.user, state.tenant)
            opened = replace(current, open_run=state.run_id, turns=turn, user=user, tenant=tenant)
            self._conversations[current.id] = opened
        record = self._runs[state.run_id] = MemoryRecord(state, self, turn, now, now)
        if len(self._runs) > self._keep_runs:
            ended = (run_id for run_id, kept in self._runs.items() if kept.state.status not in OPEN_STATUSES)
            if oldest := next(ended, None):
                self._media.drop(oldest, still_used_by=self._runs.pop(oldest).state.conversation_id)
                self._counters.drop(("run", oldest))
        return record

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
        query = query or RunQuery()
        infos = [info for info in map(_info, self._runs.values()) if _matches(info, query)]
        return (infos[::-1] if query.newest_first else infos)[: query.limit]

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002 - the protocol's
        """Return nothing: events are not stored."""
        self._record(run_id)
        return ()

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

    async def conversation(self, conversation_id: str) -> Conversation:
        """Return a conversation. For an unknown id, or one that has expired, return a new, empty one."""
        if self._has_expired(conversation_id, time.time()):
            self._delete_with_runs(conversation_id)
        return self._conversations.get(conversation_id, Conversation(conversation_id))

    async def conversations(self, query: ConversationQuery | None = None) -> Sequence[ConversationInfo]:
        """Return the matching conversations, latest turn first."""
        query = query or ConversationQuery()
        filters = {name: value for name in ("agent", "user", "tenant") if (value := getattr(query, name)) is not None}
        infos = [
            info
            for info in map(self._conversation_info, self._conversations.values())
            if all(getattr(info, name) == value for name, value in filters.items())
            and (query.before is None or info.updated_at < query.before)
        ]
        return sorted(infos, key=lambda info: -info.updated_at)[: query.limit]

    async def replace_session(self, conversation: Conversation) -> None:
        """Save the session values; raises ConversationBusy."""
        current = await self.conversation(conversation.id)
        if current.open_run is not None or current.turns != conversation.turns:
            raise ConversationBusy(f"conversation {conversation.id!r} is busy: another run of it began first")
        self._conversations[current.id] = replace(current, session=dict(conversation.session))

    async def delete_conversation(self, conversation_id: str) -> int:
        """Delete a conversation with its runs."""
        if conversation_id not in self._conversations:
            raise RequestError(f"there is no conversation {conversation_id!r}")
        if any(record.held for record in self._turns(conversation_id)):
            raise ConversationBusy(f"conversation {conversation_id!r} is busy: a run of it is in progress")
        return self._delete_with_runs(conversation_id)

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
                self._media.drop(run_id, still_used_by=self._runs.pop(run_id).state.conversation_id)
                self._counters.drop(("run", run_id))
            self._counters.drop_ended(before)
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
        if state.conversation_id is None or state.status == "paused":
            return
        conversation = self._conversations[state.conversation_id]
        if state.status in ANSWERED_STATUSES:
            messages, session = (*conversation.messages, *state.messages), dict(state.session)
            conversation = replace(conversation, messages=messages, agent=state.agent, session=session)
        summary = state.summary or conversation.summary
        self._conversations[conversation.id] = replace(conversation, open_run=None, summary=summary)
        self._times[conversation.id] = _Times(time.time(), state.conversation_ttl)

    def _turns(self, conversation_id: str) -> list[MemoryRecord]:
        return [record for record in self._runs.values() if record.state.conversation_id == conversation_id]

    def _has_expired(self, conversation_id: str, now: float) -> bool:
        times, kept = self._times.get(conversation_id), self._conversations.get(conversation_id)
        return times is not None and kept is not None and not kept.open_run and times.expires_at <= now

    def _delete_with_runs(self, conversation_id: str) -> int:
        self._times.pop(conversation_id, None)
        del self._conversations[conversation_id]
        turns = [record.state.run_id for record in self._turns(conversation_id)]
        for run_id in turns:
            del self._runs[run_id]
            self._media.drop(run_id)
            self._counters.drop(("run", run_id))
        self._media.drop(conversation_id)
        self._counters.drop(("conversation", conversation_id))
        return len(turns)

    def _conversation_info(self, conversation: Conversation) -> ConversationInfo:
        turns = self._turns(conversation.id)
        times = self._times.get(conversation.id) or _Times(turns[-1].updated_at if turns else 0.0, None)
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


def _info(record: MemoryRecord) -> RunInfo:
    state = record.state
    expiries = [one.expires_at.timestamp() for one in state.pending if one.expires_at]
    return RunInfo(
        run_id=state.run_id,
        status=state.status,
        finish_reason=state.finish_reason,
        agent=state.agent,
        generation=state.generation,
        digest=state.digest,
        message=state.messages[0].description[:PREVIEW_CHARS],
        created_at=record.created_at,
        updated_at=record.updated_at,
        conversation_id=state.conversation_id,
        turn=record.turn,
        user=state.user,
        tenant=state.tenant,
        trace_id=state.trace_id,
        steps=state.steps,
        tokens=state.usage.total_tokens,
        expires_at=min(expiries, default=None),
        held=record.held,
    )


def _matches(info: RunInfo, query: RunQuery) -> bool:
    return all(_conditions(info, query))


def _conditions(info: RunInfo, query: RunQuery) -> Iterator[bool]:
    yield not query.statuses or info.status in query.statuses
    yield not query.orphaned or info.orphaned
    if query.expired_at is not None:
        yield info.status == "paused" and info.expires_at is not None and info.expires_at <= query.expired_at
    for name in ("conversation_id", "agent", "user", "tenant"):
        value = getattr(query, name)
        yield value is None or getattr(info, name) == value
