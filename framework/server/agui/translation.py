"""Translates the events of a run into AG-UI events, in an order that AG-UI clients accept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    CustomEvent,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from framework.server.agui.ids import message_key, subagent_id, tool_call_id
from framework.server.agui.messages import ThreadMessages
from framework.server.agui.progress import RunProgress
from framework.server.wording import reason_text
from framework.types import events
from framework.types.messages import Usage
from framework.types.state import Confirmation, RunResult

AsInterrupt = Callable[[Confirmation, "frozenset[str]"], Interrupt]
"""Returns a confirmation as an interrupt, given the AG-UI ids of the run's tool calls."""


class AguiTranslator:
    """Translates one AG-UI run: a run of an agent, or its continuation after an interrupt."""

    def __init__(self, request: RunAgentInput, run_id: str, earlier: Sequence[events.Event] = ()) -> None:
        """Create the translator.

        Args:
            request: the client's request.
            run_id: id of the run of the agent; that of the AG-UI run is the client's.
            earlier: events of the run up to the interrupt that this AG-UI run continues from.
        """
        self._request, self._run_id = request, run_id
        self._messages = ThreadMessages(request.messages)
        self._progress = RunProgress(run_id)
        self._calls: set[str] = set()
        """AG-UI ids of the tool calls that were announced, here or before the interrupt."""
        self._used = Usage()
        """Usage before this AG-UI run."""
        for event in earlier:
            self._skip(event)
        if earlier:
            self._messages = ThreadMessages(request.messages)
            self._progress.suspend()

    def _skip(self, event: events.Event) -> None:
        """Take note of an event that the client received in an earlier AG-UI run."""
        for _ in self.translate(event):
            pass
        if isinstance(event, events.StreamEnd):
            self._used = event.usage

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
                call = tool_call_id(self._run_id, event.path, event.id)
                yield _custom(
                    "tool_progress", {"toolCallId": call, "progress": event.progress, "message": event.message}
                )
            case events.ToolRequested():
                self._progress.note_call(event)
                yield from self._call(event, event.arguments, owner)
            case events.ToolFinished():
                yield from self._result(event, owner)
            case events.Warned(message_id=str(void)):
                key = message_key(self._run_id, void)
                yield from self._messages.remove(key, _reasoning_key(key))
                yield _custom("warning", {"code": event.code, "message": event.message})
            case events.Warned():
                yield _custom("warning", {"code": event.code, "message": event.message})
            case events.Routed():
                yield _custom(
                    "route", event.model_dump(mode="json", exclude_none=True, exclude={"run_id", "seq", "path"})
                )
            case events.PlanProposed() | events.PlanStepChanged() | events.TodoChanged():
                yield from self._progress.update(event)

    def _text(self, event: events.ContentReceived | events.Thought, owner: str | None) -> Iterator[BaseEvent]:
        """Send a delta, or what is missing of a finished message.

        The text of a message that is followed by tool calls arrives as content deltas, and again as part of the
        numbered `Thought`.
        """
        key = message_key(self._run_id, event.message_id)
        reasoning = _reasoning_key(key)
        if isinstance(event, events.ContentReceived):
            yield from self._messages.close(reasoning)
            yield from self._messages.add_text(key, "assistant", owner, _missing(event, self._messages.sent(key)))
            if event.seq:
                yield from self._messages.close(key)
            return
        text = _missing(event, self._messages.sent(reasoning))
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
        key = tool_call_id(self._run_id, event.path, event.id)
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
        call = tool_call_id(self._run_id, event.path, event.id)
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


def _missing(event: events.ContentReceived | events.Thought, sent: str) -> str:
    """Return what a delta or a whole text adds to what was sent."""
    if not event.seq:
        return event.text
    return event.text[len(sent) :] if event.text.startswith(sent) else ""


def _reasoning_key(key: str) -> str:
    """Return the id of a message's reasoning, which is a message of its own."""
    return f"{key}/reasoning"


def _custom(name: str, value: Mapping[str, Any]) -> CustomEvent:
    return CustomEvent(name=f"agentsd.{name}", value={key: item for key, item in value.items() if item is not None})


def _token_usage(total: Usage, before: Usage) -> list[TokenUsage]:
    """Return the tokens used in this AG-UI run; the cost and the models are not part of it."""
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens")
    own: dict[str, int] = {name: getattr(total, name) - getattr(before, name) for name in names}
    return [
        TokenUsage(
            input_tokens=own["prompt_tokens"],
            output_tokens=own["completion_tokens"],
            total_tokens=own["prompt_tokens"] + own["completion_tokens"],
            cached_input_tokens=own["cached_tokens"],
            cache_write_input_tokens=own["cache_write_tokens"],
        )
    ]
