"""Formats events as text; the plain view with one line per event, for pipes and logs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from shlex import quote
from shutil import get_terminal_size
from typing import Any, Protocol

import click

from framework.types import events
from framework.types.errors import LimitExceeded
from framework.types.events import Event
from framework.types.state import CONFIRMATION_KINDS, Confirmation, RunResult
from framework.types.text import preview_lines, shorten, value_lines, visible

VALUE_CHARS = 60
RESULT_CHARS = 100
DIGEST_CHARS = 12
_DIGEST = re.compile(r"[0-9a-f]{64}")
REASON_CHARS = 300
MARKS: Mapping[str, str] = {
    "success": "✓",
    "done": "✓",
    "error": "✗",
    "failed": "✗",
    "denied": "⊘",
    "cancelled": "✗",
    "skipped": "–",
    "running": "…",
    "open": "○",
    "pending": "?",
    "answered": "↩",
}
ANSWERED = "not executed, answered instead"
"""Shown at a call whose result is the text of a person."""


QUESTIONS = tuple(name for name, kind in CONFIRMATION_KINDS.items() if kind.is_question)
"""Kinds of confirmations that need an answer, not an approval."""


class View(Protocol):
    """Shows a run in progress."""

    is_drawn: bool
    """Whether lines are drawn again while the run is in progress."""

    def begin(self) -> None:
        """Show that the run starts."""
        ...

    def show(self, event: Event) -> None:
        """Show one event."""
        ...

    def count(self, tokens: int, cost_usd: float | None) -> None:
        """Show what the run has used so far."""
        ...

    def close(self) -> None:
        """Finish the output: the run ended or paused."""
        ...


class Lines:
    """Prints one line per event on standard error, and one for a thought that arrives in deltas.

    The user sees the answer when it is complete, and confirmations as questions.
    """

    is_drawn = False

    def __init__(self) -> None:
        self._thoughts: dict[tuple[str, ...], events.Thought] = {}
        """Deltas that are not printed yet, joined, by path."""

    def begin(self) -> None:
        """Do nothing: the first line is that of an event."""

    def show(self, event: Event) -> None:
        if isinstance(event, events.ContentReceived | events.ConfirmationRequested):
            return
        begun = self._thoughts.pop(event.path, None)
        if isinstance(event, events.Thought):
            joined = joined_thought(begun, event)
            if joined is event:
                self._print(begun)
            if event.seq:
                self._print(joined)
            else:
                self._thoughts[event.path] = joined
            return
        if begun and not (isinstance(event, events.Warned) and event.message_id == begun.message_id):
            self._print(begun)
        self._print(event)

    def count(self, tokens: int, cost_usd: float | None) -> None:
        """Do nothing: a line would be out of date at once."""

    def close(self) -> None:
        """Print the thoughts that have not been followed by another event."""
        for thought in self._thoughts.values():
            self._print(thought)
        self._thoughts.clear()

    def _print(self, event: Event | None) -> None:
        if event is not None and (text := line(event)):
            click.echo("  " * len(event.path) + visible(text), err=True)


def joined_thought(begun: events.Thought | None, thought: events.Thought) -> events.Thought:
    """Return a thought with the text of its message that came before; itself if it begins a message."""
    if begun is None or begun.message_id != thought.message_id:
        return thought
    return thought.model_copy(update={"text": begun.text + thought.text})


def line(event: Event) -> str | None:
    """Return an event as one line; None for events that are not shown."""
    match event:
        case events.Routed(agent=agent, reason=reason, generation=generation):
            return f"● {agent} ({reason}; generation {generation})"
        case events.PlanProposed(revision=revision, steps=steps, changes=changes):
            listed = "; ".join(f"{step.id} {step.description}" for step in steps)
            what = ", ".join(f"{change.kind} {change.id}" for change in changes)
            return f"plan {revision}{f' ({what})' if what else ''}: {listed}"
        case events.PlanStepChanged(id=step, status=status, result=result) if status != "running":
            return f"{MARKS[status]} step {step} {status}{': ' + first_line(result) if result else ''}"
        case events.ToolStarted(tool=tool, arguments=arguments, progress=None):
            return f"→ {tool} {arguments_text(arguments)}"
        case events.ToolStarted(tool=tool, progress=float(progress), message=message):
            return f"… {tool} {progress:.0%} {message or ''}"
        case events.ToolFinished():
            return _finished(event)
        case events.Thought(text=text):
            return f"· {first_line(text)}"
        case events.Warned(message=message):
            return f"! {message}"
        case events.ConfirmationRequested():
            return _question(event)
        case _:
            return None


def _finished(event: events.ToolFinished) -> str:
    answered = event.decision == "respond"
    how = f"{MARKS['answered']} {event.tool} {ANSWERED}" if answered else None
    return f"{how or f'{MARKS[event.status]} {event.tool} {event.elapsed_ms:.0f} ms'}: {first_line(event.result)}"


def _question(asked: events.ConfirmationRequested) -> str:
    if asked.kind in QUESTIONS:
        return f"? {asked.tool or asked.kind} asks: {asked.reason}"
    return f"? {asked.tool or asked.kind} {arguments_text(asked.arguments)} needs approval: {asked.rule}"


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Format arguments as `name=value`, with long values shortened."""
    return " ".join(
        f"{visible(name)}={shorten(as_visible_json(value), VALUE_CHARS)}" for name, value in arguments.items()
    )


