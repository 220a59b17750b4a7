"""Gets plans from the agent's file, or from the model until one passes preflight; adopts them; renders their steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from framework.config.agents.plan_steps import (
    UNRESOLVED,
    StepReference,
    argument_findings,
    expected_types,
    file_plan,
    graph_findings,
    invalid_references,
    part_of,
    read_reference,
    references,
    referring_parameters,
    resolve_references,
    result_text,
)
from framework.config.templates.prompts import PLAN_TEMPLATE
from framework.engine.context.run_context import RunContext
from framework.engine.model_call.turn import preamble_messages, render
from framework.engine.run import Run
from framework.engine.tool_call.call import repair_plan
from framework.engine.tool_call.results import describe_output, describe_unfinished, observation, tool_message
from framework.telemetry import names
from framework.telemetry.spans import TraceSpan, record_pending
from framework.tools.tool import Tool
from framework.tools.toolset import TOOL_SEARCH
from framework.types.errors import LimitExceeded, StepFailed, ToolError
from framework.types.events import PlanProposed
from framework.types.messages import Message, ToolCall, Usage, late_guidance, revalidate_call
from framework.types.plan import Estimate, FixedStep, Plan, PlanDraft, PlanStep, Preflight, StepCheck, StepStatus
from framework.types.spec import RISKS, ApprovalFrom, PlanSettings, Risk
from framework.types.state import CallRecord, Confirmation, Decision, RunState
from framework.types.text import did_you_mean, estimate_tokens, one_line

# The goal, the steps and their results are content: they are recorded only if `telemetry.content` allows it.


def plan_span(run: RunContext, revision: int, feedback: str) -> TraceSpan:
    """Open the span of planning one revision; `feedback` is a person's request for changes."""
    attributes = {names.OPERATION: "plan", names.PLAN_REVISION: revision}
    return _span(run, f"plan {run.agent.name}", attributes, feedback or run.state.messages[0].description)


def record_draft(run: RunContext, span: TraceSpan, draft: PlanDraft, *, usable: bool) -> None:
    """Record the model's latest draft of the plan."""
    span.set_attributes({names.PLAN_STEPS: len(draft.steps), names.PLAN_OUTCOME: "ok" if usable else "invalid"})
    _output(run, span, draft.model_dump(exclude_defaults=True, mode="json"))


def approval_span(run: RunContext, revision: int, decision: Decision | None) -> TraceSpan:
    """Open the span of a plan's approval. It ends immediately: no span stays open while a person decides."""
    decided = decision.type if decision else "waiting"
    return run.span("plan.approval", "CHAIN", {names.PLAN_REVISION: revision, names.PLAN_DECISION: decided})


def failure_span(run: RunContext, decision: Decision) -> TraceSpan:
    """Open the span of the user's choice about a failed step."""
    return run.span("plan.step_failure", "CHAIN", {names.PLAN_DECISION: decision.type})


def plan_step_span(run: RunContext, step: PlanStep, revision: int) -> TraceSpan:
    """Open the span of one step."""
    attributes = {
        names.PLAN_STEP_ID: step.id,
        names.PLAN_REVISION: revision,
        names.PLAN_STEP_TOOL: step.tool,
        names.PLAN_STEP_DEPENDS_ON: step.depends_on or None,
    }
    span = _span(run, f"plan.step {step.id}", attributes, None)
    if span.is_recording() and (content := run.content):
        span.set_attributes(content.text(names.PLAN_STEP_DESCRIPTION, step.description))
        span.set_attributes(
            content.input(step.model_dump(include=set(FixedStep.model_fields), exclude_defaults=True, mode="json"))
        )
    return span


def record_step_end(
    run: RunContext, span: TraceSpan, pending: tuple[Confirmation, ...], status: StepStatus, result: str | None
) -> None:
    """Record how a step ended, or the confirmations it waits for."""
    if pending:
        span.set_attribute(names.PLAN_STEP_OUTCOME, "waiting")
        record_pending(span, pending)
        return
    span.set_attribute(names.PLAN_STEP_OUTCOME, "expanded" if status == "open" else status)
    _output(run, span, result or "")
    if status == "failed":
        span.fail("step_failed")


