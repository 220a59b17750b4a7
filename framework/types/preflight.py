"""The check of a plan before it runs: a verdict for each step, findings, and a cost estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from framework.types.frozen import Frozen
from framework.types.spec import Risk


class StepCheck(Frozen):
    """The check of one remaining step."""

    id: str
    verdict: Literal["allow", "ask", "deny", "open"]
    """The policy's verdict on the call. `open`: the step has no tool, so its calls are evaluated when they are made."""
    rule: str = ""
    """The deciding rule, with its place in the file."""
    risk: Risk = "low"
    """Risk of the step's tool, or the highest risk of the tools that a step without one may use."""
    waits_for: tuple[str, ...] = ()
    """Steps whose results are used in the parameters; the call is evaluated again when they are known."""
    findings: tuple[str, ...] = ()
    """Problems of the step."""
    risks: tuple[str, ...] = ()
    """Reasons why the step may still fail: parameters whose type the result of an earlier step may not have."""


class Estimate(Frozen):
    """Estimated cost of a plan: minimum numbers of calls, and approximate tokens."""

    tool_calls: int
    """Minimum number of tool calls: one for each step that names its tool."""
    model_calls: int
    """Minimum number of model calls: one for each step without a tool, and one for the answer."""
    tokens: int
    """Input and output tokens of these model calls."""
    cost_usd: float | None = None
    """Cost of these model calls in US dollars; None if no price is known."""


class Preflight(Frozen):
    """The check of a whole plan."""

    steps: tuple[StepCheck, ...] = ()
    """Checks of the steps that are not done."""
    findings: tuple[str, ...] = ()
    """Problems of the plan as a whole."""
    estimate: Estimate
    """Calls and cost of the remaining steps."""

    @property
    def problems(self) -> list[str]:
        """All problems that prevent the plan from being executed, one line each."""
        return [*self.findings, *_step_problems(self.steps)]


def _step_problems(steps: tuple[StepCheck, ...]) -> Iterator[str]:
    for step in steps:
        yield from (f"step {step.id}: {finding}" for finding in step.findings)
