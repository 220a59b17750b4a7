"""Shows a run as a live tree on a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from framework.cli.show import MARKS, arguments_text, first_line, joined_thought, line
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


class LiveTree:
    """A tree that grows with the run: agent, plan steps, tool calls, and those of sub-agents."""

    def __init__(self, console: Console, title: str = "…") -> None:
        self._root = Tree(Text(title, style="bold"), guide_style="dim")
        self._nodes: dict[tuple[str, ...], Tree] = {(): self._root}
        self._thoughts: dict[tuple[str, ...], tuple[events.Thought, Tree]] = {}
        """Last thought at each path, with its node."""
        self._console = console
        self._live: Live | None = None

    def show(self, event: Event) -> None:
        """Show one event."""
        match event:
            case events.Routed(path=()):
                self._root.label = Text(visible(line(event) or ""), style="bold")
            case events.PlanProposed():
                self._plan(event)
            case events.PlanStepChanged(id=step, status=status, description=description, result=result):
                node = self._nodes.get((*event.path, f"step-{step}")) or self._step_node(event.path, step)
                node.label = _step(status, step, description)
                if status == "skipped" and result:
                    node.label.append(f"  {first_line(result)}", style="dim")
            case events.ToolRequested() | events.ToolStarted():
                self._call(event)
            case events.ToolFinished(id=call, tool=tool, status=status, result=result, elapsed_ms=elapsed):
                node = self._nodes.get((*event.path, call)) or self._add(event.path, call)
                node.label = _finished(str(node.label) or f"{MARKS[status]} {visible(tool)}", status, elapsed)
                node.add(Text(first_line(result), style="dim"))
            case events.Thought():
                self._think(event)
            case events.Warned() | events.ConfirmationRequested():
                self._parent(event.path).add(Text(visible(line(event) or ""), style="yellow"))
            case _:
                return
        self._draw(now=event.seq > 0)

    def close(self) -> None:
        """Stop updating the tree; later output is drawn below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, *, now: bool) -> None:
        """Draw the tree, at once or at the next regular refresh."""
        if self._live is None:
            self._live = Live(self._root, console=self._console, refresh_per_second=12, transient=False)
            self._live.start()
        if now:
            self._live.refresh()

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
                old.label = Text(f"{REMOVED} {change.id}  {_about(old.label)}", style="dim strike")
        for step in event.steps:
            if (*event.path, f"step-{step.id}") not in self._nodes:
                self._step_node(event.path, step.id).label = _step(step.status, step.id, step.description)

    def _step_node(self, path: tuple[str, ...], step: str) -> Tree:
        plan = self._nodes.get((*path, PLAN)) or self._parent(path)
        node = self._nodes[*path, f"step-{step}"] = plan.add(Text(""))
        return node

    def _call(self, event: events.ToolRequested) -> None:
        key = (*event.path, event.id)
        node = self._nodes.get(key) or self._add(event.path, event.id)
        node.label = Text(f"{MARKS[event.status]} {visible(event.tool)} ", style=_STYLES[event.status])
        node.label.append(arguments_text(event.arguments), style="cyan")
        if event.progress is not None:
            node.label.append(f"  {event.progress:.0%} {visible(event.message or '')}", style="dim")

    def _add(self, path: tuple[str, ...], call: str) -> Tree:
        """Add a node for a call: below its plan step, its sub-agent's call, or the run."""
        step = _PLANNED.fullmatch(call)
        parent = (self._nodes.get((*path, f"step-{step[1]}")) if step else None) or self._parent(path)
        self._nodes[*path, call] = parent.add(Text(""))
        return self._nodes[*path, call]

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


def _finished(label: str, status: str, elapsed: float) -> Text:
    finished = Text(MARKS[status], style=_STYLES[status])
    finished.append(label[1:].rstrip(), style="default")
    finished.append(f"  {elapsed:.0f} ms", style="dim")
    return finished
