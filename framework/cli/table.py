"""Rows of text: a table on a terminal, columns in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from shutil import get_terminal_size

import click

from framework.cli.show import visible

GAP = 2
"""Spaces between columns."""
STATUS_STYLES: Mapping[str, str] = {
    "completed": "green",
    "running": "cyan",
    "paused": "yellow",
    "orphaned": "magenta",
    "stopped": "red",
    "failed": "red",
    "cancelled": "red",
}


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows. On a terminal they are cut where the line ends; in a pipe nothing is.

    Args:
        columns: titles, printed on a terminal only.
        rows: as many texts each; cells that name a status are coloured.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    cells = import_module("rich.cells")  # knows how wide Chinese characters are
    shown = [columns, *rows] if sys.stdout.isatty() else rows
    widths = [max(cells.cell_len(row[place]) for row in shown) for place in range(len(columns))]
    room = get_terminal_size().columns - sum(widths[:-1]) - GAP * (len(widths) - 1)
    for number, row in enumerate(shown):
        styles = [STATUS_STYLES.get(cell) for cell in row]
        texts = [cell + " " * (width - cells.cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        texts[-1] = _cut(row[-1], room, cells.set_cell_size) if sys.stdout.isatty() and room > 1 else row[-1]
        header = sys.stdout.isatty() and number == 0
        styled = (click.style(text, fg=style, dim=header or None) for text, style in zip(texts, styles, strict=True))
        click.echo((" " * GAP).join(styled))


def _cut(text: str, width: int, cropped: Callable[[str, int], str]) -> str:
    whole = cropped(text, width).rstrip()
    return whole if whole == text else cropped(text, width - 1).rstrip() + "…"
