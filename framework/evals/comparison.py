"""Runs the same cases on two versions of a project, and decides from the paired results whether one is worse."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from operator import add
from statistics import NormalDist, fmean
from typing import Literal, NamedTuple

from framework.config.agents.compile import Agent
from framework.config.generations.generation import Blueprints, Generation
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ComparisonGate
from framework.evals.runner import Attempt, CaseRunner, Launch, case_result
from framework.evals.suite import PlacedCase, read_suite
from framework.llm.client import LentClient, ModelClient
from framework.store.store import Store
from framework.store.types import CaseResult, RunQuery
from framework.types.errors import RequestError
from framework.types.problem import Problem

# The interval is Wald+2 of Agresti and Min (Statistics in Medicine 24, 2005, pages 729-740), which adds half a pair to
# each cell of the table of matched pairs. With one attempt per case it is exactly theirs. With repeats, the difference
# of a case is that of its two success rates: cases are the sampling units, as Miller (Adding Error Bars to Evals, 2024)
# recommends, so repeats of one case never count as further cases.


ComparisonVerdict = Literal["worse", "not worse", "cannot tell"]
_PAIRS = 2
"""Pairs that Wald+2 adds: one of equal results, and half a pair of each kind of different ones."""
_MAX_NEEDED = 100_000
"""Numbers of cases above this one are not suggested."""
MAX_REPEATS = 1_000
"""Number of attempts per case above which none are suggested."""

Interval = tuple[float, float]


class Unit(NamedTuple):
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
    differences, count = [unit.difference for unit in units], len(units)
    before, after = (fmean(rates) for rates in zip(*(unit.rates for unit in units), strict=True))
    mean, square = fmean(differences), fmean(one**2 for one in differences)
    low, high = (mean, mean) if exact else paired_interval(mean, square, count, confidence)
    low = -worse_by if exact and abs(low + worse_by) < 1e-12 else low  # 0.9 - 0.95 is a little less than -0.05
    verdict = verdict_of((low, high), worse_by)
    is_open = verdict == "cannot tell"
    return Comparison(
        cases=count,
        before=before,
        after=after,
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

    needed = bisect_left(range(_MAX_NEEDED + 1), True, lo=cases, key=decides)
    return needed - cases if needed <= _MAX_NEEDED else None


def _repeats(units: Sequence[Unit], mean: float, square: float, worse_by: float, confidence: float) -> int | None:
    """Return how many attempts per case would decide, as far as the noise within the cases can be told from the rest.

    Only repeats show that noise: with one attempt per case it is unknown.
    """
    attempts = min(min(unit.before, unit.after) for unit in units)
    if attempts < 2:
        return None
    noise = fmean(
        sum(rate * (1 - rate) * number / (number - 1) for rate, number in zip(unit.rates, unit[::2], strict=True))
        for unit in units
    )
    between = max(square - noise / attempts, mean**2)
    number = attempts
    while number <= MAX_REPEATS:
        number *= 2
        interval = paired_interval(mean, between + noise / number, len(units), confidence)
        if verdict_of(interval, worse_by) != "cannot tell":
            return number
    return None


METHOD = "Wald+2 (Agresti and Min 2005), paired by case"


@dataclass(frozen=True, slots=True)
class Pair:
    """A case with its attempts on both versions."""

    placed: PlacedCase
    before: tuple[Attempt, ...]
    after: tuple[Attempt, ...]

    @property
    def unit(self) -> Unit:
        """The numbers of attempts, and of those that passed."""
        return self.unit_if(None)

    def unit_if(self, passes: Literal["before", "after"] | None) -> Unit:
        """Return the numbers as if the attempts without a result had passed on one side, and failed on the other."""
        before, after = (
            sum(attempt.passed or bool(attempt.unknown and side == passes) for attempt in attempts)
            for side, attempts in (("before", self.before), ("after", self.after))
        )
        return Unit(len(self.before), before, len(self.after), after)

    @property
    def varies(self) -> bool:
        """Whether another attempt may have another result."""
        return any(
            attempt.varies or attempt.passed is not attempts[0].passed
            for attempts in (self.before, self.after)
            for attempt in attempts
        )


_STORED = re.compile(r"g[0-9]{1,9}|[0-9a-f]{8,16}")


def is_generation(name: str) -> bool:
    """Return whether a name can be that of a stored generation: `g12`, or the beginning of a digest."""
    return _STORED.fullmatch(name) is not None


async def stored_generation(store: Store, name: str, current: Generation, blueprints: Blueprints) -> Generation:
    """Return a generation as its runs stored it: the files of each agent that ran on it, with the current tools.

    A number is that of a process, so the latest generation with this number is meant.

    Args:
        store: has the runs.
        name: `g12`, or the beginning of a digest.
        current: has the settings and the tools.
        blueprints: creates the agents.

    Raises:
        RequestError: no run is stored that used it.
        ConfigError: its files are invalid with the current tools.
    """
    named = RunQuery(generation=int(name[1:])) if name.startswith("g") else RunQuery(digest=name)
    if not (latest := await store.runs(replace(named, newest_first=True, limit=1))):
        raise RequestError(f"no stored run used the generation {name}; `agentsd runs list --json` has those that are")
    agents: dict[str, Agent] = {}
    for agent in current.agents:
        for info in await store.runs(RunQuery(digest=latest[0].digest, agent=agent, newest_first=True, limit=1)):
            stored = await store.blueprint((await store.load_run(info.run_id)).blueprint)
            agents = {**(blueprints.agents(stored, current) if stored else {}), **agents}
    return replace(current, number=latest[0].generation, digest=latest[0].digest, agents=agents)


async def run_pairs(
    runner: CaseRunner, cases: Iterable[PlacedCase], before: Generation, after: Generation, repeat: int | None = None
) -> AsyncIterator[Pair]:
    """Run cases on both versions, by turns, so that a provider that changes meanwhile affects both alike.

    The cases are those of the new version. Those whose agent the old one lacks are left out: they have no other side.
    `repeat` is the number of attempts per case, instead of the one that the case says.
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
    """Compare the two versions. Equal cases with different names count as one case that is repeated.

    Attempts without a result decide nothing: the verdict stands only if they cannot change it, whatever they were.
    """
    exact = not any(pair.varies for pair in pairs)

    def figures(passes: Literal["before", "after"] | None) -> Comparison:
        units: dict[str, Unit] = {}
        for pair in pairs:
            case = pair.placed.case.model_copy(update={"name": "", "note": "", "repeat": None})
            key, unit = f"{pair.placed.agent}\n{case.model_dump_json()}", pair.unit_if(passes)
            units[key] = Unit(*map(add, units[key], unit)) if key in units else unit
        return compare_units([*units.values()], worse_by, confidence, exact=exact)

    found, attempts = figures(None), [one for pair in pairs for one in (*pair.before, *pair.after)]
    if not (unknown := [one.unknown for one in attempts if one.unknown]):
        return found
    text = f"{len(unknown)} of {len(attempts)} attempts have no result: {unknown[0]}"
    best, worst = (figures(side).verdict for side in ("before", "after"))
    if best == worst:
        return replace(found, unknown=text, verdict=best)
    return replace(found, unknown=text, verdict="cannot tell", more_cases=None, repeats=None)


