"""Runs with a checkpoint after each step: agentsd, LangGraph, and pydantic-ai on DBOS, in turn on the same databases.

The model is scripted and in the process, and the tool returns at once, so that the time is that of the steps and their
checkpoints. Then processes are killed in runs, and others resume these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import cast

import psycopg

from benchmarks.harness import NotMeasured, Row, Table, paired
from benchmarks.peers.environment import OURS, is_installed, peer
from benchmarks.peers.job import DURABLE_STEPS, DurablePeer
from benchmarks.peers.process import PeerFailed, PeerProcess, started
from examples.scale_demo.postgres import new_database, programs, server

UNTRACED = "agentsd_untraced"
PEERS = ("langchain", "pydantic_ai")
LIMITS = {(OURS, "langchain"): None, (UNTRACED, "langchain"): 0.40, (OURS, "pydantic_ai"): 1.0}
"""What agentsd promises of its time on SQLite, beside a peer. LangGraph records no traces, so neither does agentsd."""
COMMITS = {
    "SQLite": "When a commit waits for the disk: agentsd never (write-ahead log, synchronous=NORMAL), LangGraph always "
    "(write-ahead log, FULL), DBOS always (rollback journal, FULL). Each is the default.",
    "PostgreSQL": "Each commit of each peer waits for the disk (fsync=on, synchronous_commit=on).",
}
"""What the peers' checkpoints survive, below the table of each database."""
POSTGRES = ("shared_buffers=128MB", "max_connections=50")
"""Settings of the server, which waits for the disk at each commit, as in production."""
_STEP_SECONDS = 0.02
"""Runs are killed within this time after a tool call: before its checkpoint, in it, or in the next step."""
_POLL_SECONDS = 0.0005
_GIVE_UP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Database:
    """The database of a peer."""

    url: str
    size: Callable[[], int]
    """Returns its bytes."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Milliseconds of a run of each peer: the median of each turn."""

    turns: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, process: PeerProcess, keys: Sequence[str]) -> None:
        """Execute runs with these keys. A peer that fails is left out from then on; raises PeerFailed for agentsd."""
        if name in self.failed:
            return
        try:
            seconds = process.ask({"run": keys})["seconds"]
        except PeerFailed as failure:
            if name == OURS:
                raise
            self.failed[name] = str(failure)
            self.turns.pop(name, None)
        else:
            self.turns.setdefault(name, []).append(median(seconds) * 1000)

    def rows(self, *, promised: bool) -> Iterator[Row]:
        """Yield a row per peer with its ratio to agentsd, then agentsd beside each, with what is promised."""
        ours = self.turns[OURS]
        for name, turns in self.turns.items():
            steps = f"{1000 * DURABLE_STEPS / median(turns):,.0f} steps/s"
            yield Row(title(name), median(turns), paired(turns, ours), steps)
        for (own, name), limit in LIMITS.items():
            if own in self.turns and name in self.turns:
                mine, ratio = median(self.turns[own]), paired(self.turns[own], self.turns[name])
                yield Row(f"{title(own)} beside {title(name)}", mine, ratio, at_most=limit if promised else None)


def title(name: str) -> str:
    """Return the name of a peer in tables."""
    return cast("DurablePeer", peer(name)).DURABLE_TITLE


def worker(name: str, database: Database, log: Path, last: int = 0) -> AbstractContextManager[PeerProcess]:
    """Start the worker of a peer on a database. Its tool's call number `last` never ends, so that no run does."""
    return started(name, "benchmarks.peers.durable_worker", database.url, str(log), str(last))


def speed(
    backend: str, databases: Mapping[str, Database], log: Path, rounds: int, runs: int, *, promised: bool
) -> Iterator[Table]:
    """Measure runs one after another, and what they leave in the database; `promised`: whether limits apply."""
    warm_up, durations = Durations(), Durations()
    with ExitStack() as stack:  # creates the tables; a process that ends closes its database, which is then measured
        for name, database in databases.items():
            warm_up.add(name, stack.enter_context(worker(name, database, log)), ["first"])
    before = {name: database.size() for name, database in databases.items()}
    with ExitStack() as stack:
        team = {name: stack.enter_context(worker(name, database, log)) for name, database in databases.items()}
        for turn in range(rounds + 1):
            for name, process in team.items():
                durations.add(name, process, [f"{turn}-{number}" for number in range(runs)])
    stored = {name: databases[name].size() - before[name] for name in durations.turns}
    measured = Durations({name: turns[1:] for name, turns in durations.turns.items()}, durations.failed)
    failed = "; ".join(f"{title(name)} failed: {reason}" for name, reason in measured.failed.items())
    steps = f"{DURABLE_STEPS} steps on {backend}"
    note = "\n".join(filter(None, (failed, COMMITS[backend])))
    yield Table(f"A run of {steps}", "ms", list(measured.rows(promised=promised)), note)
    rows = [Row(title(name), size / 1000 / runs / (rounds + 1), size / stored[OURS]) for name, size in stored.items()]
    yield Table(f"Stored by a run of {steps}", "kB", rows)


