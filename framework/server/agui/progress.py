"""The progress of an AG-UI run: its plan and to-do list as state, the steps of its plan, and its sub-agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuccessOutcome,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
)

from framework.server.agui.ids import subagent_id, tool_call_id
from framework.types import events
from framework.types.plan import TodoItem

_AGENT_TOOL = "agent."
"""Beginning of the names of tools that are agents."""
_STEP_FIELDS = {"id", "description", "tool", "depends_on", "status", "result"}
_Path = tuple[str, ...]


class RunProgress:
    """Sends the plan and the to-do list as state, and reports plan steps and sub-agents as they begin and end."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._plan: dict[str, Any] | None = None
        self._todo: list[Any] | None = None
        self._steps: dict[tuple[_Path, str], str] = {}
        """Names of the steps in progress by path and id."""
        self._names: dict[_Path, str] = {}
        """Names of sub-agents by path, from the calls that run them."""
        self._active: dict[_Path, str] = {}
        """AG-UI ids of the sub-agents in progress."""
        self._running: dict[tuple[_Path, str], str] = {}
        """The steps that were in progress at the interrupt."""

    def suspend(self) -> None:
        """Note that the run was interrupted: its steps and sub-agents begin again when it continues."""
        self._running, self._steps, self._active = self._steps, {}, {}

    def resume(self) -> Iterator[BaseEvent]:
        """Yield the state and the steps in progress of a run that continues; nothing for a new run."""
        if self._plan or self._todo:
            yield self._snapshot()
        for (path, step_id), name in self._running.items():
            yield from self.enter(path)
            yield from self._begin(path, step_id, name)

    def note_call(self, event: events.ToolRequested) -> None:
        """Remember the agent that a call runs."""
        if event.tool.startswith(_AGENT_TOOL):
            self._names[*event.path, event.id] = event.tool.removeprefix(_AGENT_TOOL)

    def update(self, event: events.PlanProposed | events.PlanStepChanged | events.TodoChanged) -> Iterator[BaseEvent]:
        """Send the new state; report the beginning or end of a step."""
        match event:
            case events.TodoChanged():
                self._todo = _todo(event.items)
            case events.PlanProposed(path=()):
                self._plan = _plan(event)
            case events.PlanStepChanged():
                yield from self._change(event)
        if isinstance(event, events.TodoChanged) or not event.path:  # the plans of sub-agents are not part of the state
            yield self._snapshot()

    def _snapshot(self) -> BaseEvent:
        return StateSnapshotEvent(snapshot={"plan": self._plan, "todo": self._todo or []})

    def _change(self, event: events.PlanStepChanged) -> Iterator[BaseEvent]:
        if self._plan is not None and not event.path:
            changed = {"status": event.status, "result": event.result}
            steps = [{**step, **changed} if step["id"] == event.id else step for step in self._plan["steps"]]
            self._plan = {**self._plan, "steps": steps}
        if event.status == "running":
            yield from self._begin(event.path, event.id, f"{event.id}: {event.description}")
        else:
            for path in [path for path in self._active if path[:-1] == event.path and _is_of_step(path[-1], event.id)]:
                yield from self.leave(path, event.result if event.status == "failed" else None)
            yield from self._end(event.path, event.id)

    def _begin(self, path: _Path, step_id: str, name: str) -> Iterator[BaseEvent]:
        if (path, step_id) not in self._steps:
            self._steps[path, step_id] = name
            yield StepStartedEvent(step_name=name, subagent_run_id=subagent_id(self._run_id, path))

    def _end(self, path: _Path, step_id: str) -> Iterator[BaseEvent]:
        if name := self._steps.pop((path, step_id), None):
            yield StepFinishedEvent(step_name=name, subagent_run_id=subagent_id(self._run_id, path))

    # --- sub-agents

    def enter(self, path: _Path) -> Iterator[BaseEvent]:
        """Report the sub-agents that lead to an event, each once."""
        for length in range(1, len(path) + 1):
            one = path[:length]
            if one not in self._active:
                key = subagent_id(self._run_id, one) or ""
                self._active[one] = key
                name = self._names.get(one)
                yield SubagentStartedEvent(
                    subagent_run_id=key,
                    name=name or one[-1],
                    parent_subagent_run_id=subagent_id(self._run_id, one[:-1]),
                    parent_tool_call_id=tool_call_id(self._run_id, one[:-1], one[-1]) if name else None,
                )

    def leave(self, path: _Path, error: str | None = None) -> Iterator[BaseEvent]:
        """Report that a sub-agent has ended, after those that it called; nothing if none has this path."""
        if path not in self._active:
            return
        for inner in [other for other in self._active if other != path and other[: len(path)] == path]:
            yield from self.leave(inner)
        for owner, step in [key for key in self._steps if key[0] == path]:
            yield from self._end(owner, step)
        key = self._active.pop(path)
        if error is None:
            yield SubagentFinishedEvent(subagent_run_id=key, outcome=SubagentFinishedSuccessOutcome())
        else:
            yield SubagentErrorEvent(subagent_run_id=key, message=error)

    def close(self, interrupts: Sequence[Interrupt]) -> Iterator[BaseEvent]:
        """Close the steps and sub-agents that are in progress when the run ends or pauses."""
        for path, step_id in [*self._steps]:
            yield from self._end(path, step_id)
        for path, key in sorted(self._active.items(), key=lambda item: -len(item[0])):
            own = [interrupt.id for interrupt in interrupts if interrupt.subagent_run_id == key]
            suspended = SubagentFinishedSuspendedOutcome(interrupt_ids=own or None)
            yield SubagentFinishedEvent(
                subagent_run_id=key, outcome=suspended if interrupts else SubagentFinishedSuccessOutcome()
            )
            del self._active[path]


def _plan(plan: events.PlanProposed) -> dict[str, Any]:
    steps = [step.model_dump(mode="json", include=_STEP_FIELDS) for step in plan.steps]
    return {"goal": plan.goal, "revision": plan.revision, "steps": steps}


def _todo(items: Iterable[TodoItem]) -> list[Any]:
    return [item.model_dump(mode="json", exclude_none=True) for item in items]


def _is_of_step(key: str, step_id: str) -> bool:
    """Return whether a sub-run executes a step; the key names the revision that added the step, too."""
    return key.partition("~")[0] == f"step-{step_id}"
