"""A root run from its first event to its last."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from framework.engine.drive import drive
from framework.engine.routing.rules import Route
from framework.engine.run import Run
from framework.engine.runtime.result import finish_run, suspend_run
from framework.engine.runtime.trace import RunTrace
from framework.types.events import Routed
from framework.types.state import Confirmation, RunResult


async def drive_root(run: Run, chosen: Route | None) -> RunResult:
    """Run it in the task that calls this, which must be its own: nobody else's spans or timeouts get in.

    Args:
        run: a root run, new or resumed.
        chosen: how its agent was chosen; none for one that goes on.
    """
    asked: tuple[Confirmation, ...] = ()
    try:
        with RunTrace(run, chosen) as trace:
            with suppress(asyncio.CancelledError):  # the state says so; the run still has to be put on record
                if chosen is not None:
                    await _tell_route(run, chosen)
                asked = await drive(run)
            if run.services.journal.is_suspended and run.state.status == "running":
                await suspend_run(run, trace)
            return await finish_run(run, asked, trace)
    finally:
        run.services.channel.close()


async def _tell_route(run: Run, chosen: Route) -> None:
    executor = chosen.executor or None
    await run.emit(
        Routed, agent=chosen.agent.name, reason=chosen.reason, confidence=chosen.confidence, executor=executor
    )
