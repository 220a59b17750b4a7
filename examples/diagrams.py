"""Draws the diagrams of docs/explanation: `python -m examples.diagrams`.

A diagram has lanes with boxes in columns, and arrows between boxes. Its colours are readable on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
WIDTH, HEIGHT, GAP, LANE, MARGIN = 150, 56, 42, 100, 12
LABEL = 96
TEXT, LINE, GOOD, BAD = "#7d8590", "#9aa4b2", "#2f6feb", "#d1242f"


@dataclass(frozen=True, slots=True)
class Box:
    """A box in a column of its lane."""

    column: int
    text: str
    """Its lines, separated by `/`."""
    colour: str = LINE


@dataclass(frozen=True, slots=True)
class Diagram:
    """What a picture shows."""

    file: str
    title: str
    lanes: Mapping[str, Sequence[Box]]
    arrows: Sequence[tuple[str, str, str]] = ()
    """From a box to one below or above it, with a label; a box is `lane:column`."""
    apart: Sequence[str] = ()
    """Lanes without arrows between their boxes."""


DIAGRAMS = (
    Diagram(
        "explain-generation.svg",
        "How a saved file becomes the live generation",
        {
            "edit": [
                Box(0, "a file/is saved"),
                Box(1, "quiet period,/then a scan"),
                Box(2, "next generation/is built"),
                Box(4, "last good/version stays", BAD),
            ],
            "checks": [Box(2, "files, links,/prompts"), Box(3, "plugins/set up"), Box(4, "cases pass/(gate)")],
            "live": [Box(3, "runs in progress/keep theirs"), Box(4, "swapped in/one moment", GOOD)],
        },
        [("edit:2", "checks:2", ""), ("checks:4", "live:4", "yes"), ("checks:4", "edit:4", "no")],
        apart=["live"],
    ),
    Diagram(
        "explain-crash.svg",
        "How a run survives the end of its process",
        {
            "process A": [Box(0, "step is/finished"), Box(1, "state and events/are written"), Box(2, "killed", BAD)],
            "store": [Box(1, "record with/lease of A"), Box(2, "lease/expires"), Box(3, "lease of B,/new version")],
            "process B": [Box(3, "takes over/the run"), Box(4, "next step, none/repeated", GOOD)],
        },
        [("process A:1", "store:1", ""), ("store:3", "process B:3", "")],
    ),
    Diagram(
        "explain-policy.svg",
        "How a tool call is decided",
        {
            "rules": [
                Box(0, "deny rule/matches?"),
                Box(1, "risk above/max_risk?"),
                Box(2, "allowed/at all?"),
                Box(3, "ask rule, confirm/or risk?"),
                Box(4, "called", GOOD),
            ],
            "verdict": [*(Box(column, "denied", BAD) for column in range(3)), Box(3, "a person/decides")],
        },
        [("rules:0", "verdict:0", "yes"), ("rules:1", "verdict:1", "yes"), ("rules:2", "verdict:2", "no"),
         ("rules:3", "verdict:3", "yes")],
        apart=["verdict"],
    ),
    Diagram(
        "explain-boundary.svg",
        "What is trusted and what is not",
        {
            "not trusted": [Box(0, "messages", BAD), Box(1, "models'/answers", BAD), Box(2, "results of/tools", BAD)],
            "agentsd": [Box(0, "inserted,/never rendered"), Box(1, "checked, then/policy"), Box(2, "data,/shortened")],
            "trusted": [Box(0, "agent files", GOOD), Box(1, "plugins", GOOD), Box(2, "settings,/environment", GOOD)],
        },
        [("not trusted:0", "agentsd:0", ""), ("not trusted:1", "agentsd:1", ""), ("not trusted:2", "agentsd:2", ""),
         ("trusted:0", "agentsd:0", ""), ("trusted:1", "agentsd:1", ""), ("trusted:2", "agentsd:2", "")],
        apart=["not trusted", "agentsd", "trusted"],
    ),
)  # fmt: skip


def draw(diagram: Diagram) -> str:
    """Return a diagram as SVG."""
    columns = 1 + max(box.column for boxes in diagram.lanes.values() for box in boxes)
    width = LABEL + columns * (WIDTH + GAP) - GAP + 2 * MARGIN
    height = len(diagram.lanes) * LANE - (LANE - HEIGHT) + 2 * MARGIN
    tops = {name: MARGIN + number * LANE for number, name in enumerate(diagram.lanes)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(diagram.title)}</title>",
        f'<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
    ]
    for name, boxes in diagram.lanes.items():
        parts += _lane(name, boxes, tops[name], has_arrows=name not in diagram.apart)
    for start, end, label in diagram.arrows:
        parts += _between_lanes(start, end, label, tops)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _lane(name: str, boxes: Sequence[Box], top: int, *, has_arrows: bool) -> Iterator[str]:
    yield f'<text x="{MARGIN}" y="{top + HEIGHT / 2 + 4}" fill="{TEXT}" font-style="italic">{escape(name)}</text>'
    for box, following in zip(boxes, [*boxes[1:], None], strict=True):
        left = _left(box.column)
        colour = f'fill="none" stroke="{box.colour}" stroke-width="1.5"'
        yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="8" {colour}/>'
        lines = box.text.split("/")
        for number, line in enumerate(lines):
            y = top + HEIGHT / 2 + 5 + (number - (len(lines) - 1) / 2) * 17
            yield f'<text x="{left + WIDTH / 2}" y="{y}" text-anchor="middle" fill="{TEXT}">{escape(line)}</text>'
        if has_arrows and following and following.column == box.column + 1:
            y = top + HEIGHT / 2
            yield _line(left + WIDTH, y, _left(following.column) - 2, y)


def _between_lanes(start: str, end: str, label: str, tops: Mapping[str, int]) -> Iterator[str]:
    (lane, column), (other, _) = start.rsplit(":", 1), end.rsplit(":", 1)
    x = _left(int(column)) + WIDTH / 2
    down = tops[other] > tops[lane]
    yield _line(x, tops[lane] + (HEIGHT if down else 0), x, tops[other] - 2 if down else tops[other] + HEIGHT + 2)
    if label:
        yield f'<text x="{x + 8}" y="{(tops[lane] + tops[other] + HEIGHT) / 2 + 4}" fill="{TEXT}">{label}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="1.5" marker-end="url(#a)"/>'


def _left(column: int) -> int:
    return MARGIN + LABEL + column * (WIDTH + GAP)


def main() -> None:
    """Write all diagrams."""
    for diagram in DIAGRAMS:
        (IMAGES / diagram.file).write_text(draw(diagram), "utf-8")


if __name__ == "__main__":
    main()
