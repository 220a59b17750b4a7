"""One step of a plan: carried out in its time, recorded once, with what earlier steps found put into its parameters."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

from framework.config.agents.compile import Agent
from framework.engine.plan.history import attempt_id, call_id, calls_made, child_key, last_attempt, pursued
from framework.engine.plan.planner import plan_of, settings_of
from framework.engine.plan.references import referring, resolve
from framework.engine.plan.trace import plan_step_span, step_ended
from framework.engine.react import react
from framework.engine.run import Run
from framework.engine.tool_call.execution import BACKOFF_SECONDS, MOST_BACKOFF_SECONDS, RETRYABLE
from framework.engine.tool_call.results import finish, observation
from framework.types.errors import ToolError
from framework.types.events import PlanStepChanged
from framework.types.messages import ToolCall, ToolResult
from framework.types.plan import PlanStep, StepStatus
from framework.types.state import Approve, CallRecord, Confirmation

Confirmations = tuple[Confirmation, ...]
MAX_RESOLVED_CHARS = 256 * 1024
"""Of a step's parameters, as JSON, with the results that they refer to."""


async def carry_out(run: Run, step: PlanStep) -> Confirmations:
    """Bring a step to its end, or to a question.

    Returns:
        What a human must confirm first; nothing when the step is done or has failed.
    """
    if step.status == "open":
        await mark(run, step, "running")
    with plan_step_span(run, step, plan_of(run).revision) as span:
        asked, status, result = await (_call(run, step) if step.tool else _pursue(run, step))
        step_ended(run, span, asked, status, result)
    if not asked:
        await mark(run, step, status, result)
    return asked


async def mark(run: Run, step: PlanStep, status: StepStatus, result: str | None = None) -> None:
    """Tell a step's state; it is put on record with that, and can always be told from its calls again."""
    run.state.plan = plan_of(run).with_step(step.id, status, result)
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
        if asked := await _attempt(run, step, call):
            return asked, "running", ""
        record = run.state.calls[call.id]
        assert record.result is not None
        if number > settings_of(run).step_retries or not _is_worth_it(run, record):
            break
        await asyncio.sleep(min(BACKOFF_SECONDS * 2**number, MOST_BACKOFF_SECONDS) * random.uniform(0.5, 1))
        number += 1
    succeeded = record.result.status == "success"
    return (), "done" if succeeded else "failed", observation(run, call.tool, record.result)


async def _attempt(run: Run, step: PlanStep, call: ToolCall) -> Confirmations:
    shown = step.contract if step.approved and not referring(step) else ""
    if shown:
        # The human saw this tool with these very parameters when approving the plan.
        run.services.root.decisions.setdefault("/".join((*run.state.path, call.id)), Approve())
    limit = settings_of(run).step_timeout
    try:
        async with asyncio.timeout(limit) as deadline:
            again = call.id != call_id(step)
            return await run.call_tool(call, again=again, doubtful=_is_doubtful(run, call), contract=shown)
    except TimeoutError:
        if not deadline.expired():
            raise
    record = run.state.calls[call.id]
    if record.result is not None:  # it had ended in time: only the record of that takes long
        await run.save()
        return ()
    harmless = not record.started or run.agent.toolset.tools[call.tool].idempotent
    doubt = "" if harmless else "; whether it took effect is unknown"
    message = f"it did not finish within plan.step_timeout ({limit:g}s){doubt}"
    return await finish(run, call, ToolResult(status="error", error=message, metadata={"error_type": "timeout"}))


def _arguments(run: Run, step: PlanStep) -> dict[str, Any]:
    """The step's parameters with results in the place of references; raises ToolError."""
    if not referring(step):
        return step.parameters
    tool = run.agent.toolset.tools.get(step.tool or "")
    schema = tool.definition.parameters if tool else None
    resolved: dict[str, Any] = resolve(step.parameters, lambda name: _output(run, plan_of(run).step(name)), schema)
    if (size := len(json.dumps(resolved, ensure_ascii=False))) > MAX_RESOLVED_CHARS:
        raise ToolError(f"with the results that they refer to, its parameters have {size} characters")
    return resolved


def _output(run: Run, step: PlanStep) -> Any:
    """What a step gave, uncut: JSON data or text."""
    if step.tool is None:
        return run.state.children[child_key(step)].output
    _, record = last_attempt(run, step)
    return record.result.output if record and record.result else step.result


def _is_worth_it(run: Run, record: CallRecord) -> bool:
    """Whether a failed call may and should be made again: its tool broke, and tries nothing again by itself."""
    tool = run.agent.toolset.tools.get(record.call.tool)
    again = record.result is not None and RETRYABLE in record.result.metadata
    return again and tool is not None and tool.idempotent and not tool.retries


def _is_doubtful(run: Run, call: ToolCall) -> bool:
    """Whether the very same call was begun before and may have taken effect: to be made again only with a yes."""
    tool = run.agent.toolset.tools.get(call.tool)
    if tool is None or tool.idempotent:
        return False
    same = (record for record in run.state.calls.values() if record.call.tool == call.tool)
    return any(
        record.call.id != call.id
        and record.started
        and record.call.arguments == call.arguments
        and record.result is not None
        and record.result.metadata.get("error_type") == "timeout"
        for record in same
    )


# --- a step that has only a goal


async def _pursue(run: Run, step: PlanStep) -> tuple[Confirmations, StepStatus, str]:
    """Let a sub-run reach the goal. What tools said before, it gets as theirs: in a user's words it would be obeyed."""
    child = _child(run, step)
    if asked := await child.drive(react):
        return asked, "running", ""
    return (), *pursued(child.state)


def _child(run: Run, step: PlanStep) -> Run:
    known = [other for other in plan_of(run).steps if other.id in step.depends_on]
    found = "\n".join(f"- {other.description}: {other.result}" for other in known if not other.tool)
    parts = [step.description]
    parts += [f"Expected result: {step.expected}"] if step.expected else []
    parts += [f"Known so far:\n{found}"] if found else []
    child = run.child(child_key(step), _narrowed(run.agent, step), "\n\n".join(parts), run.state.inputs)
    if len(child.state.messages) == 1:  # not yet told before a pause or a crash
        child.record(calls_made(run, known, ""))
        child.state.output_schema = None
    limits = [limit for limit in (child.state.limits.timeout, settings_of(run).step_timeout) if limit is not None]
    child.state.limits = child.state.limits.model_copy(update={"timeout": min(limits, default=None)})
    return child


def _narrowed(agent: Agent, step: PlanStep) -> Agent:
    """The agent with no more tools than the step may use."""
    if step.tools is None:
        return agent
    return replace(agent, toolset=agent.toolset.only(step.tools, f"step {step.id} of the plan"))
