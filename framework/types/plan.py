"""What a run intends: plans, their cost before any step runs, and to-do lists."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import count
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AliasChoices, Field, ValidationError

from framework.types.frozen import Frozen
from framework.types.spec import MAX_LOOP_ITEMS, Conditions, Risk, StepId
from framework.types.text import content_digest

_StepT = TypeVar("_StepT", bound="StepDraft")
StepStatus = Literal["open", "running", "done", "failed", "skipped"]


class StepDraft(Frozen):
    """A step as the model proposes it: a tool with its parameters, or a goal to reach."""

    id: StepId = Field(validation_alias=AliasChoices("id", "step"))
    """A short word, or a number, unique in the plan."""
    description: str
    """The purpose of the step; for a step without a tool: the goal to reach."""
    tool: str | None = None
    """The tool to call; none: the goal is reached by reasoning and calling tools."""
    parameters: dict[str, Any] = {}
    """The tool's arguments; {{ steps.ID.output }} is replaced by the result of a step it depends on."""
    tools: tuple[str, ...] | None = None
    """For a step without a tool: the tools it may use; none given: all."""
    depends_on: tuple[StepId, ...] = ()
    """Steps that must be done before."""
    expected: str = ""
    """The expected result."""

    @property
    def content(self) -> dict[str, Any]:
        """Part of the step that a person approves: everything but its progress."""
        return self.model_dump(include=set(StepDraft.model_fields))


def _written(condition: str | float) -> str:
    return condition if isinstance(condition, str) else json.dumps(condition)


class FixedStep(StepDraft):
    """A step with what the model cannot write: files and people add conditions and loops."""

    when: Conditions = {}
    """Conditions on inputs and earlier results; the step is skipped unless all are met."""
    for_each: str = ""
    """The list of a loop, such as `steps.find.output.items`; empty: the step runs once."""
    max_items: Annotated[int, Field(gt=0, le=MAX_LOOP_ITEMS)] = 20
    """Maximum length of the list."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Its conditions and its loop, in words."""
        conditions = [f"{name} is {_written(condition)}" for name, condition in self.when.items()]
        loop = f"once for each of {self.for_each}, at most {self.max_items}" if self.for_each else ""
        return tuple(filter(None, (f"only if {' and '.join(conditions)}" if conditions else "", loop)))

    @property
    def content(self) -> dict[str, Any]:
        """Part of the step that a person approves: everything but its progress."""
        own = set(FixedStep.model_fields) - set(StepDraft.model_fields)
        return super().content | self.model_dump(include=own, exclude_defaults=True)


def _one_by_one(steps: tuple[_StepT, ...]) -> tuple[_StepT, ...]:
    """Let steps run one after the other if all ids are numbers and no step has `depends_on`."""
    if not all(step.id.isdecimal() and "depends_on" not in step.model_fields_set for step in steps):
        return steps
    before = ((), *((step.id,) for step in steps))
    return tuple(step.model_copy(update={"depends_on": after}) for step, after in zip(steps, before, strict=False))


class PlanDraft(Frozen):
    """A plan: its goal and its steps."""  # the model sees this sentence

    goal: str = ""
    """The goal of the whole plan; none: the request."""
    steps: Annotated[tuple[StepDraft, ...], AfterValidator(_one_by_one)]
    """The steps; their order is that of depends_on."""

    def with_goal(self, goal: str) -> PlanDraft:
        """Return the draft, with this goal if it has none."""
        return self if self.goal.strip() else self.model_copy(update={"goal": goal})


class FixedDraft(PlanDraft):
    """A plan as people edit it."""

    steps: Annotated[tuple[FixedStep, ...], AfterValidator(_one_by_one)]
    """The steps; their order is that of depends_on."""


class PlanStep(FixedStep):
    """A step of an accepted plan, with its progress."""

    status: StepStatus = "open"
    """Progress: `open` until the step starts."""
    result: str | None = None
    """Result as the model sees it; for a skipped step, the reason."""
    revision: int = 1
    """Revision of the plan that added the step."""
    contract: str = ""
    """Digest of the tool's definition when the step was proposed; an approval applies only to this definition."""
    approved: bool = False
    """Whether a person has approved a plan with exactly this step."""
    settled: bool = False
    """Whether the step failed and a later revision, or the user, has decided what happens instead."""
    abandoned: bool = False
    """Whether the step failed and the model planned no replacement, so that the run cannot complete."""
    replaced: bool = False
    """Whether the step failed and a later revision has new steps instead."""
    bypassed: bool = False
    """Whether the step was skipped because its conditions were not met: the steps after it run all the same."""


