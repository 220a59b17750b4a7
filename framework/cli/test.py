"""`agentsd test`: runs the test cases of agents, on their scripts or live on a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from framework.cli.init import EXAMPLE_CASES
from framework.cli.location import (
    Location,
    ago,
    has_store,
    lenient_settings,
    locate,
    open_project_store,
    project_path,
    show_problem,
)
from framework.cli.project import trace_export, version_folder
from framework.cli.runs import parse_run_query
from framework.cli.terminal import print_json, prints_on_stderr, say
from framework.config.generations.generation import Blueprints, Generation
from framework.config.settings import Settings
from framework.config.snapshot import TEST_SUFFIXES, is_case_file
from framework.engine.context.run_context import ModelClients
from framework.engine.plan.executor import EXECUTORS
from framework.engine.run_report import build_result
from framework.engine.runtime.runtime import Runtime
from framework.evals.comparison import (
    METHOD,
    Comparison,
    Pair,
    advice,
    compare_pairs,
    described,
    is_generation,
    run_pairs,
    stored_generation,
)
from framework.evals.runner import MAX_FAILURE_CHARS, Attempt, CaseRunner, SuccessRate, case_result, rates
from framework.evals.scoring import Score, expectations, score_run
from framework.evals.suite import PlacedCase, Suite, read_suite
from framework.store.types import OPEN_STATUSES, CaseResult, RunInfo, RunQuery
from framework.telemetry.spans import evaluation_span, record_evaluations
from framework.types.errors import EXIT_NEGATIVE, ConfigError, RequestError, StoreError
from framework.types.problem import Problem
from framework.types.redact import redact
from framework.types.text import did_you_mean, one_line

HOW_TO = f"there are no cases yet. Create agents.d/AGENT.test.yaml:\n\n{EXAMPLE_CASES}"


@dataclass(frozen=True, slots=True)
class Tried:
    """A case with its attempts."""

    placed: PlacedCase
    attempts: tuple[Attempt, ...]

    @property
    def passed(self) -> bool:
        """Whether every attempt passed."""
        return all(attempt.passed for attempt in self.attempts)

    @property
    def transcript(self) -> tuple[str, ...]:
        """What happened in the first attempt that failed; empty if all passed."""
        return next((attempt.transcript for attempt in self.attempts if not attempt.passed), ())

    @property
    def failures(self) -> list[str]:
        """Distinct failures of all attempts."""
        return list(dict.fromkeys(text for attempt in self.attempts for text in attempt.failures))


@dataclass(frozen=True, slots=True)
class _Options:
    """Which cases to run, and how."""

    agent: str | None
    name: str | None
    model: str | None
    repeat: int | None
    against: str | None
    worse_by: float
    confidence: float

    def names(self, placed: PlacedCase) -> bool:
        """Return whether the name of a case contains the wanted text, in upper or lower case."""
        return self.name is None or self.name.casefold() in placed.case.name.casefold()


@click.command("test")
@project_path
@click.option("-a", "--agent", metavar="AGENT", help="Only the cases of this agent.")
@click.option("-k", "--name", metavar="TEXT", help="Only the cases whose name contains this text.")
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="Use this model instead of the scripts, e.g. openai/gpt-5.4-mini; prints success rates.",
)
@click.option(
    "-n", "--repeat", type=click.IntRange(min=1), metavar="N", help="Attempts per case. Default: its `repeat`, or 1."
)
@click.option(
    "--against",
    metavar="VERSION",
    help="Run the cases on this folder, revision of git or stored generation (g12) as well, and compare.",
)
@click.option(
    "--worse-by",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    default=0.05,
    show_default=True,
    help="With --against: the loss of the success rate that is tolerated.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.999),
    metavar="SHARE",
    default=0.95,
    show_default=True,
    help="With --against: confidence of the interval.",
)
@click.option(
    "--runs",
    "query",
    metavar="QUERY",
    help='Score stored runs instead: options of `agentsd runs list`, such as "-a support --rated down -n 100".',
)
@click.option("--otlp", metavar="URL", help="Send the traces of the runs, with their results, to this endpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(path: str, query: str | None, otlp: str | None, as_json: bool, **given: Any) -> int:
    """Run the cases of a project, of one agent file, or of one file of cases.

    With --against, the same cases run on both versions. With --runs, stored runs that have ended are checked against
    the `expect` at the top of the case files, and the results are added to their traces. Exit codes: 0 all passed, or
    not worse; 1 some did not, worse, cannot tell, or there are none.
    """
    location, options = _locate(path), _Options(**given)
    settings = lenient_settings(location)
    exports = trace_export(settings, otlp) if otlp else nullcontext()
    with exports, prints_on_stderr() if as_json else nullcontext():
        if query is not None:
            if options.against is not None or options.model is not None or options.repeat is not None:
                raise RequestError("--runs scores what ran: leave out --against, --model and --repeat")
            scores = asyncio.run(_score(location, settings, options, parse_run_query(query), as_json=as_json))
        elif options.against is not None:
            with _version(options.against, str(location.folder)) as folder:
                compared = asyncio.run(_compare(location, settings, options, folder, as_json=as_json))
        else:
            found = asyncio.run(_test(location, settings, options, as_json=as_json))
    if query is not None:
        return _report_scores(scores, as_json=as_json)
    if options.against is not None:
        return _report_comparison(*compared, options, as_json=as_json)
    return _report(*found, options.model, as_json=as_json)


def _locate(path: str) -> Location:
    """Resolve a path; for a single file of cases, resolve the file of its agent."""
    location = locate(path)
    name = location.root.name
    suffix = next((suffix for suffix in TEST_SUFFIXES if name.endswith(suffix)), None)
    if location.file is None and suffix is not None and location.root.is_file():
        return locate(str(location.root.with_name(name.removesuffix(suffix) + suffix.removeprefix(".test"))))
    return location


async def _test(
    location: Location, settings: Settings, options: _Options, *, as_json: bool
) -> tuple[list[Tried], Suite, list[Problem]]:
    await _check_model(options.model, settings)
    async with Runtime.open(location.root, settings=settings, watch=False) as runtime:
        generation = runtime.catalog.current
        suite, problems, chosen = _cases(generation, location, options, as_json=as_json)
        bench = CaseRunner(partial(Runtime.over, runtime.root, None), live=options.model)
        tried: list[Tried] = []
        for placed in chosen:
            attempts = [await bench.attempt(placed, generation) for _ in range(options.repeat or placed.repeat)]
            tried.append(Tried(placed, tuple(attempts)))
            if not as_json:
                _show(tried[-1])
    await _save(location, [case_result(one.placed, one.attempts, generation, "test", options.model) for one in tried])
    return tried, suite, problems


async def _save(location: Location, results: Sequence[CaseResult]) -> None:
    """Save results in the project's store, if it has one; the console shows their history."""
    if results and has_store(location):
        try:
            async with open_project_store(location) as store:
                await store.case_results.add(results)
        except (StoreError, ConfigError) as error:  # the cases need no store, nor the driver of one
            click.secho(f"the results are not saved: {error.message}", fg="yellow", err=True)


