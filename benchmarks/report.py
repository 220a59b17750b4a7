"""Writes results into the docs: `python -m benchmarks.report RESULT.json… [--release NAME]`.

`docs/benchmarks.md` gets the plots and the promises; it keeps its own text, only what is between its markers is
replaced. Pages in `docs/benchmarks/` get the tables of what was measured; a page is left as it is if no benchmark of it
was.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.__main__ import ON_REQUEST, SUITE
from benchmarks.harness import Results, Row, Table, figure, load, promise, results_file, times
from benchmarks.plots import Plot, draw

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/benchmarks.md"
TABLES = HERE.parent / "docs/benchmarks"
IMAGES = HERE.parent / "docs/images"
RELEASES = HERE / "releases.json"
SHOWN_RELEASES = 5
WIDTH = 100
"""Columns of prose on the page."""
PLOTS = (
    Plot("bench-call.svg", "wire", "CPU time per model call: 10 steps"),
    Plot("bench-conversations.svg", "concurrency", "CPU time of a model call of 500"),
    Plot("bench-peers.svg", "peers", "Model calls per second: 100"),
    Plot("bench-durable.svg", "durable", "A run of 10 steps on SQLite"),
    Plot("bench-tokens.svg", "tokens", "Tokens of a task", by_ratio=True),
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page with the tables of some benchmarks."""

    file: str
    title: str
    benchmarks: Sequence[str]


PAGES = (
    Page("calls.md", "Model calls", ("wire", "function_calls", "loop", "filtering", "readers", "tokens", "plans")),
    Page("many.md", "Many conversations", ("concurrency", "streaming", "serving", "tracing", "memory")),
    Page(
        "files.md",
        "Files, processes and stores",
        ("reload", "plugins", "imports", "commands", "terminal", "store", "arguments"),
    ),
    Page("peers.md", "Beside other frameworks", ("peers", "durable")),
    Page("large.md", "Large projects and stores", ("large", "scale", "row_sizes", "console")),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, its plots, and with `--release` the ratios of a release."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=results_file, help="what `python -m benchmarks --json` has written")
    parser.add_argument("--release", metavar="NAME", help="also remember the promised ratios, under this name")
    options = parser.parse_args(arguments)
    results, facts = merged(options.files)
    if options.release:
        remember(options.release, results, facts)
    text = PAGE.read_text("utf-8")
    for name, lines in (("measured", summary(results, facts)), ("releases", releases())):
        text = between(text, name, "\n".join(lines))
    PAGE.write_text(text, "utf-8")
    for page in PAGES:
        if results.keys() & set(page.benchmarks):
            (TABLES / page.file).write_text("\n".join(tables_of(page, results, facts)) + "\n", "utf-8")


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


def summary(results: Results, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the versions, the plots and the promises."""
    yield _measured_on(facts)
    yield "\n| library | version |\n|---|---|"
    yield from (f"| {name} | {version} |" for name, version in facts["versions"].items())
    for plot in PLOTS:
        if table := plot.table(results):
            draw(plot, table, IMAGES / plot.file)
            yield f"\n**{table.title}**, {table.unit}\n\n![{table.title}](images/{plot.file})"
    yield "\n| promise | ratio | promised |\n|---|---|---|"
    yield from (f"| {_cell(name)} | {times(row.ratio)} | {promise(row)} |" for name, row in promised(results))


def tables_of(page: Page, results: Results, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a page with all tables of its benchmarks."""
    yield f"# Benchmarks: {page.title.lower()}\n"
    yield f"{_measured_on(facts)} [How it was measured](../benchmarks.md#method)."
    for name in page.benchmarks:
        if name in results:
            yield f"\n## `{name}`"
            for table in results[name]:
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


def releases() -> Iterator[str]:
    """Yield the lines of the table of the last releases."""
    known: dict[str, Any] = json.loads(RELEASES.read_text("utf-8")) if RELEASES.exists() else {}
    shown = sorted(known, key=lambda name: known[name]["date"])[-SHOWN_RELEASES:]
    names = dict.fromkeys(name for release in shown for name in known[release]["ratios"])
    heads = [f"{name} ({known[name]['date']})" for name in shown]
    yield f"| promise | {' | '.join(heads)} |"
    yield "|---|" + "---|" * len(shown)
    for name in names:
        yield f"| {name} | {' | '.join(times(known[release]['ratios'].get(name)) for release in shown)} |"


if __name__ == "__main__":
    main()