def confirmation_lines(asked: Confirmation) -> Iterator[str]:
    """Yield the arguments of a call that waits for approval, and what it would change."""
    for name, value in asked.arguments.items():
        yield from value_lines(name, value)
    if changes := preview_lines(asked.preview):
        yield "changes:"
    for line in changes:
        colour = {"+": "green", "-": "red"}.get(line.removeprefix("  | ")[:1])
        yield click.style(line, fg=colour)


def first_line(text: str) -> str:
    """Return the first line, shortened, with the number of further lines."""
    lines = text.strip().splitlines() or [""]
    more = f" (+{len(lines) - 1} lines)" if len(lines) > 1 else ""
    return visible(shorten(lines[0], RESULT_CHARS)) + more


def as_visible_json(value: Any) -> str:
    """Format a value as JSON without invisible characters."""
    return visible(json.dumps(value, ensure_ascii=False))


def counted(number: int, noun: str) -> str:
    """Format a count with its noun, e.g. `1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def wrapped(text: str, indent: str = "  ") -> str:
    """Indent a paragraph, and wrap it on a terminal."""
    if not sys.stdout.isatty():
        return indent + text
    return click.wrap_text(text, get_terminal_size().columns, indent, indent) or indent


def reason_for_no_answer(result: RunResult) -> str | None:
    """Return the reason why a run has no final answer; None for a completed run."""
    match result.status:
        case "completed":
            return None
        case "stopped" if result.stopped_by and result.stopped_by.budget:
            reason = LimitExceeded.of(result.stopped_by).message
            return f"stopped after {counted(result.steps, 'step')}: {reason}"
        case "stopped" if result.finish_reason == "length":
            return "stopped because the output limit cut this answer (on_truncation: stop)"
        case "stopped":
            return f"stopped by {result.finish_reason} after {result.steps} steps"
        case "paused":
            what = "an answer" if all(asked.kind in QUESTIONS for asked in result.pending) else "approval"
            return f"waits for {what}: {', '.join(map(_waiting, result.pending))}"
        case "failed":
            return f"failed: {result.error.message if result.error else result.finish_reason}"
        case _:
            return result.status


def short_id(key: str) -> str:
    """Shorten the digest in a confirmation's id to 12 digits, which `runs decide` accepts."""
    digest = _DIGEST.search(key)
    return key[: digest.start() + DIGEST_CHARS] if digest else key


def _waiting(asked: Confirmation) -> str:
    """Describe a pending confirmation, with its reason, e.g. why an edit was rejected."""
    why = " ".join(asked.reason.split())
    return f"{asked.tool or asked.kind} ({short_id(asked.id)}){': ' + shorten(why, REASON_CHARS) if why else ''}"


def how_to_decide(result: RunResult) -> str:
    """Return the command that decides the first pending confirmation, quoted for a shell."""
    first = result.pending[0]
    key = short_id(first.id)
    handle = "plan" if [asked.kind for asked in result.pending] == ["plan"] else quote(key)
    option = f"--approve {handle} (or --reject {handle}; without either, on a terminal, you are asked)"
    if first.kind in QUESTIONS:
        answer = "|".join(first.choices) or "TEXT"
        option = f"--answer {quote(answer)}" if len(result.pending) == 1 else f"--respond {quote(f'{key}={answer}')}"
    return f"decide: agentsd runs decide {result.run_id} {option}"
