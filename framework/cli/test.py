"""`agentsd test`: runs the test cases of agents, on their scripts or live on a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import asdict, dataclass
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
from framework.evals.runner import Attempt, CaseRunner, SuccessRate, case_result, rates, run_result, score_run
from framework.evals.suite import PlacedCase, Suite, expectations, own_judge, read_suite
from framework.store.types import OPEN_STATUSES, RunInfo, RunQuery
from framework.telemetry.spans import evaluation_span, record_evaluations
from framework.types.errors import EXIT_NEGATIVE, ConfigError, RequestError, StoreError
from framework.types.problem import Problem
from framework.types.text import did_you_mean

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

    location: Location
    settings: Settings
    agent: str | None
    name: str | None
    model: str | None
    repeat: int | None
    against: str | None
    worse_by: float
    confidence: float
    as_json: bool

    def show(self, problems: Iterable[Problem]) -> None:
        """Print problems, unless the output is JSON, which has them."""
        for problem in () if self.as_json else problems:
            show_problem(problem)


Report = Callable[[], int]
"""Prints what was found, and returns the exit code."""


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
    location = _locate(path)
    settings = lenient_settings(location)
    options = _Options(location, settings, as_json=as_json, **given)
    exports = trace_export(settings, otlp) if otlp else nullcontext()
    with exports, prints_on_stderr() if as_json else nullcontext():
        if query is not None:
            if options.against is not None or options.model is not None or options.repeat is not None:
                raise RequestError("--runs scores what ran: leave out --against, --model and --repeat")
            report = asyncio.run(_score(options, parse_run_query(query)))
        elif options.against is not None:
            report = asyncio.run(_compare(options, options.against))
        else:
            report = asyncio.run(_test(options))
    return report()


def _locate(path: str) -> Location:
    """Resolve a path; for a single file of cases, resolve the file of its agent."""
    location = locate(path)
    name = location.root.name
    suffix = next((suffix for suffix in TEST_SUFFIXES if name.endswith(suffix)), None)
    if location.file is None and suffix is not None and location.root.is_file():
        return locate(str(location.root.with_name(name.removesuffix(suffix) + suffix.removeprefix(".test"))))
    return location


async def _test(options: _Options) -> Report:
    await _check_model(options)
    async with Runtime.open(options.location.root, settings=options.settings, watch=False) as runtime:
        generation = runtime.catalog.current
        suite, problems, chosen = _cases(generation, options)
        bench = CaseRunner(partial(Runtime.over, runtime.root, None), live=options.model)
        tried: list[Tried] = []
        for placed in chosen:
            attempts = [await bench.attempt(placed, generation) for _ in range(options.repeat or placed.repeat)]
            tried.append(Tried(placed, tuple(attempts)))
            if not options.as_json:
                _show(tried[-1])
    await _save(tried, generation, options)
    return partial(_report, tried, suite, problems, options)


async def _save(tried: Sequence[Tried], generation: Generation, options: _Options) -> None:
    """Save results in the project's store, if it has one; the console shows their history."""
    digest, model = generation.digest, options.model
    results = [case_result(one.placed, one.attempts, digest, "test", model) for one in tried]
    if results and has_store(options.location):
        try:
            async with open_project_store(options.location) as store:
                await store.case_results.add(results)
        except (StoreError, ConfigError) as error:  # the cases need no store, nor the driver of one
            click.secho(f"the results are not saved: {error.message}", fg="yellow", err=True)


def _cases(generation: Generation, options: _Options) -> tuple[Suite, list[Problem], list[PlacedCase]]:
    """Return all cases, the problems of the files, which are shown, and the chosen cases; raises RequestError."""
    suite, file = read_suite(generation), options.location.file
    problems = [*generation.errors, *suite.problems]
    chosen = [*_chosen(suite, generation, options)]
    if not chosen and suite.cases and options.name is not None:
        names = [placed.case.name for placed in suite.cases]
        raise RequestError(f"no case has {options.name!r} in its name{did_you_mean(options.name, names)}")
    if not chosen and suite.cases and options.agent is not None and file is not None:
        raise RequestError(f"{file} has no cases of agent {options.agent!r}")
    options.show(problems)
    return suite, problems, chosen


def _agent_of(generation: Generation, options: _Options) -> str | None:
    """Return the agent whose cases are run. Raise RequestError if the option and the file name different ones."""
    location, wanted = options.location, options.agent
    of_file = location.agent(generation) if location.file and not is_case_file(location.file) else None
    if wanted and of_file and wanted != of_file:
        raise RequestError(f"the file is that of agent {of_file!r}, not of {wanted!r}: leave out one of them")
    return wanted or of_file


