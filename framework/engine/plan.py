"""The Plan executor: make a plan, have it approved, work it off, answer from its results.

A step that names its tool runs without asking the model; a step without one is a goal for a ReAct sub-run. The plan is
part of the run's state, so that a pause or a crash anywhere repeats no finished step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from framework.engine.corrections import repaired_plan
from framework.engine.react import react
from framework.engine.results import observation
from framework.engine.run import Confirmations, Run
from framework.engine.together import together
from framework.llm.chat import read_again
from framework.telemetry import names
from framework.telemetry.spans import fail
from framework.tools.arguments import ArgumentsError
from framework.types.errors import Paused, did_you_mean
from framework.types.events import PlanProposed, PlanStepChanged
from framework.types.messages import Message, ToolCall
from framework.types.plan import Plan, PlanDraft, PlanStep, StepDraft, StepStatus
from framework.types.spec import RISKS
from framework.types.state import Approve, Confirmation, Edit, Reject, Respond


async def plan(run: Run) -> str:
    """Plan, then do the steps in the order of their dependencies, independent ones side by side, then answer."""
    if run.state.plan is None:
        await _propose(run)
    if (rejected := await _approval(run)) is not None:
        return rejected
    while ready := _plan(run).ready():
        batch = ready[: run.agent.spec.plan.max_parallel]
        await together(_work_off(run, step) for step in batch)
        await _skip_blocked(run)
    return await _summarize(run)


def _plan(run: Run) -> Plan:
    assert run.state.plan is not None
    return run.state.plan


# --- making a plan


async def _propose(run: Run, findings: list[str] | None = None) -> None:
    """Ask for a plan until one passes its checks; raises LimitExceeded when too many did not."""
    revision = run.state.plan.revision + 1 if run.state.plan else 1
    findings = findings or []
    with run.span(f"plan {run.agent.name}", "CHAIN", {names.OPERATION: "plan", names.PLAN_REVISION: revision}) as span:
        while True:
            settings = run.agent.spec.plan
            instruction = run.agent.render(
                "plan.j2", run.state.locale, findings=findings, max_plan_steps=settings.max_plan_steps
            )
            draft = await repaired_plan(run, await run.ask_typed(PlanDraft, instruction))
            findings = list(preflight(run, draft))
            span.set_attribute(names.PLAN_STEPS, len(draft.steps))
            span.set_attribute(names.PLAN_OUTCOME, "invalid" if findings else "ok")
            if not findings:
                break
            run.budget.spend_correction()
    run.state.corrections = 0
    await _adopt(run, Plan.from_draft(draft, revision))


async def _adopt(run: Run, adopted: Plan) -> None:
    run.state.plan = adopted
    await run.save()
    await run.emit(PlanProposed, revision=adopted.revision, goal=adopted.goal, hash=adopted.hash, steps=adopted.steps)


def preflight(run: Run, draft: PlanDraft) -> Iterator[str]:
    """What is wrong with a plan before anybody is asked: its size, its tools, its arguments, the policy."""
    allowed = run.agent.spec.plan.max_plan_steps
    if len(draft.steps) > allowed:
        yield f"{len(draft.steps)} steps; at most {allowed} are allowed"
    for step in draft.steps:
        if step.tool is not None and (finding := _step_finding(run, step, step.tool)):
            yield f"step {step.id}: {finding}"


def _step_finding(run: Run, step: StepDraft, name: str) -> str | None:
    tool = run.agent.toolset.tools.get(name)
    if tool is None:
        return f"there is no tool {name!r}{did_you_mean(name, sorted(run.agent.toolset.offered))}"
    if invalid := read_again(ToolCall(id=step.id, tool=name, arguments=step.parameters)).invalid:
        return f"{name}: {invalid}"
    verdict = run.policy.judge(tool, tool.with_defaults(step.parameters))
    if verdict.kind == "deny":
        return f"the policy forbids it: {verdict}"
    try:
        tool.bind(step.parameters)
    except ArgumentsError as error:
        return f"{name}: {'; '.join(error.message.splitlines())}"
    return None


# --- having it approved


async def _approval(run: Run) -> str | None:
    """Ask a human where the agent's file says so.

    Returns:
        The run's answer if the plan was rejected; nothing if it may be worked off.

    Raises:
        Paused: a human is asked.
    """
    while _needs_approval(run):
        current = _plan(run)
        question = _question(run, current)
        match run.decision(question.id):
            case None:
                raise Paused([question])
            case Approve():
                return None
            case Edit(arguments=arguments):
                await _edit(run, arguments)
            case Reject(reason=reason):
                return f"The plan was not approved{': ' + reason if reason else '.'}"
            case Respond(text=text):
                await _propose(run, [text])
    return None


def _needs_approval(run: Run) -> bool:
    approval = run.agent.spec.plan.approval
    if isinstance(approval, str):
        return approval == "always"
    tools = run.agent.toolset.tools
    risks = [tools[step.tool].risk for step in _plan(run).steps if step.tool and step.tool in tools]
    return any(RISKS.index(risk) >= RISKS.index(approval.from_) for risk in risks)


def _question(run: Run, current: Plan) -> Confirmation:
    """Bound to the plan's content: another plan is another question."""
    return Confirmation(
        id="/".join((*run.state.path, f"plan-{current.revision}-{current.hash}")),
        kind="plan",
        agent=run.agent.name,
        plan=current,
        hash=current.hash,
        reason="the agent's file wants plans approved",
        rule=f"plan.approval ({run.agent.place('plan', 'approval')})",
        risk=run.agent.spec.runtime_policy.risk_level,
    )


