"""What is known of a plan before anything of it is done: a verdict for each step, findings, and an estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from framework.types.frozen import Frozen
from framework.types.spec import Risk


class StepCheck(Frozen):
    """One step that is still to be done."""

    id: str
    verdict: Literal["allow", "ask", "deny", "open"]
    """What the policy says of its call; `open`: it has no tool, so its calls are judged when they are made."""
    rule: str = ""
    """The rule that decides, with its place in the file."""
    risk: Risk = "low"
    """Of its tool; without one, the highest of the tools it may use."""
    waits_for: tuple[str, ...] = ()
    """Steps whose results stand in its parameters: what it is called with is not known yet, and is judged then."""
    findings: tuple[str, ...] = ()
    """What is wrong with it."""
    risks: tuple[str, ...] = ()
    """What may still fail when it runs: parameters whose type the result of an earlier step may not have."""


class Estimate(Frozen):
    """What a plan will take: at least so many calls, and about so many tokens."""

    tool_calls: int
    """Of steps that name their tool."""
    model_calls: int
    """One turn for each step without a tool, and the answer."""
    tokens: int
    """Input and output tokens of these model calls."""
    cost_usd: float | None = None
    """US dollars for them; none where no price is known."""


class Preflight(Frozen):
    """The check of a whole plan."""

    steps: tuple[StepCheck, ...] = ()
    findings: tuple[str, ...] = ()
    """What is wrong with the plan as a whole."""
    estimate: Estimate

    @property
    def problems(self) -> list[str]:
        """Everything that keeps the plan from being used, one line each."""
        return [*self.findings, *_of_steps(self.steps)]


def _of_steps(steps: tuple[StepCheck, ...]) -> Iterator[str]:
    for step in steps:
        yield from (f"step {step.id}: {finding}" for finding in step.findings)
