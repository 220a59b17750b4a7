"""Decides from paired results whether a version is worse: an interval of the mean difference, and a verdict.

The interval is Wald+2 of Agresti and Min (Statistics in Medicine 24, 2005, pages 729-740), which adds half a pair to
each cell of the table of matched pairs. With one attempt per case it is exactly theirs. With repeats, the difference
of a case is that of its two success rates: cases are the sampling units, as Miller (Adding Error Bars to Evals, 2024)
recommends, so repeats of one case never count as further cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Literal

ComparisonVerdict = Literal["worse", "not worse", "cannot tell"]
_PAIRS = 2
"""Pairs that Wald+2 adds: one of equal results, and half a pair of each kind of different ones."""
_MAX_NEEDED = 100_000
"""Numbers of cases above this one are not suggested."""
MAX_REPEATS = 1_000
"""Number of attempts per case above which none are suggested."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Unit:
    """The results of one case, or of equal cases, on two versions: attempts, and how many of them passed."""

    before: int
    before_passed: int
    after: int
    after_passed: int

    @property
    def rates(self) -> Interval:
        """The success rates before and after."""
        return self.before_passed / self.before, self.after_passed / self.after

    @property
    def difference(self) -> float:
        """Success rate after, minus that before; from -1 to 1."""
        return self.rates[1] - self.rates[0]

    def merged(self, other: Unit) -> Unit:
        """Return the results of both as those of one case."""
        return Unit(
            self.before + other.before,
            self.before_passed + other.before_passed,
            self.after + other.after,
            self.after_passed + other.after_passed,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two versions over all cases."""

    cases: int
    before: float
    """Mean success rate of the cases."""
    after: float
    difference: float
    """`after` minus `before`."""
    low: float
    """Lower end of the interval of the difference."""
    high: float
    exact: bool
    """The results cannot vary: both ends of the interval are the difference itself."""
    better: int
    """Number of cases with a higher success rate than before."""
    worse: int
    verdict: ComparisonVerdict
    more_cases: int | None = None
    """Further cases like these that would decide, if the verdict is `cannot tell`; None if that is not known."""
    repeats: int | None = None
    """Attempts per case that would decide with the same cases; None if no number would, or if it is not known."""
    unknown: str = ""
    """How many attempts have no result, and why not, such as a judge that failed. They count as not passed."""


def paired_interval(mean: float, square: float, cases: int, confidence: float) -> Interval:
    """Return the interval of the mean difference of paired results (Wald+2).

    Args:
        mean: mean of the differences of the cases.
        square: mean of the squares of the differences.
        cases: their number. One case shows nothing of other cases: its interval is everything.
        confidence: such as 0.95; the interval is two-sided.
    """
    if cases < _PAIRS:
        return -1.0, 1.0
    total = cases + _PAIRS
    centre = cases * mean / total
    variance = max((cases * square + 1) / total - centre**2, 0.0)
    half = NormalDist().inv_cdf((1 + confidence) / 2) * sqrt(variance / total)
    return max(centre - half, -1.0), min(centre + half, 1.0)


def verdict_of(interval: Interval, worse_by: float) -> ComparisonVerdict:
    """Return the verdict: not worse if a loss of more than `worse_by` is excluded, worse if some loss is certain."""
    if interval[0] >= -worse_by:
        return "not worse"
    return "worse" if interval[1] < 0 else "cannot tell"


def compare_units(units: Sequence[Unit], worse_by: float, confidence: float, *, exact: bool) -> Comparison:
    """Compare the results of cases on two versions.

    Args:
        units: the results of each case; at least one.
        worse_by: the loss of the mean success rate that is tolerated, such as 0.05.
        confidence: of the interval, such as 0.95.
        exact: the results of a repetition would be the same, as with scripted models.
    """
    differences = [unit.difference for unit in units]
    count = len(units)
    mean, square = sum(differences) / count, sum(one**2 for one in differences) / count
    low, high = (mean, mean) if exact else paired_interval(mean, square, count, confidence)
    low = -worse_by if exact and abs(low + worse_by) < 1e-12 else low  # 0.9 - 0.95 is a little less than -0.05
    verdict = verdict_of((low, high), worse_by)
    is_open = verdict == "cannot tell"
    return Comparison(
        cases=count,
        before=sum(unit.rates[0] for unit in units) / count,
        after=sum(unit.rates[1] for unit in units) / count,
        difference=mean,
        low=low,
        high=high,
        exact=exact,
        better=sum(one > 0 for one in differences),
        worse=sum(one < 0 for one in differences),
        verdict=verdict,
        more_cases=_more_cases(mean, square, count, worse_by, confidence) if is_open else None,
        repeats=_repeats(units, mean, square, worse_by, confidence) if is_open else None,
    )


def _more_cases(mean: float, square: float, cases: int, worse_by: float, confidence: float) -> int | None:
    """Return how many more cases with the same mean and spread would decide."""

    def decides(total: int) -> bool:
        return verdict_of(paired_interval(mean, square, total, confidence), worse_by) != "cannot tell"

    high = cases
    while not decides(high):
        high *= 2
        if high > _MAX_NEEDED:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high - cases


def _repeats(units: Sequence[Unit], mean: float, square: float, worse_by: float, confidence: float) -> int | None:
    """Return how many attempts per case would decide, as far as the noise within the cases can be told from the rest.

    Only repeats show that noise: with one attempt per case it is unknown.
    """
    attempts = min(min(unit.before, unit.after) for unit in units)
    if attempts < 2:
        return None
    noise = sum(
        rate * (1 - rate) * number / (number - 1)
        for unit in units
        for rate, number in zip(unit.rates, (unit.before, unit.after), strict=True)
    ) / len(units)
    between = max(square - noise / attempts, mean**2)
    number = attempts
    while number <= MAX_REPEATS:
        number *= 2
        interval = paired_interval(mean, between + noise / number, len(units), confidence)
        if verdict_of(interval, worse_by) != "cannot tell":
            return number
    return None
