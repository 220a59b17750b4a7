"""The workers of the benchmarks beside other frameworks: what they check, and what is left out if a peer fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.durable import UNTRACED, count, on_sqlite, resumed
from benchmarks.harness import NotMeasured, Table
from benchmarks.model_server import serving
from benchmarks.peers import environment, worker
from benchmarks.peers import process as peer_process
from benchmarks.peers.job import DURABLE_STEPS, Done, History, Job, Run, ToolFunction
from benchmarks.peers.measure import Measured, beside_the_best
from benchmarks.peers.process import PeerFailed, started
from benchmarks.peers.worker import Worker, answer, working
from tests.support.cases import FACTOR

PEERS = (environment.BASELINE, environment.OURS, UNTRACED, *environment.FRAMEWORKS)


def done(seconds: float) -> Done:
    return Done(seconds, seconds, [seconds], {}, 1)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_can_be_read_without_its_framework_and_pins_its_packages(name: str) -> None:
    packages = environment.peer(name).PACKAGES
    assert all("==" in package for package in packages)
    assert bool(packages) == (name not in (environment.OURS, UNTRACED))


def test_a_peer_whose_packages_have_changed_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    stamp = tmp_path / "agno" / environment.STAMP
    stamp.parent.mkdir()
    stamp.write_text("\n".join(environment.peer("agno").PACKAGES), "utf-8")
    assert environment.is_installed("agno")
    stamp.write_text("agno==1", "utf-8")
    assert not environment.is_installed("agno")
    with pytest.raises(NotMeasured, match="make bench-peers"):
        environment.python("agno")


def test_a_worker_executes_concurrent_runs_with_exact_tool_calls() -> None:
    async def main(url: str) -> Done:
        async with working("agentsd") as worker:
            return await worker.execute(Job(url, steps=2, tools=3, history=4, runs=6, at_once=3))

    with serving(4) as url:
        result = asyncio.run(main(url))
    assert (len(result.latencies), dict(result.errors)) == (6, {})


def test_a_worker_refuses_runs_with_other_tool_calls_than_expected() -> None:
    async def main(url: str) -> None:
        async with working("agentsd") as worker:
            await worker.execute(Job(url, steps=2))

    with (
        serving(1) as url,
        pytest.raises(ValueError, match=r"its runs made the tool calls \{0: 1\}, not \{0: 1, 1: 1\}"),
    ):
        asyncio.run(main(url))


class Breaking:
    """A peer whose runs raise an error, or never end."""

    TITLE = "breaking"
    PACKAGES: tuple[str, ...] = ()

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits

    @asynccontextmanager
    async def opened(self, url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
        async def run() -> str:
            if self._waits:
                await asyncio.Event().wait()
            raise RuntimeError("broken")

        yield run


def test_errors_of_runs_are_counted_and_sent_as_json() -> None:
    result = asyncio.run(answer(Worker(Breaking()), asdict(Job("", steps=1, runs=3, at_once=2))))
    assert json.loads(json.dumps(result))["errors"] == {"RuntimeError: broken": 3}


def test_a_job_that_takes_too_long_tells_how_many_runs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LIMIT_SECONDS", 0)
    result = asyncio.run(answer(Worker(Breaking(waits=True)), asdict(Job("", steps=1, runs=3, at_once=2))))
    assert result == {"error": "only 0 of 3 runs ended within 0 s"}


def test_a_process_reports_the_error_of_a_job_and_executes_the_next_one() -> None:
    with serving(1) as url, started("agentsd") as process:
        with pytest.raises(PeerFailed, match="its runs made the tool calls"):
            process.execute(Job(url, steps=2))
        assert not process.execute(Job(url, steps=1)).errors


def test_a_process_that_ends_tells_its_last_words() -> None:
    expected = "ended with status 1: .*No module named"
    with started("agentsd", "benchmarks.peers.nothing") as process, pytest.raises(PeerFailed, match=expected):
        process.receive()


def test_a_process_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_process, "_ANSWER_SECONDS", 0)
    with started("agentsd") as process:  # it has got no request
        with pytest.raises(PeerFailed, match="gave no answer within 0 s"):
            process.receive()
        assert process.has_ended


@pytest.mark.parametrize("name", [environment.OURS, UNTRACED][:FACTOR])  # the second differs in its tracing alone
def test_a_killed_run_is_resumed_by_another_process(name: str, tmp_path: Path) -> None:
    log = tmp_path / "calls.log"
    (database,) = on_sqlite([name], tmp_path / "databases").values()
    assert resumed(name, database, log, number=0, share=0.5) > 0
    assert count(log) >= 2 * DURABLE_STEPS + 1
    assert database.size() > 0


def test_the_best_framework_is_the_one_with_the_most_calls_per_second() -> None:
    turns: dict[str, Sequence[Done]] = {
        "by_hand": [done(1), done(1)],
        "agentsd": [done(1), done(2)],
        "agno": [done(8), done(16)],
        "langchain": [done(5), done(10)],
    }
    (row,) = beside_the_best(turns, Job("", steps=1, runs=10))
    assert (row.name, row.ratio, row.kept) == ("agentsd beside the best framework, langchain", 5, True)
    assert not beside_the_best({"by_hand": [done(1)], "agentsd": [done(1)]}, Job("", steps=1))


def test_a_table_names_the_peers_that_failed() -> None:
    found: Table = Measured({"by_hand": [done(2)], "agentsd": [done(1)]}, {"agno": "broken"}).table(
        "Work", "s", lambda one: one.seconds
    )
    assert [(row.name, row.value, row.ratio) for row in found.rows] == [
        ("hand-written loop", 2, 1),
        ("agentsd", 1, 0.5),
    ]
    assert found.note == "agno: broken"
