"""Why a run has no answer, and what it asks, in words: for clients that only show text."""

from __future__ import annotations

import json
from collections.abc import Iterable

from framework.types.confirmation_kinds import CONFIRMATION_KINDS
from framework.types.errors import LimitExceeded
from framework.types.plan import Plan
from framework.types.state import Confirmation, RunResult
from framework.types.text import one_line, visible

_VALUE_CHARS = 2000
"""Characters of an argument that a question shows."""


def reason_text(result: RunResult) -> str:
    """Return why a run that is not paused has no answer, or only a part of one; empty for a completed run."""
    if result.status == "completed":
        return ""
    if result.error is not None:
        return result.error.message
    if result.stopped_by is not None:
        return LimitExceeded.of(result.stopped_by).message
    return {
        "length": "the output limit cut the answer (on_truncation: stop)",
        "refused": "the model refused the request",
        "cancelled": "the run was cancelled",
    }.get(result.finish_reason, f"the run ended without an answer: {result.finish_reason}")


def confirmations_text(pending: Iterable[Confirmation]) -> str:
    """Return what a paused run asks, one paragraph for each confirmation."""
    return "\n\n".join(map(confirmation_text, pending))


def confirmation_text(asked: Confirmation) -> str:
    """Return what one confirmation asks: the question, or the call or plan to approve, and why."""
    traits = CONFIRMATION_KINDS[asked.kind]
    reason = "\n".join(map(visible, asked.reason.splitlines()))
    if traits.asked_by_tool:
        return f"{asked.agent} asks: {reason}{_choices(asked)}"
    if traits.is_question:
        return f"{asked.agent}: {reason}\n  {visible(one_line(asked.description, _VALUE_CHARS))}{_choices(asked)}"
    lines = _plan(asked.agent, asked.plan) if asked.plan else [f"{asked.agent} asks: may it call {asked.tool}?"]
    lines += [] if asked.plan else [f"  {visible(name)}: {_value(value)}" for name, value in asked.arguments.items()]
    because = "; ".join(part for part in (reason, asked.rule) if part)
    return "\n".join([*lines, f"  ({', '.join(part for part in (because, f'risk {asked.risk}') if part)})"])


def _plan(agent: str, plan: Plan) -> list[str]:
    steps = (f"  {step.id}. {visible(step.description)}{f' ({step.tool})' if step.tool else ''}" for step in plan.steps)
    return [f"{agent} asks: may it execute this plan? {visible(plan.goal)}", *steps]


def _choices(asked: Confirmation) -> str:
    return f" ({' / '.join(map(visible, asked.choices))})" if asked.choices else ""


def _value(value: object) -> str:
    return one_line(visible(json.dumps(value, ensure_ascii=False)), _VALUE_CHARS)
