"""Keeps hold of the runs of this process while they go on, and learns who wants one of them to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextvars import Context
from typing import Protocol

from framework.memory.store import Store
from framework.types.errors import StoreError

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds from one look at the store to the next, while a run goes on."""


class Ending(Protocol):
    """Of a run that goes on."""

    def abandon(self) -> None:
        """Have the run ended, if that was not done before."""
        ...


class Ongoing(Protocol):
    """A run that goes on."""

    @property
    def journal(self) -> Ending:
        """What ends it."""
        ...


class Keeper:
    """One task a runtime, and only while there is something to keep."""

    def __init__(self, store: Store, running: Mapping[str, Ongoing]) -> None:
        self._store, self._running = store, running
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """A run has begun."""
        if self._store.durable and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep(), context=Context())  # of nobody's trace

    async def close(self) -> None:
        """Let go of everything."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep(self) -> None:
        try:
            while self._running:
                await asyncio.sleep(EVERY)
                await self._look()
        finally:
            self._task = None

    async def _look(self) -> None:
        mine = dict(self._running)
        try:
            held = await self._store.renew(tuple(mine))
        except StoreError as error:  # a run that needs the store will find out by itself
            log.warning("the store cannot be reached: %s", error)
            return
        for run_id, run in mine.items():
            # What ended meanwhile is not held any more, though it may go on again by now.
            if self._running.get(run_id) is run and held.get(run_id, True):
                run.journal.abandon()
