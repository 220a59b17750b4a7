"""What a run ends with, where hooks look at it first: nobody else sees it before that, whatever happens meanwhile."""

from __future__ import annotations

import asyncio

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call import hooks, results
from framework.types.errors import Refused
from framework.types.events import ContentReceived


async def guard_output(run: RunContext, message_id: str) -> None:
    """Have the hooks look at the output, and put what they leave of it in its place.

    Args:
        run: a run that has just ended.
        message_id: id, in events, of the message that the output is emitted as.

    While they look, the state is that of a run that goes on: a checkpoint has no answer that nobody has looked at, and
    a run that is suspended is guarded where it goes on.
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
    """Take back what a run has to show that ended before its hooks could look at it."""
    if run.is_guarded:
        run.state.output, run.state.data = "", None
        results.replace_answer(run, "")
