"""Translates events of runs to those of AG-UI: messages, progress, ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ag_ui.core import (
    PROTOCOL_VERSION,
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuccessOutcome,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)

from framework.server.protocol_texts import missing_text, reason_text
from framework.types import events
from framework.types.messages import Usage
from framework.types.state import Confirmation, RunResult

_MARK = re.compile(r"[~?]|$")
"""What follows the call's id in the id of a confirmation about it."""


def agui_id(run_id: str, *parts: str) -> str:
    """Return the AG-UI id of a message, a tool call, a sub-run or a confirmation of a run."""
    return "/".join((run_id, *parts))


def subagent_id(run_id: str, path: tuple[str, ...]) -> str | None:
    """Return the AG-UI id of the sub-run with this path; None for the root run."""
    return agui_id(run_id, *path) if path else None


def call_id_of(run_id: str, asked: Confirmation, calls: Iterable[str]) -> str | None:
    """Return the AG-UI id of the tool call that a confirmation is about; None if it is about a plan or a step.

    The confirmation's id starts with that of its call, and may continue with digests after `~` or `?`. The ids of calls
    may contain `~`, too.
    """
    if asked.kind != "tool" and not asked.traits.asked_by_tool:
        return None
    whole = agui_id(run_id, asked.id)
    return max((call for call in calls if _MARK.match(whole.removeprefix(call))), key=len, default=None)


TextRole = Literal["assistant", "reasoning"]


@dataclass(slots=True)
class _Text:
    """A text message, or a piece of reasoning."""

    role: TextRole
    owner: str | None
    pieces: list[str] = field(default_factory=list)
    is_open: bool = True

    @property
    def sent(self) -> str:
        return "".join(self.pieces)


class ThreadMessages:
    """The messages that a run adds to a thread, in the order in which the client has received them."""

    def __init__(self, earlier: Sequence[Message]) -> None:
        """Create the messages of a run; `earlier` are those that the client had before it."""
        self._earlier = earlier
        self._added: dict[str, _Text | AssistantMessage | ToolMessage] = {}

    def add_text(self, key: str, role: TextRole, owner: str | None, text: str) -> Iterator[BaseEvent]:
        """Append a piece to a text, which is opened with its first piece."""
        entry = self._added.get(key)
        if not isinstance(entry, _Text):
            entry = self._added[key] = _Text(role, owner)
            yield from _opening(key, role, owner)
        if text:
            entry.pieces.append(text)
            of = ReasoningMessageContentEvent if role == "reasoning" else TextMessageContentEvent
            yield of(message_id=key, delta=text, subagent_run_id=owner)

    def sent(self, key: str) -> str:
        """Return what has been sent of a text."""
        entry = self._added.get(key)
        return entry.sent if isinstance(entry, _Text) else ""

    def close(self, key: str) -> Iterator[BaseEvent]:
        """Close a text, if it is open."""
        entry = self._added.get(key)
        if isinstance(entry, _Text) and entry.is_open:
            entry.is_open = False
            if entry.role == "assistant":
                yield TextMessageEndEvent(message_id=key, subagent_run_id=entry.owner)
            else:
                yield ReasoningMessageEndEvent(message_id=key, subagent_run_id=entry.owner)
                yield ReasoningEndEvent(message_id=key, subagent_run_id=entry.owner)

    def close_all(self) -> Iterator[BaseEvent]:
        """Close all open texts."""
        for key in [*self._added]:
            yield from self.close(key)

    def remove(self, *keys: str) -> Iterator[BaseEvent]:
        """Remove texts that are void, by declaring which messages remain."""
        for key in keys:
            yield from self.close(key)
        if [key for key in keys if self._added.pop(key, None)]:
            yield MessagesSnapshotEvent(messages=[*self._earlier, *self._declared()])

    def add_call(self, key: str, tool: str, arguments: str, owner: str | None) -> None:
        """Record a tool call, for which clients create a message with the call's id."""
        call = ToolCall(id=key, function=FunctionCall(name=tool, arguments=arguments))
        self._added[key] = AssistantMessage(id=key, tool_calls=[call], subagent_run_id=owner)

    def add_result(self, key: str, call: str, content: str, owner: str | None) -> None:
        """Record the result of a tool call."""
        self._added[key] = ToolMessage(id=key, tool_call_id=call, content=content, subagent_run_id=owner)

    def _declared(self) -> Iterator[Message]:
        for key, entry in self._added.items():
            if not isinstance(entry, _Text):
                yield entry
            elif entry.role == "assistant":
                yield AssistantMessage(id=key, content=entry.sent, subagent_run_id=entry.owner)
            else:
                yield ReasoningMessage(id=key, content=entry.sent, subagent_run_id=entry.owner)


