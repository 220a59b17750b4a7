"""A plan as data: steps, their states, what was approved, and the pure transitions between them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StringConstraints

from framework.types.digest import content_digest
from framework.types.frozen import Frozen
from framework.types.spec import Risk


def _id_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


StepId = Annotated[str, BeforeValidator(_id_text), StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$")]
StepStatus = Literal["open", "running", "done", "failed", "skipped"]


class StepDraft(Frozen):
    """One step as the model proposes it: a tool with its parameters, or a free goal."""

    id: StepId = Field(validation_alias=AliasChoices("id", "step"))
    """A short word, or a number, unique in the plan."""
    description: str
    """What the step is for; for a step without a tool: the goal to reach."""
    tool: str | None = None
    """The tool to call; none: the goal is worked off by thinking and calling tools."""
    parameters: dict[str, Any] = {}
    """The tool's arguments; {{ steps.ID.output }} stands for the result of a step it depends on."""
    tools: tuple[str, ...] | None = None
    """For a step without a tool: the tools it may use; none given: all."""
    depends_on: tuple[StepId, ...] = ()
    """Steps that must be done before."""
    expected: str = ""
    """What should come of it."""


def _one_by_one(steps: tuple[StepDraft, ...]) -> tuple[StepDraft, ...]:
    """Steps that are only numbered, none with `depends_on`, run one after the other."""
    if not all(step.id.isdecimal() and "depends_on" not in step.model_fields_set for step in steps):
        return steps
    before = ((), *((step.id,) for step in steps))
    return tuple(step.model_copy(update={"depends_on": after}) for step, after in zip(steps, before, strict=False))


class PlanDraft(Frozen):
    """A plan: its goal and its steps."""  # the model sees this sentence

    goal: str = ""
    """What the whole plan is to reach; none: the request."""
    steps: Annotated[tuple[StepDraft, ...], AfterValidator(_one_by_one)]
    """The steps; their order is that of depends_on."""

    def with_goal(self, goal: str) -> PlanDraft:
        """The draft with a goal where it has none of its own."""
        return self if self.goal.strip() else self.model_copy(update={"goal": goal})


class PlanStep(StepDraft):
    """A step under way."""

    status: StepStatus = "open"
    result: str | None = None
    """What came of it, as the model gets to see it; for a skipped step: why."""
    revision: int = 1
    """The revision of the plan that it came with."""
    contract: str = ""
    """Of its tool, as it was when the step was proposed: an approval is for that alone."""
    approved: bool = False
    """A human has approved a plan with exactly this step."""
    settled: bool = False
    """It failed, and a later revision, or the user, has decided what happens instead."""
    abandoned: bool = False
    """It failed, and the model planned nothing in its place: the run cannot complete."""

    @property
    def content(self) -> dict[str, Any]:
        """What a human approves: the step without its progress."""
        return self.model_dump(include=set(StepDraft.model_fields))


class PlanChange(Frozen):
    """How a step differs from the revision before."""

    kind: Literal["added", "changed", "removed"]
    id: StepId
    description: str


class Envelope(Frozen):
    """What an approval allows later revisions without a new one."""

    revision: int
    """The one that was approved."""
    tools: tuple[str, ...]
    """Those that its steps named, or were free to use."""
    risk: Risk
    """The highest among them."""
    steps: int
    """How many were not done yet."""
    free: int
    """How many of these are without a tool."""
    done: int
    """How many were done already."""