def _cases(
    generation: Generation, location: Location, options: _Options, *, as_json: bool
) -> tuple[Suite, list[Problem], list[PlacedCase]]:
    """Return all cases, the problems of the files, which are shown, and the chosen cases; raises RequestError."""
    suite = read_suite(generation)
    problems = [*generation.errors, *suite.problems]
    chosen = [placed for placed in _chosen(suite, generation, location, options) if _fits(placed, options.model)]
    if not chosen and suite.cases and options.name is not None:
        names = [placed.case.name for placed in suite.cases]
        raise RequestError(f"no case has {options.name!r} in its name{did_you_mean(options.name, names)}")
    if not chosen and suite.cases and options.agent is not None and location.file is not None:
        raise RequestError(f"{location.file} has no cases of agent {options.agent!r}")
    if not as_json:
        for problem in problems:
            show_problem(problem)
    return suite, problems, chosen


async def _score(
    location: Location, settings: Settings, options: _Options, query: RunQuery, *, as_json: bool
) -> list[tuple[RunInfo, Score]]:
    """Score the stored runs of a query that have ended, show each, and add the results to their traces."""
    scores: list[tuple[RunInfo, Score]] = []
    async with (
        Runtime.open(location.root, settings=settings, watch=False, gate_start=False) as runtime,
        open_project_store(location) as store,
    ):
        generation = runtime.catalog.current
        own_file = location.agent(generation) if location.file and not is_case_file(location.file) else None
        only = _one_of(options.agent, own_file)
        known = {name: one for name, one in expectations(generation).items() if only in (None, name)}
        usable = {name: one for name, one in known.items() if name in generation.agents}
        for one in usable.values() if not as_json else ():
            if problem := one.own_judge(generation):
                show_problem(problem)
        if not usable:
            hint = "write `expect: {judge: …}` at the top of agents.d/AGENT.test.yaml"
            raise ConfigError(f"no case file says what to expect of all runs: {hint}", generation.errors)
        launch = partial(Runtime.over, runtime.root, None)
        for info in await store.runs(query):
            if info.agent not in usable or info.status in OPEN_STATUSES:
                continue
            state, events = await store.load_run(info.run_id), await store.events(info.run_id)
            result = build_result(state)
            score = await score_run(usable[info.agent], state, result, events, generation, launch, {})
            record_evaluations(state.traceparent, score.results)
            if span := evaluation_span(state.traceparent, score.results, store.now()):
                await store.add_spans(info.run_id, [span])
            scores.append((info, score))
            await store.case_results.add([_scored(info, score)])
            if not as_json:
                _show_score(info, score)
    return scores


