"""Builds the tree of a run: agent, plan steps, tool calls, and those of sub-agents."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.text import Text
from rich.tree import Tree

from framework.cli.show import ANSWERED, MARKS, arguments_text, first_line, joined_thought, line
from framework.types import events
from framework.types.events import Event
from framework.types.text import visible

_STYLES: Mapping[str, str] = {
    "success": "green",
    "done": "green",
    "error": "red",
    "failed": "red",
    "denied": "red",
    "cancelled": "red",
    "running": "yellow",
    "pending": "yellow",
    "skipped": "dim",
    "open": "dim",
}

PLAN = "plan"
"""Key of a plan's node below the path of its run."""
REMOVED = "–"
_PLANNED = re.compile(r"plan-\d+-(.+?)(?:~\d+)?")
"""Id of a call that a plan step makes."""
_REVISED = re.compile(r"~\d+$")
"""Suffix of the sub-run of a step from a later revision."""


class RunTree:
    """A tree that grows with the run."""

    def __init__(self, title: str | None = None) -> None:
        """Set the title, which is shown until the agent is known; None for a tree below text that is shown already."""
        self._begin(title)

    @property
    def shown(self) -> Tree | None:
        """What to draw; None while there is nothing."""
        return self._root if self._root.children or str(self._root.label) else None

    @property
    def is_settled(self) -> bool:
        """Whether no call and no plan step is open, so that a new tree may continue this one."""
        return not self._open

    def begin_next(self) -> None:
        """Begin a new tree below this one, which stays as it is."""
        self._begin(None)

    def add(self, event: Event) -> bool:
        """Add an event; return whether the tree shows it."""
        match event:
            case events.Routed(path=()):
                self._root.hide_root = False
                self._root.label = Text(visible(line(event) or ""), style="bold")
            case events.PlanProposed():
                self._plan(event)
            case events.PlanStepChanged(id=step, status=status, description=description, result=result):
                node = self._nodes.get((*event.path, f"step-{step}")) or self._step_node(event.path, step)
                self._note_step((*event.path, f"step-{step}"), status)
                node.label = _step(status, step, description)
                if status == "skipped" and result:
                    node.label.append(f"  {first_line(result)}", style="dim")
            case events.ToolRequested() | events.ToolStarted():
                self._call(event)
            case events.ToolFinished(id=call, tool=tool, status=status, result=result, elapsed_ms=elapsed):
                node = self._nodes.get((*event.path, call)) or self._add(event.path, call)
                self._open.discard((*event.path, call))
                label = self._calls.pop((*event.path, call), "") or f"{MARKS[status]} {visible(tool)}"
                node.label = _answered(label) if event.decision else _finished(label, status, elapsed)
                node.add(Text(first_line(result), style="dim"))
            case events.Thought():
                self._think(event)
            case events.Warned():
                self._parent(event.path).add(Text(visible(line(event) or ""), style="yellow"))
            case _:
                return False
        return True

    def _begin(self, title: str | None) -> None:
        self._root = Tree(Text(title or "", style="bold"), guide_style="dim", hide_root=title is None)
        self._nodes: dict[tuple[str, ...], Tree] = {(): self._root}
        self._thoughts: dict[tuple[str, ...], tuple[events.Thought, Tree]] = {}
        """Last thought at each path, with its node."""
        self._open: set[tuple[str, ...]] = set()
        """Calls and plan steps that have not finished."""
        self._calls: dict[tuple[str, ...], str] = {}
        """Labels of open calls, without their progress."""

    def _think(self, event: events.Thought) -> None:
        """Show a thought; deltas extend the node of their message."""
        begun, node = self._thoughts.get(event.path, (None, None))
        thought = joined_thought(begun, event)
        if thought is event or node is None:
            node = self._parent(event.path).add(Text(""))
        node.label = Text(visible(line(thought) or ""), style="italic dim")
        self._thoughts[event.path] = thought, node

    def _plan(self, event: events.PlanProposed) -> None:
        """Show the steps of a plan; for a later revision, new and removed steps."""
        plan = self._nodes.get((*event.path, PLAN)) or self._parent(event.path).add("")
        self._nodes[*event.path, PLAN] = plan
        plan.label = Text(f"plan {event.revision}: {visible(event.goal)}", style="bold")
        for change in event.changes:
            if (old := self._nodes.pop((*event.path, f"step-{change.id}"), None)) is not None:
                self._open.discard((*event.path, f"step-{change.id}"))
                old.label = Text(f"{REMOVED} {change.id}  {_about(old.label)}", style="dim strike")
        for step in event.steps:
            self._note_step((*event.path, f"step-{step.id}"), step.status)
            if (*event.path, f"step-{step.id}") not in self._nodes:
                self._step_node(event.path, step.id).label = _step(step.status, step.id, step.description)

    def _note_step(self, key: tuple[str, ...], status: str) -> None:
        (self._open.add if status in ("open", "running") else self._open.discard)(key)

    def _step_node(self, path: tuple[str, ...], step: str) -> Tree:
        plan = self._nodes.get((*path, PLAN)) or self._parent(path)
        node = self._nodes[*path, f"step-{step}"] = plan.add(Text(""))
        return node

    def _call(self, event: events.ToolRequested) -> None:
        key = (*event.path, event.id)
        self._open.add(key)
        node = self._nodes.get(key) or self._add(event.path, event.id)
        node.label = Text(f"{MARKS[event.status]} {visible(event.tool)} ", style=_STYLES[event.status])
        node.label.append(arguments_text(event.arguments), style="cyan")
        self._calls[key] = str(node.label)
        if event.progress is not None:
            node.label.append(f"  {event.progress:.0%} {visible(event.message or '')}", style="dim")

    def _add(self, path: tuple[str, ...], call: str) -> Tree:
        """Add a node for a call: below its plan step, its sub-agent's call, or the run."""
        step = _PLANNED.fullmatch(call)
        parent = self._step_of_call(path, step[1]) if step else self._parent(path)
        self._nodes[*path, call] = parent.add(Text(""))
        return self._nodes[*path, call]

    def _step_of_call(self, path: tuple[str, ...], step: str) -> Tree:
        """Return the node of a step; a resumed run continues with a call of a step that was drawn before its pause."""
        if (node := self._nodes.get((*path, f"step-{step}"))) is None:
            node = self._step_node(path, step)
            node.label = _step("running", step, "")
        return node

    def _parent(self, path: tuple[str, ...]) -> Tree:
        path = tuple(_REVISED.sub("", part) for part in path)
        while path and path not in self._nodes:
            path = path[:-1]
        return self._nodes[path]


def _step(status: str, step: str, description: str) -> Text:
    return Text(f"{MARKS[status]} {step}  {visible(description)}", style=_STYLES[status])


def _about(label: object) -> str:
    """Return the description in a step's label, without mark and id."""
    return str(label).partition("  ")[2]


def _answered(label: str) -> Text:
    answered = Text(MARKS["answered"], style="yellow")
    answered.append(label[1:].rstrip(), style="default")
    answered.append(f"  {ANSWERED}", style="dim")
    return answered


def _finished(label: str, status: str, elapsed: float) -> Text:
    finished = Text(MARKS[status], style=_STYLES[status])
    finished.append(label[1:].rstrip(), style="default")
    finished.append(f"  {elapsed:.0f} ms", style="dim")
    return finished
