"""What a server does about runs that nobody asks for: left behind by a process that ended, waiting or kept too long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from framework.engine.runtime.runtime import Runtime
from framework.types.errors import AgentsdError

log = logging.getLogger(__name__)

_RECOVERY_INTERVAL_SECONDS = 10.0
_PRUNE_INTERVAL_SECONDS = 3600.0


@asynccontextmanager
async def housekeeping(runtime: Runtime, retention: float | None = None) -> AsyncIterator[None]:
    """Look after the runs in the store while the context is open, at once and every few seconds.

    Args:
        runtime: with the store.
        retention: seconds for which runs are kept once they have ended; none: for ever.
    """
    work = [
        asyncio.create_task(_repeat(_RECOVERY_INTERVAL_SECONDS, lambda: _recover_runs(runtime))),
        asyncio.create_task(_repeat(_PRUNE_INTERVAL_SECONDS, lambda: _prune(runtime, retention))),
    ]
    try:
        yield
    finally:
        for task in work:
            task.cancel()
        await asyncio.wait(work)


async def _repeat(every: float, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await job()
        except AgentsdError as error:  # the store may be back the next time
            log.warning("runs in the store could not be looked after: %s", error.message)
        except Exception:
            log.exception("runs in the store could not be looked after")
        await asyncio.sleep(every)


async def _recover_runs(runtime: Runtime) -> None:
    if resumed := await runtime.resume_orphans():
        log.info("resumed what another process has left: %s", ", ".join(resumed))
    await runtime.expire()


async def _prune(runtime: Runtime, retention: float | None) -> None:
    now = time.time()
    pruned = await runtime.store.prune(None if retention is None else now - retention, now)
    if pruned.runs or pruned.conversations:
        log.info("deleted what is kept no longer: %d runs, %d conversations", pruned.runs, pruned.conversations)
    if pruned.freed_bytes:
        log.info("the store's file is %.1f MB smaller", pruned.freed_bytes / 1e6)
