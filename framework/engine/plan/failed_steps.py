"""Applies `plan.on_failure` to failed steps: a new plan, skipping, ending the run, or a question to the user.

With `plan.on_failure: ask` the run pauses with a question for each failed step: retry it, skip it with all steps that
depend on it, or stop the run. A retried step is a new revision of the plan, so its earlier attempts remain recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from framework.engine.plan.history import attempt_id, last_attempt
from framework.engine.plan.planner import adopt_plan, current_plan, plan_settings, replan
from framework.engine.plan.preflight import highest_risk, preflight, usable_tools
from framework.engine.plan.step import set_status
from framework.engine.plan.trace import failure_span
from framework.engine.run import Run
from framework.engine.tool_call.trace import record_decision
from framework.tools.tool import idempotency_key
from framework.types.confirmation_kinds import STEP_PREFIX
from framework.types.digest import call_digest
from framework.types.errors import Paused, StepFailed
from framework.types.plan import PlanStep
from framework.types.state import Confirmation, Decision, Reject, Respond

RETRY, SKIP, STOP = "retry", "skip", "stop"


def has_blocking_failure(run: Run) -> bool:
    """Return whether a failed step prevents new steps from starting."""
    return plan_settings(run).on_failure != "skip" and bool(current_plan(run).failures())


async def handle_failures(run: Run) -> None:
    """Apply `plan.on_failure` to failed steps.

    Raises:
        StepFailed: the setting, or the user, ends the run.
        Paused: the user must decide.
        LimitExceeded, ModelError: no new plan could be made.
    """
    match plan_settings(run).on_failure:
        case "fail":
            failed = current_plan(run).failures()[0]
            raise StepFailed(f"step {failed.id} failed, and plan.on_failure is `fail`: {failed.result}")
        case "ask":
            await _ask_user(run, current_plan(run).failures())
        case _:
            await replan(run)


async def skip_failed(run: Run, failed: Collection[str]) -> None:
    """Accept that these steps failed, and skip the steps that depend on them, each with the reason."""
    run.state.plan = current_plan(run).with_settled(failed)
    while blocked := current_plan(run).blocked():
        for step, waits_for in blocked:
            await set_status(run, step, "skipped", f"{waits_for} was not done")


async def _ask_user(run: Run, failed: Sequence[PlanStep]) -> None:
    questions = [_confirmation(run, step) for step in failed]
    answers = [_user_choice(run, question) for question in questions]
    if STOP in answers:
        step = failed[answers.index(STOP)]
        raise StepFailed(f"step {step.id} failed, and the user stopped the run: {step.result}")
    await _retry(run, [step.id for step, answer in zip(failed, answers, strict=True) if answer == RETRY])
    await skip_failed(run, [step.id for step, answer in zip(failed, answers, strict=True) if answer == SKIP])
    if unanswered := [question for question, answer in zip(questions, answers, strict=True) if not answer]:
        raise Paused(unanswered)


def _user_choice(run: Run, question: Confirmation) -> str:
    """Return the user's choice, or an empty string before they choose."""
    decision: Decision | None = run.decision(question.id)
    if decision is None:
        return ""
    with failure_span(run, decision):
        record_decision(run, question.id, decision)
    match decision:
        case Respond(text=text):
            return text
        case Reject():
            return STOP
    raise AssertionError(f"a failed step cannot be decided by {decision.type}")


async def _retry(run: Run, failed: Collection[str]) -> None:
    if not failed:
        return
    plan = current_plan(run).with_retried(failed)
    await adopt_plan(run, plan, preflight(run, plan, plan_settings(run)))
    for step_id in failed:
        await set_status(run, plan.step(step_id), "open")


def _confirmation(run: Run, step: PlanStep) -> Confirmation:
    number, record = last_attempt(run, step)
    call_id = "/".join((*run.state.path, attempt_id(step, number))) if record is not None else None
    return Confirmation(
        id="/".join((*run.state.path, f"{STEP_PREFIX}{step.revision}-{step.id}")),
        kind="step",
        agent=run.agent.name,
        tool=step.tool or "",
        call_id=call_id,
        idempotency_key=idempotency_key(run.state.run_id, call_id) if call_id is not None else None,
        description=step.description,
        arguments=step.parameters,
        hash=call_digest(step.tool or "", {"parameters": step.parameters, "result": step.result}),
        reason=f"step {step.id} failed: {step.result}",
        rule=f"plan.on_failure ({run.agent.place('plan', 'on_failure')})",
        risk=highest_risk(usable_tools(run, step)),
        choices=(RETRY, SKIP, STOP),
    )
