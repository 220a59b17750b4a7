"""Scoring stored runs: with which expectations, what counts as a pass, and where the result is stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime
from framework.config.settings import Settings
from framework.engine.run_report import build_result
from framework.evals.runner import Attempt, score_run
from framework.evals.suite import expectations
from framework.llm.client import ModelRequest, Turn
from framework.store.store import Store
from framework.testing import ScriptedModel
from framework.types.errors import ModelError, RunNotFound, StoreError
from framework.types.report import SpanRecord
from tests.support.commands import agentsd
from tests.support.projects import agent, write

STORE = "sqlite:///runs.db"
CASES = """
expect: {not_called: [calculator], output: hello, max_calls: 1}
cases:
  - {name: it echoes, message: echo hello}
"""


def project(root: Path, cases: str = CASES) -> Path:
    files = {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo, calculator]}")}
    files["agents.d/other.yaml"] = agent("other", model="offline")
    return write(root, {**files, "agents.d/one.test.yaml": cases, "agentsd.yaml": f"store: {{url: '{STORE}'}}\n"})


def ran(root: Path, *messages: str, name: str = "one", **options: Any) -> list[str]:
    async def main() -> list[str]:
        async with Runtime.open(root, store=STORE, watch=False, **options) as runtime:
            return [(await runtime.run(message, agent=name, user=message[:4])).run_id for message in messages]

    return asyncio.run(main())


def spans_of(root: Path, run_id: str) -> list[SpanRecord]:
    async def main() -> list[SpanRecord]:
        store = await Store.open(STORE, root)
        try:
            return [*await store.spans(run_id)]
        finally:
            await store.close()

    return asyncio.run(main())


def results_of(root: Path, run_id: str) -> list[Mapping[str, Any]]:
    return [event.attributes for span in spans_of(root, run_id) if span.name == "evaluate" for event in span.events]


def test_stored_runs_are_scored_and_their_traces_have_the_results(tmp_path: Path) -> None:
    root = project(tmp_path)
    good, bad = ran(root, "echo hello", "What is 2 + 3?")
    [other] = ran(root, "echo hello", name="other")

    done = agentsd("test", "--runs", "-n 10", cwd=root)

    assert done.returncode == 1, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0].startswith(f"✗ one: {bad}  What is 2 + 3?")
    assert "expected not_called [calculator], got [calculator]" in lines
    assert any(line.startswith(f"✓ one: {good}  echo hello") for line in lines)
    assert other not in done.stdout
    assert lines[-2].endswith("one  1/2  50%")
    assert lines[-1] == "1 passed, 1 failed"
    [result] = results_of(root, good)
    assert (result["gen_ai.evaluation.name"], result["gen_ai.evaluation.score.label"]) == ("run", "pass")
    assert results_of(root, bad)[0]["gen_ai.evaluation.score.label"] == "fail"
    assert results_of(root, other) == []
    run = next(span for span in spans_of(root, good) if span.parent_id is None)
    evaluated = next(span for span in spans_of(root, good) if span.name == "evaluate")
    assert (evaluated.trace_id, evaluated.parent_id) == (run.trace_id, run.span_id)
    shown = agentsd("runs", "show", good, cwd=root).stdout
    assert "run pass" in next(line for line in shown.splitlines() if line.startswith("evaluate"))

    again = agentsd("test", "--runs", "--user echo", "--json", cwd=root)
    assert again.returncode == 0
    data = json.loads(again.stdout)
    assert [(one["run_id"], one["passed"], one["judged"]) for one in data["runs"]] == [(good, True, None)]
    assert len(results_of(root, good)) == 2, "each scoring is recorded"
    assert (asyncio.run(_replayable(root, good))) == "completed"


async def _replayable(root: Path, run_id: str) -> str:
    store = await Store.open(STORE, root)
    try:
        with pytest.raises(RunNotFound):
            await store.add_spans("run_none", [])
        return (await store.load_run(run_id)).status
    finally:
        await store.close()


@pytest.mark.parametrize("reply", ["pass", "fail", "prose", "error"])
def test_a_judge_reads_the_stored_answer_and_its_failure_is_no_pass(tmp_path: Path, reply: str) -> None:
    def judge(request: ModelRequest) -> Turn:
        if reply == "error":
            return ModelError("down")
        return "I like it" if reply == "prose" else json.dumps({"reason": "r", "verdict": reply})

    cases = "expect: {judge: {rubric: Says hello., model: critic}}\ncases: []\n"
    root = project(tmp_path, cases)
    write(root, {"agentsd.yaml": f"store: {{url: '{STORE}'}}\nmodels: {{critic: openai/gpt-critic}}\n"})
    [run_id] = ran(root, "echo hello")
    critic = ScriptedModel(script=judge)

    async def main() -> Attempt:
        async with Runtime.open(root, store=STORE, watch=False) as runtime:
            state, events = await runtime.store.load_run(run_id), await runtime.store.events(run_id)
            generation, launch = runtime.catalog.current, partial(Runtime.over, root, None)
            expect, _ = expectations(generation)["one"]
            return await score_run(expect, state, build_result(state), events, generation, launch, {"critic": critic})

    score = asyncio.run(main())
    assert score.passed is (reply == "pass")
    assert bool(score.unknown) is (reply in ("prose", "error"))
    labels = [one.label for one in score.evaluations("run", Settings())]
    assert labels == (["pass", "pass"] if reply == "pass" else ["fail", "fail" if reply == "fail" else "unsure"])
    sent = json.loads(critic.requests[0].messages[-1].content)
    assert (sent["question"], sent["answer"]) == (["echo hello"], "hello")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "--rated sideways"), "sideways"),
        (("--runs", "'"), "No closing quotation"),
        (("--runs", "", "--against", "."), "leave out --against"),
        (("--runs", "", "-a", "other"), "no case file says what to expect of all runs"),
        (("--runs", "-a nobody"), "no run of this query has ended"),
    ],
)
def test_a_query_that_scores_nothing_says_why(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    root = project(tmp_path)
    done = agentsd("test", *arguments, cwd=root)
    assert done.returncode != 0
    assert message in done.stderr + done.stdout


def test_a_run_that_waits_is_not_scored(tmp_path: Path) -> None:
    root = project(tmp_path)
    asks = agent("one", model="offline", skill_policy="{allow: [echo], ask: [echo]}")
    write(root, {"agents.d/one.yaml": asks})
    [run_id] = ran(root, "echo hello")
    assert agentsd("test", "--runs", "", cwd=root).returncode == 1

    async def add() -> None:
        store = await Store.open(STORE, root)
        try:
            await store.add_spans(run_id, [])
        finally:
            await store.close()

    with pytest.raises(StoreError, match="has not ended"):
        asyncio.run(add())


def test_a_stored_generation_is_compared_by_its_number_or_its_digest(tmp_path: Path) -> None:
    cases = "cases:\n  - {name: adds, message: What is 2 + 3?, expect: {called: [calculator], output: '5'}}\n"
    root = project(tmp_path, cases)
    ran(root, "echo hello")
    listed = json.loads(agentsd("runs", "list", "--json", cwd=root).stdout)
    write(root, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo]}")})
    for name in ("g1", listed[0]["digest"]):
        done = agentsd("test", "--against", name, cwd=root)
        assert done.returncode == 1, done.stderr
        assert "↓ one: adds  1/1 → 0/1" in done.stdout
        assert done.stdout.splitlines()[-1] == "worse"
    write(root, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [calculator]}")})
    assert agentsd("test", "--against", "g1", cwd=root).returncode == 0
    missing = agentsd("test", "--against", "g99", cwd=root)
    assert "no stored run used the generation g99" in missing.stderr
    assert "no such file or folder, nor a revision of git: main2" in (
        agentsd("test", "--against", "main2", cwd=root).stderr
    )


def test_results_of_cases_and_of_scored_runs_are_saved_in_an_existing_store(tmp_path: Path) -> None:
    def latest() -> list[tuple[str, str, int, str | None]]:
        async def main() -> list[tuple[str, str, int, str | None]]:
            store = await Store.open(STORE, tmp_path)
            try:
                found = await store.case_results.latest("one")
                return [(one.source, one.name, one.passed, one.run_id) for one in found]
            finally:
                await store.close()

        return asyncio.run(main())

    project(tmp_path)
    assert agentsd("test", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "runs.db").exists(), "a command that only tests creates no store"
    (run_id,) = ran(tmp_path, "echo hello")
    assert agentsd("test", cwd=tmp_path).returncode == 0
    assert agentsd("test", "--runs", "-n 10", cwd=tmp_path).returncode == 0
    assert agentsd("test", "--against", ".", cwd=tmp_path).returncode == 0
    test = ("test", "it echoes", 1, None)
    assert latest() == [test, ("runs", "", 1, run_id), test]


def test_a_store_that_cannot_be_opened_fails_no_case(tmp_path: Path) -> None:
    """Where the cases of a project are tested, the driver of its store may be missing."""
    write(project(tmp_path), {"agentsd.yaml": "store: {url: 'mysql://host/database'}\n"})
    done = agentsd("test", cwd=tmp_path)
    assert (done.returncode, "1 passed, 0 failed" in done.stdout) == (0, True)
    assert "the results are not saved: store.url: mysql is not supported" in done.stderr