def summary_span(run: RunContext, revision: int, goal: str) -> TraceSpan:
    """Open the span of the answer from the steps' results."""
    return _span(run, "plan.summary", {names.PLAN_REVISION: revision}, goal)


def record_summary(run: RunContext, span: TraceSpan, answer: str) -> None:
    """Record the answer."""
    _output(run, span, answer)


def _span(run: RunContext, name: str, attributes: Mapping[str, Any], input_text: str | None) -> TraceSpan:
    span = run.span(name, "CHAIN", attributes)
    if input_text and span.is_recording() and (content := run.content):
        span.set_attributes(content.input(input_text))
    return span


def _output(run: RunContext, span: TraceSpan, value: Any) -> None:
    if value and span.is_recording() and (content := run.content):
        span.set_attributes(content.output(value))


_SHOWN_FINDINGS = 20
_MAX_SHOWN_INPUT = 1000
"""Maximum length of an input that replaces its reference in a plan, in characters."""
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


def current_plan(run: RunContext) -> Plan:
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
    await _find_tools(run)
    if before is not None:
        before = before.model_copy(update={"must_be_approved": True})
    await adopt_plan(run, *await _request_plan(run, before, feedback))


async def adopt_file_plan(run: Run) -> None:
    """Adopt the plan in the agent's file, with the inputs of the run.

    Raises:
        StepFailed: the plan does not pass preflight now, for example because a stricter rule denies a step.
    """
    source = run.agent.place("plan", "steps")
    try:
        plan = _with_inputs(run, file_plan(run.agent.spec, _default_goal(run), source))
    except ToolError as error:
        raise StepFailed(f"the plan ({source}) cannot be executed: {error.message}") from None
    with plan_span(run, plan.revision, "") as span:
        check = preflight(run, plan, plan_settings(run))
        record_draft(run, span, plan.draft, usable=not check.problems)
    if check.problems:
        raise StepFailed(f"the plan ({source}) cannot be executed: {'; '.join(check.problems[:_SHOWN_FINDINGS])}")
    await adopt_plan(run, plan, check)


def _with_inputs(run: RunContext, plan: Plan) -> Plan:
    """Return the plan with the inputs of the run in place of references to them, so that people approve the values.

    An input with a brace stays a reference: inserted, it could become part of another reference. So does a long one.
    """

    def value_of(reference: StepReference) -> Any:
        if not reference.input:
            return UNRESOLVED
        value = input_value(run, reference)
        text = result_text(part_of(value, reference))
        return UNRESOLVED if len(text) > _MAX_SHOWN_INPUT or "{" in text or "}" in text else value

    def bound(step: PlanStep) -> PlanStep:
        tool = run.agent.toolset.tools.get(step.tool or "")
        schema = tool.definition.parameters if tool else None
        update = {
            "parameters": resolve_references(step.parameters, value_of, schema),
            "description": step.description if tool else resolve_references(step.description, value_of),
        }
        return step.model_copy(update=update)

    return plan.model_copy(update={"steps": tuple(map(bound, plan.steps))})


def input_value(run: RunContext, reference: StepReference) -> Any:
    """Return the input that a reference names; raise ToolError if the run has none."""
    if reference.input not in run.state.inputs:
        raise ToolError(f"the run has no input {reference.input!r}")
    return run.state.inputs[reference.input]


async def _find_tools(run: Run) -> None:
    """Add the deferred tools that fit the user's message to the run: a plan is one reply, without a search before it.

    A step without a tool can search for others.
    """
    toolset, searchable = run.agent.toolset, run.searchable_tools()
    if searchable and TOOL_SEARCH in toolset.offered:
        words = run.state.messages[0].description
        run.add_tools(await asyncio.to_thread(toolset.find_deferred, words, searchable))


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


