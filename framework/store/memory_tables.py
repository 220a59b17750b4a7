"""The files, budget counters, queue and limits of a store in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from framework.store.queue_rules import IDEMPOTENCY_SECONDS, check_same_request
from framework.store.work import RunLimits
from framework.types.budget import BudgetUse, CounterKey, CounterOwner
from framework.types.errors import RunBlocked
from framework.types.run_request import IdempotencyKey, RunRequest

ConversationKey = tuple[str, str | None, str | None]
"""Id, tenant and user of a conversation."""


@dataclass(frozen=True, slots=True)
class ConversationTimes:
    """When a conversation's last turn ended, and how many seconds it is kept after that."""

    updated_at: float
    ttl: float | None

    @property
    def expires_at(self) -> float:
        return float("inf") if self.ttl is None else self.updated_at + self.ttl


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

    def users(self, digest: str) -> Iterator[str | ConversationKey]:
        """Yield the users of a file."""
        return (user for user, digests in self._digests.items() if digest in digests)

    def sizes(self, user: str | ConversationKey) -> dict[str, int]:
        """Return the size of each file of a user, by digest."""
        return {digest: len(self._files[digest]) for digest in self._digests.get(user, ())}

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


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """The place of a queued run."""

    urgency: int
    """Its negative priority."""
    rank: float
    """See `sql.ranks`."""
    number: int
    request: RunRequest = field(compare=False)


class MemoryQueue:
    """Queued runs, in the order in which they are claimed."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        """By run id, in the order in which the runs were added."""
        self._in_order: list[_Place] = []
        self._of_tenants: dict[tuple[str | None, int], dict[str, None]] = {}
        """Ids of the queued runs of each tenant and priority, in order."""
        self._next_ranks: dict[int, float] = {}
        """The rank after the highest that has begun, by priority."""
        self._waiting: dict[ConversationKey, dict[str, None]] = {}
        """Ids of the queued runs of each conversation, in order."""
        self._numbers = count(1)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[RunRequest]:
        """Iterate over the runs with a higher priority first, then by the turns of their tenants, then by age."""
        return (place.request for place in self._in_order)

    def add(self, request: RunRequest, key: ConversationKey | None) -> None:
        """Add a run to the queue: behind those of its tenant, and level with the next one of others."""
        same = self._of_tenants.setdefault((request.tenant, request.priority), {})
        rank = self._next_ranks.get(request.priority, 0.0)
        if same:
            rank = max(rank, self._places[next(reversed(same))].rank + 1.0)
        place = self._places[request.run_id] = _Place(-request.priority, rank, next(self._numbers), request)
        same[request.run_id] = None
        insort(self._in_order, place)
        if key is not None:
            self._waiting.setdefault(key, {})[request.run_id] = None

    def remove(self, run_id: str, key: ConversationKey | None, *, has_begun: bool = False) -> None:
        """Remove a run from the queue, if it is there."""
        if (place := self._places.pop(run_id, None)) is not None:
            del self._in_order[bisect_left(self._in_order, place)]
            priority = place.request.priority
            same = self._of_tenants[place.request.tenant, priority]
            del same[run_id]
            if not same:
                del self._of_tenants[place.request.tenant, priority]
            if has_begun:
                self._next_ranks[priority] = max(self._next_ranks.get(priority, 0.0), place.rank + 1.0)
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


class MemorySlots:
    """Limits on runs in progress: the slots that runs hold, and the runs that wait for one."""

    def __init__(self) -> None:
        self._held: dict[str, set[str]] = {}
        """Ids of the runs that hold a slot, by the key of the limit."""
        self._waiting: dict[str, str] = {}
        """Keys of the limits that runs wait for, by run id."""

    def take(self, limits: RunLimits, run_id: str) -> None:
        """Take a slot of each limit for a run, or let it wait for the first that has none.

        Raises:
            RunBlocked: a limit is reached. Runs that wait for the others may try.
        """
        held = {key: self._held.setdefault(key, set()) for key in sorted(limits)}
        for key, run_ids in held.items():
            if len(run_ids) >= limits[key]:
                self._waiting[run_id] = key
                raise RunBlocked(f"run {run_id} waits: {limits[key]} runs of {key} are in progress", key)
        for run_ids in held.values():
            run_ids.add(run_id)

    def free(self, run_id: str) -> list[str]:
        """Free the slots of a run that stops, and return their keys."""
        freed = [key for key, run_ids in self._held.items() if run_id in run_ids]
        for key in freed:
            self._held[key].discard(run_id)
            if not self._held[key]:
                del self._held[key]
        return freed

    def waits_for(self, run_id: str) -> str | None:
        """Return the key of the limit that a run waits for."""
        return self._waiting.get(run_id)

    def waiting(self, key: str) -> set[str]:
        """Return the runs that wait for a limit."""
        return {run_id for run_id, waits_for in self._waiting.items() if waits_for == key}

    @property
    def waited_for(self) -> set[str]:
        """The limits that runs wait for."""
        return set(self._waiting.values())

    def has_room(self, key: str, allowed: int | None) -> bool:
        """Return whether fewer runs hold a slot of a limit than are allowed; None: any number."""
        return allowed is None or len(self._held.get(key, ())) < allowed

    def wake(self, run_id: str) -> None:
        """Let a run try again, or forget that it waits."""
        self._waiting.pop(run_id, None)


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

    def find(self, idempotency: IdempotencyKey, now: float) -> str | None:
        """Return the id of the run with this key, if it has not expired by `now`; raises IdempotencyConflict."""
        stored = self._keys.get((idempotency.scope, idempotency.key))
        if stored is None or stored.saved_at <= now - IDEMPOTENCY_SECONDS:
            return None
        check_same_request(idempotency, stored.digest)
        return stored.run_id

    def add(self, idempotency: IdempotencyKey, run_id: str, now: float) -> None:
        """Keep a key, in place of an expired one."""
        key = idempotency.scope, idempotency.key
        if expired := self._keys.get(key):
            self._by_run.pop(expired.run_id, None)
        self._keys[key], self._by_run[run_id] = _StoredKey(idempotency.digest, run_id, now), key

    def drop(self, run_id: str) -> None:
        """Delete the key of a run, if it has one."""
        if key := self._by_run.pop(run_id, None):
            del self._keys[key]

    def drop_expired(self, now: float) -> None:
        """Delete the keys that have expired by a Unix time."""
        for run_id in [one.run_id for one in self._keys.values() if one.saved_at <= now - IDEMPOTENCY_SECONDS]:
            self.drop(run_id)
