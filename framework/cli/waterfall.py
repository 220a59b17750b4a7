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
        below.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)
    roots = below.get(None, [])
    rows = [row for root in roots for row in _rows(root, 0, root, below)]
    longest_notes = max((len(_notes(row.span)) for row in rows), default=0)
    fitted = (widths or Widths()).fitted(max((len(row.name) for row in rows), default=0), longest_notes)
    for number, root in enumerate(roots):
        if number:
            yield f"· {_length(root.start_ns - roots[number - 1].end_ns)} later"
        yield from (_line(row, fitted) for row in rows if row.root is root)


@dataclass(frozen=True, slots=True)
class _Row:
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
    if span.error:
        notes.append(f"✗ {span.error}")
    return visible(", ".join(notes))


def _length(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
