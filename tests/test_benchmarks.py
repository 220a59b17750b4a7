"""The harness of benchmarks; each can be imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import report, tokens
from benchmarks.__main__ import ON_REQUEST, SUITE, facts, main
from benchmarks.harness import Row, Table, load, paired, promise, save
from benchmarks.report import OURS, PAGE, Plot, between, closest, draw, last_release, summary, tables_of
from tests.support.cases import each
from tests.support.paths import ROOT

TABLE = Table("Work", "µs", [Row("by hand", 20, 1), Row("agentsd", 5, 0.25, at_most=0.2)], "measured")


FOLDER = ROOT / "benchmarks"


def test_the_suite_names_every_benchmark() -> None:
    names = {path.stem for path in FOLDER.glob("[a-z]*.py") if "def tables(" in path.read_text("utf-8")}
    packages = {path.parent.name for path in FOLDER.glob("*/__init__.py") if '"tables"' in path.read_text("utf-8")}
    assert names | packages == {*SUITE, *ON_REQUEST}


@each("name", sorted(path.stem for path in FOLDER.glob("[a-z]*.py")))
def test_a_benchmark_can_be_imported(name: str) -> None:
    import_module(f"benchmarks.{name}")


def test_a_ratio_is_the_median_of_pairs_so_that_one_slow_turn_does_not_count() -> None:
    assert paired([1, 2, 3], [2, 4, 60]) == 0.5


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (Row("a", 5, 0.25, at_most=0.2), "≤ 0.20x MISSED"),
        (Row("a", 5, 0.2, at_most=0.2), "≤ 0.20x"),
        (Row("a", 5, 3.9, at_least=4), "≥ 4.00x MISSED"),
        (Row("a", 5, 4.1, at_least=4), "≥ 4.00x"),
        (Row.limited("a", 51, 50), "≤ 1.00x MISSED"),
        (Row("a", 5, 0.25), ""),
        (Row("a", 5), ""),
    ],
)
def test_a_promise_is_shown_with_whether_it_is_kept(row: Row, shown: str) -> None:
    assert promise(row) == shown


def test_saved_results_are_loaded_unchanged(tmp_path: Path) -> None:
    save(tmp_path / "new/results.json", {"work": [TABLE]}, facts())
    assert load(tmp_path / "new/results.json") == ({"work": [TABLE]}, facts())


def test_results_are_written_and_compared_with_earlier_ones(tmp_path: Path) -> None:
    path, written = tmp_path / "results.json", tmp_path / "written.json"
    (one,) = tokens.tables(quick=True)
    slower = [Row(row.name, row.value, row.ratio and row.ratio * 2) for row in one.rows]
    save(path, {"tokens": [Table(one.title, one.unit, slower)]}, facts())
    options = ["--only", "tokens", "--quick", "--compare", str(path), "--json", str(written)]
    command = [sys.executable, "-m", "benchmarks", *options]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert shown.stdout.count("-50%") == len([row for row in one.rows if row.ratio]) > 1
    assert load(written)[0] == {"tokens": [one]}


def test_only_what_is_between_the_markers_of_a_page_is_replaced() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    once = between(page, "a", "new")
    assert once == "before\n<!-- a -->\n\nnew\n\n<!-- end of a -->\nafter\n"
    assert between(once, "a", "new") == once


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="markers of 'a' are missing"):
        between("text", "a", "new")


def test_the_page_has_a_line_for_each_promise() -> None:
    lines = list(summary({"work": [TABLE]}, facts(), "0.1.0", {"work: Work: agentsd": 0.2}))
    assert "| work: Work: agentsd | 0.25x | ≤ 0.20x MISSED | 0.20x |" in lines
    between(PAGE.read_text("utf-8"), "measured", "new")
    assert last_release()[1]


def test_of_a_table_the_page_names_missed_promises_and_the_one_closest_to_its_limit() -> None:
    rows = [Row("a", 1, 0.1, at_most=0.2), Row("b", 1, 0.19, at_most=0.2), Row("c", 1, 4.1, at_least=4), Row("d", 1, 2)]
    exact = [Row("e", 0, 0.0, at_most=0), Row("f", 0, 0.0, at_most=0)]
    missed = [Row("g", 1, 3.0, at_most=2), Row("h", 1, 1.0, at_least=2), Row("i", 1, 1.0, at_most=2)]
    tables = [Table(title, "s", shown) for title, shown in (("Long", rows), ("Exact", exact), ("Lost", missed))]
    assert [shown for shown, _, _ in closest({"work": tables})] == [
        "work: Long: c (and 2 more)",
        "work: Exact: e (and 1 more)",
        "work: Lost: h",
        "work: Lost: g (and 1 more)",
    ]


def test_all_tables_are_written_with_their_promises() -> None:
    lines = list(tables_of({"work": [TABLE], "rest": [TABLE]}, facts()))
    assert [line for line in lines if line.startswith("| agentsd")] == [
        "| agentsd | 5 | 0.25x | ≤ 0.20x MISSED | |"
    ] * 2


def test_a_plot_has_one_bar_with_each_value(tmp_path: Path) -> None:
    table = Table(TABLE.title, TABLE.unit, [*TABLE.rows, Row("agentsd beside another", 5, 0.5)])
    draw(Plot("work.svg", "work", "Work"), table, tmp_path / "work.svg")
    drawn = (tmp_path / "work.svg").read_text("utf-8")
    assert "by hand: 20" in drawn
    assert "agentsd: 5" in drawn
    assert drawn.count(OURS) == 1


def test_an_unknown_benchmark_is_an_error_that_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "wires"])
    assert "there is no benchmark wires; there are filtering, wire" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "options"), [(main, ["--compare", "x.json"]), (report.main, ["x.json"])])
def test_missing_results_are_an_error_that_says_what_writes_them(
    capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], None], options: list[str]
) -> None:
    with pytest.raises(SystemExit):
        command(options)
    assert "there is no file x.json: `make bench` writes" in capsys.readouterr().err
