"""Shows events, tables and traces as text."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from shlex import quote
from shutil import get_terminal_size
from typing import Any, NamedTuple, TextIO

import click

from framework.telemetry import names
from framework.tools.form import form_fields, form_lines, visit_lines
from framework.types import events
from framework.types.errors import LimitExceeded
from framework.types.events import Event
from framework.types.report import SpanRecord
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


class View:
    """Shows a run in progress. What a method does not show here, a view may leave out."""

    is_drawn = False
    """Whether lines are drawn again while the run is in progress."""

    def start(self) -> None:
        """Show that the run starts."""

    def show(self, event: Event) -> None:
        """Show one event."""

    def count(self, tokens: int, cost_usd: float | None) -> None:
        """Show what the run has used so far."""

    def close(self) -> None:
        """Finish the output: the run ended or paused."""


class Lines(View):
    """Prints one line per event on standard error, and one for a thought that arrives in deltas.

    The user sees the answer when it is complete, and confirmations as questions.
    """

    def __init__(self) -> None:
        self._thoughts: dict[tuple[str, ...], events.Thought] = {}
        """Deltas that are not printed yet, joined, by path."""

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

    def close(self) -> None:
        """Print the thoughts that have not been followed by another event."""
        for thought in self._thoughts.values():
            self._print(thought)
        self._thoughts.clear()

    def _print(self, event: Event | None) -> None:
        if event is not None and (text := line(event)):
            click.echo("  " * len(event.path) + visible(text), err=True)


def joined_thought(begun: events.Thought | None, thought: events.Thought) -> events.Thought:
    """Return a thought with the text of its message that came before; itself if it starts a message."""
    if begun is None or begun.message_id != thought.message_id:
        return thought
    return thought.model_copy(update={"text": begun.text + thought.text})


def line(event: Event) -> str | None:
    """Return an event as one line; None for events that are not shown."""
    match event:
        case events.Routed() | events.HandedOff():
            return _agent(event)
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
        case events.ConfirmationRequested() | events.GrantUsed():
            return _question(event)
        case _:
            return None


def _agent(event: events.Routed | events.HandedOff) -> str:
    """Return the agent that works from now on, and why."""
    if isinstance(event, events.HandedOff):
        return f"● {event.agent} (handed over by {event.origin})"
    return f"● {event.agent} ({event.reason}; generation {event.generation})"


def _finished(event: events.ToolFinished) -> str:
    answered = event.decision == "respond"
    how = f"{MARKS['answered']} {event.tool} {ANSWERED}" if answered else None
    return f"{how or f'{MARKS[event.status]} {event.tool} {event.elapsed_ms:.0f} ms'}: {first_line(event.result)}"


def _question(asked: events.ConfirmationRequested | events.GrantUsed) -> str:
    if isinstance(asked, events.GrantUsed):
        return f"{MARKS['success']} {asked.tool} needs no approval: {asked.covers} ({asked.grant}, {asked.origin})"
    if CONFIRMATION_KINDS[asked.kind].is_question or asked.url:
        visit = f" (visit {asked.url})" if asked.url and asked.kind != "login" else ""
        if asked.kind == "client_tool":
            return f"… {asked.tool} waits for its client"
        return f"? {asked.tool or asked.kind} asks: {visible(asked.reason)}{visit}"
    return f"? {asked.tool or asked.kind} {arguments_text(asked.arguments)} needs approval: {asked.rule}"


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Format arguments as `name=value`, with long values shortened."""
    return " ".join(
        f"{visible(name)}={shorten(as_visible_json(value), VALUE_CHARS)}" for name, value in arguments.items()
    )


