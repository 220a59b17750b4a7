"""The plan executor: request a plan, get it approved, execute its steps, answer from their results.

A step that names its tool runs without a model call; a step without one is a goal for a ReAct sub-run. The plan is part
of the run's state, so no finished step is repeated after a pause or a crash.
"""

from __future__ import annotations

from collections.abc import Iterator

from framework.engine.context.concurrency import Confirmations, Job, run_as_ready
from framework.engine.model_call.turn import render
from framework.engine.plan.approval import request_approval
from framework.engine.plan.failed_steps import handle_failures, has_blocking_failure, skip_failed
from framework.engine.plan.history import progress_messages
from framework.engine.plan.planner import current_plan, plan_settings, propose_plan
from framework.engine.plan.step import run_step, set_status
from framework.engine.plan.trace import record_summary, summary_span
from framework.engine.run import Run
from framework.engine.tool_call.results import partial_output
from framework.types.errors import AgentsdError, StepFailed
from framework.types.messages import late_guidance
from framework.types.plan import PlanStep


async def plan(run: Run) -> str:
    """Plan, execute the steps in the order of their dependencies, independent ones concurrently, then answer."""
    try:
        if run.state.plan is None:
            await propose_plan(run)
        while True:
            if (rejected := await request_approval(run)) is not None:
                await _skip_remaining(run, "the plan was not approved")
                return "\n\n".join(filter(None, (rejected, partial_output(run.state))))
            await _run_steps(run)
            if not has_blocking_failure(run):
                break
            await handle_failures(run)
    except AgentsdError as error:
        await _skip_remaining(run, f"not done: {error.message}")
        raise
    return await _answer(run)


# --- executing the steps


async def _run_steps(run: Run) -> None:
    """Execute each step as soon as its dependencies are done, at most `plan.max_parallel` at a time.

    Raises:
        Paused: some steps need a person's decision; all steps that do not depend on them have ended.
        LimitExceeded: a limit is reached.
    """
    await _skip_failed(run)  # a crash may have prevented this
    started: set[str] = set()

    def next_job() -> Job | None:
        step = next((step for step in _startable_steps(run) if step.id not in started), None)
        if step is None:
            return None
        started.add(step.id)
        return _run_one(run, step)

    await run_as_ready(next_job, limit=plan_settings(run).max_parallel)


def _startable_steps(run: Run) -> Iterator[PlanStep]:
    """Return the steps that can run now; after a failure that needs handling, only those already in progress."""
    is_blocked = has_blocking_failure(run)
    return (step for step in current_plan(run).ready() if step.status == "running" or not is_blocked)


async def _run_one(run: Run, step: PlanStep) -> Confirmations:
    pending = await run_step(run, step)
    await _skip_failed(run)
    return pending


async def _skip_failed(run: Run) -> None:
    if plan_settings(run).on_failure == "skip":
        await skip_failed(run, [failed.id for failed in current_plan(run).failures()])


async def _skip_remaining(run: Run, why: str) -> None:
    """Mark each remaining step as skipped, with the reason."""
    for step in run.state.plan.steps if run.state.plan else ():
        if step.status in ("open", "running"):
            await set_status(run, step, "skipped", why)


# --- answering


async def _answer(run: Run) -> str:
    """Return the answer from the results of the steps.

    Raises:
        StepFailed: a step failed and no step replaced it. The answer is still the run's output.
    """
    final_plan = current_plan(run)
    if final_plan.undone and not final_plan.abandoned and run.state.last_reply is None:
        unfinished = ", ".join(f"{step.id} {step.status}" for step in final_plan.undone)
        await run.warn("steps_not_done", f"the plan completed without these steps: {unfinished}")
    answer = await _summarize(run)
    if final_plan.abandoned:
        failed = final_plan.abandoned[0]
        raise StepFailed(f"step {failed.id} failed, and the new plan does not replace it: {failed.result}")
    return answer


async def _summarize(run: Run) -> str:
    final_plan = current_plan(run)
    if reply := run.state.last_reply:  # from before a pause or a crash
        return reply.content
    if len(run.state.messages) == 1:  # not yet recorded before a crash
        run.record(progress_messages(run, final_plan.steps, final_plan.goal))
    with summary_span(run, final_plan.revision, final_plan.goal) as span:
        text = render(run, "summary.j2", plan=final_plan.model_dump())
        reply = await run.ask_model(late_guidance(text), tools=False)
        record_summary(run, span, reply.content)
    return reply.content
