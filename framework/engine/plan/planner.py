"""Making a plan, and making it anew: the model is asked until its plan passes the check, then the plan is adopted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from framework.engine.model_call.turn import render
from framework.engine.plan.history import earlier_attempts, progress_messages
from framework.engine.plan.preflight import preflight
from framework.engine.plan.trace import plan_span, record_draft
from framework.engine.run import Run
from framework.engine.tool_call.argument_repair import repair_plan
from framework.types.digest import matches_digest
from framework.types.errors import LimitExceeded
from framework.types.events import PlanProposed
from framework.types.messages import Message
from framework.types.plan import Plan, PlanDraft, PlanStep
from framework.types.preflight import Preflight
from framework.types.spec import RISKS, ApprovalFrom, PlanSettings
from framework.types.text import one_line

_SHOWN_FINDINGS = 20
_GOAL_CHARS = 200
"""Length of the goal, in characters, where the request is taken for it."""


def plan_settings(run: Run) -> PlanSettings:
    """The settings in force: those of the version the run is pinned to, made stricter by the one that is live."""
    pinned = run.agent.spec.plan
    live = run.services.current_agent(run.agent.name)
    if live is None or live is run.agent or live.spec.plan == pinned:
        return pinned
    now = live.spec.plan
    timeouts = [limit for limit in (pinned.step_timeout, now.step_timeout) if limit is not None]
    return pinned.model_copy(
        update={
            "approval": min(pinned.approval, now.approval, key=_leniency),
            "max_plan_steps": min(pinned.max_plan_steps, now.max_plan_steps),
            "max_replans": min(pinned.max_replans, now.max_replans),
            "step_timeout": min(timeouts, default=None),
        }
    )


def _leniency(approval: str | ApprovalFrom) -> int:
    """How much may happen unasked."""
    if isinstance(approval, str):
        return -1 if approval == "always" else len(RISKS)
    return RISKS.index(approval.from_)


def current_plan(run: Run) -> Plan:
    """The run's plan, which there is."""
    assert run.state.plan is not None
    return run.state.plan


async def propose_plan(run: Run, *, feedback: str = "") -> None:
    """Ask for a plan, or for another one after what a human said of it.

    Raises:
        LimitExceeded: too many plans in a row could not be used.
        ModelError: the model gave no plan at all.
    """
    before = run.state.plan
    if before is not None:
        before = before.model_copy(update={"must_be_approved": True})
    await adopt_plan(run, *await _request_plan(run, before, feedback))


async def replan(run: Run) -> None:
    """Have the rest of the plan made anew after a failure: what is done stays. Raises as `propose`."""
    before = current_plan(run)
    allowed = plan_settings(run).max_replans
    if before.replans >= allowed:
        place = run.agent.place("plan", "max_replans")
        raise LimitExceeded("max_replans", used=before.replans, allowed=allowed, place=place)
    plan, check = await _request_plan(run, before, "")
    await adopt_plan(run, plan.model_copy(update={"replans": before.replans + 1}), check)


async def adopt_plan(run: Run, plan: Plan, check: Preflight) -> None:
    """Make a checked plan the run's own, and tell it."""
    before = run.state.plan
    run.state.plan = plan = with_current_contracts(run, plan)
    await run.emit(
        PlanProposed,
        revision=plan.revision,
        goal=plan.goal,
        hash=plan.hash,
        steps=plan.steps,
        changes=plan.changes(before) if before else (),
        preflight=check,
    )
    await run.save()


def with_current_contracts(run: Run, plan: Plan) -> Plan:
    """The plan with its tools as they are now."""
    return plan.model_copy(update={"steps": tuple(_with_current_contract(run, step) for step in plan.steps)})


def has_contract(step: PlanStep, contract: str, run: Run) -> bool:
    """Whether a recorded contract is that of the step's tool as it is now."""
    tool = run.agent.toolset.tools.get(step.tool or "")
    return matches_digest(contract, tool.definition.canonical_json) if tool else not contract


def _with_current_contract(run: Run, step: PlanStep) -> PlanStep:
    """The step with its tool as it is now; what was approved of another one is not approved of this."""
    if step.status != "open":
        return step
    tool = run.agent.toolset.tools.get(step.tool or "")
    approved = step.approved and has_contract(step, step.contract, run)
    return step.model_copy(update={"contract": tool.contract if tool else "", "approved": approved})


async def _request_plan(run: Run, before: Plan | None, feedback: str) -> tuple[Plan, Preflight]:
    """The model's plan, once it passes the check."""
    revision = before.revision + 1 if before else 1
    findings: Sequence[str] = ()
    rejected: PlanDraft | None = before.draft if before and feedback else None
    with plan_span(run, revision, feedback) as span:
        while True:
            settings = plan_settings(run)
            messages = _plan_messages(run, before, rejected, findings, feedback)
            draft = await repair_plan(run, await run.ask_typed(PlanDraft, *messages, model=settings.model))
            draft = draft.with_goal(before.goal if before else _default_goal(run))
            plan = Plan.from_draft(draft, before)
            check = preflight(run, plan, settings)
            record_draft(run, span, draft, usable=not check.problems)
            if not check.problems:
                run.state.corrections = 0
                return plan, check
            rejected, findings = draft, check.problems[:_SHOWN_FINDINGS]
            run.budget.spend_correction()


def _plan_messages(
    run: Run, before: Plan | None, rejected: PlanDraft | None, findings: Sequence[str], feedback: str
) -> Iterator[Message]:
    """What is put behind the conversation: what was done, the plan that could not be used, and what is wanted.

    Results come as those of tools, the model's own plan as its own words: in a system message they would be obeyed.
    """
    progress = before.steps if before and any(step.status != "open" for step in before.steps) else ()
    yield from progress_messages(run, (*earlier_attempts(run, progress), *progress), "")
    if rejected is not None and rejected.steps:
        yield Message(role="assistant", content=_draft_text(rejected))
    text = render(
        run,
        "plan.j2",
        findings=list(findings),
        feedback=feedback,
        progress=[_progress_entry(step) for step in progress],
        max_plan_steps=plan_settings(run).max_plan_steps,
    )
    yield Message(role="system", content=text)


def _default_goal(run: Run) -> str:
    """The user's message in one line: the goal of a plan that names none."""
    return one_line(run.state.messages[0].content, _GOAL_CHARS)


def _draft_text(draft: PlanDraft) -> str:
    """A plan as the model wrote it, of a size that fits into a request."""
    steps = [step.model_dump(exclude_defaults=True, mode="json") for step in draft.steps[:_SHOWN_FINDINGS]]
    return json.dumps({"goal": draft.goal, "steps": steps}, ensure_ascii=False)[:16_000]


def _progress_entry(step: PlanStep) -> dict[str, str]:
    return {"id": step.id, "status": step.status, "description": " ".join(step.description.split())}
