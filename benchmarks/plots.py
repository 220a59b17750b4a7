"""Plots of benchmark tables, as SVG files that are readable on light and on dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import leather

from benchmarks.harness import Results, Row, Table, figure, times

WIDTH = 860
OURS, OTHERS, TEXT = "#2f6feb", "#9aa4b2", "#737b86"
"""Colours with contrast on white and on black."""
_FRAME, _BAR = 44, 26
"""Height of what is around the bars, and of each bar."""
NAME = "agentsd"
"""Rows whose name contains it are drawn in the colour of this project."""
REPEATED = " beside "
"""Rows whose name contains it repeat the value of another row, to compare it with a further one."""


@dataclass(frozen=True, slots=True)
class Plot:
    """What to draw: the rows of one table as bars."""

    file: str
    benchmark: str
    title: str
    """How the title of the table begins."""
    by_ratio: bool = False
    """Whether the bars have the length of the ratio instead of the value."""

    def table(self, results: Results) -> Table | None:
        """Return the table of this plot, if it was measured."""
        return next((one for one in results.get(self.benchmark, ()) if one.title.startswith(self.title)), None)

    def length(self, row: Row) -> float | None:
        """Return the length of a bar; None if the row has none."""
        return row.ratio if self.by_ratio else row.value

    def label(self, row: Row, unit: str) -> str:
        """Return the text of a bar."""
        return f"{row.name}: {times(row.ratio) if self.by_ratio else f'{figure(row.value)} {unit}'}"


def draw(plot: Plot, table: Table, path: Path) -> None:
    """Draw the rows of a table as horizontal bars, in their order; rows that repeat a value are left out."""
    rows = [row for row in table.rows if plot.length(row) is not None and REPEATED not in row.name]
    set_theme()
    chart = leather.Chart()
    bars = [(plot.length(row), plot.label(row, table.unit)) for row in rows]
    chart.add_bars(bars, fill_color=lambda bar: OURS if NAME in bar.y else OTHERS)
    chart.add_x_axis(ticks=[0], tick_formatter=lambda *_: "")
    chart.to_svg(str(path), width=WIDTH, height=_FRAME + _BAR * len(rows))


def set_theme() -> None:
    """Set the look of all charts, as leather documents it: there is no other way."""
    theme = leather.theme
    theme.background_color = "none"
    theme.label_color = TEXT
    theme.tick_color = theme.zero_color = "none"
    theme.tick_font_family = "system-ui, sans-serif"
    theme.tick_font_char_width = 7.2
    theme.margin = 0.015
