"""`plan.on_failure: ask`: the user chooses what follows a failed step, in any process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Edit, Reject, RequestError, Respond, RunResult, Runtime
from framework.testing import JsonStore, ScriptedModel, Turn
from framework.types.events import wire
from framework.types.plan import PlanDraft
from framework.types.state import Decision
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.plans import (
    Workshop,
    draft,
    model_step,
    plan_graphs,
    plan_project,
    repeated_call,
    step,
    step_statuses,
)

ASK = "{on_failure: ask, approval: never}"
PLAN = draft(step("a"), step("b", "a"), step("c", "b"), step("d", "a"))


class Broken(Workshop):
    """A workshop whose failing calls succeed after the given number of attempts."""

    def __init__(self, *failing: str, until: int) -> None:
        super().__init__(*failing)
        self.until = until

    def mend(self) -> None:
        self.failing = {name for name in self.failing if self.log.count(f"+{name}") < self.until}


def drive(
    root: Path, shop: Workshop, turns: list[Turn], answers: list[Decision], store: JsonStore | None = None
) -> tuple[RunResult, list[dict[str, Any]]]:
    """Run, and answer each round of questions with the same decision in a new runtime."""
    store = store or JsonStore()
    model = ScriptedModel(*turns)
    seen: list[dict[str, Any]] = []

    async def main() -> RunResult:
        options: dict[str, Any] = {"tools": shop.tools(), "models": {"scripted": model}, "watch": False}
        async with Runtime.open(root, store=store, **options) as runtime:
            result = await runtime.run("do it")
        for answer in answers:
            assert result.status == "paused", result.error
            if isinstance(shop, Broken):
                shop.mend()
            async with Runtime.open(root, store=store, **options) as runtime:
                decisions = {asked.id: answer for asked in result.pending}
                async with runtime.resume_stream(result.run_id, decisions) as stream:
                    seen.extend([wire(event) async for event in stream])
                result = await stream.result()
        return result

    return asyncio.run(main()), seen


def test_the_question_shows_the_step_and_its_choices(tmp_path: Path) -> None:
    shop = Workshop("b")
    result, _ = drive(plan_project(tmp_path, plan=ASK), shop, [PLAN], [])
    assert (result.status, result.finish_reason) == ("paused", "confirmation")
    (asked,) = result.pending
    assert (asked.kind, asked.tool, asked.arguments) == ("step", "work", {"n": "b"})
    assert (asked.id, asked.choices) == ("failed-1-b", ("retry", "skip", "stop"))
    assert asked.reason.startswith("step b failed: Error: work failed: ValueError: broken")
    assert asked.rule == "plan.on_failure (agents.d/p.yaml:8)"
    assert "+c" not in shop.log


def test_skip_skips_the_dependents_of_the_step(tmp_path: Path) -> None:
    shop = Workshop("b")
    result, seen = drive(plan_project(tmp_path, plan=ASK), shop, [PLAN, "done"], [Respond(text="skip")])
    assert (result.status, result.output) == ("completed", "done")
    assert step_statuses(result) == {"a": "done", "b": "failed", "c": "skipped", "d": "done"}
    assert [w["message"] for w in seen if w["event"] == "warning"] == [
        "the plan completed without these steps: b failed, c skipped"
    ]


@pytest.mark.parametrize("until", [1, 2])
def test_retry_runs_the_step_again_and_asks_again_if_it_fails(tmp_path: Path, until: int) -> None:
    shop = Broken("b", until=until)
    again: list[Decision] = [Respond(text="retry")] * until
    result, seen = drive(plan_project(tmp_path, plan=ASK), shop, [PLAN, "done"], again)
    assert (result.status, result.output) == ("completed", "done")
    assert set(step_statuses(result).values()) == {"done"}
    assert shop.log.count("+b") == until + 1
    assert [entry for entry in shop.log if entry in ("+a", "+c", "+d")] == ["+a", "+d", "+c"], "nothing else again"
    assert [e["revision"] for e in seen if e["event"] == "plan"] == [*range(2, until + 2)]
    assert not [e for e in seen if e["event"] == "warning" and e["code"] == "steps_not_done"]


def test_a_retry_runs_a_goal_again(tmp_path: Path) -> None:
    plan = draft(model_step("think"), step("b", "think"))
    root = plan_project(tmp_path, plan=ASK, runtime_policy="{max_repeated_calls: 1}")

    turns = [plan, repeated_call(), repeated_call(), "thought", "done"]
    result, _ = drive(root, Workshop(), turns, [Respond(text="retry")])
    assert (result.status, result.output) == ("completed", "done")
    assert step_statuses(result) == {"think": "done", "b": "done"}


@pytest.mark.parametrize("decision", [Respond(text="stop"), Reject(), Reject(reason="enough")])
def test_stop_fails_the_run_with_the_results_so_far(tmp_path: Path, decision: Decision) -> None:
    result, _ = drive(plan_project(tmp_path, plan=ASK), Workshop("b"), [PLAN], [decision])
    assert (result.status, result.finish_reason, result.output) == ("failed", "step_failed", "did a\ndid d")
    assert result.error is not None
    assert result.error.message.startswith("step b failed, and the user stopped the run: Error: work failed")
    assert step_statuses(result) == {"a": "done", "b": "failed", "c": "skipped", "d": "done"}


@pytest.mark.parametrize("decision", [Approve(), Edit(arguments={}), Respond(text="maybe"), Respond(text="")])
def test_any_other_answer_is_refused_and_the_question_stays_open(tmp_path: Path, decision: Decision) -> None:
    store, root = JsonStore(), plan_project(tmp_path, plan=ASK)
    result, _ = drive(root, Workshop("b"), [PLAN], [], store)

    async def main() -> None:
        async with Runtime.open(root, tools=Workshop().tools(), store=store, watch=False) as runtime:
            with pytest.raises(RequestError, match=r"failed-1-b(:| is a question:) "):
                await runtime.resume(result.run_id, {"failed-1-b": decision})
            (asked,) = await runtime.pending(result.run_id)
            assert asked.id == "failed-1-b"

    asyncio.run(main())


def test_failed_steps_are_decided_one_by_one(tmp_path: Path) -> None:
    plan = draft(step("a"), step("b"), step("c", "a"), step("d", "b"))
    store, shop = JsonStore(), Workshop("a", "b")
    root = plan_project(tmp_path, plan="{on_failure: ask, approval: never, max_parallel: 2}")
    model = ScriptedModel(plan, "done")

    async def main() -> RunResult:
        options: dict[str, Any] = {"tools": shop.tools(), "models": {"scripted": model}, "watch": False}
        async with Runtime.open(root, store=store, **options) as runtime:
            result = await runtime.run("do it")
            assert [asked.id for asked in result.pending] == ["failed-1-a", "failed-1-b"]
            assert result.incomplete == (), "a person can still retry them"
            result = await runtime.resume(result.run_id, {"failed-1-b": Respond(text="skip")})
            assert [asked.id for asked in result.pending] == ["failed-1-a"]
            assert step_statuses(result) == {"a": "failed", "b": "failed", "c": "open", "d": "skipped"}
            shop.failing.clear()
            return await runtime.resume(result.run_id, {"failed-1-a": Respond(text="retry")})

    result = asyncio.run(main())
    assert step_statuses(result) == {"a": "done", "b": "failed", "c": "done", "d": "skipped"}
    assert result.output == "done"
    assert [(one.id, one.status) for one in result.incomplete] == [("b", "failed"), ("d", "skipped")]


@cases(10)
@given(graph=plan_graphs(), answers=st.lists(st.sampled_from(["retry", "skip"]), min_size=12, max_size=12))
def test_no_choice_repeats_a_finished_step(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[PlanDraft, frozenset[str]], answers: list[str]
) -> None:
    plan, failing = graph
    shop = Broken(*failing, until=1)
    limits = "{max_tool_calls: null, max_steps: null, max_repeated_calls: 99}"
    root = plan_project(tmp_path_factory.mktemp("p"), plan=ASK, runtime_policy=limits)
    chosen: list[str] = []

    async def main() -> RunResult:
        options: dict[str, Any] = {"tools": shop.tools(), "models": {"scripted": ScriptedModel(plan, "end")}}
        async with Runtime.open(root, store=JsonStore(), watch=False, **options) as runtime:
            result = await runtime.run("do it")
            while result.status == "paused":
                shop.mend()
                chosen.extend((answers * 9)[len(chosen) : len(chosen) + len(result.pending)])
                given_now = chosen[-len(result.pending) :]
                decisions: dict[str, Decision] = {
                    one.id: Respond(text=text) for one, text in zip(result.pending, given_now, strict=True)
                }
                result = await runtime.resume(result.run_id, decisions)
            return result

    result = asyncio.run(main())
    assert (result.status, result.output) == ("completed", "end")
    finished = [entry for entry in shop.log if entry.startswith("-")]
    assert len(finished) == len(set(finished))
    assert {f"-{name}" for name, status in step_statuses(result).items() if status == "done"} == set(finished)


def test_a_failed_step_is_decided_by_another_process_from_the_command_line(tmp_path: Path) -> None:
    files = {"on_failure: replan": "on_failure: ask"}
    assert agentsd("init", "--example", cwd=tmp_path).returncode == 0
    file = tmp_path / "agents.d/planner.yaml"
    for old, new in files.items():
        file.write_text(file.read_text().replace(old, new))
    task = "read nowhere.md then calculate 2 + 3"
    done = agentsd("run", "-a", "planner", task, cwd=tmp_path)
    assert done.returncode == 3
    assert "waits for an answer: read_file (failed-1-s1): step s1 failed" in done.stderr
    assert "--answer 'retry|skip|stop'" in done.stderr
    assert "asks: failed-1-s1" in agentsd("runs", "show", "last", cwd=tmp_path).stdout
    wrong = agentsd("runs", "decide", "last", "--answer", "perhaps", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "failed-1-s1: not one of its choices (retry, skip, stop): 'perhaps'" in wrong.stderr
    assert agentsd("runs", "decide", "last", "--approve-all", cwd=tmp_path).returncode == 2, "nothing to approve"
    (tmp_path / "nowhere.md").write_text("here now")
    done = agentsd("runs", "decide", "last", "--answer", "retry", cwd=tmp_path)
    assert done.returncode == 0
    assert "here now" in done.stdout
    assert agentsd("runs", "decide", "last", "--answer", "retry", cwd=tmp_path).returncode == 2
