"""What is still to be done, told to the model at the end of every turn: it forgets the beginning of a long run first.

It stands behind everything else, so that what providers have cached before it stays valid, and it is never stored.
Only the model's own words are in it: steps and tasks with their marks, one line each, never what a tool has said.
"""

from __future__ import annotations

from collections.abc import Iterator

from framework.engine.context.run_context import RunContext
from framework.tools.builtin.notes import MARKS, TODO
from framework.types.messages import Message
from framework.types.text import one_line
from framework.types.todo import read_items

MAX_CHARS = 200
"""Of one line."""
_STEP_MARKS = {"open": "[ ]", "running": "[>]", "done": "[x]", "failed": "[!]", "skipped": "[-]"}


def plan_reminder(run: RunContext) -> Iterator[Message]:
    """The plan whose step the run works off, or the conversation's list; nothing where all of it is done."""
    if not run.agent.spec.plan.recite:
        return
    if text := _plan(run) or _list(run):
        yield Message(role="system", content=text)


def _plan(run: RunContext) -> str:
    plan = run.parent.state.plan if run.parent and run.state.path[-1].startswith("step-") else None
    if plan is None or len(plan.steps) < 2:
        return ""
    lines = [f"{_STEP_MARKS[step.status]} {step.id}: {one_line(step.description, MAX_CHARS)}" for step in plan.steps]
    return "\n".join(
        (f"The plan, of which you do the step that you were given ([>]): {one_line(plan.goal, MAX_CHARS)}", *lines)
    )


def _list(run: RunContext) -> str:
    if TODO not in run.agent.toolset.offered:
        return ""
    items = read_items(run.services.root.session.get(TODO))
    if all(item.status == "done" for item in items):
        return ""
    lines = [f"{MARKS[item.status]} {one_line(item.task, MAX_CHARS)}" for item in items]
    return "\n".join((f"Your list of things to do (keep it up to date with {TODO}):", *lines))
