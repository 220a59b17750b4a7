"""What a server does about runs that nobody asks for: left behind by a process that ended, or waiting for too long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from framework.engine.runtime import Runtime
from framework.types.errors import AgentsdError

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0


@asynccontextmanager
async def housekeeping(runtime: Runtime) -> AsyncIterator[None]:
    """Look after the runs in the store while the context is open, at once and every few seconds."""
    task = asyncio.create_task(_again_and_again(runtime))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _again_and_again(runtime: Runtime) -> None:
    while True:
        try:
            if resumed := await runtime.resume_orphans():
                log.info("resumed what another process has left: %s", ", ".join(resumed))
            await runtime.expire()
        except AgentsdError as error:  # the store may be back the next time
            log.warning("runs in the store could not be looked after: %s", error.message)
        except Exception:
            log.exception("runs in the store could not be looked after")
        await asyncio.sleep(EVERY_SECONDS)
