"""Validates a plan before any step runs (size, dependencies, tools, arguments, policy, budget); estimates its cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from framework.engine.context.run_context import RunContext
from framework.engine.model_call.turn import preamble_messages
from framework.engine.plan.references import expected_types, invalid_references, references, referring_parameters
from framework.llm.openai_format import revalidate_call
from framework.llm.tokens import estimate_tokens
from framework.tools.schema.arguments import ArgumentsError
from framework.tools.tool import Tool
from framework.types.messages import ToolCall, Usage
from framework.types.plan import Plan, PlanStep
from framework.types.preflight import Estimate, Preflight, StepCheck
from framework.types.spec import RISKS, PlanSettings, Risk
from framework.types.text import did_you_mean

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
    findings = (*_graph_findings(plan, remaining), *_budget_findings(run, expected))
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
    if len(remaining) > settings.max_plan_steps:
        yield f"it has {len(remaining)} steps; at most {settings.max_plan_steps} are allowed"
    if (size := sum(len(step.model_dump_json()) for step in remaining)) > _MAX_PLAN_CHARS:
        yield f"it has {size} characters; at most {_MAX_PLAN_CHARS} are allowed"
    texts = {"the goal": plan.goal, **{f"the description of step {step.id}": step.description for step in remaining}}
    for what, text in texts.items():
        if not text.strip() or len(text) > _MAX_TEXT_CHARS:
            yield f"{what} is empty" if not text.strip() else f"{what} is longer than {_MAX_TEXT_CHARS} characters"


def _graph_findings(plan: Plan, remaining: list[PlanStep]) -> Iterator[str]:
    known = {step.id: step for step in plan.steps}
    for name, count in Counter(step.id for step in plan.steps).items():
        if count > 1:
            done = next((step for step in plan.steps if step.id == name and step.status == "done"), None)
            yield (
                f"step {name} is already done: use another id for a new step"
                if done
                else f"two steps have the id {name!r}"
            )
    for step in remaining:
        for other in dict.fromkeys(step.depends_on):
            if other == step.id:
                yield f"step {step.id} depends on itself"
            elif other not in known:
                yield f"step {step.id} depends on {other!r}, which does not exist{did_you_mean(other, sorted(known))}"
            elif known[other].status in ("failed", "skipped"):
                yield f"step {step.id} depends on {other}, which was not done"
    if cycle := _find_cycle(remaining):
        yield f"steps depend on each other in a cycle: {' -> '.join(cycle)}"


def _find_cycle(steps: list[PlanStep]) -> list[str]:
    """Return the ids of a dependency cycle, with the first repeated at the end, or an empty list."""
    waiting_for = {step.id: [other for other in step.depends_on if other != step.id] for step in steps}
    while free := [name for name, others in waiting_for.items() if not any(other in waiting_for for other in others)]:
        for name in free:
            del waiting_for[name]
    if not waiting_for:
        return []
    path = [next(iter(waiting_for))]
    while path.count(path[-1]) == 1:
        path.append(next(other for other in waiting_for[path[-1]] if other in waiting_for))
    return path[path.index(path[-1]) :]


def _budget_findings(run: RunContext, expected: Estimate) -> Iterator[str]:
    """Yield limits that the plan exceeds even if every step succeeds."""
    limits, state = run.budget.limits, run.state
    if limits.max_tool_calls is not None and expected.tool_calls > limits.max_tool_calls - state.tool_calls:
        remaining = limits.max_tool_calls - state.tool_calls
        yield f"it needs {expected.tool_calls} tool calls; max_tool_calls allows {remaining} more"
    goals = expected.model_calls - 1
    if goals and limits.max_steps is not None and expected.model_calls > limits.max_steps - state.steps:
        remaining = max(0, limits.max_steps - state.steps)
        yield f"it has {goals} steps without a tool; max_steps allows {remaining} more model calls"


def _check(run: RunContext, plan: Plan, step: PlanStep) -> StepCheck:
    findings = list(_reference_findings(plan, step))
    waits_for = tuple(dict.fromkeys(reference.step for reference in references(step.parameters)))
    if step.tool is None:
        findings += _goal_findings(run, step)
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
    findings += _argument_findings(tool, step)
    return StepCheck(
        id=step.id,
        verdict=verdict.kind,
        rule=f"{verdict.rule} ({verdict.place})",
        risk=tool.risk,
        waits_for=waits_for,
        findings=tuple(findings),
        risks=tuple(_type_risks(tool, step)),
    )


def _type_risks(tool: Tool, step: PlanStep) -> Iterator[str]:
    """Yield parameters that refer to another step's result and do not accept text, into which any result converts."""
    for place, other, types in expected_types(step.parameters, tool.definition.parameters):
        if types and "string" not in types:
            yield f"{place}: the step fails unless the result of {other} is {' or '.join(sorted(types))}"


def _reference_findings(plan: Plan, step: PlanStep) -> Iterator[str]:
    yield from invalid_references(step.parameters)
    needed = plan.dependencies_of(step.id)
    known = {other.id for other in plan.steps}
    for name in dict.fromkeys(reference.step for reference in references(step.parameters)):
        if name not in known:
            yield f"its parameters refer to step {name!r}, which does not exist{did_you_mean(name, sorted(known))}"
        elif name not in needed:
            yield f"its parameters refer to step {name}: add {name} to its depends_on"


def _goal_findings(run: RunContext, step: PlanStep) -> Iterator[str]:
    offered = run.agent.toolset.offered
    if step.parameters:
        yield "it has parameters but no tool"
    for name in step.tools or ():
        if name not in offered:
            yield f"there is no tool {name!r} for it{did_you_mean(name, sorted(offered))}"


def _argument_findings(tool: Tool, step: PlanStep) -> Iterator[str]:
    """Yield problems of arguments whose values are known."""
    try:
        tool.bind(step.parameters)
    except ArgumentsError as error:
        later = referring_parameters(step)
        known = [finding for finding in error.findings if finding.field.partition(".")[0] not in later]
        messages = [str(finding) for finding in known] if error.findings else error.message.splitlines()
        if messages:
            yield f"{tool.name}: {'; '.join(messages)}"


def _estimate(run: RunContext, plan: Plan) -> Estimate:
    """Estimate the cost of the remaining steps, if each succeeds and each goal takes one turn."""
    remaining = [step for step in plan.steps if step.status in ("open", "running")]
    goals = sum(step.tool is None for step in remaining)
    preamble = preamble_messages(run)
    conversation = (*preamble, *run.state.history, *run.state.messages)
    context = sum(estimate_tokens(m.content) + sum(part.tokens for part in m.media) for m in conversation)
    prompt = context + _RESULT_TOKENS * len(plan.steps)
    if goals:
        tools = [definition.model_dump() for definition in run.agent.toolset.definitions]
        own = sum(estimate_tokens(message.content) for message in preamble)
        prompt += goals * (own + estimate_tokens(json.dumps(tools, ensure_ascii=False)) + _RESULT_TOKENS)
    completion = (goals + 1) * _ANSWER_TOKENS
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
    prices = run.model_caller.primary().info.capabilities.prices
    return Estimate(
        tool_calls=len(remaining) - goals,
        model_calls=goals + 1,
        tokens=usage.total_tokens,
        cost_usd=prices.cost(usage) if prices else None,
    )
