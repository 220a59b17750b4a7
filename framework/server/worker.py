"""`agentsd worker`: executes queued and interrupted runs of a store until a signal stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from framework.config.settings import Settings
from framework.engine.runtime.runtime import Runtime
from framework.server.startup import START_RETRY_SECONDS, Stopping, housekeeping, open_working
from framework.store.types import WorkScope
from framework.store.url import MEMORY_URL
from framework.telemetry.metrics import ServerMetrics
from framework.types.errors import ConfigError


async def run_worker(
    root: str | Path,
    settings: Settings,
    capacity: int,
    scope: WorkScope,
    started: Callable[[Runtime], object],
    name: str | None = None,
    *,
    allow_empty: bool = False,
) -> int:
    """Execute runs until SIGTERM or SIGINT. Then release them to other processes, and return how many there were.

    Calls of tools get a moment to end; a second signal ends them at once.

    Args:
        root: the project's folder, or its single agent file.
        settings: the store and the work source.
        capacity: number of runs to execute at once.
        scope: the runs to execute.
        started: called with the runtime once runs are executed.
        name: name of this process in lists. Default: host and process id.
        allow_empty: work for a project without any valid agent, too.

    Raises:
        ConfigError: the settings or files are invalid, no agent is valid, or other processes cannot see the store.
        AgentNotFound: the scope names an agent that the project does not have.
        StoreError: the store cannot be opened.
    """
    if settings.store.url.get_secret_value() == MEMORY_URL:
        raise ConfigError(
            "store.url: a worker finds no runs in a store in memory, which no other process can see: "
            "set store.url to a SQLite file or PostgreSQL"
        )
    in_progress = 0
    with Stopping() as stopping:
        try:
            async with (
                open_working(
                    root,
                    settings,
                    capacity,
                    scope,
                    kind="worker",
                    name=name,
                    retry_seconds=START_RETRY_SECONDS,
                    allow_empty=allow_empty,
                ) as runtime,
                housekeeping(_checked(runtime, scope), ServerMetrics(), settings.store.retention) as stop_housekeeping,
            ):
                stopped = asyncio.Event()
                stopping.call_on_stop(stop_housekeeping, stopped.set)
                started(runtime)
                await stopped.wait()
                in_progress = runtime.slots.taken
        except asyncio.CancelledError:
            if not stopping.requested:
                raise
        stopping.check()
    return in_progress


def _checked(runtime: Runtime, scope: WorkScope) -> Runtime:
    """Return the runtime; raises AgentNotFound or AgentBroken if the scope names an agent that it does not have."""
    current = runtime.catalog.current
    for name in sorted(scope.agents or ()):
        current.agent(name)
    return runtime