def killed(databases: Mapping[str, Database], folder: Path, kills: int) -> Iterator[Table]:
    """Kill processes in runs at different moments, and measure how others resume these."""
    seconds, repeated = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
    failed = dict[str, str]()
    for number in range(kills):
        for name in (name for name in databases if name not in failed):
            log = folder / f"{name}-{number}.log"
            try:
                seconds[name].append(resumed(name, databases[name], log, number, number / kills))
            except PeerFailed as failure:
                failed[name] = str(failure)
                continue
            repeated[name].append(count(log) - 2 * DURABLE_STEPS - 1)
    done = [name for name in databases if name not in failed]
    note = "; ".join(f"{title(name)} failed: {reason}" for name, reason in failed.items())
    rows = [Row(title(name), median(seconds[name]) * 1000, paired(seconds[name], seconds[OURS])) for name in done]
    yield Table("From the start of a new process to the next step of a killed run, on SQLite", "ms", rows, note)
    rows = [
        Row(title(name), mean(repeated[name]), note=f"at most {max(repeated[name])} in {kills} kills") for name in done
    ]
    yield Table("Finished model and tool calls that a resumed run repeats, on SQLite", "calls", rows, note)


def resumed(name: str, database: Database, log: Path, number: int, share: float) -> float:
    """Kill a run, and resume it in another process. Return the seconds until its next step.

    Args:
        name: of the peer.
        database: of the peer.
        log: a new file for the calls of the run.
        number: of the kill; the run is killed after its second tool call or a later one, of nine.
        share: when it is killed, as a share of `_STEP_SECONDS`.
    """
    key, calls = f"killed-{number}", 2 + number % (DURABLE_STEPS - 2)
    with worker(name, database, log, last=calls + 1) as process:
        process.send({"run": [key]})
        wait_for_lines(process, log, 2 * calls)
        sleep(share * _STEP_SECONDS)
        process.kill()
    lines = count(log)
    began = perf_counter()
    with worker(name, database, log) as process:
        process.send({"resume": key})
        wait_for_lines(process, log, lines + 1)
        seconds = perf_counter() - began
        process.receive()
    return seconds


def wait_for_lines(process: PeerProcess, log: Path, number: int) -> None:
    """Wait until a file has so many lines. Raises PeerFailed if the process ends before, or if it takes too long."""
    began = perf_counter()
    while count(log) < number:
        if process.has_ended:
            process.receive()  # raises its error
        if perf_counter() - began > _GIVE_UP_SECONDS:
            raise PeerFailed(f"only {count(log)} of {number} calls began within {_GIVE_UP_SECONDS} s")
        sleep(_POLL_SECONDS)


def count(log: Path) -> int:
    """Return the number of lines of a file, which may not exist yet."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


def on_sqlite(names: Sequence[str], folder: Path) -> dict[str, Database]:
    """Return a new database for each peer, in a folder of its own."""

    def database(own: Path) -> Database:
        own.mkdir(parents=True)
        return Database(f"sqlite:///{own}/runs.db", lambda: sum(file.stat().st_size for file in own.iterdir()))

    return {name: database(folder / name) for name in names}


def on_postgres(names: Sequence[str], url: str) -> dict[str, Database]:
    """Return a new database for each peer on a server."""

    def database(url: str) -> Database:
        def size() -> int:
            with closing(psycopg.connect(url)) as connection:
                row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
                assert row
                return int(row[0])

        return Database(url, size)

    return {name: database(new_database(url)) for name in names}


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure on SQLite, then on a temporary PostgreSQL if it is installed. Raises NotMeasured without another peer."""
    others = [name for name in PEERS if is_installed(name)]
    if not others:
        raise NotMeasured("neither LangGraph nor pydantic-ai is installed: run `make bench-peers`")
    rounds, runs = (3, 3) if quick else (9, 4)
    with TemporaryDirectory(prefix="agentsd-bench-") as temporary:
        folder = Path(temporary)
        log = folder / "calls.log"
        all_names = [OURS, UNTRACED, *others]
        yield from speed("SQLite", on_sqlite(all_names, folder / "speed"), log, rounds, runs, promised=True)
        yield from killed(on_sqlite([OURS, *others], folder / "kills"), folder, 2 if quick else 6)
        if programs() is None:
            return
        with server(POSTGRES) as running:
            databases = on_postgres(all_names, running.url)
            yield from speed("PostgreSQL", databases, log, rounds, runs, promised=False)