class Plan(Frozen):
    """A plan under way; every transition gives a new one."""

    revision: int = 1
    goal: str
    steps: tuple[PlanStep, ...]
    replans: int = 0
    """How often a failed step has made it anew."""
    must_be_approved: bool = False
    """A human was asked and wanted another plan: nothing happens now without a yes."""
    envelope: Envelope | None = None
    """What was approved last."""

    @classmethod
    def from_draft(cls, draft: PlanDraft, before: Plan | None = None) -> Plan:
        """A draft as the next revision: what is done stays, what failed too unless a new step has its id."""
        if before is None:
            return cls(goal=draft.goal, steps=tuple(PlanStep(**step.model_dump()) for step in draft.steps))
        revision = before.revision + 1
        proposed = {step.id for step in draft.steps}
        known = {step.id: step for step in before.steps}
        kept = [s for s in before.steps if s.status == "done" or (s.status == "failed" and s.id not in proposed)]
        fresh = [_continued(step, known.get(step.id), revision) for step in draft.steps]
        anything_new = any(step.status == "open" and step.revision == revision for step in fresh)
        abandoned = not (anything_new or before.must_be_approved)  # else the user has asked for this plan
        after = {"settled": True, "abandoned": abandoned}
        kept = [s.model_copy(update=after) if s.status == "failed" else s for s in kept]
        steps = (*kept, *(step for step in fresh if step.status == "open"))
        return before.model_copy(update={"revision": revision, "goal": draft.goal, "steps": steps})

    @property
    def hash(self) -> str:
        """Content hash of what a human approves: goal and steps, not their progress."""
        return content_digest(self.approval_text)

    @property
    def approval_text(self) -> str:
        """What a human approves, as JSON text: goal and steps."""
        return json.dumps([self.goal, [step.content for step in self.steps]], sort_keys=True, ensure_ascii=False)

    @property
    def draft(self) -> PlanDraft:
        """What of it is not done, as it would be proposed."""
        left = tuple(StepDraft(**step.content) for step in self.steps if step.status not in ("done", "failed"))
        return PlanDraft(goal=self.goal, steps=left)

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

    def with_settled(self, step_ids: Collection[str]) -> Plan:
        """The plan in which these failed steps are left as they are."""
        steps = (s.model_copy(update={"settled": True}) if s.id in step_ids else s for s in self.steps)
        return self.model_copy(update={"steps": tuple(steps)})

    def with_retried(self, step_ids: Collection[str]) -> Plan:
        """The next revision, in which these failed steps are open again."""
        revision = self.revision + 1
        fresh = {"status": "open", "result": None, "revision": revision}
        steps = (s.model_copy(update=fresh) if s.id in step_ids else s for s in self.steps)
        return self.model_copy(update={"revision": revision, "steps": tuple(steps)})

    def ready(self) -> list[PlanStep]:
        """Unfinished steps all of whose dependencies are done, in plan order."""
        done = {step.id for step in self.steps if step.status == "done"}
        return [s for s in self.steps if s.status in ("open", "running") and done.issuperset(s.depends_on)]

    def blocked(self) -> list[tuple[PlanStep, str]]:
        """Open steps that can never run, each with the skipped or settled step it waits for."""
        dead = {
            step.id for step in self.steps if step.status == "skipped" or (step.status == "failed" and step.settled)
        }
        return [(s, d) for s in self.steps if s.status == "open" for d in sorted(dead.intersection(s.depends_on))[:1]]

    def ended(self, why: str) -> Plan:
        """The plan of a run that was broken off: what was under way has failed, what was open is left out."""
        states: dict[StepStatus, StepStatus] = {"running": "failed", "open": "skipped"}
        steps = (
            step.model_copy(update={"status": states[step.status], "result": why}) if step.status in states else step
            for step in self.steps
        )
        return self.model_copy(update={"steps": tuple(steps)})

    @property
    def abandoned(self) -> list[PlanStep]:
        """Failed steps in whose place nothing was planned."""
        return [step for step in self.steps if step.status == "failed" and step.abandoned]

    @property
    def undone(self) -> list[PlanStep]:
        """Steps that failed for good or were skipped, although the run may complete without them."""
        return [step for step in self.steps if step.status in ("failed", "skipped")]

    def failures(self) -> list[PlanStep]:
        """Failed steps that no later revision has dealt with."""
        return [step for step in self.steps if step.status == "failed" and not step.settled]

    def needs(self, step_id: str) -> set[str]:
        """The steps that a step depends on, directly or by way of others."""
        after = {step.id: step.depends_on for step in self.steps}
        found: set[str] = set()
        waiting = list(after.get(step_id, ()))
        while waiting:
            if (other := waiting.pop()) not in found:
                found.add(other)
                waiting += after.get(other, ())
        return found

    def changes(self, before: Plan) -> tuple[PlanChange, ...]:
        """What is other than in an earlier revision."""
        old, new = ({step.id: step for step in plan.steps} for plan in (before, self))
        found = [
            PlanChange(kind="changed" if key in old else "added", id=key, description=step.description)
            for key, step in new.items()
            if key not in old or old[key].content != step.content
        ]
        gone = (step for key, step in old.items() if key not in new)
        return (*found, *(PlanChange(kind="removed", id=step.id, description=step.description) for step in gone))


def _continued(step: StepDraft, known: PlanStep | None, revision: int) -> PlanStep:
    """A proposed step; the one that there is already, if it is the same and may still be carried out, or was."""
    if known and known.content == step.model_dump() and known.status in ("open", "running", "done"):
        return known if known.status == "done" else known.model_copy(update={"status": "open", "result": None})
    return PlanStep(**step.model_dump(), revision=revision)
