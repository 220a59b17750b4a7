"""Renders executed steps as messages that any model can read: calls with results, goals with answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call.results import describe_output, describe_unfinished, observation, tool_message
from framework.types.messages import Message
from framework.types.plan import PlanStep, StepStatus
from framework.types.state import CallRecord, RunState


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
        text = observation(run, record.call.tool, record.result)
        yield tool_message(run, record.call, record.result, text)


def progress_messages(run: RunContext, steps: Sequence[PlanStep], content: str) -> Iterator[Message]:
    """Yield messages for all steps that have ended, skipped ones included."""
    yield from call_messages(run, steps, content)
    for step in steps:
        if step.status in ("done", "failed", "skipped") and not (step.tool and last_attempt(run, step)[1]):
            yield Message(role="assistant", content=f"{step.description}: {step.result or step.status}")
