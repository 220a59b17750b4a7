"""Reports this process to the others that share its store: what it executes, and which agents it has."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Literal

from framework.config.generations.catalog import Catalog
from framework.engine.runtime.background import essential, is_passing
from framework.engine.runtime.launcher import Launcher
from framework.engine.work.source import WorkSource
from framework.types.errors import StoreError
from framework.types.fleet import ProcessDetails
from framework.types.version import installed_version

log = logging.getLogger(__name__)

ProcessKind = Literal["serve", "worker"]
REPORT_SECONDS = 2.0
"""Interval of the reports of a process."""
_RATE_SECONDS = 60.0
"""Length of time over which the rate of begun runs is measured."""


class Presence:
    """The reports of one process. A process that is not announced, such as a plain program, sends none."""

    def __init__(self, catalog: Catalog, launcher: Launcher, work: WorkSource) -> None:
        self._catalog, self._launcher, self._work, self._store = catalog, launcher, work, launcher.store
        self.address = socket.gethostname(), os.getpid()
        """Host and id of this process."""
        self.name = ""
        """Name of this process in reports; empty unless it is announced."""
        self._kind: ProcessKind = "serve"
        self._is_due = asyncio.Event()
        self._begun: deque[tuple[float, int]] = deque()
        """Number of runs begun until each report of the last minute, by monotonic time."""
        self._is_saved = True
        self._unsubscribe: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    async def announce(self, kind: ProcessKind, name: str | None = None) -> None:
        """Report this process now, every two seconds, and at once after a reload, until `close`.

        Args:
            kind: the command that it executes.
            name: its name. Default: host and process id.
        """
        self._kind, self.name = kind, name or default_name()
        self._unsubscribe = self._catalog.subscribe(lambda _: self._is_due.set())
        await self._report()
        self._task = essential(asyncio.create_task(self._repeat(), name="reports of the process", context=Context()))

    async def close(self) -> None:
        """Stop reporting. A store that closes removes the last report."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def details(self) -> ProcessDetails:
        """Return what this process reports about itself."""
        current, scope = self._catalog.current, self._work.scope
        agents, queues = (None if names is None else tuple(sorted(names)) for names in (scope.agents, scope.queues))
        return ProcessDetails(
            kind=self._kind,
            version=installed_version(),
            host=self.address[0],
            pid=self.address[1],
            works=self._work.capacity > 0,
            capacity=self._work.capacity,
            begun_per_second=round(self._begun_per_second(), 2),
            generation=current.number,
            problems=sum(problem.severity == "error" for problem in self._catalog.problems),
            queues=queues,
            only_agents=agents,
            agents={name: agent.digest for name, agent in sorted(current.agents.items())},
        )

    async def _repeat(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._is_due.wait()
            self._is_due.clear()
            await self._report()

    async def _report(self) -> None:
        try:
            details = self.details().model_dump(mode="json", exclude_defaults=True)
            await self._store.keep_alive(self.name, details)
        except (StoreError, OSError) as error:
            if not is_passing(error):
                raise
            if self._is_saved:
                log.warning("this process could not report itself: %s", error)
            self._is_saved = False
        else:
            self._is_saved = True

    def _begun_per_second(self) -> float:
        """Return the rate at which this process began runs over the last minute."""
        now, begun = time.monotonic(), self._launcher.begun
        self._begun.append((now, begun))
        while self._begun[0][0] < now - _RATE_SECONDS:
            self._begun.popleft()
        since, before = self._begun[0]
        return (begun - before) / (now - since) if since < now else 0.0


def default_name() -> str:
    """Return the name of a process that is given none: its host and its id."""
    return f"{socket.gethostname()}-{os.getpid()}"
