"""Differences of two texts: every line of both is there, and changed words are marked."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.node_modules import call


def lines_of(before: str, after: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call("widgets/diff.js", "diffLines", before, after)
    return found


def side(lines: list[dict[str, Any]], kind: str) -> str:
    """Return the text of one side: that of the lines which are the same, and those of one kind."""
    kept = (line["parts"] for line in lines if line["kind"] in ("same", kind))
    return "\n".join("".join(part["text"] for part in parts) for parts in kept)


def marked(lines: list[dict[str, Any]]) -> list[str]:
    """Return the changed lines with their changed words in brackets."""
    signs = {"del": "-", "add": "+"}
    return [
        signs[line["kind"]]
        + "".join(f"[{part['text']}]" if part["changed"] else part["text"] for part in line["parts"])
        for line in lines
        if line["kind"] != "same"
    ]


def test_changed_words_are_marked() -> None:
    before = '{\n  "order": "10482",\n  "amount": 89.00,\n  "reason": "damaged on arrival"\n}'
    after = '{\n  "order": "10482",\n  "amount": 74.50,\n  "reason": "damaged on arrival, without shipping"\n}'
    assert marked(lines_of(before, after)) == [
        '-  "amount": [89].[00],',
        '+  "amount": [74].[50],',
        '-  "reason": "damaged on arrival"',
        '+  "reason": "damaged on arrival[, without shipping]"',
    ]


def test_the_difference_is_the_shortest() -> None:
    assert marked(lines_of("a\nb\nc\nd", "a\nc\nx\nd")) == ["-b", "+x"]


@cases(200)
@given(st.lists(st.sampled_from("abcd "), max_size=12), st.lists(st.sampled_from("abcd "), max_size=12))
def test_both_texts_are_in_the_difference(before: list[str], after: list[str]) -> None:
    one, other = "\n".join(before), "\n".join(after)
    lines = lines_of(one, other)
    assert (side(lines, "del"), side(lines, "add")) == (one, other)
    assert one != other or not marked(lines)


def test_texts_of_any_size_are_compared() -> None:
    before = "\n".join(f"line {n}" for n in range(20_000))
    after = "\n".join(f"other {n}" for n in range(20_000)) + "x" * 100_000
    lines = lines_of(before, after)
    assert (side(lines, "del"), side(lines, "add")) == (before, after)
