"""Success rates of a model on the cases, one per ability: choosing tools, arguments, answers and so on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from framework.evals.runner import Attempt
from framework.types.case import Case

CaseAttempt = tuple[Case, Attempt]


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """The number of attempts that passed, out of those that exercised an ability."""

    passed: int
    tried: int

    def __str__(self) -> str:
        return f"{self.passed}/{self.tried}" + (f"  {self.passed / self.tried:.0%}" if self.tried else "")


_TOOL = frozenset({"called", "called_exactly", "not_called", "asked", "plan"})
_ARGUMENTS = frozenset({"arguments"})
_ANSWER = frozenset({"output", "output_matches"})


def rates(tried: Iterable[CaseAttempt]) -> dict[str, SuccessRate]:
    """Return rates by name, each over the attempts that exercised the ability."""
    attempts = list(tried)
    turns = (attempt.passed for case, attempt in attempts if len(case.messages) > 1)
    recovered = (attempt.passed for _, attempt in attempts if attempt.failed_calls)
    return {
        "right tool": _rate(_outcomes(attempts, _TOOL)),
        "right arguments": _rate(_outcomes(attempts, _ARGUMENTS)),
        "multi-turn": _rate(turns),
        "recovery": _rate(recovered),
        "answer": _rate(_outcomes(attempts, _ANSWER)),
    }


def _outcomes(attempts: Iterable[CaseAttempt], keys: frozenset[str]) -> Iterator[bool]:
    """Yield, for each attempt with expectations of these keys, whether all of them passed."""
    for _, attempt in attempts:
        if shown := [check.passed for check in attempt.checks if check.key in keys]:
            yield all(shown)


def _rate(outcomes: Iterable[bool]) -> SuccessRate:
    listed = list(outcomes)
    return SuccessRate(sum(listed), len(listed))
