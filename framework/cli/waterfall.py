"""Draws finished spans as a waterfall: what ran inside what, when, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framework.telemetry.setup import FinishedSpan

BAR_CHARS = 40
NAME_CHARS = 48


def waterfall(spans: Sequence[FinishedSpan]) -> Iterator[str]:
    """One line a span: its name indented by depth, a bar on the common time line, its duration."""
    if not spans:
        return
    start = min(span.start_ns for span in spans)
    whole = max(max(span.end_ns for span in spans) - start, 1)
    known = {span.span_id for span in spans}
    children: dict[str | None, list[FinishedSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        children.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)

    def lines(parent: str | None, depth: int) -> Iterator[str]:
        for span in children.get(parent, []):
            first = int((span.start_ns - start) / whole * BAR_CHARS)
            length = max(1, round((span.end_ns - span.start_ns) / whole * BAR_CHARS))
            bar = (" " * min(first, BAR_CHARS - 1) + ("▒" if span.error else "█") * length)[:BAR_CHARS]
            name = ("  " * depth + span.name)[:NAME_CHARS]
            took = (span.end_ns - span.start_ns) / 1e6
            yield f"{name:<{NAME_CHARS}} {bar:<{BAR_CHARS}} {took:8.1f} ms{'  ' + span.error if span.error else ''}"
            yield from lines(span.span_id, depth + 1)

    yield from lines(None, 0)
