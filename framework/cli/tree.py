"""The live step tree of a run, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from framework.cli.show import MARKS, arguments_text, first_line, line
from framework.types import events
from framework.types.events import Event

STYLES: Mapping[str, str] = {
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


class LiveTree:
    """Shows a run as a tree that fills in: the agent, its plan's steps, its tool calls, those of its sub-agents."""

    def __init__(self, console: Console) -> None:
        self._root = Tree(Text("…"), guide_style="dim")
        self._nodes: dict[tuple[str, ...], Tree] = {(): self._root}
        self._live = Live(self._root, console=console, refresh_per_second=12, transient=False)
        self._live.start()

    def show(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case events.Routed():
                self._root.label = Text(line(event) or "", style="bold")
            case events.PlanProposed(goal=goal, revision=revision, steps=steps):
                plan = self._parent(event.path).add(Text(f"plan {revision}: {goal}", style="bold"))
                for step in steps:
                    self._nodes[*event.path, f"step-{step.id}"] = plan.add(
                        _step(step.status, step.id, step.description)
                    )
            case events.PlanStepChanged(id=step, status=status, description=description, result=result):
                node = self._nodes[*event.path, f"step-{step}"]
                node.label = _step(status, step, description)
                if status == "skipped" and result:
                    node.label.append(f"  {result}", style="dim")
            case events.ToolRequested() | events.ToolStarted():
                self._call(event)
            case events.ToolFinished(id=call, tool=tool, status=status, result=result, elapsed_ms=elapsed):
                node = self._nodes.get((*event.path, call)) or self._add(event.path, call)
                node.label = _finished(str(node.label) or f"{MARKS[status]} {tool}", status, elapsed)
                node.add(Text(first_line(result), style="dim"))
            case events.Thought() | events.Warned() | events.ConfirmationRequested():
                style = "italic dim" if isinstance(event, events.Thought) else "yellow"
                self._parent(event.path).add(Text(line(event) or "", style=style))
            case _:
                return
        self._live.refresh()

    def close(self) -> None:
        """Leave the tree on the screen as it is."""
        self._live.stop()

    def _call(self, event: events.ToolRequested) -> None:
        key = (*event.path, event.id)
        node = self._nodes.get(key) or self._add(event.path, event.id)
        node.label = Text(f"{MARKS[event.status]} {event.tool} ", style=STYLES[event.status])
        node.label.append(arguments_text(event.arguments), style="cyan")
        if event.progress is not None:
            node.label.append(f"  {event.progress:.0%} {event.message or ''}", style="dim")

    def _add(self, path: tuple[str, ...], call: str) -> Tree:
        """A node for a call: below its plan step, or its sub-agent's call, or the run itself."""
        step = (*path, "step-" + call.rpartition("plan-")[2].partition("-")[2])
        parent = self._nodes.get(step) or self._parent(path)
        self._nodes[*path, call] = parent.add(Text(""))
        return self._nodes[*path, call]

    def _parent(self, path: tuple[str, ...]) -> Tree:
        while path and path not in self._nodes:
            path = path[:-1]
        return self._nodes[path]


def _step(status: str, step: str, description: str) -> Text:
    return Text(f"{MARKS[status]} {step}  {description}", style=STYLES[status])


def _finished(label: str, status: str, elapsed: float) -> Text:
    finished = Text(MARKS[status], style=STYLES[status])
    finished.append(label[1:].rstrip(), style="default")
    finished.append(f"  {elapsed:.0f} ms", style="dim")
    return finished
