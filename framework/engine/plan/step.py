"""Executes one step of a plan: a tool call with results of earlier steps in its parameters, or a sub-run for a goal.

A step of a fixed plan can have conditions, and can be a loop, which adds a step for each item to the plan.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any

from framework.config.agents.compile import Agent
from framework.config.agents.plan_steps import (
    UNRESOLVED,
    StepReference,
    item_reference,
    kind_of_value,
    part_of,
    read_reference,
    referring_parameters,
    resolve_references,
    result_text,
    with_item,
)
from framework.engine.context.run_context import Confirmations, RunContext
from framework.engine.plan.planner import (
    adopt_plan,
    attempt_id,
    call_messages,
    current_plan,
    goal_outcome,
    input_value,
    last_attempt,
    plan_settings,
    plan_step_span,
    preflight,
    record_step_end,
    step_call_id,
    sub_run_key,
)
from framework.engine.run import Run, react
from framework.engine.tool_call.call import RETRYABLE, retry_delay
from framework.engine.tool_call.results import observation, record_result
from framework.tools.conditions import Condition, condition_matches
from framework.tools.json_schema import UNREADABLE, parse_as
from framework.types.errors import ToolError
from framework.types.events import PlanStepChanged
from framework.types.messages import Message, ToolCall, ToolResult
from framework.types.plan import FixedStep, PlanStep, StepStatus
from framework.types.spec import MAX_LOOP_ITEMS
from framework.types.state import Approve, CallRecord
from framework.types.text import shorten

ITEM = StepReference("")
_SHOWN_CHARS, _SHOWN_PROBLEMS = 60, 5
_MAX_RESOLVED_CHARS = 256 * 1024
"""Maximum size of a step's parameters as JSON, with references replaced by results."""


async def run_step(run: Run, step: PlanStep) -> Confirmations:
    """Execute a step, or continue it after a pause.

    Returns:
        The confirmations that are needed first; empty once the step is done or has failed.
    """
    started = perf_counter()
    with plan_step_span(run, step, current_plan(run).revision) as span:
        try:
            pending, status, result = await _work(run, step)
        except ToolError as error:
            pending, status, result = (), "failed", f"not executed: {error.message}"
        record_step_end(run, span, pending, status, result)
    if meters := run.services.meters:
        meters.record_step(run.agent.name, "plan", perf_counter() - started)
    if not pending and status != "open":
        await set_status(run, step, status, result, bypassed=status == "skipped")
    return pending


async def _work(run: Run, step: PlanStep) -> tuple[Confirmations, StepStatus, str]:
    """Execute a step. A loop whose items are steps of the plan from now on stays `open`."""
    if step.status == "open":
        if not current_plan(run).items_of(step) and (unmet := _unmet_condition(run, step)):
            return (), "skipped", unmet
        if step.for_each:
            return await _loop(run, step)
        await set_status(run, step, "running")
    return await (_call(run, step) if step.tool else _run_goal(run, step))


async def set_status(
    run: Run, step: PlanStep, status: StepStatus, result: str | None = None, *, bypassed: bool = False
) -> None:
    """Set and emit a step's status. It is persisted with the event; after a crash it follows from the step's calls.

    `bypassed` means that a condition skips the step, so that the steps after it run all the same.
    """
    run.state.plan = current_plan(run).with_step(step.id, status, result, bypassed=bypassed)
    await run.emit(PlanStepChanged, id=step.id, description=step.description, status=status, result=result)


# --- conditions and loops


def _unmet_condition(run: Run, step: PlanStep) -> str:
    """Return which condition of a step is not met, or an empty string.

    Raises:
        ToolError: no condition is false, and one cannot be evaluated: the step must neither run nor be skipped.
    """
    doubt: ToolError | None = None
    for key, condition in step.when.items():
        reference = read_reference(key)
        if reference is None or reference.is_item:  # those of a loop's items are evaluated for each of them
            continue
        try:
            value = _value_at(run, reference)
            if not condition_matches(condition, _comparable(value, key, condition)):
                return (
                    f"its condition is not met: {key} is {shorten(result_text(value), _SHOWN_CHARS)}, not {condition}"
                )
        except ToolError as error:
            doubt = doubt or error
    if doubt is not None:
        raise doubt
    return ""


def _comparable(value: Any, key: str, condition: Condition) -> Any:
    """Return a value that can be compared with a condition; raise ToolError for another one.

    In rules, a condition that cannot be evaluated counts as met, which restricts; here it would let a step run.
    """
    for item in value if isinstance(value, list) else [value]:
        is_number = isinstance(condition, str) and condition.startswith((">", "<"))
        if isinstance(item, list | dict) or (is_number and not _is_number(item)):
            raise ToolError(f"the condition {condition!r} cannot be evaluated: {key} is {kind_of_value(value)}")
    return value


