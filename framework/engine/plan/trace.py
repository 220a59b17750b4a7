"""Spans of a plan: planning, approval, steps, and the answer from their results.

The goal, the steps and their results are content: they are recorded only if `telemetry.content` allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.engine.context.run_context import RunContext, record_pending
from framework.telemetry import names
from framework.telemetry.spans import TraceSpan
from framework.types.plan import PlanDraft, PlanStep, StepDraft, StepStatus
from framework.types.state import Confirmation, Decision


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
            content.input(step.model_dump(include=set(StepDraft.model_fields), exclude_defaults=True, mode="json"))
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
    span.set_attribute(names.PLAN_STEP_OUTCOME, status)
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
