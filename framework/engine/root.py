"""A root run from its first event to its last."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from framework.engine.ending import conclude
from framework.engine.router import Route
from framework.engine.run import Run
from framework.telemetry import names
from framework.types.events import Routed
from framework.types.state import Confirmation, RunResult


async def drive_root(run: Run, chosen: Route | None) -> RunResult:
    """Run it in the task that calls this, which must be its own: nobody else's spans or timeouts get in.

    Args:
        run: a root run, new or resumed.
        chosen: how its agent was chosen; none for one that goes on.
    """
    asked: tuple[Confirmation, ...] = ()
    attributes = {
        names.OPERATION: "invoke_workflow",
        names.WORKFLOW: "agent_run",
        names.DIGEST: run.state.digest,
    }
    try:
        with run.services.spans.span("invoke_workflow agent_run", "CHAIN", attributes) as span:
            with suppress(asyncio.CancelledError):  # the state says so; the run still has to be put on record
                if chosen is not None:
                    await _tell_route(run, chosen)
                asked = await run.drive()
            return await conclude(run, asked, span)
    finally:
        run.services.channel.close()


async def _tell_route(run: Run, chosen: Route) -> None:
    attributes = {names.ROUTE_MODE: chosen.mode, names.ROUTE_AGENT: chosen.agent.name}
    with run.services.spans.span("agent.route", "CHAIN", attributes):
        await run.emit(Routed, agent=chosen.agent.name, reason=chosen.reason, confidence=chosen.confidence)