def _is_number(value: Any) -> bool:
    try:
        return value is not None and not isinstance(value, bool) and isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


async def _loop(run: Run, step: PlanStep) -> tuple[Confirmations, StepStatus, str]:
    """Add a step for each item of a list to the plan, or complete the loop when these have ended."""
    plan = current_plan(run)
    if items := plan.items_of(step):
        done = sum(item.status == "done" for item in items)
        return (), "done", f"{done} of {len(items)} items"
    each = read_reference(step.for_each)
    values = _value_at(run, each) if each else None
    if isinstance(values, str) and (read := parse_as(values.strip(), {"array"})) is not UNREADABLE:
        values = read
    if each is None or not isinstance(values, list):
        raise ToolError(f"{step.for_each} is not a list: it is {kind_of_value(values)}")
    if len(values) > step.max_items:
        advice = f"shorten the list, or raise max_items of step {step.id} (at most {MAX_LOOP_ITEMS})"
        raise ToolError(f"{step.for_each} has {len(values)} items; at most {step.max_items} are allowed: {advice}")
    if not values:
        return (), "done", "0 of 0 items"
    expanded = plan.with_items(step, [_item(step, each, index, len(values)) for index in range(len(values))])
    check = preflight(run, expanded, plan_settings(run))
    if check.problems:
        raise ToolError("; ".join(check.problems[:_SHOWN_PROBLEMS]))
    await adopt_plan(run, expanded, check)
    return (), "open", f"{len(values)} items"


def _item(loop: PlanStep, each: StepReference, index: int, count: int) -> PlanStep:
    """Return the step of an item, which refers to the item: the plan contains no data of the list."""
    own = {key: value for key, value in loop.when.items() if (found := read_reference(key)) and found.is_item}
    when = {
        item_reference(found, each, index).text: value for key, value in own.items() if (found := read_reference(key))
    }
    parameters = with_item(loop.parameters, each, index)
    if loop.tool is None:
        parameters |= {"item": f"{{{{ {item_reference(ITEM, each, index).text} }}}}"}
    update = {
        "id": f"{loop.id}-{index + 1}",
        "description": f"{loop.description} ({index + 1} of {count})",
        "parameters": parameters,
        "when": when,
        "for_each": "",
        "max_items": FixedStep.model_fields["max_items"].default,
    }
    return loop.model_copy(update=update)


# --- a step that names its tool


async def _call(run: Run, step: PlanStep) -> tuple[Confirmations, StepStatus, str]:
    try:
        arguments = _arguments(run, step)
    except ToolError as error:
        return (), "failed", f"not called: {error.message}"
    number, _ = last_attempt(run, step)
    while True:
        call = ToolCall(id=attempt_id(step, number), tool=step.tool or "", arguments=arguments)
        if pending := await _attempt_call(run, step, call):
            return pending, "running", ""
        record = run.state.calls[call.id]
        assert record.result is not None
        if number > plan_settings(run).step_retries or not _should_retry(run, record):
            break
        await asyncio.sleep(retry_delay(number))
        number += 1
    succeeded = record.result.status == "success"
    return (), "done" if succeeded else "failed", observation(run, call, record.result)


async def _attempt_call(run: Run, step: PlanStep, call: ToolCall) -> Confirmations:
    contract = step.contract if step.approved and not referring_parameters(step) else ""
    if contract:
        # A person saw this tool with these exact parameters when approving the plan.
        run.services.root.decisions.setdefault("/".join((*run.state.path, call.id)), Approve())
    limit = plan_settings(run).step_timeout
    try:
        async with asyncio.timeout(limit) as deadline:
            is_retry = call.id != step_call_id(step)
            return await run.call_tool(
                call, is_retry=is_retry, may_have_run=_may_have_run(run, call), contract=contract
            )
    except TimeoutError:
        if not deadline.expired():
            raise
    record = run.state.calls[call.id]
    if record.result is not None:  # the call finished in time; only saving it did not
        await run.save()
        return ()
    is_idempotent = not record.started or run.agent.toolset.tools[call.tool].idempotent
    doubt = "" if is_idempotent else "; whether it took effect is unknown"
    message = f"timed out after plan.step_timeout ({limit:g}s){doubt}"
    result = ToolResult(status="error", error=message, metadata={"error_type": "timeout"})
    await record_result(run, call, result)
    return ()


def _arguments(run: Run, step: PlanStep) -> dict[str, Any]:
    """Return the step's parameters with references replaced by results; raise ToolError if one does not resolve."""
    if not referring_parameters(step):
        return step.parameters
    tool = run.agent.toolset.tools.get(step.tool or "")
    schema = tool.definition.parameters if tool else None
    resolved: dict[str, Any] = resolve_references(step.parameters, lambda reference: value_of(run, reference), schema)
    if (size := len(json.dumps(resolved, ensure_ascii=False))) > _MAX_RESOLVED_CHARS:
        raise ToolError(f"its parameters have {size} characters after references are replaced by results")
    return resolved