def _chosen(suite: Suite, generation: Generation, options: _Options) -> Iterator[PlacedCase]:
    if options.agent is not None:
        generation.agent(options.agent)
    agent, file, text = _agent_of(generation, options), options.location.file, (options.name or "").casefold()
    for placed in suite.cases:
        is_chosen = agent in (None, placed.agent) and text in placed.case.name.casefold()
        if file is not None and is_case_file(file):
            is_chosen = is_chosen and placed.document.path == file
        if options.model is not None and any(answer.fail for answer in placed.case.model or ()):
            is_chosen = False  # a scripted failure cannot be repeated with a real model
        if is_chosen:
            yield placed


async def _check_model(options: _Options) -> None:
    """Raise ConfigError for a model without a key, once instead of in every case."""
    if options.model is not None:
        models = ModelClients({})
        models.get(options.settings, options.model)
        await models.close()


# --- stored runs


async def _score(options: _Options, query: RunQuery) -> Report:
    """Score the stored runs of a query that have ended, show each, and add the results to their traces."""
    scores: list[tuple[RunInfo, Attempt]] = []
    async with (
        Runtime.open(options.location.root, settings=options.settings, watch=False, gate_start=False) as runtime,
        open_project_store(options.location) as store,
    ):
        generation = runtime.catalog.current
        only = _agent_of(generation, options)
        known = {name: one for name, one in expectations(generation).items() if only in (None, name)}
        usable = {name: one for name, one in known.items() if name in generation.agents}
        for name, (expect, document) in usable.items():
            if expect.judge is not None:
                options.show(own_judge(expect.judge, generation.agents[name], generation, document))
        if not usable:
            hint = "write `expect: {judge: …}` at the top of agents.d/AGENT.test.yaml"
            raise ConfigError(f"no case file says what to expect of all runs: {hint}", generation.errors)
        launch = partial(Runtime.over, runtime.root, None)
        for info in await store.runs(query):
            if info.agent not in usable or info.status in OPEN_STATUSES:
                continue
            state, events = await store.load_run(info.run_id), await store.events(info.run_id)
            expect, _ = usable[info.agent]
            score = await score_run(expect, state, build_result(state), events, generation, launch, {})
            results = score.evaluations("run", generation.settings)
            record_evaluations(state.traceparent, results)
            if span := evaluation_span(state.traceparent, results, store.now()):
                await store.add_spans(info.run_id, [span])
            scores.append((info, score))
            await store.case_results.add([run_result(info, score)])
            if not options.as_json:
                _show_score(info, score)
    return partial(_report_scores, scores, options)


def _show_score(info: RunInfo, score: Attempt) -> None:
    sign, color = ("✓", "green") if score.passed else ("?", "yellow") if score.unknown else ("✗", "red")
    click.secho(sign, fg=color, nl=False)
    say(f" {info.agent}: {info.run_id}  {' '.join(info.message.split())}", nl=False)
    click.secho(f"  g{info.generation}  {ago(info.created_at)}", dim=True)
    for text in score.failures:
        say(f"    {text}")


def _report_scores(scores: Sequence[tuple[RunInfo, Attempt]], options: _Options) -> int:
    """Print the rates by day and generation, and return the exit code."""
    passed, unknown = sum(score.passed for _, score in scores), sum(bool(score.unknown) for _, score in scores)
    failed = len(scores) - passed
    if options.as_json:
        rows = [
            {
                **{name: getattr(info, name) for name in ("run_id", "agent", "generation")},
                "passed": score.passed,
                "unknown": bool(score.unknown),
                "failures": score.failures,
                "judged": score.judged and score.judged.as_data(),
            }
            for info, score in scores
        ]
        print_json({"runs": rows, "passed": passed, "failed": failed})
    elif not scores:
        click.echo("no run of this query has ended, and has an agent whose case file says what to expect")
    else:
        outcomes: dict[str, list[bool]] = {}
        for info, score in reversed(scores):
            day = datetime.fromtimestamp(info.created_at, UTC).date().isoformat()
            outcomes.setdefault(f"{day}  g{info.generation}  {info.agent}", []).append(score.passed)
        for name, one in outcomes.items():
            say(f"  {name}  {SuccessRate(sum(one), len(one))}")
        doubt = f", {unknown} of them without a verdict" if unknown else ""
        click.secho(f"{passed} passed, {failed} failed{doubt}", fg="red" if failed else "green")
    return EXIT_NEGATIVE if failed or not scores else 0


# --- two versions


