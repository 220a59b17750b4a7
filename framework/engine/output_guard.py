"""Runs `after_run` hooks on the final output before it is emitted or persisted.

If the run is cancelled before they finish, the output is dropped.
"""

from __future__ import annotations

import asyncio

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call import hooks, results
from framework.types.errors import Refused
from framework.types.events import ContentReceived


async def guard_output(run: RunContext, message_id: str) -> None:
    """Pass the output through the hooks, and replace it with what they return.

    While the hooks run, the state is that of a run in progress: a checkpoint does not contain the unchecked output, and
    a run that is suspended here is guarded when it resumes.

    Args:
        run: a run that has just ended.
        message_id: id, in events, of the message that contains the output.
    """
    state = run.state
    final = (state.status, state.finish_reason, state.output, state.data, state.error, state.stopped_by)
    state.status, state.finish_reason, state.output = "running", "", ""
    state.data = state.error = state.stopped_by = None
    output = final[2]
    try:
        visible = await hooks.after_run(run, output) if output else ""
    except Refused as refusal:
        run.end("refused", refusal.message)
    except asyncio.CancelledError:
        if not run.services.journal.is_suspended:
            run.end("cancelled")
            discard_output(run)
        raise
    else:
        state.status, state.finish_reason, _, data, state.error, state.stopped_by = final
        state.output, state.data = visible, data if visible == output else None
    results.replace_answer(run, state.output)
    if output:
        await run.emit(ContentReceived, message_id=message_id, text=state.output)


def discard_output(run: RunContext) -> None:
    """Clear the output of a run that ended before its hooks could check it."""
    if run.is_guarded:
        run.state.output, run.state.data = "", None
        results.replace_answer(run, "")
