"""Runs the same cases on two versions of a project, and compares the results case by case."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from framework.config.generations.generation import Generation
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ComparisonGate
from framework.evals.runner import Attempt, CaseRunner, Launch
from framework.evals.statistics import Comparison, Unit, compare_units
from framework.evals.suite import PlacedCase, read_suite
from framework.llm.client import LentClient, ModelClient
from framework.types.problem import Problem

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
        return self.unit_if("neither")

    def unit_if(self, passes: Literal["neither", "before", "after"]) -> Unit:
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
    """Compare the two versions. Equal cases with different names count as one case that is repeated.

    Attempts without a result decide nothing: the verdict stands only if they cannot change it, whatever they were.
    """
    exact = not any(pair.varies for pair in pairs)

    def figures(passes: Literal["neither", "before", "after"]) -> Comparison:
        units: dict[str, Unit] = {}
        for pair in pairs:
            case = pair.placed.case.model_copy(update={"name": "", "note": "", "repeat": None})
            key, unit = f"{pair.placed.agent}\n{case.model_dump_json()}", pair.unit_if(passes)
            units[key] = units[key].merged(unit) if key in units else unit
        return compare_units([*units.values()], worse_by, confidence, exact=exact)

    found, attempts = figures("neither"), [one for pair in pairs for one in (*pair.before, *pair.after)]
    if not (unknown := [one.unknown for one in attempts if one.unknown]):
        return found
    is_decided = figures("before").verdict == figures("after").verdict
    text = f"{len(unknown)} of {len(attempts)} attempts have no result: {unknown[0]}"
    if is_decided:
        return replace(found, unknown=text, verdict=figures("before").verdict)
    return replace(found, unknown=text, verdict="cannot tell", more_cases=None, repeats=None)


async def comparison_problems(
    candidate: Generation, live: Generation, gate: ComparisonGate, launch: Launch, models: Mapping[str, ModelClient]
) -> list[Problem]:
    """Return why a gate rejects a candidate: invalid cases, or a success rate that is lower than live."""
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
        lost = worst(pairs)
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
    text = (
        f"{figures.before:.0%} of the attempts passed before and {figures.after:.0%} after, "
        f"{points(figures.difference)} points"
    )
    if figures.exact:
        text += " (exact: the models are scripted)"
    else:
        text += f" ({confidence:.0%} interval {points(figures.low)} to {points(figures.high)})"
    text = f"{text}; a loss of {100 * worse_by:g} is tolerated"
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


def worst(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Return the pairs that lost most, at most three."""
    lost = sorted((pair for pair in pairs if pair.unit.difference < 0), key=lambda pair: pair.unit.difference)
    return tuple(lost[:_SHOWN_CASES])
