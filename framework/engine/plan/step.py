"""Executes one step of a plan: a tool call with results of earlier steps in its parameters, or a sub-run for a goal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from time import perf_counter
from typing import Any

from framework.config.agents.compile import Agent
from framework.engine.context.run_context import Confirmations
from framework.engine.plan.planner import (
    attempt_id,
    call_messages,
    current_plan,
    goal_outcome,
    last_attempt,
    plan_settings,
    step_call_id,
    sub_run_key,
)
from framework.engine.plan.references import referring_parameters, resolve_references
from framework.engine.plan.trace import plan_step_span, record_step_end
from framework.engine.run import Run, react
from framework.engine.tool_call.call import RETRYABLE, retry_delay
from framework.engine.tool_call.results import observation, record_result
from framework.types.errors import ToolError
from framework.types.events import PlanStepChanged
from framework.types.messages import ToolCall, ToolResult
from framework.types.plan import PlanStep, StepStatus
from framework.types.state import Approve, CallRecord

_MAX_RESOLVED_CHARS = 256 * 1024
"""Maximum size of a step's parameters as JSON, with references replaced by results."""


async def run_step(run: Run, step: PlanStep) -> Confirmations:
    """Execute a step, or continue it after a pause.

    Returns:
        The confirmations that are needed first; empty once the step is done or has failed.
    """
    if step.status == "open":
        await set_status(run, step, "running")
    began = perf_counter()
    with plan_step_span(run, step, current_plan(run).revision) as span:
        pending, status, result = await (_call(run, step) if step.tool else _run_goal(run, step))
        record_step_end(run, span, pending, status, result)
    if meters := run.services.meters:
        meters.record_step(run.agent.name, "plan", perf_counter() - began)
    if not pending:
        await set_status(run, step, status, result)
    return pending


async def set_status(run: Run, step: PlanStep, status: StepStatus, result: str | None = None) -> None:
    """Set and emit a step's status. It is persisted with the event; after a crash it follows from the step's calls."""
    run.state.plan = current_plan(run).with_step(step.id, status, result)
    await run.emit(PlanStepChanged, id=step.id, description=step.description, status=status, result=result)


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
    resolved: dict[str, Any] = resolve_references(
        step.parameters, lambda name: _step_output(run, current_plan(run).step(name)), schema
    )
    if (size := len(json.dumps(resolved, ensure_ascii=False))) > _MAX_RESOLVED_CHARS:
        raise ToolError(f"its parameters have {size} characters after references are replaced by results")
    return resolved


def _step_output(run: Run, step: PlanStep) -> Any:
    """Return a step's complete output, as JSON data or text."""
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
    dependencies = [other for other in current_plan(run).steps if other.id in step.depends_on]
    results = "\n".join(f"- {other.description}: {other.result}" for other in dependencies if not other.tool)
    parts = [step.description]
    parts += [f"Expected result: {step.expected}"] if step.expected else []
    parts += [f"Known so far:\n{results}"] if results else []
    child = run.child(sub_run_key(step), _restricted_agent(run.agent, step), "\n\n".join(parts), run.state.inputs)
    if len(child.state.messages) == 1:  # not done before a pause or a crash
        child.record(call_messages(run, dependencies, ""))
        child.state.output_schema, child.state.caller_instructions = None, run.state.caller_instructions
    limits = [limit for limit in (child.state.limits.timeout, plan_settings(run).step_timeout) if limit is not None]
    child.state.limits = child.state.limits.model_copy(update={"timeout": min(limits, default=None)})
    return child


def _restricted_agent(agent: Agent, step: PlanStep) -> Agent:
    """Return the agent, restricted to the tools that the step may use."""
    if step.tools is None:
        return agent
    return replace(agent, toolset=agent.toolset.narrowed(step.tools, f"step {step.id} of the plan"))
