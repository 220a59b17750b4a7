"""Drives a run: calls its executor, and sets the final state, whether the run answers, pauses, stops or fails.

A root run is driven by the runtime, a sub-run by the tool call or plan step that started it.
"""

from __future__ import annotations

import asyncio
import logging

from framework.config.templates.prompts import PromptError
from framework.engine.context.concurrency import Confirmations
from framework.engine.executors import EXECUTORS
from framework.engine.model_call.preparation import prepare_run
from framework.engine.model_call.structured_output import check_output, final_data
from framework.engine.model_call.truncation import stop_if_truncated
from framework.engine.output_guard import discard_output, guard_output
from framework.engine.run import Executor, Run
from framework.engine.run_trace import AgentTrace
from framework.engine.tool_call import hooks
from framework.engine.tool_call.results import partial_output
from framework.telemetry.redact import places
from framework.types.errors import AgentsdError, ConfigError, LimitExceeded, Paused, Refused, is_scarcity
from framework.types.report import LimitUse

log = logging.getLogger(__name__)


async def drive(run: Run, executor: Executor | None = None) -> Confirmations:
    """Run `executor`, by default the agent's own, to its end; record in the state how the run ended.

    Returns:
        The confirmations that the run waits for; empty once it has ended.
    """
    if run.parent is not None and run.state.status not in ("running", "paused"):
        return ()  # it ended before a crash, and only its caller had not recorded that yet
    executor = executor or run.agent.executor or EXECUTORS[run.agent.spec.executor]
    with AgentTrace(run) as trace, run.in_progress():
        pending = await _execute(run, executor)
        trace.set_pending(pending, run.step_span)
        if not pending and run.is_guarded:
            await guard_output(run, run.output_message_id)
    return pending


async def _execute(run: Run, executor: Executor) -> Confirmations:
    """Call the executor, and turn each way it can end into the run's final state."""
    state = run.state
    deadline = run.new_deadline()
    try:
        async with deadline:
            run.services.journal.check()
            await hooks.before_run(run)
            await prepare_run(run)
            output = await _answer(run, executor)
            state.data = await final_data(run, output, run.ask_typed)
            run.end("final", output)
    except Paused as paused:
        run.end("confirmation")
        return paused.confirmations
    except LimitExceeded as limit:
        _stop_at_limit(run, limit)
    except Refused as refusal:
        run.end("refused", refusal.message)
    except TimeoutError as error:
        if deadline.expired():
            _stop_at_limit(run, run.budget.timeout_error())
        else:
            run.end("internal_error", partial_output(state), error)
    except asyncio.CancelledError:
        if run.services.journal.is_suspended:
            raise  # the runtime is closing: the run has not ended, and its state stays resumable
        run.end("cancelled", partial_output(state))
        discard_output(run)
        raise
    except (AgentsdError, PromptError) as error:
        _release_if_scarce(run, error)
        run.end(getattr(error, "code", ConfigError.code), partial_output(state), error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's executor may raise anything: only its run ends
        _release_if_scarce(run, error)
        log.error("run %s: executor %r failed: %s", state.run_id, run.agent.spec.executor, places(error))
        run.end("internal_error", partial_output(state), error)
    return ()


async def _answer(run: Run, executor: Executor) -> str:
    """Return the executor's answer; raise LimitExceeded if it is cut and the agent does not accept that."""
    output = check_output(await executor(run), run.agent.spec.executor)
    if run.state.truncated:
        stop_if_truncated(run, output)
    return output


def _release_if_scarce(run: Run, error: BaseException) -> None:
    """Raise CancelledError, and suspend the run, if the error is a lack of open files or memory: nothing is wrong."""
    if is_scarcity(error) and run.services.journal.mark_scarce():
        log.warning("run %s is released: this process has no open files or memory left", run.state.run_id)
        raise asyncio.CancelledError


def _stop_at_limit(run: Run, limit: LimitExceeded) -> None:
    run.end(limit.limit, partial_output(run.state))
    run.state.stopped_by = LimitUse(
        limit=limit.limit, used=limit.used, allowed=limit.allowed, place=limit.place, budget=limit.budget
    )
