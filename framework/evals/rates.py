"""How well a model does on cases: one rate for each thing a model must be able to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from framework.evals.runner import Attempt
from framework.types.case import Case

CaseAttempt = tuple[Case, Attempt]


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """How many of the attempts that show something did well."""

    passed: int
    tried: int

    def __str__(self) -> str:
        return f"{self.passed}/{self.tried}" + (f"  {self.passed / self.tried:.0%}" if self.tried else "")


_TOOL = frozenset({"called", "called_exactly", "not_called", "asked", "plan"})
_ARGUMENTS = frozenset({"arguments"})
_ANSWER = frozenset({"output", "output_matches"})


def rates(tried: Iterable[CaseAttempt]) -> dict[str, SuccessRate]:
    """Rates by name, each over the attempts in which the thing could be seen."""
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
    """Of each attempt with expectations of these keys: do they hold?"""
    for _, attempt in attempts:
        if shown := [check.passed for check in attempt.checks if check.key in keys]:
            yield all(shown)


def _rate(outcomes: Iterable[bool]) -> SuccessRate:
    listed = list(outcomes)
    return SuccessRate(sum(listed), len(listed))