_MAX_PLAN_CHARS = 64 * 1024
"""Maximum size of a plan as JSON, in characters."""
_MAX_TEXT_CHARS = 4000
"""Maximum length of a goal or a description."""
_RESULT_TOKENS = 200
"""Estimated size of a step's result in the request for the answer."""
_ANSWER_TOKENS = 200
"""Estimated size of a model's reply."""


def preflight(run: RunContext, plan: Plan, settings: PlanSettings) -> Preflight:
    """Check the remaining steps of a plan, without calling tools or asking anyone."""
    remaining = [step for step in plan.steps if step.status == "open"]
    if findings := tuple(_size_findings(plan, remaining, settings)):  # too large to check its steps
        return Preflight(findings=findings, estimate=Estimate(tool_calls=0, model_calls=0, tokens=0))
    expected = _estimate(run, plan)
    graph = (finding for _, finding in graph_findings(plan, remaining))
    findings = (*graph, *_budget_findings(run, remaining, expected))
    return Preflight(steps=tuple(_check(run, plan, step) for step in remaining), findings=findings, estimate=expected)


def usable_tools(run: RunContext, step: PlanStep) -> list[Tool]:
    """Return the tools that a step may call: the one it names, those it lists, or all offered tools."""
    toolset = run.agent.toolset
    names = [step.tool] if step.tool is not None else step.tools
    if names is None:
        return list(toolset.offered.values())
    return [toolset.tools[name] for name in names if name in toolset.tools]


def highest_risk(tools: list[Tool]) -> Risk:
    """Return the highest risk among the tools, or the lowest possible risk without any tools."""
    return max((tool.risk for tool in tools), key=RISKS.index, default=RISKS[0])


def _size_findings(plan: Plan, remaining: list[PlanStep], settings: PlanSettings) -> Iterator[str]:
    if not remaining and plan.revision == 1:
        yield "it has no steps: if nothing has to be done, return it again without steps"
    if len(remaining) > settings.max_plan_steps and not plan.source:
        yield f"it has {len(remaining)} steps; at most {settings.max_plan_steps} are allowed"
    if (size := sum(len(step.model_dump_json()) for step in remaining)) > _MAX_PLAN_CHARS:
        yield f"it has {size} characters; at most {_MAX_PLAN_CHARS} are allowed"
    texts = {"the goal": plan.goal, **{f"the description of step {step.id}": step.description for step in remaining}}
    for what, text in texts.items():
        if not text.strip() or len(text) > _MAX_TEXT_CHARS:
            yield f"{what} is empty" if not text.strip() else f"{what} is longer than {_MAX_TEXT_CHARS} characters"


def _budget_findings(run: RunContext, steps: list[PlanStep], expected: Estimate) -> Iterator[str]:
    """Yield limits that the plan exceeds even if every step succeeds."""
    limits, state = run.budget.limits, run.state
    if limits.max_tool_calls is not None and expected.tool_calls > limits.max_tool_calls - state.tool_calls:
        remaining = limits.max_tool_calls - state.tool_calls
        yield f"it needs {expected.tool_calls} tool calls; max_tool_calls allows {remaining} more"
    goals = sum(step.tool is None for step in steps)
    if goals and limits.max_steps is not None and expected.model_calls > limits.max_steps - state.steps:
        remaining = max(0, limits.max_steps - state.steps)
        yield f"it has {goals} steps without a tool; max_steps allows {remaining} more model calls"


