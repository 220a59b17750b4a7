"""Periodic work on stored runs: begins queued runs, resumes orphaned ones, expires decisions, prunes old runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from framework.engine.runtime.runtime import Runtime
from framework.telemetry.server_metrics import ServerMetrics
from framework.types.errors import AgentsdError, StoreError

log = logging.getLogger(__name__)

_QUEUE_INTERVAL_SECONDS = 1.0
_RECOVERY_INTERVAL_SECONDS = 10.0
_PRUNE_INTERVAL_SECONDS = 3600.0


@asynccontextmanager
async def housekeeping(
    runtime: Runtime, metrics: ServerMetrics, retention: float | None = None
) -> AsyncIterator[Callable[[], None]]:
    """Run the periodic work while the context is open, starting immediately.

    Yields a function that stops it early, so that a server that is about to stop takes over no more runs.

    Args:
        runtime: the runtime with the store.
        metrics: of the runs that wait in the store, and of failures.
        retention: seconds to keep runs after they have ended; None keeps them forever.
    """
    tasks = [
        asyncio.create_task(_repeat(metrics, _QUEUE_INTERVAL_SECONDS, lambda: _start_queued(runtime))),
        asyncio.create_task(_repeat(metrics, _RECOVERY_INTERVAL_SECONDS, lambda: _recover_runs(runtime, metrics))),
        asyncio.create_task(_repeat(metrics, _PRUNE_INTERVAL_SECONDS, lambda: _prune(runtime, retention))),
    ]

    def stop() -> None:
        for task in tasks:
            task.cancel()

    try:
        yield stop
    finally:
        stop()
        await asyncio.wait(tasks)


async def _repeat(metrics: ServerMetrics, interval: float, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await job()
        except AgentsdError as error:  # the store may be available again at the next attempt
            if isinstance(error, StoreError):
                metrics.count_store_error("housekeeping")
            log.warning("housekeeping failed: %s", error.message)
        except Exception:
            log.exception("housekeeping failed")
        await asyncio.sleep(interval)


async def _start_queued(runtime: Runtime) -> None:
    await runtime.start_queued()


async def _recover_runs(runtime: Runtime, metrics: ServerMetrics) -> None:
    if resumed := await runtime.resume_orphans():
        log.info("resumed orphaned runs: %s", ", ".join(resumed))
    await runtime.expire()
    metrics.set_waiting(await runtime.store.count_waiting())


async def _prune(runtime: Runtime, retention: float | None) -> None:
    now = time.time()
    pruned = await runtime.store.prune(None if retention is None else now - retention, now)
    if pruned.runs or pruned.conversations:
        log.info("pruned %d runs, %d conversations", pruned.runs, pruned.conversations)
    if pruned.freed_bytes:
        log.info("the store file shrank by %.1f MB", pruned.freed_bytes / 1e6)
