"""The plan executor's main loop: get a plan and its approval, execute the steps, handle failed ones, answer.

Its end has the executor `auto`, which plans if the request needs it, and the table of the built-in executors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from framework.config.agents.compile import BUILTIN_EXECUTORS
from framework.config.agents.plan_steps import resolve_references, result_text
from framework.engine.context.run_context import Confirmations
from framework.engine.model_call.turn import call_model, render
from framework.engine.plan.planner import (
    adopt_file_plan,
    adopt_plan,
    approval_span,
    attempt_id,
    current_plan,
    failure_span,
    has_contract,
    highest_risk,
    last_attempt,
    plan_settings,
    preflight,
    progress_messages,
    propose_plan,
    record_summary,
    replan,
    summary_span,
    usable_tools,
    with_current_contracts,
)
from framework.engine.plan.step import run_step, set_status, step_output, value_of
from framework.engine.routing import choose_agent
from framework.engine.run import Executors, Job, Run, react, run_as_ready
from framework.engine.tool_call.results import partial_output, record_decision
from framework.telemetry.spans import record_pending
from framework.tools.tool import Tool, idempotency_key
from framework.types.errors import AgentsdError, ModelError, Paused, StepFailed, ToolError
from framework.types.events import Routed
from framework.types.messages import Message, late_guidance
from framework.types.plan import ApprovalScope, FixedDraft, FixedStep, Plan, PlanStep, Preflight
from framework.types.spec import RISKS
from framework.types.state import STEP_PREFIX, Approve, Confirmation, Decision, Edit, Reject, Respond
from framework.types.text import call_digest, canonical_call


async def plan(run: Run) -> str:
    """Get a plan, execute its steps in the order of their dependencies, independent ones concurrently, then answer."""
    try:
        if run.state.plan is None:
            await (adopt_file_plan(run) if run.agent.spec.plan.steps else propose_plan(run))
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
        return run_one(step)

    async def run_one(step: PlanStep) -> Confirmations:
        pending = await run_step(run, step)
        await _skip_failed(run)
        if current_plan(run).step(step.id).status == "open":  # a loop: it ends after the steps of its items
            started.discard(step.id)
        return pending

    await run_as_ready(next_job, limit=plan_settings(run).max_parallel)


def _startable_steps(run: Run) -> Iterator[PlanStep]:
    """Return the steps that can run now; after a failure that needs handling, only those already in progress."""
    is_blocked = has_blocking_failure(run)
    return (step for step in current_plan(run).ready() if step.status == "running" or not is_blocked)


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
    by_model = not final_plan.source or final_plan.answer_goal
    answer = await (_summarize(run) if by_model else _fixed_answer(run, final_plan))
    if final_plan.abandoned:
        failed = final_plan.abandoned[0]
        raise StepFailed(f"step {failed.id} failed, and the new plan does not replace it: {failed.result}")
    return answer


async def _fixed_answer(run: Run, final_plan: Plan) -> str:
    """Return the answer of a fixed plan without a model: its text, or the result of the last step that was done."""
    if reply := run.state.last_reply:  # from before a crash
        return reply.content
    if final_plan.answer:
        try:
            answer: Any = resolve_references(final_plan.answer, partial(value_of, run))
        except ToolError as error:  # a step that failed, and that the user or the file skips
            answer = f"{partial_output(run.state)}\n\n(The answer of the plan cannot be filled in: {error.message}.)"
    else:
        done = [step for step in final_plan.steps if step.status == "done"]
        answer = step_output(run, done[-1]) if done else "No step of the plan was done."
    if len(run.state.messages) == 1:
        run.record(progress_messages(run, final_plan.steps, final_plan.goal))
    run.record([Message(role="assistant", content=result_text(answer))])
    return result_text(answer)


async def _summarize(run: Run) -> str:
    final_plan = current_plan(run)
    if reply := run.state.last_reply:  # from before a pause or a crash
        return reply.content
    if len(run.state.messages) == 1:  # not yet recorded before a crash
        run.record(progress_messages(run, final_plan.steps, final_plan.goal))
    with summary_span(run, final_plan.revision, final_plan.goal) as span:
        text = render(run, "summary.j2", plan=final_plan.model_dump())
        text += f"\n\n{final_plan.answer_goal}" if final_plan.answer_goal else ""
        reply = await run.ask_model(late_guidance(text), tools=False)
        record_summary(run, span, reply.content)
    return reply.content


_REQUIRED_BY_FILE = "the agent's file requires approval of plans"
_NO_STEPS_LEFT = "No steps are left in the plan; nothing was done."
"""Answer if a person removed all steps before any was executed."""
_REPLACEMENT_REQUESTED = "you requested another plan"
_FIXED = "the model cannot change a plan of the agent's file: approve, edit or reject it"
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
    """Return the question to ask now, after invalid answers, and the decision on it, if any."""
    while True:
        match decision := run.decision(question.id):
            case Edit(arguments=arguments) if problems := _edited(run, arguments)[2]:
                update = {"reason": f"your edit is invalid: {'; '.join(problems)}", "arguments": arguments}
            case Respond(text=text) if source := current_plan(run).source:
                update, arguments = {"reason": f"{_FIXED} ({source})"}, {"text": text}
            case _:
                return question, decision
        again = run.confirmation_id(question.id, [canonical_call("", arguments)])
        question = question.model_copy(update={"id": again, **update})


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
        rule=f"plan.approve ({run.agent.place('plan', 'approval')})",
        risk=risk,
    )


def _edited(run: Run, arguments: dict[str, Any]) -> tuple[Plan | None, Preflight | None, list[str]]:
    """Return an edited plan as the next revision, its preflight, and the problems that make it invalid."""
    try:
        draft = FixedDraft.model_validate(arguments)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        return None, None, [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in errors]
    before = current_plan(run)
    own = {step.id: step for step in before.steps}
    steps = tuple(_with_terms(step, own[step.id]) if step.id in own else step for step in draft.steps)
    plan = Plan.from_draft(draft.with_goal(before.goal).model_copy(update={"steps": steps}), before)
    check = preflight(run, plan, plan_settings(run))
    return plan, check, check.problems


def _with_terms(step: FixedStep, before: FixedStep) -> FixedStep:
    """Return an edited step with the conditions and the loop of the old one, where the edit does not mention them."""
    unmentioned = {"when", "for_each", "max_items"} - step.model_fields_set
    return step.model_copy(update={key: getattr(before, key) for key in unmentioned})


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
            if current_plan(run).source:  # the file was edited meanwhile: a fixed plan is never replanned
                raise StepFailed(
                    f"step {current_plan(run).failures()[0].id} failed: {current_plan(run).failures()[0].result}"
                )
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


EXECUTORS: Executors = dict(zip(BUILTIN_EXECUTORS, (react, plan, auto, react), strict=True))
