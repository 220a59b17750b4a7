"""Periodic work on stored runs: continues interrupted ones, expires decisions, prunes old runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from random import uniform

from framework.engine.runtime.background import essential
from framework.engine.runtime.runtime import Runtime
from framework.engine.work.source import PeriodicJob
from framework.telemetry.server_metrics import ServerMetrics
from framework.types.errors import AgentsdError, ClockRefused, StoreError, StoreLost
from framework.types.fleet import ProcessDetails

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_SECONDS = 1.0
_COUNT_INTERVAL_SECONDS = 10.0
_PRUNE_INTERVAL_SECONDS = 3600.0
_EACH_MINUTE, _EACH_HOUR = "* * * * *", "0 * * * *"
LOST_SECONDS = 10.0
"""Time without a usable store after which a process ends, so that its supervisor starts another."""
_Job = Callable[[], Awaitable[None]]


@asynccontextmanager
async def housekeeping(
    runtime: Runtime, metrics: ServerMetrics, retention: float | None = None
) -> AsyncIterator[Callable[[], None]]:
    """Execute runs of the store, and do the periodic work, while the context is open, starting immediately.

    A work source that knows of all processes does in one of them what concerns the whole store.

    Yields a function that stops it early, so that a server that is about to stop takes over no more runs.

    Args:
        runtime: the runtime with the store.
        metrics: of the runs that wait in the store, and of failures.
        retention: seconds to keep runs after they have ended; None keeps them forever.
    """
    work, expire, prune = runtime.work, partial(_expire, runtime), partial(_prune, runtime, retention)
    jobs: list[tuple[float, _Job]] = [(_COUNT_INTERVAL_SECONDS, _WaitingRuns(runtime, metrics).count)]
    if work.capacity == 0:
        jobs.append((_SWEEP_INTERVAL_SECONDS, expire))
    else:
        jobs.append((_SWEEP_INTERVAL_SECONDS, partial(_sweep, runtime)))
        work.repeat(PeriodicJob("expire", _EACH_MINUTE, partial(_guarded, metrics, expire)))
        if not work.repeat(PeriodicJob("prune", _EACH_HOUR, partial(_guarded, metrics, prune))):
            jobs.append((_PRUNE_INTERVAL_SECONDS, prune))
    loop = asyncio.get_running_loop()
    tasks = [
        essential(loop.create_task(_repeat(metrics, interval, job), name="housekeeping")) for interval, job in jobs
    ]
    work.wake()

    def stop() -> None:
        work.release()
        for task in tasks:
            task.cancel()

    try:
        yield stop
    finally:
        stop()
        await asyncio.wait(tasks)


async def _repeat(metrics: ServerMetrics, interval: float, job: _Job) -> None:
    """Do the job again and again; raise StoreLost once this process has not been able to use the store for a while."""
    loop, lost_since = asyncio.get_running_loop(), inf
    while True:
        lost = await _try(metrics, job)
        lost_since = inf if lost is None else min(lost_since, loop.time())
        if lost is not None and loop.time() - lost_since >= LOST_SECONDS:
            raise lost
        await asyncio.sleep(interval * uniform(0.8, 1.2))  # so that processes do not do it at the same moment


async def _guarded(metrics: ServerMetrics, job: _Job) -> None:
    await _try(metrics, job)


async def _try(metrics: ServerMetrics, job: _Job) -> StoreLost | None:
    """Do a job, and log its errors; return the one with which this process has lost its store."""
    try:
        await job()
    except AgentsdError as error:  # the store may be available again at the next attempt
        if isinstance(error, StoreError):
            metrics.count_store_error("housekeeping")
        log.warning("housekeeping failed: %s", error.message)
        return error if isinstance(error, StoreLost) else None
    except Exception:
        log.exception("housekeeping failed")
    return None


async def _sweep(runtime: Runtime) -> None:
    """Find runs that nobody offered, or whose process has ended, as many as this process can execute."""
    if resumed := await runtime.sweep():
        log.info("resumed orphaned runs: %s", ", ".join(resumed))


async def _expire(runtime: Runtime) -> None:
    await runtime.expire()


class _WaitingRuns:
    """Counts the runs that wait, and reports once that no process executes them."""

    def __init__(self, runtime: Runtime, metrics: ServerMetrics) -> None:
        self._runtime, self._metrics = runtime, metrics
        self._is_reported = False

    async def count(self) -> None:
        """Set the metrics and, in a process that executes nothing, look for one that does."""
        counts = await self._runtime.store.count_waiting()
        self._metrics.set_waiting(counts)
        if self._runtime.work.capacity == 0:
            is_stuck = counts.get("queued", 0) > 0 and not await self._is_worker_alive()
            if is_stuck and not self._is_reported:
                log.warning("queued runs: %d, but no worker is alive: start `agentsd worker`", counts["queued"])
            self._is_reported = is_stuck

    async def _is_worker_alive(self) -> bool:
        processes = await self._runtime.store.processes()
        return any(one.is_alive and ProcessDetails.parse(one.info).works for one in processes)


async def _prune(runtime: Runtime, retention: float | None) -> None:
    now = runtime.store.now()
    try:
        pruned = await runtime.store.prune(None if retention is None else now - retention, now)
    except ClockRefused as error:
        log.warning("%s", error.message)
        return
    if pruned.runs or pruned.conversations:
        log.info("pruned %d runs, %d conversations", pruned.runs, pruned.conversations)
    if pruned.freed_bytes:
        log.info("the store file shrank by %.1f MB", pruned.freed_bytes / 1e6)