def _scored(info: RunInfo, score: Score) -> CaseResult:
    return CaseResult(
        agent=score.agent,
        name="",
        source="runs",
        digest=info.digest,
        attempts=1,
        passed=score.passed,
        unknown=score.unknown,
        cost_usd=info.cost_usd,
        failure=redact(one_line("; ".join(score.failures), MAX_FAILURE_CHARS)),
        run_id=info.run_id,
    )


def _show_score(info: RunInfo, score: Score) -> None:
    sign, color = ("✓", "green") if score.passed else ("?", "yellow") if score.unknown else ("✗", "red")
    click.secho(sign, fg=color, nl=False)
    say(f" {score.agent}: {score.run_id}  {' '.join(info.message.split())}", nl=False)
    click.secho(f"  g{info.generation}  {ago(info.created_at)}", dim=True)
    for text in score.failures:
        say(f"    {text}")


def _report_scores(scores: Sequence[tuple[RunInfo, Score]], *, as_json: bool) -> int:
    """Print the rates by day and generation, and return the exit code."""
    rates_by: dict[str, list[bool]] = {}
    for info, score in reversed(scores):
        day = datetime.fromtimestamp(info.created_at, UTC).date().isoformat()
        rates_by.setdefault(f"{day}  g{info.generation}  {score.agent}", []).append(score.passed)
    passed, unknown = sum(score.passed for _, score in scores), sum(score.unknown for _, score in scores)
    if as_json:
        data = {
            "runs": [
                {
                    "run_id": score.run_id,
                    "agent": score.agent,
                    "generation": info.generation,
                    "passed": score.passed,
                    "unknown": score.unknown,
                    "failures": score.failures,
                    "judged": score.judged and score.judged.as_data(),
                }
                for info, score in scores
            ],
            "passed": passed,
            "failed": len(scores) - passed,
        }
        print_json(data)
    elif not scores:
        click.echo("no run of this query has ended, and has an agent whose case file says what to expect")
    else:
        for name, outcomes in rates_by.items():
            say(f"  {name}  {SuccessRate(sum(outcomes), len(outcomes))}")
        text = f"{passed} passed, {len(scores) - passed} failed"
        click.secho(
            f"{text}, {unknown} of them without a verdict" if unknown else text,
            fg="red" if passed < len(scores) else "green",
        )
    return 0 if scores and passed == len(scores) else EXIT_NEGATIVE