async def _compare(options: _Options, version: str) -> Report:
    """Run the chosen cases on an earlier version and on the current one; raises ConfigError if that is useless.

    The earlier version is a folder, a revision of git, or a stored generation.
    """
    await _check_model(options)
    async with AsyncExitStack() as stack:
        try:
            folder = stack.enter_context(version_folder(version, str(options.location.folder)))
        except RequestError:
            if not is_generation(version):
                raise
            folder = None
        opened = Runtime.open(options.location.root, settings=options.settings, watch=False)
        runtime = await stack.enter_async_context(opened)
        after = runtime.catalog.current
        if folder is not None:
            earlier = Runtime.open(locate(folder).root, watch=False, gate_start=False)
            before = (await stack.enter_async_context(earlier)).catalog.current
        else:
            store = await stack.enter_async_context(open_project_store(options.location))
            before = await stored_generation(store, version, after, Blueprints(EXECUTORS))
        suite, problems, chosen = _cases(after, options)
        pairs: list[Pair] = []
        bench = CaseRunner(partial(Runtime.over, runtime.root, None), live=options.model)
        async for pair in run_pairs(bench, chosen, before, after, options.repeat):
            pairs.append(pair)
            if not options.as_json:
                _show_pair(pair)
        await _save([Tried(one.placed, one.after) for one in pairs], after, options)
        if chosen and not pairs:
            raise ConfigError(f"no agent of these cases is usable in {version}", before.errors)
    return partial(_report_comparison, pairs, suite, problems, options)


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


def _report(tried: Sequence[Tried], suite: Suite, problems: Sequence[Problem], options: _Options) -> int:
    """Print the summary, and return the exit code."""
    passed = sum(one.passed for one in tried)
    failed = len(tried) - passed
    attempts = ((one.placed.case, attempt) for one in tried for attempt in one.attempts)
    found = rates(attempts) if options.model else {}
    if options.as_json:
        print_json(_as_data(tried, problems, found))
    elif not tried and not suite.errors:
        click.echo(HOW_TO, nl=False)
    else:
        click.secho(f"{passed} passed, {failed} failed", fg="red" if failed else "green")
        if found:
            click.echo(f"\n{options.model}:")
        for name, rate in found.items():
            click.echo(f"  {name:<16}{rate if rate.tried else '-'}")
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


def _report_comparison(pairs: Sequence[Pair], suite: Suite, problems: Sequence[Problem], options: _Options) -> int:
    """Print the figures and the verdict, and return the exit code."""
    if not pairs:
        return _report([], suite, problems, options)
    figures = compare_pairs(pairs, options.worse_by, options.confidence)
    if options.as_json:
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
    shown = asdict(figures)
    is_exact, units = shown.pop("exact"), shown.pop("cases")
    return {
        **{name: getattr(options, name) for name in ("against", "worse_by", "confidence")},
        "method": "exact" if is_exact else METHOD,
        "units": units,
        **{name: round(value, 6) if isinstance(value, float) else value for name, value in shown.items()},
        "cases": [
            {**_placed(pair.placed), "before": _attempts_data(pair.before), "after": _attempts_data(pair.after)}
            for pair in pairs
        ],
        "problems": [problem.model_dump(exclude_none=True) for problem in problems],
    }


def _placed(placed: PlacedCase) -> dict[str, object]:
    return {"name": placed.case.name, "agent": placed.agent, "place": placed.place}


def _attempts_data(attempts: Sequence[Attempt]) -> dict[str, object]:
    """Return the numbers of attempts, and the results of their judge."""
    judged = [attempt.judged.as_data() for attempt in attempts if attempt.judged]
    data: dict[str, object] = {"attempts": len(attempts), "attempts_passed": sum(one.passed for one in attempts)}
    return data | ({"judged": judged} if judged else {})


def _as_data(tried: Sequence[Tried], problems: Sequence[Problem], found: dict[str, SuccessRate]) -> dict[str, object]:
    cases = [
        {
            **_placed(one.placed),
            "passed": one.passed,
            **_attempts_data(one.attempts),
            "failures": one.failures,
            "transcript": one.transcript,
            "elapsed_ms": round(sum(attempt.elapsed_ms for attempt in one.attempts), 1),
        }
        for one in tried
    ]
    passed = sum(one.passed for one in tried)
    data: dict[str, object] = {"passed": passed, "failed": len(tried) - passed, "cases": cases}
    data["problems"] = [problem.model_dump(exclude_none=True) for problem in problems]
    return data | ({"rates": {name: asdict(rate) for name, rate in found.items()}} if found else {})
