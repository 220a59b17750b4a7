"""Several globs match what `fnmatch` matches for any of them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.tools.toolset import matching_names
from tests.support.cases import cases

NAMES = ["", "*", "a", "ab", "a.b", "a.read_b", "read_", "x.read_y.z", "a\nb"]


@pytest.mark.parametrize(
    "glob", ["", "*", "**", "***", "a", "a*", "*b", "*.read_*", "*read_*", "a*b", "?", "a?", "*[ab]", "[*]", "*\n*"]
)
def test_each_kind_of_glob_matches_what_fnmatch_matches(glob: str) -> None:
    assert matching_names([glob], NAMES) == {name for name in NAMES if fnmatchcase(name, glob)}


def test_without_globs_nothing_matches() -> None:
    assert matching_names([], NAMES) == set()


@cases(400)
@given(
    globs=st.lists(st.text(alphabet="ab.*?[]!\n", max_size=6), max_size=5),
    names=st.lists(st.text(alphabet="ab.*[]\n", max_size=6), max_size=6),
)
@example(globs=["*", "a"], names=[""])
def test_globs_match_what_any_of_them_matches(globs: list[str], names: list[str]) -> None:
    assert matching_names(globs, names) == {name for name in names if any(fnmatchcase(name, glob) for glob in globs)}
