"""The files, budget counters and queue of a store in memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from framework.store.queue_rules import IDEMPOTENCY_SECONDS, check_same_request
from framework.types.budget import BudgetUse, CounterKey, CounterOwner
from framework.types.run_request import IdempotencyKey, RunRequest

ConversationKey = tuple[str | None, str]
"""Tenant and id of a conversation."""


class MemoryMedia:
    """Files in messages by digest, and who uses them: runs, and conversations whose runs were deleted."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._digests: dict[str | ConversationKey, set[str]] = {}

    def add(self, user: str, files: Mapping[str, bytes]) -> None:
        """Keep files for a run."""
        self._files.update({digest: body for digest, body in files.items() if digest not in self._files})
        self._digests.setdefault(user, set()).update(files)

    def get(self, digests: Collection[str]) -> Mapping[str, bytes]:
        """Return the files with these digests."""
        return {digest: self._files[digest] for digest in digests if digest in self._files}

    def drop(self, user: str | ConversationKey, *, still_used_by: ConversationKey | None = None) -> None:
        """Delete a user's files, except those that others use. The messages of a conversation outlive its runs."""
        dropped = self._digests.pop(user, set())
        if still_used_by is not None and dropped:
            self._digests.setdefault(still_used_by, set()).update(dropped)
        for digest in dropped.difference(*self._digests.values()):
            del self._files[digest]


class MemoryCounters:
    """The counters of shared budgets."""

    def __init__(self) -> None:
        self._uses: dict[CounterKey, BudgetUse] = {}
        self._owned: dict[CounterOwner, set[CounterKey]] = {}

    def add(self, uses: Sequence[BudgetUse]) -> None:
        """Add each use to its counter."""
        for use in uses:
            before = self._uses.get(use.key)
            self._uses[use.key] = before.plus(use.tokens, use.cost_usd) if before else use
            if before is None and (owner := use.owner):
                self._owned.setdefault(owner, set()).add(use.key)

    def load(self, keys: Collection[CounterKey] | None) -> list[BudgetUse]:
        """Return the counters with these keys that exist; None: all."""
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


class MemoryQueue:
    """Queued runs, in the order in which they were added."""

    def __init__(self) -> None:
        self._requests: dict[str, RunRequest] = {}
        self._waiting: dict[ConversationKey, dict[str, None]] = {}
        """Ids of the queued runs of each conversation, in order."""

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._requests

    def __iter__(self) -> Iterator[RunRequest]:
        return iter(self._requests.values())

    def add(self, request: RunRequest, key: ConversationKey | None) -> None:
        """Add a run to the end of the queue."""
        self._requests[request.run_id] = request
        if key is not None:
            self._waiting.setdefault(key, {})[request.run_id] = None

    def remove(self, run_id: str, key: ConversationKey | None) -> None:
        """Remove a run from the queue, if it is there."""
        self._requests.pop(run_id, None)
        if key is not None and (waiting := self._waiting.get(key)) is not None:
            waiting.pop(run_id, None)
            if not waiting:
                del self._waiting[key]

    def waiting(self, key: ConversationKey) -> int:
        """Return the number of queued runs of a conversation."""
        return len(self._waiting.get(key, ()))

    def is_first(self, run_id: str, key: ConversationKey) -> bool:
        """Return whether a queued run is the oldest of its conversation."""
        return next(iter(self._waiting[key])) == run_id


@dataclass(frozen=True, slots=True)
class _StoredKey:
    """The request that an idempotency key stands for."""

    digest: str
    run_id: str
    saved_at: float


class MemoryIdempotency:
    """Idempotency keys, each deleted with its run or after 24 hours."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], _StoredKey] = {}
        self._by_run: dict[str, tuple[str, str]] = {}

    def find(self, idempotency: IdempotencyKey) -> str | None:
        """Return the id of the run with this key, if any; raises IdempotencyConflict."""
        stored = self._keys.get((idempotency.scope, idempotency.key))
        if stored is None or stored.saved_at <= time.time() - IDEMPOTENCY_SECONDS:
            return None
        check_same_request(idempotency, stored.digest)
        return stored.run_id

    def add(self, idempotency: IdempotencyKey, run_id: str) -> None:
        """Keep a key, in place of an expired one."""
        key = idempotency.scope, idempotency.key
        if expired := self._keys.get(key):
            self._by_run.pop(expired.run_id, None)
        self._keys[key], self._by_run[run_id] = _StoredKey(idempotency.digest, run_id, time.time()), key

    def drop(self, run_id: str) -> None:
        """Delete the key of a run, if it has one."""
        if key := self._by_run.pop(run_id, None):
            del self._keys[key]

    def drop_expired(self, now: float) -> None:
        """Delete the keys that have expired by a Unix time."""
        for run_id in [one.run_id for one in self._keys.values() if one.saved_at <= now - IDEMPOTENCY_SECONDS]:
            self.drop(run_id)
