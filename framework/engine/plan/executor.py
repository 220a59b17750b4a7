"""The Plan executor: make a plan, have it approved, work it off, answer from its results.

A step that names its tool runs without asking the model; a step without one is a goal for a ReAct sub-run. The plan is
part of the run's state, so that a pause or a crash anywhere repeats no finished step.
"""

from __future__ import annotations

from collections.abc import Iterator

from framework.engine.context.concurrency import Confirmations, Job, as_ready
from framework.engine.context.warning import warn
from framework.engine.model_call.turn import render
from framework.engine.plan.approval import approval
from framework.engine.plan.failed_steps import must_react, react_to_failures, skip
from framework.engine.plan.history import work_done
from framework.engine.plan.planner import plan_of, propose, settings_of
from framework.engine.plan.step import carry_out, mark
from framework.engine.plan.trace import summarized, summary_span
from framework.engine.run import Run
from framework.engine.tool_call.results import partial_output
from framework.types.errors import AgentsdError, StepFailed
from framework.types.messages import Message
from framework.types.plan import PlanStep


async def plan(run: Run) -> str:
    """Plan, then do the steps in the order of their dependencies, independent ones side by side, then answer."""
    try:
        if run.state.plan is None:
            await propose(run)
        while True:
            if (rejected := await approval(run)) is not None:
                await _leave_out(run, "the plan was not approved")
                return "\n\n".join(filter(None, (rejected, partial_output(run.state))))
            await _work_off(run)
            if not must_react(run):
                break
            await react_to_failures(run)
    except AgentsdError as error:
        await _leave_out(run, f"not done: {error.message}")
        raise
    return await _conclude(run)


# --- working it off


async def _work_off(run: Run) -> None:
    """Do what can be done: each step as soon as what it depends on is done, and there is room for it.

    Raises:
        Paused: some steps need a human; all that can go on without them has ended.
        LimitExceeded: a limit is used up.
    """
    await _skip_failed(run)  # a crash may have kept it from being recorded
    begun: set[str] = set()

    def next_job() -> Job | None:
        step = next((step for step in _startable(run) if step.id not in begun), None)
        if step is None:
            return None
        begun.add(step.id)
        return _work(run, step)

    await as_ready(next_job, at_most=settings_of(run).max_parallel)


def _startable(run: Run) -> Iterator[PlanStep]:
    """Steps that can be done now; after a failure that must be reacted to, only those that are under way."""
    reacting = must_react(run)
    return (step for step in plan_of(run).ready() if step.status == "running" or not reacting)


async def _work(run: Run, step: PlanStep) -> Confirmations:
    asked = await carry_out(run, step)
    await _skip_failed(run)
    return asked


async def _skip_failed(run: Run) -> None:
    if settings_of(run).on_failure == "skip":
        await skip(run, [failed.id for failed in plan_of(run).failures()])


async def _leave_out(run: Run, why: str) -> None:
    """Say of every step that will not be done why that is."""
    for step in run.state.plan.steps if run.state.plan else ():
        if step.status in ("open", "running"):
            await mark(run, step, "skipped", why)


# --- answering


async def _conclude(run: Run) -> str:
    """The answer from the results of the steps.

    Raises:
        StepFailed: a step failed and nothing replaced it. The run's output is the answer nevertheless.
    """
    finished = plan_of(run)
    if finished.undone and not finished.abandoned and run.state.last_reply is None:
        told = ", ".join(f"{step.id} {step.status}" for step in finished.undone)
        await warn(run, "steps_not_done", f"the plan was completed without some steps: {told}")
    answer = await _summarize(run)
    if finished.abandoned:
        failed = finished.abandoned[0]
        raise StepFailed(f"step {failed.id} failed, and the new plan has nothing in its place: {failed.result}")
    return answer


async def _summarize(run: Run) -> str:
    finished = plan_of(run)
    if said := run.state.last_reply:  # left over from a pause or a crash
        return said.content
    if len(run.state.messages) == 1:  # not yet recorded before a crash
        run.record(work_done(run, finished.steps, finished.goal))
    with summary_span(run, finished.revision, finished.goal) as span:
        text = render(run, "summary.j2", plan=finished.model_dump())
        reply = await run.ask_model(Message(role="system", content=text), tools=False)
        summarized(run, span, reply.content)
    return reply.content
