"""A store that keeps runs and conversations in memory, until the process ends: a SQLite database in memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

import sqlalchemy as sa

from framework.store.conversations import delete_ended
from framework.store.database import Database, StoreClock
from framework.store.schema import events, media, messages, packed, parts, run_media, runs, spans
from framework.store.store import Store
from framework.store.types import (
    NOBODY,
    OPEN_STATUSES,
    UNLIMITED,
    Blueprint,
    Conversation,
    Deciders,
    RunInfo,
    RunLimits,
    RunQuery,
    RunRecord,
)
from framework.types.grant import Grant
from framework.types.state import Decision, IdempotencyKey, RunRequest, RunState

log = logging.getLogger(__name__)

DEFAULT_KEEP_BYTES = 64_000_000
_FULL = (
    "the runs that have ended need more than %g MB: the oldest ones are dropped from now on; keep runs in a "
    "database (store.url), or pass MemoryStore(keep_bytes=...)"
)
_ROW_BYTES = 1000
"""Estimated size of a run without its texts: its other columns, and its entries in indexes."""
_IS_OPEN = runs.c.status.in_(OPEN_STATUSES)
_KEPT = sa.select(
    sa.select(sa.func.count()).where(runs.c.ended_at.is_not(None)).scalar_subquery()
    + sa.select(sa.func.count()).where(_IS_OPEN).scalar_subquery()
)
"""Number of runs, without the turns of conversations of which only the messages are left."""
_ENDED = (runs.c.ended_at.is_not(None), ~_IS_OPEN)
_USED = """SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"""
SWEEP_SECONDS = 60.0
"""Minimum interval between two deletions of expired conversations."""


class MemoryStore(Store):
    """A store in memory. It keeps all runs that are open, and the newest that have ended.

    A run is written when it starts, without its messages, and when it pauses or ends, not at each step: nothing could
    continue it after a crash. The data lasts as long as the object, also after `close`.
    """

    durable = False

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
            keep_runs: number of runs, open ones included, above which those that ended first are dropped, a twentieth
                of this number at a time.
            keep_bytes: memory for the runs that have ended, with their files. Above it, those that ended first are
                dropped; the last one is kept whatever its size. Messages and files of conversations are not counted.
            keep_spans: keep the traces of the runs.
            clock: the time of the store. Default: that of this machine, as it was first read.
        """
        super().__init__(Database.in_memory(clock), math.inf)  # no other process can take over a run
        self.keeps_spans = keep_spans
        self._keep_runs, self._keep_bytes, self._was_full = keep_runs, keep_bytes, False
        self._in_progress: WeakValueDictionary[str, RunState] = WeakValueDictionary()
        """The runs that are not written at each step, by id."""
        self._swept_at = self.now()
        self._batch = max(1, keep_runs // 20)
        """Number of runs that are dropped together: to count them costs more than to save one."""
        self._added = 0

    async def start(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Save a new run, or start a claimed one."""
        record = await super().start(state, conversation, blueprint, limits)
        self._set_in_progress(state)
        await self._make_room()
        return record

    async def acquire(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        limits: RunLimits = UNLIMITED,
        grants: Sequence[Grant] = (),
    ) -> RunRecord:
        """Claim a run that is not held."""
        record = await super().acquire(state, decisions, by, limits, grants)
        self._set_in_progress(state)
        return record

    async def save_decisions(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        grants: Sequence[Grant] = (),
    ) -> None:
        """Save decisions, and release the run."""
        await super().save_decisions(state, decisions, by, grants)
        self._in_progress.pop(state.run_id, None)

    async def load_run(self, run_id: str) -> RunState:
        """Return the state object of a run that has not ended, if it is in use, not a copy; of others, a new one.

        It is not written at each step.
        """
        return self._in_progress.get(run_id) or await super().load_run(run_id)

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        """Return the matching runs, by default oldest first. Those in progress are shown as they are now."""
        return [self._current(info) for info in await super().runs(query)]

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Save a queued run."""
        run_id = await super().enqueue(request, idempotency=idempotency)
        await self._make_room()
        return run_id

    async def close(self) -> None:
        """Do nothing: the data lasts as long as the object."""

    async def _make_room(self) -> None:
        """Drop the runs that ended first if there are too many; once a minute, delete expired conversations."""
        self._added += 1
        if self._added % self._batch == 0:
            await self._database.write(self._drop_surplus)
        if (now := self.now()) >= self._swept_at + SWEEP_SECONDS:
            self._swept_at = now
            await self.prune(None, now, trust_clock=True)

    def _set_in_progress(self, state: RunState) -> None:
        if not self.durable:
            self._in_progress[state.run_id] = state

    def _current(self, info: RunInfo) -> RunInfo:
        if (state := self._in_progress.get(info.run_id)) is None:
            return info
        tokens, elapsed_ms = state.usage.total_tokens, state.elapsed_ms
        return replace(info, steps=state.steps, tokens=tokens, elapsed_ms=elapsed_ms)

    def _drop_surplus(self, connection: sa.Connection) -> None:
        if (surplus := connection.execute(_KEPT).scalar_one() - self._keep_runs) > 0:
            delete_ended(connection, math.inf, surplus)

    def _run_ended(self, connection: sa.Connection, state: RunState) -> None:
        """Drop the runs that ended first as long as those that have ended are too large, except the last one."""
        if state.status == "paused":
            return
        self._in_progress.pop(state.run_id, None)
        if _used_bytes(connection) <= self._keep_bytes:
            return
        while ended_bytes(connection) > self._keep_bytes and _count_ended(connection) > 1:
            delete_ended(connection, math.inf, 1)
            if not self._was_full:
                self._was_full = True
                log.warning(_FULL, self._keep_bytes / 1e6)


def _used_bytes(connection: sa.Connection) -> int:
    """Return the size of the database, without its free pages."""
    return int(connection.exec_driver_sql(_USED).scalar_one())


def _count_ended(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(runs).where(*_ENDED)).scalar_one())


def ended_bytes(connection: sa.Connection) -> int:
    """Return the size of the runs that have ended, without the messages and files of conversations."""

    def rows(table: sa.Table) -> sa.ColumnElement[int]:
        length = sa.select(sa.func.sum(sa.func.length(table.c.body))).where(table.c.run_id == runs.c.id)
        return sa.func.coalesce(length.scalar_subquery(), 0)

    own = sa.func.length(runs.c.head) + sa.func.length(runs.c.state) + _ROW_BYTES
    is_alone = runs.c.conversation_id.is_(None)
    size = sum((rows(table) for table in (packed, parts, events, spans)), own)
    size += sa.case((is_alone, rows(messages)), else_=0)
    of_runs = connection.execute(sa.select(sa.func.sum(size)).where(*_ENDED)).scalar_one()
    refers = sa.exists().where(run_media.c.digest == media.c.digest, run_media.c.run_id == runs.c.id, is_alone, *_ENDED)
    of_files = connection.execute(sa.select(sa.func.sum(sa.func.length(media.c.body))).where(refers)).scalar_one()
    return int(of_runs or 0) + int(of_files or 0)
