"""Having a plan approved: what is asked, when, and what each answer does.

| answer                            | what it does                                                              |
|-----------------------------------|---------------------------------------------------------------------------|
| approve                           | exactly this revision, by its hash, is worked off                         |
| edit                              | the human's own plan is checked; if it can be used, it is worked off       |
| an edit that cannot be used       | the same plan is asked about again, with what is wrong with the edit      |
| respond                           | the model makes another plan, which must be approved whatever is in it    |
| reject, or anything else          | nothing is done                                                           |

An approval covers later revisions that stay within it: no other tool, no higher risk, no more steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from framework.engine.context.confirmation_ids import question_id
from framework.engine.context.trace import waits_for
from framework.engine.plan.planner import adopt, bound, is_bound, plan_of, propose, settings_of
from framework.engine.plan.preflight import highest, preflight, tools_of
from framework.engine.plan.trace import approval_span
from framework.engine.run import Run
from framework.engine.tool_call.trace import decided
from framework.tools.tool import Tool
from framework.types.errors import Paused
from framework.types.plan import Envelope, Plan, PlanDraft, PlanStep
from framework.types.preflight import Preflight
from framework.types.spec import RISKS
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond, arguments_text

ASKED = "the agent's file wants plans approved"
NOTHING_LEFT = "No steps are left in the plan; nothing was done."
"""The answer if a human has removed all steps before any was executed."""
AGAIN = "you asked for another plan"
BEYOND = "it goes beyond the plan that was approved"


async def approval(run: Run) -> str | None:
    """Ask a human where the agent's file says so.

    Returns:
        Why nothing is done, if the plan was rejected or emptied; None if it may be executed.

    Raises:
        Paused: a human is asked.
        LimitExceeded, ModelError: of making another plan.
    """
    while reason := _why_asked(run, plan_of(run)):
        question, decision = _latest(run, _question(run, plan_of(run), reason))
        with approval_span(run, plan_of(run).revision, decision) as span:
            if decision is None:
                waits_for(span, [question])
            else:
                decided(run, question.id, decision)
        match decision:
            case Approve():
                run.state.plan = _approved(run, plan_of(run), {})
            case Edit(arguments=arguments):
                plan, check, _ = _edited(run, arguments)
                assert plan is not None
                assert check is not None
                shown = {step.tool: step.contract for step in plan_of(run).steps if step.status == "open"}
                await adopt(run, _approved(run, bound(run, plan), shown), check)
            case Respond(text=text):
                await propose(run, feedback=text)
            case Reject(reason=why):
                return f"The plan was not approved{': ' + why if why else '.'}"
            case None:
                raise Paused([question])
    plan = plan_of(run)
    emptied = not plan.steps and plan.envelope is not None and plan.envelope.revision == plan.revision
    return NOTHING_LEFT if emptied else None


def _latest(run: Run, question: Confirmation) -> tuple[Confirmation, Decision | None]:
    """The question as it stands, after edits that could not be used, and its decision."""
    while isinstance(decision := run.decision(question.id), Edit):
        _, _, problems = _edited(run, decision.arguments)
        if not problems:
            break
        told = f"your edit cannot be used: {'; '.join(problems)}"
        again = question_id(run, question.id, [arguments_text("", decision.arguments)])
        question = question.model_copy(update={"id": again, "reason": told, "arguments": decision.arguments})
    return question, decision


def _why_asked(run: Run, plan: Plan) -> str:
    """Why a human must be asked about this revision; empty if it may be worked off."""
    if plan.envelope is not None and plan.envelope.revision == plan.revision:
        return ""
    wanted = settings_of(run).approval
    left = _left(plan)
    risk = highest([tool for step in left for tool in _unasked(run, step)])
    risky = not isinstance(wanted, str) and RISKS.index(risk) >= RISKS.index(wanted.from_)
    if not left or not (risky or wanted == "always" or plan.must_be_approved):
        return ""
    if plan.must_be_approved:
        return AGAIN
    if plan.envelope is None:
        return ASKED
    beyond = "; ".join(_beyond(run, plan, plan.envelope))
    return f"{BEYOND}: {beyond}" if beyond else ""


def _unasked(run: Run, step: PlanStep) -> list[Tool]:
    """The tools that count: the one a step names, and those a step may choose that nobody would be asked about."""
    tools = tools_of(run, step)
    if step.tool is not None:
        return tools
    return [tool for tool in tools if run.policy.judge(tool, tool.with_defaults({})).kind == "allow"]


def _beyond(run: Run, plan: Plan, envelope: Envelope) -> Iterator[str]:
    """How a revision leaves what was approved."""
    left, now = _left(plan), _envelope(run, plan)
    if new := sorted(set(now.tools) - set(envelope.tools)):
        yield f"it may use {', '.join(new)}"
    if RISKS.index(now.risk) > RISKS.index(envelope.risk):
        yield f"its risk is {now.risk}"
    allowed = envelope.steps - (now.done - envelope.done)
    if len(left) > allowed:
        yield f"it has {len(left)} steps to do instead of {max(0, allowed)}"
    if now.free > envelope.free:
        yield f"{now.free} of its steps have no tool instead of {envelope.free}"


def _envelope(run: Run, plan: Plan) -> Envelope:
    left = _left(plan)
    tools = [tool for step in left for tool in tools_of(run, step)]
    return Envelope(
        revision=plan.revision,
        tools=tuple(sorted({tool.name for tool in tools})),
        risk=highest(tools),
        steps=len(left),
        free=sum(step.tool is None for step in left),
        done=sum(step.status == "done" for step in plan.steps),
    )


def _left(plan: Plan) -> list[PlanStep]:
    return [step for step in plan.steps if step.status in ("open", "running")]


def _approved(run: Run, plan: Plan, shown: Mapping[str | None, str]) -> Plan:
    """The plan as one of which a human approved just this; the decision itself is on record.

    Args:
        run: whose plan.
        plan: what was approved.
        shown: by tool, its contract as the human saw it, where that may be another one than the step has now.
    """
    steps = tuple(
        step.model_copy(update={"approved": step.tool not in shown or is_bound(step, shown[step.tool], run)})
        if step.status == "open"
        else step.model_copy(update={"abandoned": False})
        for step in plan.steps
    )
    update = {"envelope": _envelope(run, plan), "steps": steps, "must_be_approved": False}
    return plan.model_copy(update=update)


def _question(run: Run, plan: Plan, reason: str) -> Confirmation:
    """Bound to the plan's revision and content: another plan is another question."""
    risk = highest([tool for step in _left(plan) for tool in tools_of(run, step)])
    return Confirmation(
        id=question_id(run, "/".join((*run.state.path, f"plan-{plan.revision}-")), [plan.approval_text], mark=""),
        kind="plan",
        agent=run.agent.name,
        plan=plan,
        preflight=preflight(run, plan, settings_of(run)),
        hash=plan.hash,
        reason=reason,
        rule=f"plan.approval ({run.agent.place('plan', 'approval')})",
        risk=risk,
    )


def _edited(run: Run, arguments: dict[str, Any]) -> tuple[Plan | None, Preflight | None, list[str]]:
    """A human's own plan as the next revision, its check, and what keeps it from being used."""
    try:
        draft = PlanDraft.model_validate(arguments)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        return None, None, [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found]
    before = plan_of(run)
    plan = Plan.from_draft(draft.with_goal(before.goal), before)
    check = preflight(run, plan, settings_of(run))
    return plan, check, check.problems
