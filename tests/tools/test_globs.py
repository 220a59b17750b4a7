"""Several globs match what `fnmatch` matches for any of them."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import example, given
from hypothesis import strategies as st

from framework.tools.toolset import matching_names
from tests.support.cases import cases


@cases(100)
@given(
    globs=st.lists(st.text(alphabet="ab.*?[]!\n", max_size=6), max_size=5),
    names=st.lists(st.text(alphabet="ab.*[]\n", max_size=6), max_size=6),
)
@example(globs=["*", "a"], names=[""])
@example(globs=[], names=["a"])
@example(globs=["a*b", "[*]"], names=["a\nb", "*", "a*b"])
def test_globs_match_what_any_of_them_matches(globs: list[str], names: list[str]) -> None:
    assert matching_names(globs, names) == {name for name in names if any(fnmatchcase(name, glob) for glob in globs)}