class PlanChange(Frozen):
    """A difference of a step from the previous revision."""

    kind: Literal["added", "changed", "removed"]
    id: StepId
    description: str


class ApprovalScope(Frozen):
    """The scope of an approval: later revisions within it need no new one."""

    revision: int
    """Approved revision."""
    tools: tuple[str, ...]
    """Tools that its steps name or may use."""
    risk: Risk
    """Highest risk of these tools."""
    steps: int
    """Number of steps that were not done at the approval."""
    free: int
    """Number of these steps without a tool."""
    done: int
    """Number of steps that were done at the approval."""
    replans: int = 0
    """Number of replans before the approval. With `plan.approval: always`, it does not cover later ones."""


class Plan(Frozen):
    """An accepted plan with its progress. It is immutable: methods that change it return a new plan."""

    revision: int = 1
    """Number of this version of the plan; replans and edits increase it."""
    goal: str
    """What the plan is to achieve."""
    steps: tuple[PlanStep, ...]
    """Steps in their order; those without unfinished dependencies run concurrently."""
    replans: int = 0
    """Number of times the plan was revised because a step failed."""
    must_be_approved: bool = False
    """Whether the next revision needs approval in any case, because a person rejected this one."""
    envelope: ApprovalScope | None = None
    """Scope of the last approval."""
    source: str = ""
    """File and line of a fixed plan, in which the model cannot change anything; empty: the model wrote the plan."""
    answer: str = ""
    """Answer of a fixed plan, with references to results; empty: the result of its last step, or `answer_goal`."""
    answer_goal: str = ""
    """What the answer that the model writes must contain."""

    @classmethod
    def from_draft(cls, draft: PlanDraft, before: Plan | None = None) -> Plan:
        """Return a draft as the next revision of `before`.

        Steps that are done stay in the plan. Failed steps stay, too, unless a new step has their id.
        """
        if before is None:
            return cls(goal=draft.goal, steps=tuple(PlanStep(**step.model_dump()) for step in draft.steps))
        revision = before.revision + 1
        proposed = {step.id for step in draft.steps}
        previous = {step.id: step for step in before.steps}
        kept_steps = [s for s in before.steps if s.status == "done" or (s.status == "failed" and s.id not in proposed)]
        new_steps = [_continued(step, previous.get(step.id), revision) for step in draft.steps]
        anything_new = any(step.status == "open" and step.revision == revision for step in new_steps)
        abandoned = not (anything_new or before.must_be_approved)  # otherwise the user has asked for this plan
        after = {"settled": True, "abandoned": abandoned, "replaced": anything_new}
        kept_steps = [s.model_copy(update=after) if s.status == "failed" else s for s in kept_steps]
        steps = (*kept_steps, *(step for step in new_steps if step.status == "open"))
        return before.model_copy(update={"revision": revision, "goal": draft.goal, "steps": steps})

    @property
    def hash(self) -> str:
        """Content hash of the approved part: goal and steps, without progress."""
        return content_digest(self.approval_text)

    @property
    def approval_text(self) -> str:
        """Approved part as JSON text: goal and steps, without progress."""
        answer = [text for text in (self.answer, self.answer_goal) if text]
        parts = [self.goal, [step.content for step in self.steps], *answer]
        return json.dumps(parts, sort_keys=True, ensure_ascii=False)

    @property
    def draft(self) -> FixedDraft:
        """Draft of the remaining steps."""
        remaining = tuple(FixedStep(**step.content) for step in self.steps if step.status not in ("done", "failed"))
        return FixedDraft(goal=self.goal, steps=remaining)

    def step(self, step_id: str) -> PlanStep:
        """Return the step with this id; raise KeyError if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    def with_step(self, step_id: str, status: StepStatus, result: str | None = None, *, bypassed: bool = False) -> Plan:
        """Return the plan with the status and result of one step changed."""
        update = {"status": status, "result": result, "bypassed": bypassed}
        steps = (s.model_copy(update=update) if s.id == step_id else s for s in self.steps)
        return self.model_copy(update={"steps": tuple(steps)})

    def items_of(self, step: PlanStep) -> list[PlanStep]:
        """Return the steps that a loop has added for its items; none before that."""
        own = {name for name in step.depends_on if is_item_id(name, step.id)} if step.for_each else ()
        return [other for other in self.steps if other.id in own]

    def with_items(self, step: PlanStep, items: Sequence[PlanStep]) -> Plan:
        """Return the plan with the steps of a loop's items before the loop, which ends when they have ended.

        An approval of the plan covers them: it included the loop.
        """
        after = (*step.depends_on, *(item.id for item in items))
        loop = step.model_copy(update={"depends_on": after})
        steps = (new for s in self.steps for new in ((*items, loop) if s.id == step.id else (s,)))
        scope = self.envelope
        if scope is not None:
            free = scope.free + (len(items) if step.tool is None else 0)
            scope = scope.model_copy(update={"steps": scope.steps + len(items), "free": free})
        return self.model_copy(update={"steps": tuple(steps), "envelope": scope})

    def with_settled(self, step_ids: Collection[str]) -> Plan:
        """Return the plan with these failed steps settled, so that they are not revised again."""
        steps = (s.model_copy(update={"settled": True}) if s.id in step_ids else s for s in self.steps)
        return self.model_copy(update={"steps": tuple(steps)})

    def with_retried(self, step_ids: Collection[str]) -> Plan:
        """Return the next revision, in which these failed steps are open again."""
        revision = self.revision + 1
        reopened = {"status": "open", "result": None, "revision": revision}
        steps = (s.model_copy(update=reopened) if s.id in step_ids else s for s in self.steps)
        return self.model_copy(update={"revision": revision, "steps": tuple(steps)})

    def ready(self) -> list[PlanStep]:
        """Return the unfinished steps whose dependencies are all done, in plan order."""
        done = {step.id for step in self.steps if step.status == "done" or step.bypassed}
        return [s for s in self.steps if s.status in ("open", "running") and done.issuperset(s.depends_on)]

    def blocked(self) -> list[tuple[PlanStep, str]]:
        """Return the open steps that can never run, each with the skipped or settled step it depends on."""
        dead = {
            step.id
            for step in self.steps
            if (step.status == "skipped" and not step.bypassed) or (step.status == "failed" and step.settled)
        }
        return [(s, d) for s in self.steps if s.status == "open" for d in sorted(dead.intersection(s.depends_on))[:1]]

    def interrupted(self, why: str) -> Plan:
        """Return the plan of an interrupted run: running steps have failed, open steps are skipped."""
        states: dict[StepStatus, StepStatus] = {"running": "failed", "open": "skipped"}
        steps = (
            step.model_copy(update={"status": states[step.status], "result": why}) if step.status in states else step
            for step in self.steps
        )
        return self.model_copy(update={"steps": tuple(steps)})

    @property
    def abandoned(self) -> list[PlanStep]:
        """Failed steps for which the model planned no replacement."""
        return [step for step in self.steps if step.status == "failed" and step.abandoned]

    @property
    def undone(self) -> list[PlanStep]:
        """Steps that were skipped, or failed without new steps instead, although the run may complete without them."""
        return [
            s
            for s in self.steps
            if (s.status == "skipped" and not s.bypassed) or (s.status == "failed" and not s.replaced)
        ]

    def failures(self) -> list[PlanStep]:
        """Return the failed steps that are not settled."""
        return [step for step in self.steps if step.status == "failed" and not step.settled]

    def dependencies_of(self, step_id: str) -> set[str]:
        """Return the steps that a step depends on, directly or indirectly."""
        depends_on = {step.id: step.depends_on for step in self.steps}
        dependencies: set[str] = set()
        pending = list(depends_on.get(step_id, ()))
        while pending:
            if (other := pending.pop()) not in dependencies:
                dependencies.add(other)
                pending += depends_on.get(other, ())
        return dependencies

    def changes(self, before: Plan) -> tuple[PlanChange, ...]:
        """Return the differences from an earlier revision."""
        old, new = ({step.id: step for step in plan.steps} for plan in (before, self))
        differences = [
            PlanChange(kind="changed" if key in old else "added", id=key, description=step.description)
            for key, step in new.items()
            if key not in old or _without_items(old[key]) != _without_items(step)
        ]
        removed = (step for key, step in old.items() if key not in new)
        return (
            *differences,
            *(PlanChange(kind="removed", id=step.id, description=step.description) for step in removed),
        )


def _continued(step: StepDraft, previous: PlanStep | None, revision: int) -> PlanStep:
    """Return the existing step if the draft repeats it and it is open, running or done; otherwise a new step."""
    if previous and previous.content == step.content and previous.status in ("open", "running", "done"):
        return previous if previous.status == "done" else previous.model_copy(update={"status": "open", "result": None})
    return PlanStep(**step.model_dump(), revision=revision)


def _without_items(step: PlanStep) -> dict[str, Any]:
    """Return the content of a step; a loop that waits for its items is still the same."""
    after = [name for name in step.depends_on if not (step.for_each and is_item_id(name, step.id))]
    return {**step.content, "depends_on": tuple(after)}


def is_item_id(name: str, loop: str) -> bool:
    """Return whether a step of this name is, or would be, the step of an item of a loop."""
    return name.startswith(f"{loop}-") and name[len(loop) + 1 :].isdecimal()


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


MAX_ID_CHARS = 64
TodoStatus = Literal["open", "doing", "done"]


class TodoItem(Frozen):
    """A task in the to-do list."""

    id: str = Field(default="", max_length=MAX_ID_CHARS)
    """Identifier that stays the same while the item is in the list; empty for a new item."""
    task: str = Field(validation_alias=AliasChoices("task", "title"))
    """The task, in a few words; `title` is accepted, too."""
    status: TodoStatus = "open"
    """Progress: `open`, `doing` or `done`."""
    created_at: datetime | None = None
    """Time when the item was added; None in lists of older versions."""
    completed_at: datetime | None = None
    """Time when the item became done."""


def read_items(stored: Any) -> tuple[TodoItem, ...]:
    """Parse a list stored in a session; items of older versions get ids. Empty for any other value."""
    try:
        items = [TodoItem.model_validate(item) for item in stored or ()]
    except (TypeError, ValidationError):  # a plugin stores something else under this name
        return ()
    return merge_items((), items)


def merge_items(
    before: Sequence[TodoItem], items: Iterable[TodoItem], now: datetime | None = None
) -> tuple[TodoItem, ...]:
    """Return the new version of a list, with ids and times of items that were in the current one.

    Args:
        before: the current list. An item of the new list with the same id, or else the same task, continues its item.
        items: all items of the new list.
        now: the time at which new items are created and newly done items completed; None: keep the times of `items`.
    """
    unmatched = {item.id: item for item in before}
    new_items = list(items)
    same_id = [unmatched.pop(item.id, None) for item in new_items]
    used_ids = {item.id for item in (*before, *new_items)}
    result: list[TodoItem] = []
    for item, match in zip(new_items, same_id, strict=True):
        previous = match or next(
            (unmatched.pop(other.id) for other in [*unmatched.values()] if other.task == item.task), None
        )
        taken = {"", *(other.id for other in result)}
        item_id = previous.id if previous else item.id if item.id not in taken else _unused_id(used_ids)
        used_ids.add(item_id)
        result.append(_with_times(item.model_copy(update={"id": item_id}), previous, now))
    return tuple(result)


def _unused_id(ids: Collection[str]) -> str:
    return next(name for number in count(1) if (name := f"t{number}") not in ids)


def _with_times(item: TodoItem, previous: TodoItem | None, now: datetime | None) -> TodoItem:
    if now is None:
        return item
    created = previous.created_at if previous else now
    was_done = previous is not None and previous.status == "done"
    completed = (previous.completed_at if previous and was_done else now) if item.status == "done" else None
    return item.model_copy(update={"created_at": created, "completed_at": completed})