def _opening(key: str, role: TextRole, owner: str | None) -> Iterator[BaseEvent]:
    if role == "assistant":
        yield TextMessageStartEvent(message_id=key, role=role, subagent_run_id=owner)
    else:
        yield ReasoningStartEvent(message_id=key, subagent_run_id=owner)
        yield ReasoningMessageStartEvent(message_id=key, role=role, subagent_run_id=owner)


_AGENT_TOOL = "agent."
_STEP_FIELDS = {"id", "description", "tool", "depends_on", "status", "result"}
_Path = tuple[str, ...]


class RunProgress:
    """Sends the plan and the to-do list as state, and reports plan steps and sub-agents as they start and end."""

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
        """Note that the run was interrupted: its steps and sub-agents start again when it continues."""
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
        """Send the new state; report the start or end of a step."""
        match event:
            case events.TodoChanged():
                self._todo = [item.model_dump(mode="json", exclude_none=True) for item in event.items]
            case events.PlanProposed(path=()):
                steps = [step.model_dump(mode="json", include=_STEP_FIELDS) for step in event.steps]
                self._plan = {"goal": event.goal, "revision": event.revision, "steps": steps}
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
                key = agui_id(self._run_id, *one)
                self._active[one] = key
                name = self._names.get(one)
                yield SubagentStartedEvent(
                    subagent_run_id=key,
                    name=name or one[-1],
                    parent_subagent_run_id=subagent_id(self._run_id, one[:-1]),
                    parent_tool_call_id=agui_id(self._run_id, *one) if name else None,
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


def _is_of_step(key: str, step_id: str) -> bool:
    """Return whether a sub-run executes a step; the key names the revision that added the step, too."""
    return key.partition("~")[0] == f"step-{step_id}"


AsInterrupt = Callable[[Confirmation, "frozenset[str]"], Interrupt]
"""Returns a confirmation as an interrupt, given the AG-UI ids of the run's tool calls."""


class AguiTranslator:
    """Translates one AG-UI run: a run of an agent, or its continuation after an interrupt."""

    def __init__(self, request: RunAgentInput, run_id: str, earlier: Sequence[events.Event] = ()) -> None:
        """Create the translator.

        `earlier` are the events of the run up to the interrupt that this AG-UI run continues from.
        """
        self._request, self._run_id = request, run_id
        self._messages = ThreadMessages(request.messages)
        self._progress = RunProgress(run_id)
        self._calls: set[str] = set()
        """AG-UI ids of the tool calls that were announced, here or before the interrupt."""
        self._used = Usage()
        for event in earlier:  # which the client received in an earlier AG-UI run
            for _ in self.translate(event):
                pass
            self._used = event.usage if isinstance(event, events.StreamEnd) else self._used
        if earlier:
            self._messages = ThreadMessages(request.messages)
            self._progress.suspend()

    def start(self) -> Iterator[BaseEvent]:
        """Yield the first events."""
        yield RunStartedEvent(
            thread_id=self._request.thread_id,
            run_id=self._request.run_id,
            protocol_version=PROTOCOL_VERSION,
            metadata={"agentsd": {"run_id": self._run_id}},
        )
        yield from self._progress.resume()

    def translate(self, event: events.Event) -> Iterator[BaseEvent]:
        """Yield the AG-UI events for one event. The last event of a run needs `finish` in addition."""
        yield from self._progress.enter(event.path)
        owner = subagent_id(self._run_id, event.path)
        match event:
            case events.ContentReceived() | events.Thought():
                yield from self._text(event, owner)
            case events.ToolStarted(progress=float()):
                call = agui_id(self._run_id, *event.path, event.id)
                yield _custom(
                    "tool_progress", {"toolCallId": call, "progress": event.progress, "message": event.message}
                )
            case events.ToolRequested():
                self._progress.note_call(event)
                yield from self._call(event, event.arguments, owner)
            case events.ToolFinished():
                yield from self._result(event, owner)
            case events.Warned():
                if event.message_id is not None:
                    key = agui_id(self._run_id, event.message_id)
                    yield from self._messages.remove(key, _reasoning_key(key))
                yield _custom("warning", {"code": event.code, "message": event.message})
            case events.GrantUsed():
                yield _custom("grant_used", event.model_dump(mode="json", exclude={"run_id", "seq", "path"}))
            case events.Routed() | events.HandedOff():
                name = "route" if isinstance(event, events.Routed) else "handoff"
                shown = event.model_dump(mode="json", exclude_none=True, exclude={"run_id", "seq", "path"})
                yield _custom(name, shown)
            case events.PlanProposed() | events.PlanStepChanged() | events.TodoChanged():
                yield from self._progress.update(event)

    def _text(self, event: events.ContentReceived | events.Thought, owner: str | None) -> Iterator[BaseEvent]:
        """Send a delta, or what is missing of a finished message.

        The text of a message that is followed by tool calls arrives as content deltas, and again as part of the
        numbered `Thought`.
        """
        key = agui_id(self._run_id, event.message_id)
        reasoning = _reasoning_key(key)
        if isinstance(event, events.ContentReceived):
            yield from self._messages.close(reasoning)
            text = missing_text(event.text, self._messages.sent(key), is_whole=bool(event.seq))
            yield from self._messages.add_text(key, "assistant", owner, text)
            if event.seq:
                yield from self._messages.close(key)
            return
        text = missing_text(event.text, self._messages.sent(reasoning), is_whole=bool(event.seq))
        if event.seq and (content := self._messages.sent(key)) and text.endswith(content):
            text = text.removesuffix(content).removesuffix("\n")
        if text:
            yield from self._messages.add_text(reasoning, "reasoning", owner, text)
        if event.seq:
            yield from self._messages.close(reasoning)
            yield from self._messages.close(key)

    def _call(
        self, event: events.ToolRequested | events.ToolFinished, arguments: Mapping[str, Any], owner: str | None
    ) -> Iterator[BaseEvent]:
        """Announce a tool call once; a call that waited for an approval was announced before the interrupt."""
        key = agui_id(self._run_id, *event.path, event.id)
        if key in self._calls:
            return
        self._calls.add(key)
        text = json.dumps(arguments, ensure_ascii=False)
        self._messages.add_call(key, event.tool, text, owner)
        yield ToolCallStartEvent(tool_call_id=key, tool_call_name=event.tool, subagent_run_id=owner)
        yield ToolCallArgsEvent(tool_call_id=key, delta=text, subagent_run_id=owner)
        yield ToolCallEndEvent(tool_call_id=key, subagent_run_id=owner)

    def _result(self, event: events.ToolFinished, owner: str | None) -> Iterator[BaseEvent]:
        yield from self._progress.leave((*event.path, event.id), event.error)
        call = agui_id(self._run_id, *event.path, event.id)
        yield from self._call(event, {}, owner)  # a call that was denied, or is invalid, never started
        key = f"{call}/result"
        self._messages.add_result(key, call, event.result, owner)
        yield ToolCallResultEvent(
            message_id=key,
            tool_call_id=call,
            content=event.result,
            role="tool",
            subagent_run_id=owner,
            metadata={"agentsd": {"status": event.status, "elapsed_ms": event.elapsed_ms}},
        )

    def finish(self, result: RunResult, as_interrupt: AsInterrupt) -> Iterator[BaseEvent]:
        """Yield the last events: of a run that has ended, or that waits for decisions."""
        yield from self._messages.close_all()
        usage = _token_usage(result.usage, self._used)
        shown = {"run_id", "status", "finish_reason", *(["incomplete"] if result.incomplete else [])}
        metadata = {"agentsd": result.model_dump(mode="json", include=shown)}
        if result.status in ("failed", "stopped"):
            message, code = reason_text(result), result.finish_reason
            yield RunErrorEvent(message=message, code=code, usage=usage, metadata=metadata)
            return
        interrupts = [as_interrupt(asked, frozenset(self._calls)) for asked in result.pending]
        yield from self._progress.close(interrupts)
        answer = None
        outcome: RunFinishedSuccessOutcome | RunFinishedCancelledOutcome | RunFinishedInterruptOutcome
        if interrupts:
            outcome = RunFinishedInterruptOutcome(interrupts=interrupts)
        elif result.status == "cancelled":
            outcome = RunFinishedCancelledOutcome()
        else:
            outcome, answer = RunFinishedSuccessOutcome(), result.output if result.data is None else result.data
        yield RunFinishedEvent(
            thread_id=self._request.thread_id,
            run_id=self._request.run_id,
            result=answer,
            outcome=outcome,
            usage=usage,
            metadata=metadata,
        )


def _reasoning_key(key: str) -> str:
    """Return the id of a message's reasoning, which is a message of its own."""
    return f"{key}/reasoning"


def _custom(name: str, value: Mapping[str, Any]) -> CustomEvent:
    return CustomEvent(name=f"agentsd.{name}", value={key: item for key, item in value.items() if item is not None})


def _token_usage(total: Usage, before: Usage) -> list[TokenUsage]:
    """Return the tokens used in this AG-UI run; the cost and the models are not part of it."""
    sent, received = total.prompt_tokens - before.prompt_tokens, total.completion_tokens - before.completion_tokens
    return [
        TokenUsage(
            input_tokens=sent,
            output_tokens=received,
            total_tokens=sent + received,
            cached_input_tokens=total.cached_tokens - before.cached_tokens,
            cache_write_input_tokens=total.cache_write_tokens - before.cache_write_tokens,
        )
    ]