async def _edit(run: Run, arguments: dict[str, object]) -> None:
    """A human's own plan: checked like the model's, and approved by being written."""
    try:
        draft = PlanDraft.model_validate(arguments)
        findings = list(preflight(run, draft))
    except ValidationError as error:
        findings = [detail["msg"] for detail in error.errors()]
    if findings:
        await _propose(run, [f"a human's edit of the plan could not be used: {finding}" for finding in findings])
        return
    edited = Plan.from_draft(draft, _plan(run).revision + 1)
    run.services.root.decisions[_question(run, edited).id] = Approve()
    await _adopt(run, edited)


# --- working it off


async def _work_off(run: Run, step: PlanStep) -> Confirmations:
    if step.status == "open":
        await _set(run, step, "running")
    attributes = {names.PLAN_STEP_ID: step.id, names.PLAN_REVISION: _plan(run).revision}
    with run.span("plan.step", "CHAIN", attributes) as span:
        asked = await (_call_step(run, step) if step.tool else _free_step(run, step))
        if asked:
            return asked
        status, result = _outcome(run, step)
        span.set_attribute(names.PLAN_STEP_OUTCOME, status)
        if status == "failed":
            fail(span, "step_failed")
    await _set(run, step, status, result)
    return ()


async def _call_step(run: Run, step: PlanStep) -> Confirmations:
    call = _call_of(run, step)
    if isinstance(run.decision(_question(run, _plan(run)).id), Approve):
        # The human saw this tool with these very parameters when approving the plan.
        run.services.root.decisions.setdefault("/".join((*run.state.path, call.id)), Approve())
    return await run.call_tool(call)


async def _free_step(run: Run, step: PlanStep) -> Confirmations:
    """Let a sub-run reach the goal. What tools said before, it gets as theirs: in a user's words it would be obeyed."""
    known = [other for other in _plan(run).steps if other.id in step.depends_on]
    found = "\n".join(f"- {other.description}: {other.result}" for other in known if not other.tool)
    goal = step.description + (f"\n\nKnown so far:\n{found}" if found else "")
    child = run.child(f"step-{step.id}", run.agent, goal, run.state.inputs)
    if len(child.state.messages) == 1:  # not yet told before a pause or a crash
        child.record(_calls_made(run, known, ""))
    return await child.drive(react)


def _call_of(run: Run, step: PlanStep) -> ToolCall:
    return ToolCall(id=f"plan-{_plan(run).revision}-{step.id}", tool=step.tool or "", arguments=step.parameters)


def _outcome(run: Run, step: PlanStep) -> tuple[StepStatus, str]:
    if step.tool is None:
        child = run.state.children[f"step-{step.id}"]
        if child.status == "completed":
            return "done", child.output
        return "failed", child.error.message if child.error else f"stopped by {child.finish_reason}"
    result = run.state.calls[_call_of(run, step).id].result
    assert result is not None
    return "done" if result.status == "success" else "failed", observation(run, step.tool, result)


async def _skip_blocked(run: Run) -> None:
    while blocked := _plan(run).blocked():
        for step, waits_for in blocked:
            await _set(run, step, "skipped", f"{waits_for} was not done")


async def _set(run: Run, step: PlanStep, status: StepStatus, result: str | None = None) -> None:
    run.state.plan = _plan(run).with_step(step.id, status, result)
    await run.save()
    await run.emit(PlanStepChanged, id=step.id, description=step.description, status=status, result=result)


# --- answering


async def _summarize(run: Run) -> str:
    finished = _plan(run)
    if len(run.state.messages) == 1:  # not yet recorded before a crash
        run.record(_as_messages(run, finished))
    with run.span("plan.summary", "CHAIN", {names.PLAN_REVISION: finished.revision}):
        text = run.agent.render("summary.j2", run.state.locale, plan=finished.model_dump())
        reply = await run.ask_model(Message(role="system", content=text), tools=False)
    return reply.content


def _as_messages(run: Run, finished: Plan) -> Iterator[Message]:
    """What was done, in the form in which any model reads it: calls and their results, goals and their answers."""
    yield from _calls_made(run, finished.steps, finished.goal)
    for step in finished.steps:
        if not step.tool or step.status == "skipped":
            yield Message(role="assistant", content=f"{step.description}: {step.result or step.status}")


def _calls_made(run: Run, steps: Iterable[PlanStep], said: str) -> Iterator[Message]:
    called = [(step, _call_of(run, step)) for step in steps if step.tool and step.status in ("done", "failed")]
    if called:
        yield Message(role="assistant", content=said, tool_calls=tuple(call for _, call in called))
        for step, call in called:
            yield Message(role="tool", tool_call_id=call.id, content=step.result or "")
