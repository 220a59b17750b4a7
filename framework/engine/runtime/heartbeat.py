"""Renews the lease of this process while it holds runs, and reacts to cancel requests and lost leases."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from contextvars import Context
from typing import Protocol

from framework.engine.runtime.background import essential, is_passing
from framework.engine.runtime.receiver import SignalReceiver
from framework.store.protocol import Store
from framework.store.signals import MISSED, Signal
from framework.types.errors import StoreError

log = logging.getLogger(__name__)

RENEWAL_SECONDS = 1.0
"""Maximum of seconds between two renewals while this process holds runs; a quarter of the lease if that is shorter."""


class HeldRun(Protocol):
    """A run that this process holds: the journal of a run in progress, or a claimed run that is being started."""

    def request_cancel(self) -> None:
        """Cancel the run: a cancel request is in the store."""
        ...

    def mark_lease_lost(self) -> None:
        """Stop working on the run without ending it: this process no longer holds it."""
        ...


class LeaseHeartbeat:
    """One task per runtime, alive only while it holds runs."""

    def __init__(self, store: Store, signals: SignalReceiver) -> None:
        self._store, self._signals = store, signals
        self._woken = asyncio.Event()
        signals.add(self._receive)
        self._held: dict[str, HeldRun] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def hold(self, run_id: str, run: HeldRun) -> None:
        """Renew the lease of a run until `drop`. A run in progress replaces the claim that it was started from."""
        self._held[run_id] = run
        if self._store.durable and self._task is None and not self._is_closed:
            renewing = self._renew_while_held()
            self._task = essential(  # outside any trace
                asyncio.get_running_loop().create_task(renewing, name="renewal of leases", context=Context())
            )

    def drop(self, run_id: str) -> None:
        """Stop renewing the lease of a run."""
        self._held.pop(run_id, None)

    async def close(self) -> None:
        """Stop the heartbeat."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _receive(self, signal: Signal) -> None:
        """Renew the leases at once if a run is cancelled: the store says whether that is so."""
        if signal == MISSED or (signal.kind == "cancel" and signal.run_id in self._held):
            self._woken.set()

    async def _renew_while_held(self) -> None:
        try:
            while self._held:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(RENEWAL_SECONDS, self._store.lease_seconds / 4)):
                        await self._woken.wait()
                self._woken.clear()
                try:
                    await self._renew_leases()
                    await self._signals.open()  # only now, because most programs end earlier
                except (StoreError, OSError) as error:  # a run fails with its next write, if that fails, too
                    if not is_passing(error):
                        raise
                    log.warning("the lease on %d runs was not renewed: %s", len(self._held), error)
        finally:
            self._task = None

    async def _renew_leases(self) -> None:
        mine = dict(self._held)
        renewed = await self._store.renew(tuple(mine))
        for run_id, run in mine.items():
            if self._held.get(run_id) is not run:
                continue  # it has ended since, and may have been resumed as another object
            if run_id not in renewed:
                run.mark_lease_lost()
            elif renewed[run_id]:
                run.request_cancel()
