"""Prints rows: a table on a terminal, columns in a pipe.

On a narrow terminal, tables of rich cut texts without a mark, and shorten the description before the names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from shutil import get_terminal_size

import click

from framework.types.text import visible

GAP = 2
"""Spaces between columns."""
LEAST_TEXT = 20
"""Minimum width of the last column, while others can be shortened."""
LEAST = 9
"""Minimum width of any other column."""
NOTHING = "-"
"""Content of an empty cell."""
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

    Args:
        columns: titles, printed on a terminal only.
        rows: one text per column; cells with a status are coloured.
    """
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
