"""The interval of a paired difference and its verdict: against exact arithmetic, and how often they are wrong."""

from __future__ import annotations

import random
from fractions import Fraction
from math import erf, sqrt

import pytest

from framework.evals.comparison import MAX_REPEATS, Comparison, Unit, compare_units, paired_interval, verdict_of

TABLES = 1000


def table(draw: random.Random) -> tuple[int, int, int, int]:
    """Return the cells of matched pairs: passed in both, before only, after only, in none."""
    both, before, after, none = (draw.randrange(0, 40) for _ in range(4))
    return both + 1, before, after, none + 1


def units(both: int, before: int, after: int, none: int) -> list[Unit]:
    return [
        *[Unit(1, 1, 1, 1)] * both,
        *[Unit(1, 1, 1, 0)] * before,
        *[Unit(1, 0, 1, 1)] * after,
        *[Unit(1, 0, 1, 0)] * none,
    ]


def published(cells: tuple[int, int, int, int], confidence: float) -> tuple[float, float]:
    """Return Wald+2 as its authors state it, from the cells of the table, in exact arithmetic up to the root."""
    lost, won = Fraction(cells[1]), Fraction(cells[2])
    total = sum(cells) + 2
    centre = (won - lost) / total
    square = ((lost + won + 1) - (won - lost) ** 2 / total) / Fraction(total**2)
    low, high = 0.0, 40.0  # the quantile, by bisection of the error function
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if erf(middle / sqrt(2)) < confidence else (low, middle)
    half = low * sqrt(square)
    return max(float(centre) - half, -1.0), min(float(centre) + half, 1.0)


def test_the_interval_equals_the_published_formula_on_random_tables() -> None:
    draw = random.Random(42)
    for _ in range(TABLES):
        cells, confidence = table(draw), draw.choice((0.8, 0.9, 0.95, 0.99))
        found = compare_units(units(*cells), 0.05, confidence, exact=False)
        assert (found.low, found.high) == pytest.approx(published(cells, confidence), abs=1e-9), cells
        assert found.difference == pytest.approx((cells[2] - cells[1]) / sum(cells))
        assert (found.worse, found.better) == cells[1:3]


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize(("cases", "spread"), [(8, 0.0), (20, 0.3), (60, 0.5)])
def test_the_interval_contains_the_difference_as_often_as_it_says(cases: int, attempts: int, spread: float) -> None:
    draw, covered, trials = random.Random(7), 0, 600
    for _ in range(trials):
        results, truth = [], -0.1
        for _ in range(cases):
            base = min(max(0.7 + draw.uniform(-spread, spread) / 2, 0.15), 0.95)
            passed = [sum(draw.random() < rate for _ in range(attempts)) for rate in (base, base + truth)]
            results.append(Unit(attempts, passed[0], attempts, passed[1]))
        found = compare_units(results, 0.05, 0.95, exact=False)
        covered += found.low <= truth <= found.high
    assert covered / trials >= 0.93


def judged(draw: random.Random, rate: float, noise: float) -> bool:
    """Return the verdict of a judge that is wrong with probability `noise`."""
    good = draw.random() < rate
    return good if draw.random() >= noise else not good


def trial(draw: random.Random, drop: float, cases: int, attempts: int, noise: float = 0.1) -> Comparison:
    """Return the figures of an edit that makes answers worse by `drop`, as a noisy judge sees them."""
    results = []
    for _ in range(cases):
        rate = draw.uniform(0.6, 1.0)
        passed = [sum(judged(draw, max(r, 0.0), noise) for _ in range(attempts)) for r in (rate, rate - drop)]
        results.append(Unit(attempts, passed[0], attempts, passed[1]))
    return compare_units(results, 0.05, 0.95, exact=False)


def test_a_worse_prompt_is_found_and_an_equal_one_is_not_rejected() -> None:
    draw, trials = random.Random(11), 400
    worse = [trial(draw, 0.3, 60, 3).verdict for _ in range(trials)]
    equal = [trial(draw, 0.0, 60, 3).verdict for _ in range(trials)]
    better = [trial(draw, -0.1, 120, 3).verdict for _ in range(trials)]
    assert worse.count("worse") / trials >= 0.95
    assert worse.count("not worse") == 0
    assert equal.count("worse") / trials <= 0.05
    assert better.count("worse") / trials <= 0.01
    assert better.count("not worse") / trials >= 0.9


def test_what_is_needed_decides() -> None:
    draw = random.Random(3)
    for _ in range(50):
        found = trial(draw, draw.choice((0.0, 0.1, 0.2)), 20, 2)
        if found.verdict != "cannot tell":
            continue
        assert found.more_cases
        assert found.more_cases > 0
        assert found.repeats is None or 2 < found.repeats <= 2 * MAX_REPEATS
    # the same table, so many times larger, decides
    some = units(6, 2, 1, 1)
    found = compare_units(some, 0.05, 0.95, exact=False)
    assert found.verdict == "cannot tell"
    assert found.more_cases is not None
    larger = some * (-(-(found.more_cases + len(some)) // len(some)))
    assert compare_units(larger, 0.05, 0.95, exact=False).verdict != "cannot tell"


@pytest.mark.parametrize(
    ("interval", "worse_by", "verdict"),
    [
        ((-0.04, 0.01), 0.05, "not worse"),
        ((-0.05, -0.01), 0.05, "not worse"),  # certainly a loss, but within what is tolerated
        ((-0.2, -0.01), 0.05, "worse"),
        ((-0.2, 0.0), 0.05, "cannot tell"),
        ((0.0, 0.0), 0.0, "not worse"),
    ],
)
def test_verdicts(interval: tuple[float, float], worse_by: float, verdict: str) -> None:
    assert verdict_of(interval, worse_by) == verdict


def test_one_case_a_thousand_times_says_nothing_of_other_cases() -> None:
    found = compare_units([Unit(1000, 1000, 1000, 1000)], 0.05, 0.95, exact=False)
    assert (found.low, found.high, found.verdict) == (-1.0, 1.0, "cannot tell")
    assert paired_interval(0.0, 0.0, 1, 0.95) == (-1.0, 1.0)


def test_scripted_results_are_exact() -> None:
    some = units(19, 1, 0, 0)
    assert compare_units(some, 0.05, 0.95, exact=True).verdict == "not worse"
    assert compare_units(some, 0.04, 0.95, exact=True).verdict == "worse"
    few = compare_units(units(3, 0, 0, 0), 0.0, 0.95, exact=True)
    assert (few.low, few.high, few.verdict) == (0.0, 0.0, "not worse")


def test_no_number_of_cases_excludes_every_loss() -> None:
    found = compare_units(units(5, 0, 0, 0), 0.0, 0.95, exact=False)
    assert (found.verdict, found.more_cases, found.repeats) == ("cannot tell", None, None)