def _check(run: RunContext, plan: Plan, step: PlanStep) -> StepCheck:
    findings = list(_reference_findings(run, plan, step))
    waits_for = tuple(dict.fromkeys(reference.step for reference in references(step.parameters) if reference.step))
    if step.tool is None:
        findings += _goal_findings(run, plan, step)
        risk = highest_risk(usable_tools(run, step))
        return StepCheck(id=step.id, verdict="open", risk=risk, waits_for=waits_for, findings=tuple(findings))
    tool = run.agent.toolset.tools.get(step.tool)
    if tool is None:
        findings.append(f"there is no tool {step.tool!r}{did_you_mean(step.tool, sorted(run.agent.toolset.offered))}")
        return StepCheck(id=step.id, verdict="deny", findings=tuple(findings))
    if step.tools is not None:
        findings.append("it has both `tool` and `tools`: use one of them")
    if invalid := revalidate_call(ToolCall(id=step.id, tool=tool.name, arguments=step.parameters)).invalid:
        return StepCheck(id=step.id, verdict="deny", risk=tool.risk, findings=(f"{tool.name}: {invalid}",))
    # Values of references are not known yet: only rules that apply to any value count now.
    known = {name: value for name, value in step.parameters.items() if name not in referring_parameters(step)}
    verdict = run.policy.evaluate(
        tool, {k: v for k, v in tool.with_defaults(known).items() if k not in referring_parameters(step)}
    )
    if verdict.kind == "deny":
        findings.append(f"the policy forbids it: {verdict}")
    findings += argument_findings(tool, step)
    return StepCheck(
        id=step.id,
        verdict=verdict.kind,
        rule=f"{verdict.rule} ({verdict.place})",
        risk=tool.risk,
        waits_for=waits_for,
        findings=tuple(findings),
        risks=tuple(_type_risks(run, plan, tool, step)),
    )


def _type_risks(run: RunContext, plan: Plan, tool: Tool, step: PlanStep) -> Iterator[str]:
    """Yield parameters that refer to another step's result and do not accept text, into which any result converts.

    In a fixed plan, declared types of results were checked when the file was loaded.
    """
    declared = {one.id for one in plan.steps if plan.source and _has_declared_result(run, one)}
    for place, other, types in expected_types(step.parameters, tool.definition.parameters):
        if types and "string" not in types and other.step not in declared:
            value = f"the result of {other.step}" if other.step else other.text
            yield f"{place}: the step fails unless {value} is {' or '.join(sorted(types))}"


def _reference_findings(run: RunContext, plan: Plan, step: PlanStep) -> Iterator[str]:
    yield from invalid_references(step.parameters)
    needed = plan.dependencies_of(step.id)
    known = {other.id for other in plan.steps}
    for reference in dict.fromkeys(_all_references(step)):
        name = reference.step
        if reference.input in run.state.inputs or (reference.is_item and step.for_each):
            continue
        if reference.input:
            meant = did_you_mean(reference.input, sorted(run.state.inputs))
            yield f"its parameters refer to the input {reference.input!r}, which the run does not have{meant}"
        elif reference.is_item:
            yield "its parameters refer to the item of a loop, and it has no for_each"
        elif name not in known:
            yield f"its parameters refer to step {name!r}, which does not exist{did_you_mean(name, sorted(known))}"
        elif name not in needed:
            yield f"its parameters refer to step {name}: add {name} to its depends_on"


def _has_declared_result(run: RunContext, step: PlanStep) -> bool:
    """Return whether the tool of a step declares the type of its result."""
    tool = run.agent.toolset.tools.get(step.tool or "")
    return tool is not None and tool.returns is not None


def _all_references(step: PlanStep) -> Iterator[StepReference]:
    """Yield the references in parameters, conditions and the list of a loop."""
    yield from references(step.parameters)
    for text in (*step.when, *([step.for_each] if step.for_each else ())):
        if reference := read_reference(text):
            yield reference


def _goal_findings(run: RunContext, plan: Plan, step: PlanStep) -> Iterator[str]:
    offered = run.agent.toolset.offered
    if step.parameters and not plan.source:
        yield "it has parameters but no tool"
    for name in step.tools or ():
        if name not in offered:
            yield f"there is no tool {name!r} for it{did_you_mean(name, sorted(offered))}"


