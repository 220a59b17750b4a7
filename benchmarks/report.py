"""Writes results into the docs: `python -m benchmarks.report RESULT.json… [--release NAME]`.

`docs/benchmarks.md` gets the plots, and the promises beside those of the last release; only what is between its markers
is replaced. All tables of what was measured are written to `build/bench/tables.md`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from textwrap import fill
from typing import Any

import leather

from benchmarks.__main__ import ON_REQUEST, SUITE
from benchmarks.harness import Results, Row, Table, figure, load, promise, results_file, times

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/benchmarks.md"
TABLES = HERE.parent / "build/bench/tables.md"
IMAGES = HERE.parent / "docs/images"
RELEASES = HERE / "releases.json"
WIDTH = 100
"""Columns of prose on the page."""
_PLOT_WIDTH = 860
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


PLOTS = (
    Plot("bench-call.svg", "wire", "CPU time per model call: 10 steps"),
    Plot("bench-conversations.svg", "concurrency", "CPU time of a model call of 500"),
    Plot("bench-peers.svg", "peers", "Model calls per second: 100"),
    Plot("bench-durable.svg", "durable", "A run of 10 steps on SQLite"),
    Plot("bench-tokens.svg", "tokens", "Tokens of a task", by_ratio=True),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, its plots and the tables, and with `--release` the ratios of a release."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=results_file, help="what `python -m benchmarks --json` has written")
    parser.add_argument("--release", metavar="NAME", help="also remember the promised ratios, under this name")
    options = parser.parse_args(arguments)
    results, facts = merged(options.files)
    if options.release:
        remember(options.release, results, facts)
    lines = "\n".join(summary(results, facts, *last_release()))
    PAGE.write_text(between(PAGE.read_text("utf-8"), "measured", lines), "utf-8")
    TABLES.parent.mkdir(parents=True, exist_ok=True)
    TABLES.write_text("\n".join(tables_of(results, facts)) + "\n", "utf-8")


def merged(files: Sequence[Path]) -> tuple[Results, Mapping[str, Any]]:
    """Return the results of several files, in the order of the suite, and the facts of all; later files win."""
    results: dict[str, Sequence[Table]] = {}
    facts: dict[str, Any] = {"versions": {}}
    for path in files:
        found, about = load(path)
        results |= found
        facts |= {**about, "versions": facts["versions"] | about["versions"]}
    return {name: results[name] for name in (*SUITE, *ON_REQUEST) if name in results}, facts


def between(page: str, name: str, text: str) -> str:
    """Replace what is between the markers of a name. Raises ValueError if the page lacks them."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    found = f"{re.escape(begin)}.*?{re.escape(end)}"
    replaced, count = re.subn(found, lambda _: f"{begin}\n{text}\n\n{end}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE.name}: the markers of {name!r} are missing")
    return replaced


def summary(
    results: Results, facts: Mapping[str, Any], release: str, ratios: Mapping[str, float | None]
) -> Iterator[str]:
    """Yield the lines of the versions, the plots and the promises; `ratios` are those of the last release."""
    yield _measured_on(facts)
    yield "\n| library | version |\n|---|---|"
    yield from (f"| {name} | {version} |" for name, version in facts["versions"].items())
    for plot in PLOTS:
        if table := plot.table(results):
            draw(plot, table, IMAGES / plot.file)
            yield f"\n**{table.title}**, {table.unit}\n\n![{table.title}](images/{plot.file})"
    yield f"\n| promise | ratio | promised | {release} |\n|---|---|---|---|"
    for shown, name, row in closest(results):
        yield f"| {_cell(shown)} | {times(row.ratio)} | {promise(row)} | {times(ratios.get(name))} |"


