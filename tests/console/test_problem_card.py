"""The caret below the source line of a problem."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.node_modules import call


def caret(**problem: Any) -> Any:
    return call("widgets/problem-card.js", "caret", {"path": "a.yaml", "message": "m", **problem})


def test_the_caret_marks_the_word_at_the_column() -> None:
    found = caret(line=3, column=3, excerpt="  max_stesp: 12")
    assert found == {"line": 3, "text": "  max_stesp: 12", "pad": "  ", "carets": "^^^^^^^^^"}
    assert caret(line=3, column=3, excerpt="\t- {a b}")["pad"] == "\t ", "tabs stay as wide as they are"
    assert caret(line=3, column=3, excerpt="中文: x")["pad"] == "\u3000\u3000"
    assert caret(line=1, column=4, excerpt="a: {{ x }}")["carets"] == "^"
    fix = {"written": "a b", "instead": "ab"}
    assert caret(line=1, column=1, excerpt="a b: 1", fix=fix)["carets"] == "^^^"


def test_a_problem_without_a_source_line_has_no_caret() -> None:
    assert caret() is None
    assert caret(line=3, column=1, excerpt="  ") is None
    assert caret(line=3, excerpt="{{ x }}") == {"line": 3, "text": "{{ x }}", "pad": "", "carets": ""}


@cases(40)
@given(excerpt=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400), column=st.integers(1, 450))
def test_the_caret_stands_below_its_character(excerpt: str, column: int) -> None:
    found = caret(line=1, column=column, excerpt=excerpt)
    if found is not None:
        assert len(found["text"]) <= 120
        assert found["text"] in excerpt
        if column <= len(excerpt):
            assert found["text"][len(found["pad"])] == excerpt[column - 1]


def test_a_fix_replaces_the_text_at_its_place_only() -> None:
    problem = {"line": 2, "column": 3, "fix": {"written": "max_stesp", "instead": "max_steps"}}
    assert (
        call("widgets/fix.js", "fixed", "a:\n  max_stesp: 1\nmax_stesp: 2", problem)
        == "a:\n  max_steps: 1\nmax_stesp: 2"
    )
    assert call("widgets/fix.js", "fixed", "\U0001f600\r\n\u4e2d\U0001f600max_stesp", problem) == (
        "\U0001f600\r\n\u4e2d\U0001f600max_steps"
    ), "columns count characters"
    assert call("widgets/fix.js", "fixed", "a:\n   max_stesp: 1", problem) is None, "the file has changed"
    assert call("widgets/fix.js", "fixed", "a:", problem) is None
