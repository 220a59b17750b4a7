"""The lines at the bottom of a terminal: they replace each other, and output stays above them."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
from collections.abc import Sequence

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.cli.run_view import AreaStream, TerminalArea, prints_above, terminal_size
from tests.support.cases import cases
from tests.support.screens import screen_of

LINES = st.lists(st.text("abc ", max_size=30), max_size=5)
STEPS = st.lists(st.tuples(st.booleans(), LINES), max_size=12)


class Recorded:
    """A live area that records what it shows."""

    size = os.terminal_size((40, 10))

    def __init__(self) -> None:
        self.written = ""

    def draw(self, lines: Sequence[str]) -> None:
        """Ignore lines that change."""

    def write(self, text: str) -> None:
        self.written += text


@cases(200)
@given(STEPS)
def test_a_terminal_shows_all_output_and_below_it_the_last_lines(steps: list[tuple[bool, list[str]]]) -> None:
    stream = io.StringIO()
    area = TerminalArea(stream)
    written: list[str] = []
    drawn: list[str] = []
    for is_output, lines in steps:
        if is_output:
            written += lines
            area.write("".join(f"{line}\n" for line in lines))
        else:
            drawn = lines
            area.draw(lines)
    shown = [line.rstrip() for line in screen_of(stream.getvalue())]
    expected = [line.rstrip() for line in (*written, *drawn)]
    assert shown[: len(expected)] == expected
    assert not any(shown[len(expected) :])


def test_lines_that_a_narrower_terminal_has_wrapped_are_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    area = TerminalArea(stream)
    area.draw(["x" * 40, "y" * 10])
    monkeypatch.setenv("COLUMNS", "20")
    before = len(stream.getvalue())
    area.draw(["z"])
    assert stream.getvalue()[before:].count("\x1b[1A") == 2, "three rows: the first line is on two"


@pytest.mark.parametrize(("columns", "expected"), [("40", 40), ("3", 20), ("wide", 80), ("", 80)])
def test_the_width_is_that_of_columns_or_a_default(
    monkeypatch: pytest.MonkeyPatch, columns: str, expected: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_size(io.StringIO()).columns == expected


def test_prints_and_the_log_go_above_the_lines_and_are_escaped() -> None:
    async def print_all(area: Recorded) -> None:
        with prints_above(area):
            sys.stdout.write("plugin\x1b[2J\n")
            click.secho("red", fg="red", err=True)
            logging.getLogger("test").warning("logged")
            await asyncio.to_thread(sys.stdout.write, "thread\n")
            await asyncio.sleep(0)
            sys.stdout.write("no line end")
        sys.stderr.write("after\n")

    area, handler = Recorded(), logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    before = handler.stream
    try:
        asyncio.run(print_all(area))
    finally:
        logging.getLogger().removeHandler(handler)
    expected = ["plugin\\x1b[2J", "\x1b[31mred\x1b[0m", "logged", "thread", "no line end"]
    assert area.written.splitlines() == expected
    assert handler.stream is before


def test_a_line_is_shown_when_it_is_complete() -> None:
    async def write(area: Recorded) -> None:
        stream = AreaStream(area)
        stream.write("half")
        assert area.written == ""
        stream.write(" done\nnext")
        assert area.written == "half done\n"

    asyncio.run(write(Recorded()))
