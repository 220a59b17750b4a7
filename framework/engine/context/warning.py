"""Warnings of a run: kept in its state for the result, logged without content, and sent to listeners."""

from __future__ import annotations

import logging

from framework.engine.context.run_context import RunContext
from framework.types.events import Warned
from framework.types.warnings import MOST_OF_A_CODE, WARNINGS, RunWarning, WarningCode

log = logging.getLogger("agentsd.runs")


async def warn(run: RunContext, code: WarningCode, message: str, *, message_id: str | None = None) -> None:
    """Record a warning in the root run's state, log its code, and emit it.

    Args:
        run: the run or sub-run it concerns.
        code: one of the table.
        message: what happened and what to do.
        message_id: the message whose text is void because its model call failed.
    """
    kept = run.services.root.warnings
    if sum(warning.code == code for warning in kept) < MOST_OF_A_CODE:
        kept.append(RunWarning(code=code, message=message, path=run.state.path))
        log.warning("run %s agent=%s: %s: %s", run.state.run_id, run.agent.name, code, WARNINGS[code])
    await run.emit(Warned, code=code, message=message, message_id=message_id)
