"""A plan as data: steps, their states, and the pure transitions between them."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from framework.types.frozen import Frozen

StepId = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$")]
StepStatus = Literal["open", "running", "done", "failed", "skipped"]


class StepDraft(Frozen):
    """One step as the model proposes it: a tool with its parameters, or a free goal."""

    id: StepId
    """A short word, unique in the plan."""
    description: str
    """What the step is for; for a step without a tool: the goal to reach."""
    tool: str | None = None
    """The tool to call; none: the goal is worked off with all tools."""
    parameters: dict[str, Any] = {}
    """The tool's arguments."""
    depends_on: tuple[StepId, ...] = ()
    """Steps that must be done before."""


class PlanDraft(Frozen):
    """A plan: its goal and its steps."""  # the model sees this sentence, and the messages of the checks below

    goal: str
    """What the whole plan is to reach."""
    steps: tuple[StepDraft, ...] = Field(min_length=1)
    """The steps, each after those it depends on."""

    @model_validator(mode="after")
    def _is_a_graph_without_cycles(self) -> PlanDraft:
        seen: set[str] = set()
        for step in self.steps:
            if step.id in seen:
                raise ValueError(f"two steps have the id {step.id!r}")
            if unknown := sorted(set(step.depends_on) - seen):
                missing = ", ".join(unknown)
                raise ValueError(
                    f"step {step.id!r} depends on {missing}, not among the steps before it: {sorted(seen)}"
                )
            seen.add(step.id)
        return self


class PlanStep(StepDraft):
    """A step under way."""

    status: StepStatus = "open"
    result: str | None = None
    """What came of it, as the model gets to see it; for a skipped step: why."""


class Plan(Frozen):
    """A plan under way; every transition gives a new one."""

    revision: int = 1
    goal: str
    steps: tuple[PlanStep, ...]

    @classmethod
    def from_draft(cls, draft: PlanDraft, revision: int = 1) -> Plan:
        """Open every step of a draft."""
        return cls(
            revision=revision, goal=draft.goal, steps=tuple(PlanStep(**step.model_dump()) for step in draft.steps)
        )

    @property
    def hash(self) -> str:
        """Content hash of what a human approves: goal and steps, not their progress."""
        shown = [step.model_dump(include=set(StepDraft.model_fields)) for step in self.steps]
        body = json.dumps([self.goal, shown], sort_keys=True, ensure_ascii=False)
        return blake2b(body.encode(), digest_size=8).hexdigest()

    def step(self, step_id: str) -> PlanStep:
        """The step of that id; raises KeyError."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    def with_step(self, step_id: str, status: StepStatus, result: str | None = None) -> Plan:
        """The plan with one step's state changed."""
        steps = (
            s.model_copy(update={"status": status, "result": result}) if s.id == step_id else s for s in self.steps
        )
        return self.model_copy(update={"steps": tuple(steps)})

    def ready(self) -> list[PlanStep]:
        """Unfinished steps all of whose dependencies are done, in plan order."""
        done = {step.id for step in self.steps if step.status == "done"}
        return [s for s in self.steps if s.status in ("open", "running") and done.issuperset(s.depends_on)]

    def blocked(self) -> list[tuple[PlanStep, str]]:
        """Open steps that can never run, each with the failed or skipped step it waits for."""
        dead = {step.id for step in self.steps if step.status in ("failed", "skipped")}
        return [(s, d) for s in self.steps if s.status == "open" for d in sorted(dead.intersection(s.depends_on))[:1]]
