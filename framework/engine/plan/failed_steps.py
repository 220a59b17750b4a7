"""What follows a failed step of a plan: a new plan, skipping, the end of the run, or what the user chooses.

With `plan.on_failure: ask` the run pauses with a question for each failed step: retry it, skip it with all that
depends on it, or stop the run. A retried step is a new revision of the plan, so its earlier attempts remain recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from framework.engine.plan.planner import adopt, plan_of, replan, settings_of
from framework.engine.plan.preflight import highest, preflight, tools_of
from framework.engine.plan.step import mark
from framework.engine.plan.trace import failure_span
from framework.engine.run import Run
from framework.engine.tool_call.trace import decided
from framework.types.confirmation_kinds import STEP_PREFIX
from framework.types.errors import Paused, StepFailed
from framework.types.plan import PlanStep
from framework.types.state import Confirmation, Decision, Reject, Respond, arguments_hash

RETRY, SKIP, STOP = "retry", "skip", "stop"


def must_react(run: Run) -> bool:
    """Whether a failed step keeps new steps from starting."""
    return settings_of(run).on_failure != "skip" and bool(plan_of(run).failures())


async def react_to_failures(run: Run) -> None:
    """Apply `plan.on_failure` to failed steps.

    Raises:
        StepFailed: the setting, or the user, ends the run.
        Paused: the user is asked.
        LimitExceeded, ModelError: another plan could not be made.
    """
    match settings_of(run).on_failure:
        case "fail":
            failed = plan_of(run).failures()[0]
            raise StepFailed(f"step {failed.id} failed, and plan.on_failure is `fail`: {failed.result}")
        case "ask":
            await _ask(run, plan_of(run).failures())
        case _:
            await replan(run)


async def skip(run: Run, failed: Collection[str]) -> None:
    """Leave failed steps as they are, and skip the steps that can never run without them, each with the reason."""
    run.state.plan = plan_of(run).with_settled(failed)
    while blocked := plan_of(run).blocked():
        for step, waits_for in blocked:
            await mark(run, step, "skipped", f"{waits_for} was not done")


async def _ask(run: Run, failed: Sequence[PlanStep]) -> None:
    questions = [_question(run, step) for step in failed]
    answers = [_answer(run, question) for question in questions]
    if STOP in answers:
        step = failed[answers.index(STOP)]
        raise StepFailed(f"step {step.id} failed, and the user stopped the run: {step.result}")
    await _retry(run, [step.id for step, answer in zip(failed, answers, strict=True) if answer == RETRY])
    await skip(run, [step.id for step, answer in zip(failed, answers, strict=True) if answer == SKIP])
    if open_ones := [question for question, answer in zip(questions, answers, strict=True) if not answer]:
        raise Paused(open_ones)


def _answer(run: Run, question: Confirmation) -> str:
    """What the user chose; empty while nothing was chosen."""
    decision: Decision | None = run.decision(question.id)
    if decision is None:
        return ""
    with failure_span(run, decision):
        decided(run, question.id, decision)
    match decision:
        case Respond(text=text):
            return text
        case Reject():
            return STOP
    raise AssertionError(f"a failed step cannot be decided by {decision.type}")


async def _retry(run: Run, failed: Collection[str]) -> None:
    if not failed:
        return
    plan = plan_of(run).with_retried(failed)
    await adopt(run, plan, preflight(run, plan, settings_of(run)))
    for step_id in failed:
        await mark(run, plan.step(step_id), "open")


def _question(run: Run, step: PlanStep) -> Confirmation:
    return Confirmation(
        id="/".join((*run.state.path, f"{STEP_PREFIX}{step.revision}-{step.id}")),
        kind="step",
        agent=run.agent.name,
        tool=step.tool or "",
        description=step.description,
        arguments=step.parameters,
        hash=arguments_hash(step.tool or "", {"parameters": step.parameters, "result": step.result}),
        reason=f"step {step.id} failed: {step.result}",
        rule=f"plan.on_failure ({run.agent.place('plan', 'on_failure')})",
        risk=highest(tools_of(run, step)),
        choices=(RETRY, SKIP, STOP),
    )
