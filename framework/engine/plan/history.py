"""What a plan's steps did, in the form that any model reads: calls and their results, goals and their answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call.results import describe_unfinished, observation, tool_message
from framework.types.messages import Message
from framework.types.plan import PlanStep, StepStatus
from framework.types.state import CallRecord, RunState


def step_call_id(step: PlanStep) -> str:
    """The id of a step's call; further attempts have `~2`, `~3` behind it."""
    return f"plan-{step.revision}-{step.id}"


def sub_run_key(step: PlanStep) -> str:
    """The key of the sub-run that works off a step without a tool."""
    return f"step-{step.id}" if step.revision == 1 else f"step-{step.id}~{step.revision}"


def last_attempt(run: RunContext, step: PlanStep) -> tuple[int, CallRecord | None]:
    """The number of the last attempt at a step's call, from 1, and its record if it was begun."""
    number, first = 1, step_call_id(step)
    while f"{first}~{number + 1}" in run.state.calls:
        number += 1
    return number, run.state.calls.get(attempt_id(step, number))


def attempt_id(step: PlanStep, number: int) -> str:
    """The id of one attempt at a step's call."""
    return step_call_id(step) if number == 1 else f"{step_call_id(step)}~{number}"


def goal_outcome(child: RunState) -> tuple[StepStatus, str]:
    """How the sub-run of a step ended, and what it gave, or why it gave nothing."""
    if child.status == "completed":
        return "done", child.output
    return "failed", describe_unfinished(child)


def earlier_attempts(run: RunContext, steps: Sequence[PlanStep]) -> Iterator[PlanStep]:
    """Steps as earlier revisions of the plan had them, which failed and were made anew under the same id."""
    for step in steps:
        for revision in range(1, step.revision):
            earlier = step.model_copy(update={"revision": revision, "status": "failed"})
            if record := last_attempt(run, earlier)[1]:
                yield earlier.model_copy(update={"tool": record.call.tool})
            elif child := run.state.children.get(sub_run_key(earlier)):
                yield earlier.model_copy(update={"tool": None, "result": goal_outcome(child)[1]})


def call_messages(run: RunContext, steps: Iterable[PlanStep], content: str) -> Iterator[Message]:
    """The calls of steps that were carried out, as one turn of a model, and their results."""
    records = [last_attempt(run, step)[1] for step in steps if step.tool and step.status in ("done", "failed")]
    completed = [record for record in records if record is not None and record.result is not None]
    if completed:
        yield Message(role="assistant", content=content, tool_calls=tuple(record.call for record in completed))
    for record in completed:
        assert record.result is not None
        text = observation(run, record.call.tool, record.result)
        yield tool_message(run, record.call, record.result, text)


def progress_messages(run: RunContext, steps: Sequence[PlanStep], content: str) -> Iterator[Message]:
    """Steps that have ended, those that were skipped too."""
    yield from call_messages(run, steps, content)
    for step in steps:
        if step.status in ("done", "failed", "skipped") and not (step.tool and last_attempt(run, step)[1]):
            yield Message(role="assistant", content=f"{step.description}: {step.result or step.status}")
