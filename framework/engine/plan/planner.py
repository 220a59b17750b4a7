"""Requests plans from the model until one passes preflight, and adopts it as the run's plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from framework.config.templates.variables import PLAN_TEMPLATE
from framework.engine.model_call.turn import render
from framework.engine.plan.history import earlier_attempts, progress_messages
from framework.engine.plan.preflight import preflight
from framework.engine.plan.trace import plan_span, record_draft
from framework.engine.run import Run
from framework.engine.tool_call.argument_repair import repair_plan
from framework.types.errors import LimitExceeded
from framework.types.events import PlanProposed
from framework.types.messages import Message, late_guidance
from framework.types.plan import Plan, PlanDraft, PlanStep
from framework.types.preflight import Preflight
from framework.types.spec import RISKS, ApprovalFrom, PlanSettings
from framework.types.text import one_line

_SHOWN_FINDINGS = 20
_GOAL_CHARS = 200
"""Maximum length of the goal, in characters, if it is taken from the user's message."""


def plan_settings(run: Run) -> PlanSettings:
    """Return the plan settings: those of the pinned version of the agent, tightened by the live version."""
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
    """Return a rank of the approval setting: the higher, the more happens without approval."""
    if isinstance(approval, str):
        return -1 if approval == "always" else len(RISKS)
    return RISKS.index(approval.from_)


def current_plan(run: Run) -> Plan:
    """Return the run's plan, which must exist."""
    assert run.state.plan is not None
    return run.state.plan


async def propose_plan(run: Run, *, feedback: str = "") -> None:
    """Request a plan from the model, or another one after a person's feedback, and adopt it.

    Raises:
        LimitExceeded: too many consecutive plans were invalid.
        ModelError: the model returned no plan.
    """
    before = run.state.plan
    if before is not None:
        before = before.model_copy(update={"must_be_approved": True})
    await adopt_plan(run, *await _request_plan(run, before, feedback))


async def replan(run: Run) -> None:
    """Request a new plan for the remaining work after a failure; finished steps stay. Raises like `propose_plan`."""
    before = current_plan(run)
    allowed = plan_settings(run).max_replans
    if before.replans >= allowed:
        place = run.agent.place("plan", "max_replans")
        raise LimitExceeded("max_replans", used=before.replans, allowed=allowed, place=place)
    plan, check = await _request_plan(run, before, "")
    await adopt_plan(run, plan.model_copy(update={"replans": before.replans + 1}), check)


async def adopt_plan(run: Run, plan: Plan, check: Preflight) -> None:
    """Set a checked plan as the run's plan, emit it, and save."""
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
    """Return the plan with the digests of its tools' current definitions."""
    return plan.model_copy(update={"steps": tuple(_with_current_contract(run, step) for step in plan.steps)})


def has_contract(step: PlanStep, contract: str, run: Run) -> bool:
    """Return whether `contract` is the digest of the current definition of the step's tool."""
    tool = run.agent.toolset.tools.get(step.tool or "")
    return contract == (tool.contract if tool else "")


def _with_current_contract(run: Run, step: PlanStep) -> PlanStep:
    """Return the step with its tool's current digest; an approval of another definition no longer counts."""
    if step.status != "open":
        return step
    tool = run.agent.toolset.tools.get(step.tool or "")
    approved = step.approved and has_contract(step, step.contract, run)
    return step.model_copy(update={"contract": tool.contract if tool else "", "approved": approved})


async def _request_plan(run: Run, before: Plan | None, feedback: str) -> tuple[Plan, Preflight]:
    """Request plans from the model until one passes preflight; return it with its preflight."""
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
            is_empty = not draft.steps and before is None and len(check.problems) == 1
            if is_empty and rejected is not None and not rejected.steps:
                check = Preflight(estimate=check.estimate)  # the model insists that nothing has to be done
            record_draft(run, span, draft, usable=not check.problems)
            if not check.problems:
                run.state.corrections = 0
                return plan, check
            rejected, findings = draft, check.problems[:_SHOWN_FINDINGS]
            if not is_empty:  # which is asked only once
                run.budget.spend_correction()


def _plan_messages(
    run: Run, before: Plan | None, rejected: PlanDraft | None, findings: Sequence[str], feedback: str
) -> Iterator[Message]:
    """Yield the messages appended to the conversation: the executed steps, an invalid plan, and the instructions.

    Results are tool messages, and the model's own plan an assistant message: in a system message, text in them would be
    taken as instructions.
    """
    progress = before.steps if before and any(step.status != "open" for step in before.steps) else ()
    yield from progress_messages(run, (*earlier_attempts(run, progress), *progress), "")
    if rejected is not None and rejected.steps:
        yield Message(role="assistant", content=_draft_text(rejected))
    text = render(
        run,
        run.agent.spec.plan.template or PLAN_TEMPLATE,
        findings=list(findings),
        feedback=feedback,
        progress=[_progress_entry(step) for step in progress],
        max_plan_steps=plan_settings(run).max_plan_steps,
    )
    yield late_guidance(text)


def _default_goal(run: Run) -> str:
    """Return the user's message as one line: the goal of a plan that has none."""
    return one_line(run.state.messages[0].description, _GOAL_CHARS)


def _draft_text(draft: PlanDraft) -> str:
    """Return the model's plan as JSON, truncated to fit into a request."""
    steps = [step.model_dump(exclude_defaults=True, mode="json") for step in draft.steps[:_SHOWN_FINDINGS]]
    return json.dumps({"goal": draft.goal, "steps": steps}, ensure_ascii=False)[:16_000]


def _progress_entry(step: PlanStep) -> dict[str, str]:
    return {"id": step.id, "status": step.status, "description": " ".join(step.description.split())}
