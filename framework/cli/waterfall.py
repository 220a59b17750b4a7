"""Draws a run's stored trace as a waterfall: what ran inside what, when, for how long, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from framework.cli.show import visible
from framework.telemetry import names
from framework.types.trace import SpanRecord

BAR_CHARS = 36
NAME_CHARS = 46

Below = Mapping[str | None, Sequence[SpanRecord]]


def waterfall(spans: Sequence[SpanRecord]) -> Iterator[str]:
    """One line a span: its name indented by depth, a bar on its part's time line, its duration, and what is odd.

    A run that paused has several parts, each with a time line of its own.
    """
    known = {span.span_id for span in spans}
    below: dict[str | None, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        below.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)
    roots = below.get(None, [])
    for number, root in enumerate(roots):
        if number:
            yield f"· {_length(root.start_ns - roots[number - 1].end_ns)} later"
        yield from _lines(root, 0, root, below)


def _lines(span: SpanRecord, depth: int, root: SpanRecord, below: Below) -> Iterator[str]:
    name = visible("  " * depth + span.name)
    name = name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…"
    took = _length(span.end_ns - span.start_ns)
    yield f"{name:<{NAME_CHARS}} {_bar(span, root):<{BAR_CHARS}} {took:>9}  {_notes(span)}".rstrip()
    for child in below.get(span.span_id, ()):
        yield from _lines(child, depth + 1, root, below)


def _bar(span: SpanRecord, root: SpanRecord) -> str:
    whole = max(root.end_ns - root.start_ns, 1)
    first = min(max(int((span.start_ns - root.start_ns) / whole * BAR_CHARS), 0), BAR_CHARS - 1)
    length = max(1, round((span.end_ns - span.start_ns) / whole * BAR_CHARS))
    return (" " * first + ("▒" if span.error else "█") * length)[:BAR_CHARS]


def _notes(span: SpanRecord) -> str:
    attributes = span.attributes
    notes = []
    if names.INPUT_TOKENS in attributes:
        notes.append(f"{attributes[names.INPUT_TOKENS]}+{attributes.get(names.OUTPUT_TOKENS, 0)} tokens")
    attempt = attributes.get(names.MODEL_ATTEMPT, 1)
    if isinstance(attempt, int) and attempt > 1:
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
