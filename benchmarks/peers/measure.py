"""Asks all peers for the same jobs in turn, and compares each with the hand-written loop of the same round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

from benchmarks.harness import NotMeasured, Row, Table, paired
from benchmarks.model_server import serving
from benchmarks.peers.environment import BASELINE, FRAMEWORKS, OURS, is_installed, peer, python
from benchmarks.peers.job import Done, Job
from benchmarks.peers.process import PeerFailed, PeerProcess, started

MODEL_SECONDS = 0.02
"""Latency of the model server in jobs with many conversations."""
CALLS_PER_SECOND = 3.0
"""What agentsd promises beside the best framework with 100 and with 500 conversations."""
Rounds = Mapping[str, Sequence[Done]]
"""The results of each peer, one per round."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a job, and why peers are missing from them."""

    rounds: Rounds
    failed: Mapping[str, str]

    def table(self, title: str, unit: str, value: Callable[[Done], float], *, lowest: bool = False) -> Table:
        """Compare a value of all peers with that of the hand-written loop."""
        values = {name: [value(done) for done in found] for name, found in self.rounds.items()}
        rows = [
            Row(
                peer(name).TITLE,
                min(found) if lowest else median(found),
                1 if name == BASELINE else paired(found, values[BASELINE]),
            )
            for name, found in values.items()
        ]
        return Table(title, unit, rows, "; ".join(f"{name}: {reason}" for name, reason in self.failed.items()))


def measured(team: Mapping[str, PeerProcess], job: Job, rounds: int) -> Measured:
    """Ask each peer for a job once a round, after a warm-up with fewer runs. A peer that fails is left out."""
    results, failed = defaultdict[str, list[Done]](list), dict[str, str]()
    warm_up = replace(job, runs=max(1, job.runs // 4))
    for number in range(rounds + 1):
        for name, process in team.items():
            if name in failed:
                continue
            try:
                done = process.execute(job if number else warm_up)
            except PeerFailed as failure:
                failed[name] = str(failure)
                results.pop(name, None)
                continue
            if number:
                results[name].append(done)
    if BASELINE in failed:
        raise NotMeasured(f"the {peer(BASELINE).TITLE} failed: {failed[BASELINE]}")
    return Measured(results, failed)


def serial(team: Mapping[str, PeerProcess], name: str, job: Job, rounds: int) -> Table:
    """Measure the processor time of runs one after another."""
    with serving(job.steps + job.history // 2) as url:
        result = measured(team, replace(job, url=url), rounds)
    failing = {name: str(errors) for name, found in result.rounds.items() if (errors := all_errors(found))}
    kept = {name: found for name, found in result.rounds.items() if name not in failing}
    title = f"CPU time per model call: {name}"
    return Measured(kept, {**result.failed, **failing}).table(
        title, "µs", lambda done: done.cpu_seconds / job.calls * 1e6, lowest=True
    )


def all_errors(found: Sequence[Done]) -> dict[str, int]:
    """Return how often each error ended a run, in all rounds."""
    counts = defaultdict[str, int](int)
    for done in found:
        for error, number in done.errors.items():
            counts[error] += number
    return dict(counts)


def concurrent(team: Mapping[str, PeerProcess], job: Job, rounds: int) -> Iterator[Table]:
    """Measure conversations that are in progress at once: calls per second, latencies, memory."""
    with serving(job.steps, MODEL_SECONDS) as url:
        result = measured(team, replace(job, url=url), rounds)
    title = f"{job.at_once} conversations at once, of {job.steps + 1} model calls each"
    rate = result.table(f"Model calls per second: {title}", "calls/s", lambda done: job.calls / done.seconds)
    notes = {peer(name).TITLE: noted(found) for name, found in result.rounds.items()}
    rows = [replace(row, note=notes[row.name]) for row in rate.rows]
    yield replace(rate, rows=[*rows, *beside_the_best(result.rounds, job)])
    yield result.table(f"A conversation, p50: {title}", "ms", lambda done: 1000 * at(done, 0.5))
    yield result.table(f"A conversation, p99: {title}", "ms", lambda done: 1000 * at(done, 0.99))
    yield result.table(f"CPU time per model call: {title}", "µs", lambda done: done.cpu_seconds / job.calls * 1e6)
    yield result.table(f"Resident memory: {title}", "MB", lambda done: done.memory_mb)


def noted(found: Sequence[Done]) -> str:
    """Return the errors of a peer as text."""
    errors = all_errors(found)
    return f"{sum(errors.values())} errors" + (f": {', '.join(errors)}"[:200] if errors else "")


def at(done: Done, share: float) -> float:
    """Return the latency that a share of the runs did not exceed, in seconds."""
    return done.latencies[min(len(done.latencies) - 1, int(share * len(done.latencies)))]


def beside_the_best(rounds: Rounds, job: Job) -> list[Row]:
    """Return the ratio of agentsd to the framework with the most calls per second."""
    rates = {name: [job.calls / done.seconds for done in found] for name, found in rounds.items()}
    frameworks = [name for name in rates if name in FRAMEWORKS]
    if OURS not in rates or not frameworks:
        return []
    best = max(frameworks, key=lambda name: median(rates[name]))
    name = f"agentsd beside the best framework, {peer(best).TITLE}"
    return [Row(name, median(rates[OURS]), paired(rates[OURS], rates[best]), at_least=CALLS_PER_SECOND)]


def cold(names: Sequence[str], rounds: int) -> Iterator[Table]:
    """Measure new processes, from their start to the result of their first run."""
    results, failed = defaultdict[str, list[Done]](list), dict[str, str]()
    with serving(1) as url:
        for number in range(rounds + 1):
            for name in names:
                began = perf_counter()
                try:
                    with started(name) as process:
                        done = process.execute(Job(url, steps=1))
                        seconds = perf_counter() - began
                except PeerFailed as failure:
                    failed[name] = str(failure)
                    continue
                if number:
                    results[name].append(replace(done, seconds=seconds))
    result = Measured(results, failed)
    table = result.table("A new process, until its first run of one tool call", "ms", lambda done: 1000 * done.seconds)
    packages = {peer(name).TITLE: ", ".join(peer(name).PACKAGES) for name in names}
    yield replace(table, rows=[replace(row, note=packages[row.name]) for row in table.rows])
    yield result.table("Resident memory after the first run", "MB", lambda done: done.memory_mb)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure all peers whose packages are installed. Raises NotMeasured without those of the baseline."""
    python(BASELINE)
    names = [BASELINE, OURS, *(name for name in FRAMEWORKS if is_installed(name))]
    yield from cold(names, 1 if quick else 3)
    rounds = 2 if quick else 5
    with ExitStack() as stack:
        team = {name: stack.enter_context(started(name)) for name in names}
        yield serial(team, "one call", Job("", steps=0, runs=10), rounds)
        yield serial(team, "10 steps", Job("", steps=10, runs=6), rounds)
        yield serial(team, "3 steps, 100 tools", Job("", steps=3, tools=100, runs=4), rounds)
        yield serial(team, "3 steps, 400 earlier messages", Job("", steps=3, history=400, runs=2), 1 if quick else 3)
        for conversations, steps in ((100, 4), (500, 1)):
            job = Job("", steps, runs=conversations, at_once=conversations)
            yield from concurrent(team, job, 1 if quick else 3)