async def comparison_problems(
    candidate: Generation,
    live: Generation,
    gate: ComparisonGate,
    launch: Launch,
    models: Mapping[str, ModelClient],
    keep: Callable[[CaseResult], None] = lambda _: None,
) -> list[Problem]:
    """Return why a gate rejects a candidate: invalid cases, or a success rate that is lower than live.

    `keep` is called with the results of the candidate.
    """
    suite = read_suite(candidate)
    if suite.errors or not live.number:  # before the first generation there is nothing to compare with
        return [*suite.errors]
    chosen = [placed for placed in suite.cases if gate.cases == "all" or placed.agent in gate.cases]
    if not chosen:
        hint = "add cases (agents.d/NAME.test.yaml), or remove the gate"
        return [Problem(path=SETTINGS_FILE, message="the gate has no case to compare (reload.gate)", hint=hint)]
    lent = {name: LentClient(client) for name, client in models.items()}
    runner = CaseRunner(launch, live=gate.model, models=lent, judges=gate.model is not None)
    pairs = [pair async for pair in run_pairs(runner, chosen, live, candidate, gate.repeat)]
    for pair in pairs:
        keep(case_result(pair.placed, pair.after, candidate.digest, "gate", gate.model))
    if not pairs:
        return []  # only agents that are new have cases
    figures = compare_pairs(pairs, gate.worse_by, gate.confidence)
    is_open = figures.verdict == "cannot tell" and not figures.unknown  # a judge that fails is no answer to be applied
    if figures.verdict == "not worse" or (is_open and gate.cannot_tell == "apply"):
        return []
    text = described(figures, gate.worse_by, gate.confidence)
    if figures.verdict == "cannot tell":
        message = f"the cases cannot tell whether the edit makes the agents worse: {text}; {advice(figures)}"
    else:
        lost = sorted((pair for pair in pairs if pair.unit.difference < 0), key=lambda pair: pair.unit.difference)[:3]
        names = ", ".join(f"{pair.placed.case.name!r} ({pair.placed.place})" for pair in lost)
        more = f" and {figures.worse - len(lost)} more" if figures.worse > len(lost) else ""
        message = f"the edit makes the agents worse: {text}; fewer attempts pass of {names}{more}"
    at = min(pairs, key=lambda pair: pair.unit.difference).placed
    hint = "agentsd test --against VERSION shows what happened instead; VERSION is a folder or a revision of git"
    return [at.problem(message, "name", hint=hint)]


def points(share: float) -> str:
    """Format a difference of success rates in percentage points, with its sign."""
    return f"{100 * share:+.0f}" if abs(share) >= 0.01 or not share else f"{100 * share:+.1f}"


def described(figures: Comparison, worse_by: float, confidence: float) -> str:
    """Return the figures as one sentence."""
    interval = f"{confidence:.0%} interval {points(figures.low)} to {points(figures.high)}"
    text = (
        f"{figures.before:.0%} of the attempts passed before and {figures.after:.0%} after, "
        f"{points(figures.difference)} points ({'exact: the models are scripted' if figures.exact else interval}); "
        f"a loss of {100 * worse_by:g} is tolerated"
    )
    return f"{text}; {figures.unknown}" if figures.unknown else text


def advice(figures: Comparison) -> str:
    """Return what would decide a comparison that cannot tell; empty for the other verdicts."""
    if figures.verdict != "cannot tell":
        return ""
    if figures.unknown:
        return "needs a model and a judge that answer"
    ways = [f"about {figures.more_cases} more cases like these"] if figures.more_cases else []
    ways += [f"{figures.repeats} attempts per case"] if figures.repeats else []
    return f"needs {' or '.join(ways)}" if ways else "needs more cases, or a larger tolerated loss (worse_by)"
