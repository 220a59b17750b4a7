"""The messages of an AG-UI run: which texts are open, and what the client has built from the events so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCall,
    ToolMessage,
)

TextRole = Literal["assistant", "reasoning"]


@dataclass(slots=True)
class _Text:
    """A text message, or a piece of reasoning."""

    role: TextRole
    owner: str | None
    """Sub-agent that it belongs to."""
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