def _estimate(run: RunContext, plan: Plan) -> Estimate:
    """Estimate the cost of the remaining steps, if each succeeds and each goal takes one turn."""
    remaining = [step for step in plan.steps if step.status in ("open", "running") and not plan.items_of(step)]
    goals = sum(step.tool is None for step in remaining)
    answers = 0 if plan.source and not plan.answer_goal else 1
    preamble = preamble_messages(run)
    conversation = (*preamble, *run.state.history, *run.state.messages)
    context = sum(estimate_tokens(m.content) + sum(part.tokens for part in m.media) for m in conversation)
    prompt = context + _RESULT_TOKENS * len(plan.steps)
    if goals:
        tools = [definition.model_dump() for definition in run.tool_definitions()]
        own = sum(estimate_tokens(message.content) for message in preamble)
        prompt += goals * (own + estimate_tokens(json.dumps(tools, ensure_ascii=False)) + _RESULT_TOKENS)
    if not goals + answers:
        prompt = 0
    completion = (goals + answers) * _ANSWER_TOKENS
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
    prices = run.model_caller.primary().info.capabilities.prices
    return Estimate(
        tool_calls=len(remaining) - goals,
        model_calls=goals + answers,
        tokens=usage.total_tokens,
        cost_usd=prices.cost(usage) if prices else None,
    )


def step_call_id(step: PlanStep) -> str:
    """Return the id of a step's first call; further attempts append `~2`, `~3`."""
    return f"plan-{step.revision}-{step.id}"


def sub_run_key(step: PlanStep) -> str:
    """Return the key of the sub-run that executes a step without a tool."""
    return f"step-{step.id}" if step.revision == 1 else f"step-{step.id}~{step.revision}"


def last_attempt(run: RunContext, step: PlanStep) -> tuple[int, CallRecord | None]:
    """Return the number of the last attempt at a step's call, counted from 1, and its record if it was started."""
    number, first = 1, step_call_id(step)
    while f"{first}~{number + 1}" in run.state.calls:
        number += 1
    return number, run.state.calls.get(attempt_id(step, number))


def attempt_id(step: PlanStep, number: int) -> str:
    """Return the id of one attempt at a step's call."""
    return step_call_id(step) if number == 1 else f"{step_call_id(step)}~{number}"


def goal_outcome(child: RunState) -> tuple[StepStatus, str]:
    """Return a step's status after its sub-run, with the output, or why it has no output."""
    if child.status == "completed":
        return "done", describe_output(child)
    return "failed", describe_unfinished(child)


def earlier_attempts(run: RunContext, steps: Sequence[PlanStep]) -> Iterator[PlanStep]:
    """Yield failed steps of earlier revisions that a later revision replaced under the same id."""
    for step in steps:
        for revision in range(1, step.revision):
            earlier = step.model_copy(update={"revision": revision, "status": "failed"})
            if record := last_attempt(run, earlier)[1]:
                yield earlier.model_copy(update={"tool": record.call.tool})
            elif child := run.state.children.get(sub_run_key(earlier)):
                yield earlier.model_copy(update={"tool": None, "result": goal_outcome(child)[1]})


def call_messages(run: RunContext, steps: Iterable[PlanStep], content: str) -> Iterator[Message]:
    """Yield the calls of executed steps as one assistant message, then their results."""
    records = [last_attempt(run, step)[1] for step in steps if step.tool and step.status in ("done", "failed")]
    completed = [record for record in records if record is not None and record.result is not None]
    if completed:
        yield Message(role="assistant", content=content, tool_calls=tuple(record.call for record in completed))
    for record in completed:
        assert record.result is not None
        text = observation(run, record.call, record.result)
        yield tool_message(run, record.call, record.result, text)


def progress_messages(run: RunContext, steps: Sequence[PlanStep], content: str) -> Iterator[Message]:
    """Yield messages for all steps that have ended, skipped ones included."""
    yield from call_messages(run, steps, content)
    for step in steps:
        if step.status in ("done", "failed", "skipped") and not (step.tool and last_attempt(run, step)[1]):
            yield Message(role="assistant", content=f"{step.description}: {step.result or step.status}")
