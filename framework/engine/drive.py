"""Drives a run: calls its executor, and sets the final state, whether the run answers, pauses, stops or fails.

A root run is driven by the runtime, a sub-run by the tool call or plan step that started it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from framework.config.agents.compile import BUILTIN_EXECUTORS
from framework.config.templates.prompts import PromptError
from framework.engine.context.concurrency import Confirmations
from framework.engine.context.run_context import RunContext
from framework.engine.model_call.preparation import prepare_run
from framework.engine.model_call.turn import call_model, check_output, final_data, stop_if_truncated
from framework.engine.plan.executor import plan
from framework.engine.routing.by_model import choose_agent
from framework.engine.run import Executor, Run, react
from framework.engine.run_trace import AgentTrace
from framework.engine.tool_call import hooks, results
from framework.engine.tool_call.results import partial_output
from framework.telemetry.redact import places
from framework.types.errors import AgentsdError, ConfigError, LimitExceeded, ModelError, Paused, Refused, is_scarcity
from framework.types.events import ContentReceived, Routed
from framework.types.report import LimitUse

log = logging.getLogger(__name__)


async def auto(run: Run) -> str:
    """Run the executor that suits the request: chosen once, by the router's model or by one model call."""
    if not run.state.executor:
        run.state.executor = await _choose_executor(run)
    return await (plan(run) if run.state.executor == "plan" else react(run))


async def _choose_executor(run: Run) -> str:
    model = run.services.generation.settings.routing.model
    name = run.agent.name
    try:
        await run.model_caller.probe(model)
        primary = run.model_caller.primary(model)
        call = partial(call_model, run, primary=primary)
        choice = await choose_agent(run.state.messages[0].description, {name: run.agent}, primary.info, call)
    except ModelError as error:
        await run.warn("routing", f"the executor could not be chosen ({error.message}); using react")
        return "react"
    reason = f"executor {choice.executor}{': ' + choice.reason if choice.reason else ''}"
    await run.emit(Routed, agent=name, reason=reason, confidence=choice.confidence, executor=choice.executor)
    return choice.executor


EXECUTORS: Mapping[str, Executor] = dict(zip(BUILTIN_EXECUTORS, (react, plan, auto), strict=True))


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
