"""Renews the leases of this process's runs, and reacts to cancel requests and lost leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextvars import Context
from typing import Protocol

from framework.store.protocol import Store
from framework.types.errors import StoreError

log = logging.getLogger(__name__)

RENEWAL_SECONDS = 1.0
"""Seconds between two lease renewals while a run is in progress."""


class StoppableJournal(Protocol):
    """The part of a run's journal that the heartbeat uses."""

    def request_cancel(self) -> None:
        """Cancel the run: a cancel request is in the store."""
        ...

    def mark_lease_lost(self) -> None:
        """Stop working on the run without ending it: this process no longer holds it."""
        ...


class ActiveRun(Protocol):
    """A run in progress."""

    @property
    def journal(self) -> StoppableJournal:
        """The run's journal."""
        ...


class LeaseHeartbeat:
    """One task per runtime, alive only while runs are in progress."""

    def __init__(self, store: Store, running: Mapping[str, ActiveRun]) -> None:
        self._store, self._running = store, running
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the heartbeat if the store has leases and the heartbeat is not running."""
        if self._store.durable and self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._renew_while_active(), context=Context()
            )  # outside any trace

    async def close(self) -> None:
        """Stop the heartbeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _renew_while_active(self) -> None:
        try:
            while self._running:
                await asyncio.sleep(RENEWAL_SECONDS)
                await self._renew_leases()
        finally:
            self._task = None

    async def _renew_leases(self) -> None:
        mine = dict(self._running)
        try:
            held = await self._store.renew(tuple(mine))
        except StoreError as error:  # a run fails with its next write, if the store is still unreachable then
            log.warning("the leases of %d runs were not renewed: %s", len(mine), error)
            return
        for run_id, run in mine.items():
            if self._running.get(run_id) is not run:
                continue  # it has ended since, and may have been resumed as another object
            if run_id not in held:
                run.journal.mark_lease_lost()
            elif held[run_id]:
                run.journal.request_cancel()
