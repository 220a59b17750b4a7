"""The table of `make mutants` fits the code: each line occurs once in its module, and each test file exists."""

from __future__ import annotations

from tests.mutants import MUTANTS
from tests.support.cases import each
from tests.support.mutants import Mutant
from tests.support.paths import ROOT, TESTS


@each("mutant", MUTANTS)
def test_a_mutant_changes_one_line_and_names_a_test_file(mutant: Mutant) -> None:
    source = (ROOT / mutant.path).read_text("utf-8")
    assert mutant.applied(source) != source
    assert (TESTS / f"{mutant.test}.py").is_file()