def tables_of(results: Results, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of all tables."""
    yield f"# Benchmarks\n\n{_measured_on(facts)} docs/benchmarks.md says how."
    for name, tables in results.items():
        yield f"\n## `{name}`"
        for table in tables:
            yield from _lines(table)


def _measured_on(facts: Mapping[str, Any]) -> str:
    return f"Measured on {facts['date']} with Python {facts['python']} on {facts['machine']}."


def _cell(text: str) -> str:
    return text.replace("|", "/")


def _lines(table: Table) -> Iterator[str]:
    yield f"\n**{table.title}**\n"
    yield f"| | {table.unit} | ratio | promised | |"
    yield "|---|---|---|---|---|"
    for row in table.rows:
        cells = (row.name, figure(row.value), times(row.ratio), promise(row), row.note)
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |".replace("|  ", "| ")
    if table.note:
        yield "\n" + "\n".join(f"{fill(line, WIDTH)}  " for line in table.note.splitlines()).rstrip()


def closest(results: Results) -> Iterator[tuple[str, str, Row]]:
    """Yield of each table the row that is closest to its promise, and all rows that miss theirs.

    Before the row are its name as shown, with the number of promises that it stands for, and its full name.
    """
    for name, tables in results.items():
        for table in tables:
            rows = sorted((row for row in table.rows if row.kept is not None), key=used, reverse=True)
            shown = [row for index, row in enumerate(rows) if index == 0 or not row.kept]
            for row in shown:
                full = f"{name}: {table.title}: {row.name}"
                rest = len(rows) - len(shown)
                yield (f"{full} (and {rest} more)" if rest and row is shown[-1] else full), full, row


def used(row: Row) -> float:
    """Return the share of its limit that a row uses; above 1 if it misses its promise."""
    ratio = row.ratio or 0
    above = 0 if row.at_most is None else ratio / row.at_most if row.at_most else float(ratio > 0)
    below = 0 if row.at_least is None else row.at_least / ratio if ratio else inf
    return max(above, below)


def promised(results: Results) -> Iterator[tuple[str, Row]]:
    """Yield each row with a promise, and its full name."""
    for name, tables in results.items():
        for table in tables:
            yield from ((f"{name}: {table.title}: {row.name}", row) for row in table.rows if row.kept is not None)


def remember(release: str, results: Results, facts: Mapping[str, Any]) -> None:
    """Add the promised ratios of a release to those of the releases before."""
    known: dict[str, Any] = json.loads(RELEASES.read_text("utf-8")) if RELEASES.exists() else {}
    known[release] = {"date": facts["date"], "ratios": {name: row.ratio for name, row in promised(results)}}
    RELEASES.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")


def last_release() -> tuple[str, Mapping[str, float | None]]:
    """Return the name and date of the last release, and its ratios."""
    known: dict[str, Any] = json.loads(RELEASES.read_text("utf-8"))
    name = max(known, key=lambda one: known[one]["date"])
    return f"{name} ({known[name]['date']})", known[name]["ratios"]


def draw(plot: Plot, table: Table, path: Path) -> None:
    """Draw the rows of a table as horizontal bars, in their order; rows that repeat a value are left out."""
    rows = [row for row in table.rows if plot.length(row) is not None and REPEATED not in row.name]
    set_theme()
    chart = leather.Chart()
    bars = [(plot.length(row), plot.label(row, table.unit)) for row in rows]
    chart.add_bars(bars, fill_color=lambda bar: OURS if NAME in bar.y else OTHERS)
    chart.add_x_axis(ticks=[0], tick_formatter=lambda *_: "")
    chart.to_svg(str(path), width=_PLOT_WIDTH, height=_FRAME + _BAR * len(rows))


def set_theme() -> None:
    """Set the look of all charts, as leather documents it: there is no other way."""
    theme = leather.theme
    theme.background_color = "none"
    theme.label_color = TEXT
    theme.tick_color = theme.zero_color = "none"
    theme.tick_font_family = "system-ui, sans-serif"
    theme.tick_font_char_width = 7.2
    theme.margin = 0.015


if __name__ == "__main__":
    main()
