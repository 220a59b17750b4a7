"""Draws a run's stored trace as a waterfall: nesting, start, duration and outcome of each span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TextIO

from framework.telemetry import names
from framework.types.text import shorten, visible
from framework.types.trace import SpanRecord

BAR_CHARS = 36
NAME_CHARS = 46
NOTE_CHARS = 34
"""Width of the duration and the notes."""
LEAST_BAR, LEAST_NAME = 8, 30

Below = Mapping[str | None, Sequence[SpanRecord]]


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths of the parts of a line, in characters."""

    name: int = NAME_CHARS
    bar: int = BAR_CHARS

    @classmethod
    def within(cls, line: int) -> Widths:
        """Return widths that fit a line: first the bar shrinks, then the name."""
        bar = min(BAR_CHARS, max(line - NOTE_CHARS - NAME_CHARS, LEAST_BAR))
        return cls(min(NAME_CHARS, max(line - NOTE_CHARS - bar, LEAST_NAME)), bar)


def widths_of(stream: TextIO) -> Widths:
    """Return widths that fit a terminal; the defaults for any other stream."""
    return Widths.within(get_terminal_size().columns) if stream.isatty() else Widths()


def waterfall(spans: Sequence[SpanRecord], widths: Widths | None = None) -> Iterator[str]:
    """Yield one line per span: indented name, bar on the time line, duration and notes.

    A run that paused has several parts, each with its own time line.
    """
    widths = widths or Widths()
    known = {span.span_id for span in spans}
    below: dict[str | None, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        below.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)
    roots = below.get(None, [])
    for number, root in enumerate(roots):
        if number:
            yield f"· {_length(root.start_ns - roots[number - 1].end_ns)} later"
        yield from _lines(root, 0, root, below, widths)


def _lines(span: SpanRecord, depth: int, root: SpanRecord, below: Below, widths: Widths) -> Iterator[str]:
    name = shorten(visible("  " * depth + span.name), widths.name)
    duration = _length(span.end_ns - span.start_ns)
    yield f"{name:<{widths.name}} {_bar(span, root, widths.bar):<{widths.bar}} {duration:>9}  {_notes(span)}".rstrip()
    for child in below.get(span.span_id, ()):
        yield from _lines(child, depth + 1, root, below, widths)


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
    attempt = attributes.get(names.MODEL_ATTEMPT, 1)
    if span.name.startswith("chat ") and isinstance(attempt, int) and attempt > 1:  # stored by an earlier version
        notes.append(f"attempt {attempt}")
    for name in (names.TOOL_OUTCOME, names.RUN_OUTCOME, names.PLAN_STEP_OUTCOME):
        if (outcome := attributes.get(name)) and outcome not in ("success", "done", span.error):
            notes.append(str(outcome))
    if span.error:
        notes.append(f"✗ {span.error}")
    return visible(", ".join(notes))


def _length(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