@contextmanager
def _version(name: str, project: str) -> Iterator[str | None]:
    """Yield the folder of a version; None if the name is neither a folder nor a revision, but can be a generation."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(version_folder(name, project))
        except RequestError:
            if not is_generation(name):
                raise
            folder = None
        yield folder


async def _compare(
    location: Location, settings: Settings, options: _Options, folder: str | None, *, as_json: bool
) -> tuple[list[Pair], Suite, list[Problem]]:
    """Run the chosen cases on an earlier version and on the current one; raises ConfigError if that is useless.

    The earlier version is that in `folder`, or a stored generation.
    """
    await _check_model(options.model, settings)
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime.open(location.root, settings=settings, watch=False))
        after = runtime.catalog.current
        if folder is not None:
            root = locate(folder).root
            earlier = await stack.enter_async_context(Runtime.open(root, watch=False, gate_start=False))
            before = earlier.catalog.current
        else:
            store = await stack.enter_async_context(open_project_store(location))
            before = await stored_generation(store, options.against or "", after, Blueprints(EXECUTORS))
        suite, problems, chosen = _cases(after, location, options, as_json=as_json)
        pairs: list[Pair] = []
        bench = CaseRunner(partial(Runtime.over, runtime.root, None), live=options.model)
        async for pair in run_pairs(bench, chosen, before, after, options.repeat):
            pairs.append(pair)
            if not as_json:
                _show_pair(pair)
        await _save(location, [case_result(one.placed, one.after, after, "test", options.model) for one in pairs])
        if chosen and not pairs:
            raise ConfigError(f"no agent of these cases is usable in {options.against}", before.errors)
    return pairs, suite, problems


async def _check_model(model: str | None, settings: Settings) -> None:
    """Raise ConfigError for a model without a key, once instead of in every case."""
    if model is not None:
        models = ModelClients({})
        models.get(settings, model)
        await models.close()


def _one_of(wanted: str | None, of_file: str | None) -> str | None:
    """Return the agent whose cases are run. Raise RequestError if the option and the file name different ones."""
    if wanted and of_file and wanted != of_file:
        raise RequestError(f"the file is that of agent {of_file!r}, not of {wanted!r}: leave out one of them")
    return wanted or of_file


def _chosen(suite: Suite, generation: Generation, location: Location, wanted: _Options) -> Iterator[PlacedCase]:
    agent = wanted.agent
    if agent is not None:
        generation.agent(agent)
    file = location.file
    if file is not None and not is_case_file(file):
        agent, file = _one_of(agent, location.agent(generation)), None
    for placed in suite.cases:
        if (agent is None or placed.agent == agent) and file in (None, placed.document.path) and wanted.names(placed):
            yield placed


def _fits(placed: PlacedCase, model: str | None) -> bool:
    """Return whether a case applies: a scripted failure cannot be repeated with a real model."""
    return model is None or not any(answer.fail for answer in placed.case.model or ())


def _show(tried: Tried) -> None:
    attempts = tried.attempts
    elapsed = sum(attempt.elapsed_ms for attempt in attempts)
    count = f"  {sum(attempt.passed for attempt in attempts)}/{len(attempts)}" if len(attempts) > 1 else ""
    click.secho("✓" if tried.passed else "✗", fg="green" if tried.passed else "red", nl=False)
    say(f" {tried.placed.agent}: {tried.placed.case.name}{count}", nl=False)
    click.secho(f"  {elapsed:.0f} ms", dim=True)
    for text in tried.failures:
        say(f"    {text}  ({tried.placed.place})")
    for line in tried.transcript:
        say(f"      {line}")


def _report(
    tried: Sequence[Tried], suite: Suite, problems: Sequence[Problem], model: str | None, *, as_json: bool
) -> int:
    """Print the summary, and return the exit code."""
    passed = sum(one.passed for one in tried)
    failed = len(tried) - passed
    found = rates((one.placed.case, attempt) for one in tried for attempt in one.attempts) if model else {}
    if as_json:
        print_json(_as_data(tried, problems, found))
    elif not tried and not suite.errors:
        click.echo(HOW_TO, nl=False)
    else:
        click.secho(f"{passed} passed, {failed} failed", fg="red" if failed else "green")
        _show_rates(model or "", found)
    return EXIT_NEGATIVE if failed or suite.errors or not tried else 0


def _show_pair(pair: Pair) -> None:
    unit = pair.unit
    sign, style = ("=", None) if not unit.difference else ("↑", "green") if unit.difference > 0 else ("↓", "red")
    click.secho(sign, fg=style, nl=False)
    say(f" {pair.placed.agent}: {pair.placed.case.name}", nl=False)
    click.secho(
        f"  {unit.before_passed}/{unit.before} → {unit.after_passed}/{unit.after}", dim=not unit.difference or None
    )
    if unit.difference < 0:
        for text in Tried(pair.placed, pair.after).failures:
            say(f"    {text}  ({pair.placed.place})")


def _report_comparison(
    pairs: Sequence[Pair], suite: Suite, problems: Sequence[Problem], options: _Options, *, as_json: bool
) -> int:
    """Print the figures and the verdict, and return the exit code."""
    if not pairs:
        return _report([], suite, problems, options.model, as_json=as_json)
    figures = compare_pairs(pairs, options.worse_by, options.confidence)
    if as_json:
        print_json(_comparison_data(pairs, figures, problems, options))
    else:
        color = {"worse": "red", "not worse": "green", "cannot tell": "yellow"}[figures.verdict]
        say(f"{described(figures, options.worse_by, options.confidence)}")
        click.secho(figures.verdict, fg=color, nl=False)
        say(f": {advice(figures)}" if advice(figures) else "")
    return EXIT_NEGATIVE if suite.errors or figures.verdict != "not worse" else 0


def _comparison_data(
    pairs: Sequence[Pair], figures: Comparison, problems: Sequence[Problem], options: _Options
) -> dict[str, object]:
    return {
        "against": options.against,
        "verdict": figures.verdict,
        "worse_by": options.worse_by,
        "confidence": options.confidence,
        "method": "exact" if figures.exact else METHOD,
        **{name: round(getattr(figures, name), 6) for name in ("before", "after", "difference", "low", "high")},
        "units": figures.cases,
        "better": figures.better,
        "worse": figures.worse,
        "more_cases": figures.more_cases,
        "repeats": figures.repeats,
        "unknown": figures.unknown,
        "cases": [
            {
                "name": pair.placed.case.name,
                "agent": pair.placed.agent,
                "place": pair.placed.place,
                "before": _attempts_data(pair.before),
                "after": _attempts_data(pair.after),
            }
            for pair in pairs
        ],
        "problems": [problem.model_dump(exclude_none=True) for problem in problems],
    }


def _attempts_data(attempts: Sequence[Attempt]) -> dict[str, object]:
    """Return the numbers of attempts, and the results of their judge."""
    judged = [attempt.judged.as_data() for attempt in attempts if attempt.judged]
    data: dict[str, object] = {"attempts": len(attempts), "attempts_passed": sum(one.passed for one in attempts)}
    return data | ({"judged": judged} if judged else {})


def _show_rates(model: str, found: dict[str, SuccessRate]) -> None:
    if found:
        click.echo(f"\n{model}:")
    for name, rate in found.items():
        click.echo(f"  {name:<16}{rate if rate.tried else '-'}")


def _as_data(tried: Sequence[Tried], problems: Sequence[Problem], found: dict[str, SuccessRate]) -> dict[str, object]:
    cases = [
        {
            "name": one.placed.case.name,
            "agent": one.placed.agent,
            "place": one.placed.place,
            "passed": one.passed,
            **_attempts_data(one.attempts),
            "failures": one.failures,
            "transcript": one.transcript,
            "elapsed_ms": round(sum(attempt.elapsed_ms for attempt in one.attempts), 1),
        }
        for one in tried
    ]
    data: dict[str, object] = {
        "passed": sum(one.passed for one in tried),
        "failed": sum(not one.passed for one in tried),
        "cases": cases,
        "problems": [problem.model_dump(exclude_none=True) for problem in problems],
    }
    if found:
        data["rates"] = {name: {"passed": rate.passed, "tried": rate.tried} for name, rate in found.items()}
    return data