def confirmation_lines(asked: Confirmation) -> Iterator[str]:
    """Yield what a person must see to decide: the form or address of a question, or the call and what it changes."""
    if asked.form is not None:
        yield from form_lines(asked.form)
    if asked.url:
        yield from visit_lines(asked.url, "server" if asked.kind == "login" else "visit")
    if asked.form is not None or asked.url:
        return
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
        return (indent + text).rstrip()
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
            what = "an answer" if all(asked.traits.is_question for asked in result.pending) else "approval"
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
    if first.form is not None:
        named = " ".join(f"--value {quote(f'{field.name}=…')}" for field in form_fields(first.form) if field.required)
        return (
            f"decide: agentsd runs decide {result.run_id} {named or '--value NAME=VALUE'} (without it, you are asked)"
        )
    if first.kind == "login":
        return f"{first.description}; then: agentsd runs decide {result.run_id} --approve {quote(key)}"
    if first.traits.is_question:
        answer = "|".join(first.choices) or "TEXT"
        option = f"--answer {quote(answer)}" if len(result.pending) == 1 else f"--respond {quote(f'{key}={answer}')}"
    return f"decide: agentsd runs decide {result.run_id} {option}"


GAP = 2
LEAST_TEXT = 20
"""Minimum width of the last column, while others can be shortened."""
LEAST = 9
"""Minimum width of any other column."""
NOTHING = "-"
STATUS_STYLES: Mapping[str, str] = {
    "completed": "green",
    "queued": "blue",
    "running": "cyan",
    "paused": "yellow",
    "orphaned": "magenta",
    "stopped": "red",
    "failed": "red",
    "cancelled": "red",
}


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows. On a terminal they have titles and fit its width; in a pipe nothing is shortened.

    Titles are printed on a terminal only, and cells with a status are coloured. Without rows, nothing is printed.
    """
    if not rows:
        return
    texts = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        filled = [place for place in range(len(columns)) if any(row[place] != NOTHING for row in texts)]
        texts = [[row[place] for place in filled] for row in [columns, *texts]]
    cells = import_module("rich.cells")  # computes the width of Chinese characters
    widths = [max((cells.cell_len(cell) for cell in column), default=0) for column in zip(*texts, strict=True)]
    if sys.stdout.isatty():
        widths = fitted(widths, get_terminal_size().columns)
    for number, row in enumerate(texts):
        header, gap = sys.stdout.isatty() and number == 0, 0
        line = ""
        for cell, width in zip(row, widths, strict=True):
            fits = cells.cell_len(cell) <= width
            text = cell if fits else cells.set_cell_size(cell, width - 1).rstrip() + "…"
            line += " " * gap + click.style(text, fg=STATUS_STYLES.get(cell), dim=header or None)
            gap = GAP + width - cells.cell_len(text)
        click.echo(line)


def fitted(widths: Sequence[int], line: int) -> list[int]:
    """Return widths that fit a line: the widest columns shrink, except for the first and the last."""
    *others, last = widths
    remaining = line - sum(others) - GAP * len(others)
    while remaining < min(last, LEAST_TEXT) and len(others) > 1 and max(others[1:]) > LEAST:
        others[others.index(max(others[1:]), 1)] -= 1
        remaining += 1
    return [*others, min(last, max(remaining, 2))]


BAR_CHARS = 36
NAME_CHARS = 46
DURATION_CHARS = 9
GAPS = 4
"""Spaces between the name, the bar, the duration and the notes."""
FAIR_BAR, LEAST_BAR = 16, 8
LEAST_NAME = 12
Below = Mapping[str | None, Sequence[SpanRecord]]


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths of the parts of a line, in characters; the duration has the same everywhere."""

    line: int | None = None
    """Columns of the terminal; None if lines may have any length."""
    name: int = NAME_CHARS
    bar: int = BAR_CHARS

    def fitted(self, name: int, notes: int) -> Widths:
        """Return widths for the longest name and the longest notes: first the bar shrinks, then names, then notes."""
        if self.line is None:
            return self
        rest, notes = self.line - DURATION_CHARS - GAPS, max(notes, 1)
        name = min(name, NAME_CHARS, max(rest - min(notes, rest // 3) - FAIR_BAR, LEAST_NAME))
        return Widths(self.line, name, min(max(rest - name - notes, min(FAIR_BAR, rest // 4), LEAST_BAR), BAR_CHARS))

    @property
    def notes(self) -> int | None:
        """Characters that remain for the notes; None if they may have any length."""
        return None if self.line is None else max(self.line - self.name - self.bar - DURATION_CHARS - GAPS, 1)


def widths_of(stream: TextIO) -> Widths:
    """Return the width of a terminal; any width for another stream."""
    return Widths(get_terminal_size().columns if stream.isatty() else None)


def requested_waterfall(spans: Sequence[SpanRecord], stream: TextIO) -> Iterator[str]:
    """Yield the waterfall of a run that was made just now, for a terminal or a file; or why there is none."""
    if spans:
        yield from waterfall(spans, widths_of(stream))
    else:
        yield "no trace is stored, because telemetry.store_traces is false in agentsd.yaml"


def waterfall(spans: Sequence[SpanRecord], widths: Widths | None = None) -> Iterator[str]:
    """Yield one line per span: indented name, bar on the time line, duration and notes.

    A run that paused has several parts, each with its own time line.
    """
    known = {span.span_id for span in spans}
    below: dict[str | None, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        is_later = names.EVALUATION_RESULT in {event.name for event in span.events}  # it is not part of the run's time
        below.setdefault(span.parent_id if span.parent_id in known and not is_later else None, []).append(span)
    roots = below.get(None, [])
    rows = [row for root in roots for row in _rows(root, 0, root, below)]
    longest_notes = max((len(_notes(row.span)) for row in rows), default=0)
    fitted = (widths or Widths()).fitted(max((len(row.name) for row in rows), default=0), longest_notes)
    for number, root in enumerate(roots):
        if number:
            yield f"· {_length(root.start_ns - roots[number - 1].end_ns)} later"
        yield from (_line(row, fitted) for row in rows if row.root is root)


class _Row(NamedTuple):
    """A span with its indented name, and the root on whose time line it is drawn."""

    name: str
    span: SpanRecord
    root: SpanRecord


def _rows(span: SpanRecord, depth: int, root: SpanRecord, below: Below) -> Iterator[_Row]:
    yield _Row(visible("  " * depth + span.name), span, root)
    for child in below.get(span.span_id, ()):
        yield from _rows(child, depth + 1, root, below)


def _line(row: _Row, widths: Widths) -> str:
    duration = _length(row.span.end_ns - row.span.start_ns)
    bar, notes = _bar(row.span, row.root, widths.bar), _notes(row.span)
    if widths.notes is not None:
        notes = shorten(notes, widths.notes)
    name = shorten(row.name, widths.name)
    return f"{name:<{widths.name}} {bar:<{widths.bar}} {duration:>{DURATION_CHARS}}  {notes}".rstrip()


def _bar(span: SpanRecord, root: SpanRecord, width: int) -> str:
    whole = max(root.end_ns - root.start_ns, 1)
    first = min(max(int((span.start_ns - root.start_ns) / whole * width), 0), width - 1)
    length = max(1, round((span.end_ns - span.start_ns) / whole * width))
    return (" " * first + ("▒" if span.error else "█") * length)[:width]


def _notes(span: SpanRecord) -> str:
    attributes = span.attributes
    notes = []
    if names.INPUT_TOKENS in attributes:
        notes.append(f"{attributes[names.INPUT_TOKENS]}+{attributes.get(names.OUTPUT_TOKENS, 0)} tokens")
    attempts = attributes.get(names.MODEL_ATTEMPTS, 1)
    if isinstance(attempts, int) and attempts > 1:
        notes.append(f"{attempts} attempts")
    for name in (names.TOOL_OUTCOME, names.RUN_OUTCOME, names.PLAN_STEP_OUTCOME):
        if (outcome := attributes.get(name)) and outcome not in ("success", "done", span.error):
            notes.append(str(outcome))
    for event in span.events:
        if event.name == names.EVALUATION_RESULT:
            result = event.attributes
            notes.append(f"{result.get(names.EVALUATION_NAME)} {result.get(names.EVALUATION_LABEL)}")
    if span.error:
        notes.append(f"✗ {span.error}")
    return visible(", ".join(notes))


def _length(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
