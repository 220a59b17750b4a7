"""The important lines, each with a change that breaks it and the test file that must notice: `make mutants`."""

from __future__ import annotations

import sys

from tests.support.mutants import Mutant, try_all

MUTANTS = (
    Mutant("engine/context/policy", "XX", "YY", "engine/context/test_policy"),
)


def main(words: list[str]) -> int:
    """Try the mutants of the modules whose path contains one of the words, or all; return how many survive."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.module for word in words)]
    survived = 0
    for outcome in try_all(chosen):
        mutant = outcome.mutant
        survived += not outcome.killed_by
        verdict = f"killed by {outcome.killed_by}" if outcome.killed_by else f"SURVIVED {mutant.test}"
        sys.stdout.write(f"{mutant.module}: {mutant.line.strip()} -> {mutant.instead.strip()}: {verdict}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survived} of {len(chosen)} mutants killed\n")
    return survived


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