def _input_of(run: RunContext, reference: StepReference) -> Any:
    """Return an input for a goal. Results stay out of it: their text would be read as instructions."""
    return input_value(run, reference) if reference.input else UNRESOLVED


def _value_at(run: RunContext, reference: StepReference) -> Any:
    return part_of(value_of(run, reference), reference)


def value_of(run: RunContext, reference: StepReference) -> Any:
    """Return the result or the input that a reference names, without its path; raise ToolError if there is none."""
    if reference.input:
        return input_value(run, reference)
    step = current_plan(run).step(reference.step)
    if step.status != "done":
        raise ToolError(f"step {step.id} has no result: it is {step.status}")
    return step_output(run, step)


def step_output(run: RunContext, step: PlanStep) -> Any:
    """Return a step's complete output, as JSON data or text; of a loop, the list of its items' outputs."""
    if step.for_each:
        return [step_output(run, item) for item in current_plan(run).items_of(step) if item.status == "done"]
    if step.tool is None:
        return run.state.children[sub_run_key(step)].output
    _, record = last_attempt(run, step)
    return record.result.output if record and record.result else step.result


def _should_retry(run: Run, record: CallRecord) -> bool:
    """Return whether to retry a failed call: the tool broke, is idempotent, and declares no retries of its own."""
    tool = run.agent.toolset.tools.get(record.call.tool)
    is_retry = record.result is not None and RETRYABLE in record.result.metadata
    return is_retry and tool is not None and tool.idempotent and not tool.retries


def _may_have_run(run: Run, call: ToolCall) -> bool:
    """Return whether an identical, non-idempotent call timed out earlier and may have taken effect.

    Repeating it needs approval.
    """
    tool = run.agent.toolset.tools.get(call.tool)
    if tool is None or tool.idempotent:
        return False
    similar_calls = (record for record in run.state.calls.values() if record.call.tool == call.tool)
    return any(
        record.call.id != call.id
        and record.started
        and record.call.arguments == call.arguments
        and record.result is not None
        and record.result.metadata.get("error_type") == "timeout"
        for record in similar_calls
    )


# --- a step that has only a goal


async def _run_goal(run: Run, step: PlanStep) -> tuple[Confirmations, StepStatus, str]:
    """Run a sub-run towards the step's goal.

    Earlier results are passed as tool messages, not as user messages, so that their text is not read as instructions.
    """
    child = _child(run, step)
    if pending := await child.drive(react):
        return pending, "running", ""
    return (), *goal_outcome(child.state)


def _child(run: Run, step: PlanStep) -> Run:
    plan = current_plan(run)
    dependencies = [other for other in plan.steps if other.id in step.depends_on]
    dependencies = [one for other in dependencies for one in (*plan.items_of(other), other)]
    results = "\n".join(f"- {other.description}: {other.result}" for other in dependencies if not other.tool)
    parts = [resolve_references(step.description, partial(_input_of, run)) if plan.source else step.description]
    parts += [f"Expected result: {step.expected}"] if step.expected else []
    parts += [f"Known so far:\n{results}"] if results else []
    child = run.child(sub_run_key(step), _restricted_agent(run.agent, step), "\n\n".join(parts), run.state.inputs)
    if len(child.state.messages) == 1:  # not done before a pause or a crash
        child.record(call_messages(run, dependencies, ""))
        child.record(_data_messages(step, _arguments(run, step)))
        child.state.output_schema, child.state.caller_instructions = None, run.state.caller_instructions
    limits = [limit for limit in (child.state.limits.timeout, plan_settings(run).step_timeout) if limit is not None]
    child.state.limits = child.state.limits.model_copy(update={"timeout": min(limits, default=None)})
    return child


def _data_messages(step: PlanStep, data: dict[str, Any]) -> Iterator[Message]:
    """Yield the data of a goal as the result of a call, so that its text is not read as instructions."""
    if data:
        call = ToolCall(id=f"{step_call_id(step)}-data", tool="plan.data", arguments={})
        yield Message(role="assistant", content="", tool_calls=(call,))
        text = json.dumps(data, ensure_ascii=False)
        yield Message(role="tool", content=text, tool_call_id=call.id, status="success")


def _restricted_agent(agent: Agent, step: PlanStep) -> Agent:
    """Return the agent, restricted to the tools that the step may use."""
    if step.tools is None:
        return agent
    return replace(agent, toolset=agent.toolset.narrowed(step.tools, f"step {step.id} of the plan"))
