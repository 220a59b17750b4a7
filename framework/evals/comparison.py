"""Runs the same cases on two versions of a project, and compares the results case by case."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from framework.config.generations.generation import Generation
from framework.evals.runner import Attempt, CaseRunner
from framework.evals.statistics import Comparison, Unit, compare_units
from framework.evals.suite import PlacedCase

METHOD = "Wald+2 (Agresti and Min 2005), paired by case"
_SHOWN_CASES = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """A case with its attempts on both versions."""

    placed: PlacedCase
    before: tuple[Attempt, ...]
    after: tuple[Attempt, ...]

    @property
    def unit(self) -> Unit:
        """The numbers of attempts, and of those that passed."""
        passed = [sum(attempt.passed for attempt in attempts) for attempts in (self.before, self.after)]
        return Unit(len(self.before), passed[0], len(self.after), passed[1])

    @property
    def varies(self) -> bool:
        """Whether another attempt may have another result."""
        return any(
            attempt.varies or attempt.passed is not attempts[0].passed
            for attempts in (self.before, self.after)
            for attempt in attempts
        )


async def run_pairs(
    runner: CaseRunner, cases: Iterable[PlacedCase], before: Generation, after: Generation, repeat: int | None = None
) -> AsyncIterator[Pair]:
    """Run cases on both versions, by turns, so that a provider that changes meanwhile affects both alike.

    Cases whose agent exists in none of the versions, or in the new one only, are left out: they have no other side.

    Args:
        runner: runs the cases.
        cases: the cases of the new version.
        before: the old version.
        after: the new version.
        repeat: attempts per case, instead of the number that the case says.
    """
    for placed in cases:
        if placed.agent not in before.agents:
            continue
        attempts: tuple[list[Attempt], list[Attempt]] = ([], [])
        for _ in range(repeat or placed.repeat):
            for generation, done in zip((before, after), attempts, strict=True):
                done.append(await runner.attempt(placed, generation))
        yield Pair(placed, tuple(attempts[0]), tuple(attempts[1]))


def compare_pairs(pairs: Sequence[Pair], worse_by: float, confidence: float) -> Comparison:
    """Compare the two versions. Equal cases with different names count as one case that is repeated."""
    units: dict[str, Unit] = {}
    for pair in pairs:
        case = pair.placed.case.model_copy(update={"name": "", "note": "", "repeat": None})
        key = f"{pair.placed.agent}\n{case.model_dump_json()}"
        units[key] = units[key].merged(pair.unit) if key in units else pair.unit
    return compare_units([*units.values()], worse_by, confidence, exact=not any(pair.varies for pair in pairs))


def points(share: float) -> str:
    """Format a difference of success rates in percentage points, with its sign."""
    return f"{100 * share:+.0f}" if abs(share) >= 0.01 or not share else f"{100 * share:+.1f}"


def described(figures: Comparison, worse_by: float, confidence: float) -> str:
    """Return the figures as one sentence."""
    text = (
        f"{figures.before:.0%} of the attempts passed before and {figures.after:.0%} after, "
        f"{points(figures.difference)} points"
    )
    if figures.exact:
        text += " (exact: the models are scripted)"
    else:
        text += f" ({confidence:.0%} interval {points(figures.low)} to {points(figures.high)})"
    return f"{text}; a loss of {100 * worse_by:g} is tolerated"


def advice(figures: Comparison) -> str:
    """Return what would decide a comparison that cannot tell; empty for the other verdicts."""
    if figures.verdict != "cannot tell":
        return ""
    ways = [f"about {figures.more_cases} more cases like these"] if figures.more_cases else []
    ways += [f"{figures.repeats} attempts per case"] if figures.repeats else []
    return f"needs {' or '.join(ways)}" if ways else "needs more cases, or a larger tolerated loss (worse_by)"


def worst(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Return the pairs that lost most, at most three."""
    lost = sorted((pair for pair in pairs if pair.unit.difference < 0), key=lambda pair: pair.unit.difference)
    return tuple(lost[:_SHOWN_CASES])
