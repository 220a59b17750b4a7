"""Lines of a long result: reading them one after another gives the whole text, and searches name their numbers."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.tools.builtin.notes import next_line, read_lines, search_lines
from framework.types.errors import ToolError
from tests.support.cases import cases

TEXTS = st.lists(st.text(st.sampled_from("ab é{,"), max_size=40) | st.just("x" * 1200), max_size=30).map("\n".join)
LIMITS = st.integers(100, 3000)


def pages(text: str, limit: int, start: int = 1) -> str:
    """Return what a model reads that follows each page to the next."""
    read = []
    while True:
        head, _, page = read_lines(text, start, 1000, limit).partition("\n")
        assert len(head) + 1 + len(page) <= limit
        read.append(page)
        if head.endswith("this is its end"):
            return "".join(read)
        start = int(head.rpartition("=")[2])


@given(TEXTS, LIMITS)
@example("", 100)
@example("\n\n", 100)
@cases(40)
def test_reading_page_after_page_gives_the_whole_text(text: str, limit: int) -> None:
    assert pages(text, limit) == text


@given(TEXTS, LIMITS, st.data())
@cases(40)
def test_reading_on_leaves_nothing_out(text: str, limit: int, data: st.DataObject) -> None:
    shown = text[: data.draw(st.integers(0, len(text)))]
    rest = pages(text, limit, next_line(shown, limit))
    assert rest.endswith(text[len(shown) :])
    assert len(rest) - len(text[len(shown) :]) <= 500  # at most one line is repeated


@given(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=40))
@cases(30)
def test_a_search_names_the_lines_to_read(words: list[str]) -> None:
    text, wanted = "\n".join(words), words[-1].upper()
    found = [int(line) for line in re.findall(r"^line (\d+):", search_lines(text, wanted, 4000), re.MULTILINE)]
    assert found == [number for number, word in enumerate(words, 1) if word == words[-1]]
    assert all(read_lines(text, line, 1, 4000).partition("\n")[2].strip() == words[-1] for line in found)


def test_matches_are_shown_as_far_as_they_fit() -> None:
    found = search_lines("\n".join(f"row {n}" for n in range(1000)), "row", 300)
    assert found.startswith("1000 matches in 1000 lines, the first:\nline 1: row 0\nline 2: row 1\n")
    assert len(found) <= 300


def test_a_match_is_found_where_a_long_line_is_divided() -> None:
    text = "a" * 495 + "needle" + "b" * 2000
    assert search_lines(text, "Needle", 4000).startswith("1 match in 6 lines\nline 1: aaa")


def test_the_end_is_read_by_negative_numbers() -> None:
    text = "\n".join(f"row {n}" for n in range(1000))
    assert read_lines(text, -2, 5, 4000) == "lines 999-1000 of 1000; this is its end\nrow 998\nrow 999"
    assert read_lines(text, -5000, 1, 4000) == "lines 1-1 of 1000; read on with start=2\nrow 0\n"


@pytest.mark.parametrize(("start", "lines"), [(0, 1), (1001, 1), (10**12, 1), (1, 0), (1, -5)])
def test_lines_that_do_not_exist_are_an_error(start: int, lines: int) -> None:
    with pytest.raises(ToolError, match="the result has 1000 lines"):
        read_lines("\n" * 999, start, lines, 4000)


def test_an_empty_text_cannot_be_searched_for() -> None:
    with pytest.raises(ToolError, match="the text to find is empty"):
        search_lines("text", "", 4000)
