"""Approval of a plan: decides whether to ask, asks, and applies the answer.

| answer                  | effect                                                                          |
|-------------------------|---------------------------------------------------------------------------------|
| approve                 | exactly this revision, identified by its hash, is executed                      |
| edit                    | the edited plan is checked, and executed if it is valid                         |
| an invalid edit         | approval is requested again, with the problems of the edit                      |
| respond                 | the model makes another plan, which needs approval whatever it contains         |
| reject                  | no step is executed                                                             |

With `plan.approval: {from: RISK}`, an approval covers later revisions within its scope: no other tool, no higher risk,
no more steps. With `always`, each new plan of the model is a new question; a retry that a person chose is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from framework.engine.context.trace import record_pending
from framework.engine.plan.planner import (
    adopt_plan,
    current_plan,
    has_contract,
    plan_settings,
    propose_plan,
    with_current_contracts,
)
from framework.engine.plan.preflight import highest_risk, preflight, usable_tools
from framework.engine.plan.trace import approval_span
from framework.engine.run import Run
from framework.engine.tool_call.trace import record_decision
from framework.tools.tool import Tool
from framework.types.digest import canonical_call
from framework.types.errors import Paused
from framework.types.plan import ApprovalScope, Plan, PlanDraft, PlanStep
from framework.types.preflight import Preflight
from framework.types.spec import RISKS
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond

_REQUIRED_BY_FILE = "the agent's file requires approval of plans"
_NO_STEPS_LEFT = "No steps are left in the plan; nothing was done."
"""Answer if a person removed all steps before any was executed."""
_REPLACEMENT_REQUESTED = "you requested another plan"
_BEYOND_SCOPE = "it goes beyond the plan that was approved"
_EVERY_REVISION = "the model changed the plan after its approval, and the agent's file requires approval of every plan"


async def request_approval(run: Run) -> str | None:
    """Request approval of the current plan if the agent's file requires it.

    Returns:
        The answer of the run, if the plan was rejected or emptied; None if it may be executed.

    Raises:
        Paused: a person must decide.
        LimitExceeded, ModelError: no new plan could be made.
    """
    while reason := _approval_reason(run, current_plan(run)):
        question, decision = _current_question(run, _question(run, current_plan(run), reason))
        with approval_span(run, current_plan(run).revision, decision) as span:
            if decision is None:
                record_pending(span, [question])
            else:
                record_decision(run, question.id, decision)
        match decision:
            case Approve():
                run.state.plan = _approved(run, current_plan(run), {})
            case Edit(arguments=arguments):
                plan, check, _ = _edited(run, arguments)
                assert plan is not None
                assert check is not None
                contracts_seen = {step.tool: step.contract for step in current_plan(run).steps if step.status == "open"}
                await adopt_plan(run, _approved(run, with_current_contracts(run, plan), contracts_seen), check)
            case Respond(text=text):
                await propose_plan(run, feedback=text)
            case Reject(reason=why):
                return f"The plan was not approved{': ' + why if why else '.'}"
            case None:
                raise Paused([question])
    plan = current_plan(run)
    is_emptied = not plan.steps and plan.envelope is not None and plan.envelope.revision == plan.revision
    return _NO_STEPS_LEFT if is_emptied else None


def _current_question(run: Run, question: Confirmation) -> tuple[Confirmation, Decision | None]:
    """Return the question to ask now, after invalid edits, and the decision on it, if any."""
    while isinstance(decision := run.decision(question.id), Edit):
        _, _, problems = _edited(run, decision.arguments)
        if not problems:
            break
        reason = f"your edit is invalid: {'; '.join(problems)}"
        again = run.confirmation_id(question.id, [canonical_call("", decision.arguments)])
        question = question.model_copy(update={"id": again, "reason": reason, "arguments": decision.arguments})
    return question, decision


def _approval_reason(run: Run, plan: Plan) -> str:
    """Return why this revision needs approval, or an empty string if it may be executed."""
    if plan.envelope is not None and plan.envelope.revision == plan.revision:
        return ""
    approval = plan_settings(run).approval
    remaining = _remaining_steps(plan)
    risk = highest_risk([tool for step in remaining for tool in _tools_to_consider(run, step)])
    risky = not isinstance(approval, str) and RISKS.index(risk) >= RISKS.index(approval.from_)
    if not remaining or not (risky or approval == "always" or plan.must_be_approved):
        return ""
    if plan.must_be_approved:
        return _REPLACEMENT_REQUESTED
    if plan.envelope is None:
        return _REQUIRED_BY_FILE
    violations = "; ".join(_scope_violations(run, plan, plan.envelope))
    if violations:
        return f"{_BEYOND_SCOPE}: {violations}"
    return _EVERY_REVISION if approval == "always" and plan.replans != plan.envelope.replans else ""


def _tools_to_consider(run: Run, step: PlanStep) -> list[Tool]:
    """Return the tools whose risk counts: the one a step names, or those that a goal may call without approval."""
    tools = usable_tools(run, step)
    if step.tool is not None:
        return tools
    return [tool for tool in tools if run.policy.evaluate(tool, tool.with_defaults({})).kind == "allow"]


def _scope_violations(run: Run, plan: Plan, envelope: ApprovalScope) -> Iterator[str]:
    """Yield how a revision exceeds the approved scope."""
    remaining, now = _remaining_steps(plan), _scope_of(run, plan)
    if new := sorted(set(now.tools) - set(envelope.tools)):
        yield f"it may use {', '.join(new)}"
    if RISKS.index(now.risk) > RISKS.index(envelope.risk):
        yield f"its risk is {now.risk}"
    allowed = envelope.steps - (now.done - envelope.done)
    if len(remaining) > allowed:
        yield f"it has {len(remaining)} remaining steps instead of {max(0, allowed)}"
    if now.free > envelope.free:
        yield f"{now.free} of its steps have no tool instead of {envelope.free}"


def _scope_of(run: Run, plan: Plan) -> ApprovalScope:
    remaining = _remaining_steps(plan)
    tools = [tool for step in remaining for tool in usable_tools(run, step)]
    return ApprovalScope(
        revision=plan.revision,
        tools=tuple(sorted({tool.name for tool in tools})),
        risk=highest_risk(tools),
        steps=len(remaining),
        free=sum(step.tool is None for step in remaining),
        done=sum(step.status == "done" for step in plan.steps),
        replans=plan.replans,
    )


def _remaining_steps(plan: Plan) -> list[PlanStep]:
    return [step for step in plan.steps if step.status in ("open", "running")]


def _approved(run: Run, plan: Plan, contracts_seen: Mapping[str | None, str]) -> Plan:
    """Return the plan, marked as approved in exactly this form.

    Args:
        run: the run with the plan.
        plan: the approved plan.
        contracts_seen: digests of tool definitions that the person saw, by tool, where a step may have another one now.
    """
    steps = tuple(
        step.model_copy(
            update={"approved": step.tool not in contracts_seen or has_contract(step, contracts_seen[step.tool], run)}
        )
        if step.status == "open"
        else step.model_copy(update={"abandoned": False})
        for step in plan.steps
    )
    update = {"envelope": _scope_of(run, plan), "steps": steps, "must_be_approved": False}
    return plan.model_copy(update=update)


def _question(run: Run, plan: Plan, reason: str) -> Confirmation:
    """Return the question about a plan. Its id contains the plan's revision and digest, so an answer fits one plan."""
    risk = highest_risk([tool for step in _remaining_steps(plan) for tool in usable_tools(run, step)])
    return Confirmation(
        id=run.confirmation_id("/".join((*run.state.path, f"plan-{plan.revision}-")), [plan.approval_text], mark=""),
        kind="plan",
        agent=run.agent.name,
        plan=plan,
        preflight=preflight(run, plan, plan_settings(run)),
        hash=plan.hash,
        reason=reason,
        rule=f"plan.approval ({run.agent.place('plan', 'approval')})",
        risk=risk,
    )


def _edited(run: Run, arguments: dict[str, Any]) -> tuple[Plan | None, Preflight | None, list[str]]:
    """Return an edited plan as the next revision, its preflight, and the problems that make it invalid."""
    try:
        draft = PlanDraft.model_validate(arguments)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        return None, None, [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in errors]
    before = current_plan(run)
    plan = Plan.from_draft(draft.with_goal(before.goal), before)
    check = preflight(run, plan, plan_settings(run))
    return plan, check, check.problems
