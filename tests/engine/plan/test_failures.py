"""Handling of failed steps by a new plan, and models that never stop planning."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework import Approve, ModelError, RunResult, Runtime, tool
from framework.llm.client import ModelRequest
from framework.testing import Crash, JsonStore, ScriptedModel, Turn
from framework.types.errors import outcome_for
from framework.types.plan import PlanDraft, StepDraft
from tests.support.cases import cases
from tests.support.plans import (
    Workshop,
    draft,
    model_step,
    plan_graphs,
    plan_project,
    repeated_call,
    run_plan,
    run_plan_over_http,
    run_plan_with_requests,
    step,
    step_results,
    step_statuses,
)
from tests.support.wire import Answer, calls, says

# --- replanning


def test_a_failed_step_leads_to_a_new_plan_and_finished_steps_stay(tmp_path: Path) -> None:
    shop = Workshop("b")
    first = draft(step("a"), step("b", "a"), step("c", "b"))
    second = draft(step("d", "a"), step("c", "d"), goal="another way")
    result, requests, seen = run_plan_with_requests(plan_project(tmp_path), shop.tools(), first, second, "got there")
    assert (result.status, result.output, result.steps) == ("completed", "got there", 3)
    assert [entry for entry in shop.log if entry.startswith("+")] == ["+a", "+b", "+d", "+c"]
    assert step_statuses(result) == {"a": "done", "b": "failed", "d": "done", "c": "done"}
    plan_events = [event for event in seen if event["event"] == "plan"]
    assert [event["revision"] for event in plan_events] == [1, 2]
    assert [(change["kind"], change["id"]) for change in plan_events[1]["changes"]] == [
        ("added", "d"),
        ("changed", "c"),
    ]
    asked = requests[1].messages
    assert [m.content.strip() for m in asked if m.role == "tool"] == ["did a", "Error: work failed: ValueError: broken"]
    assert "- a (done): a\n- b (failed): b\n- c (open): c" in asked[-1].content
    assert [m.content for m in requests[2].messages if m.role == "tool"][-1] == "did c"


def test_a_run_fails_with_its_answer_if_a_failed_step_is_not_replaced(tmp_path: Path) -> None:
    result, seen = run_plan(plan_project(tmp_path), Workshop("b"), draft(step("a"), step("b", "a")), draft(), "only a")
    assert (result.status, result.finish_reason, result.output) == ("failed", "step_failed", "only a")
    assert result.error is not None
    assert result.error.message.startswith("step b failed, and the new plan does not replace it: Error: work")
    assert outcome_for(result.finish_reason).exit_code == 1
    assert [event["event"] for event in seen[-2:]] == ["error", "done"]
    assert step_statuses(result) == {"a": "done", "b": "failed"}


def test_only_a_new_step_replaces_a_failed_one(tmp_path: Path) -> None:
    first = draft(step("a"), step("b"), step("c", "a"))
    result, _ = run_plan(
        plan_project(tmp_path, plan="{max_parallel: 2}"), Workshop("b"), first, draft(step("c", "a")), "c"
    )
    assert (result.status, result.output) == ("failed", "c")
    other = first, draft(step("c", "a"), step("d", "a")), "c and d"
    result, seen = run_plan(plan_project(tmp_path / "new"), Workshop("b"), *other)
    assert (result.status, result.output) == ("completed", "c and d")
    assert not [event for event in seen if event["event"] == "warning"], "d replaced b"
    assert result.incomplete == ()
    assert result.plan is not None
    assert [step.id for step in result.plan.steps if step.replaced] == ["b"]


def test_steps_in_progress_finish_and_no_step_starts_before_the_new_plan(tmp_path: Path) -> None:
    shop = Workshop("b")
    first = draft(step("b"), step("slow"), step("later"))
    result, _ = run_plan(plan_project(tmp_path), shop, first, draft(step("x")), "done")
    assert shop.log[:4] == ["+b", "+slow", "-slow", "+x"]
    assert step_statuses(result) == {"slow": "done", "b": "failed", "x": "done"}


def test_a_new_plan_may_reuse_the_id_of_a_failed_step(tmp_path: Path) -> None:
    shop = Workshop("b")
    result, _ = run_plan(
        plan_project(tmp_path), shop, draft(step("b")), draft(step("b", parameters={"n": "b2"})), "done"
    )
    assert shop.log == ["+b", "+b2", "-b2"]
    assert step_statuses(result) == {"b": "done"}
    assert [call.id for call in result.tool_calls] == ["plan-1-b", "plan-2-b"]


def test_failed_attempts_are_reported_while_their_replacement_is_open(tmp_path: Path) -> None:
    shop = Workshop("a", "b")
    again = step("a", "b", parameters={"n": "a2"})
    plans = draft(step("a")), draft(step("b"), again), draft(again | {"depends_on": ()})
    result, requests, _ = run_plan_with_requests(
        plan_project(tmp_path, plan="{max_replans: 3}"), shop.tools(), *plans, "done"
    )
    assert shop.log == ["+a", "+b", "+a2", "-a2"]
    attempts = [
        [call.arguments["n"] for message in request.messages for call in message.tool_calls] for request in requests
    ]
    assert attempts == [[], ["a"], ["a", "b"], ["b", "a2"]]
    results = [m.content.strip() for m in requests[2].messages if m.role == "tool"]
    assert results == ["Error: work failed: ValueError: broken"] * 2
    assert step_statuses(result) == {"b": "failed", "a": "done"}


def test_a_failed_goal_is_reported_for_every_new_plan(tmp_path: Path) -> None:
    plans = draft(model_step("think")), draft(step("b"), model_step("think", "b")), draft()
    root = plan_project(tmp_path, runtime_policy="{max_repeated_calls: 1}")
    turns = plans[0], repeated_call(), repeated_call(), plans[1], plans[2], "done"
    result, requests, _ = run_plan_with_requests(root, Workshop("b").tools(), *turns)
    assert result.output == "done"
    assert "think about think: stopped by max_repeated_calls" in [m.content for m in requests[4].messages]


def test_no_step_can_depend_on_a_failed_one(tmp_path: Path) -> None:
    plans = draft(step("b"), step("c", "b")), draft(step("c", "b")), draft(step("c"))
    result, requests, _ = run_plan_with_requests(plan_project(tmp_path), Workshop("b").tools(), *plans, "done")
    assert "step c depends on b, which was not done" in requests[2].messages[-1].content
    assert step_statuses(result) == {"b": "failed", "c": "done"}


@pytest.mark.hostile(35)
@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_endless_replanning_is_stopped_with_the_results_so_far(tmp_path: Path, allowed: int) -> None:
    shop = Workshop(*(f"b{n}" for n in range(9)))
    plans = [draft(step("a"), step("b0", "a")), *(draft(step(f"b{n}")) for n in range(1, 9))]
    root = plan_project(tmp_path, plan=f"{{max_replans: {allowed}}}")
    result, _ = run_plan(root, shop, *plans)
    assert (result.status, result.finish_reason, result.output) == ("stopped", "max_replans", "did a")
    assert result.stopped_by is not None
    assert (result.stopped_by.used, result.stopped_by.allowed) == (allowed, allowed)
    assert result.stopped_by.place == "agents.d/p.yaml:8"
    assert len(shop.log) == 3 + allowed


def test_on_failure_fail_ends_the_run(tmp_path: Path) -> None:
    plan = draft(step("a"), step("b", "a"), step("c", "b"), step("d", "c"))
    result, seen = run_plan(plan_project(tmp_path, plan="{on_failure: fail}"), Workshop("b"), plan)
    assert (result.status, result.finish_reason, result.output) == ("failed", "step_failed", "did a")
    assert result.error is not None
    assert result.error.message.startswith("step b failed, and plan.on_failure is `fail`: Error: work failed")
    assert step_statuses(result) == {"a": "done", "b": "failed", "c": "skipped", "d": "skipped"}
    assert "step b failed" in (step_results(seen)["d"][1] or "")


def test_a_limit_within_a_plan_gives_each_remaining_step_a_reason(tmp_path: Path) -> None:
    root = plan_project(tmp_path, runtime_policy="{max_steps: 3}")
    plan = draft(step("a"), model_step("think", "a"), step("b", "think"))
    result, seen = run_plan(root, Workshop(), plan, repeated_call(), repeated_call())
    assert (result.status, result.finish_reason) == ("stopped", "max_steps")
    assert result.output == "did a"
    assert step_statuses(result) == {"a": "done", "think": "failed", "b": "skipped"}
    assert "max_steps reached" in (step_results(seen)["b"][1] or "")


def test_a_timed_out_run_reports_steps_in_progress_and_steps_not_started(tmp_path: Path) -> None:
    @tool(risk="low")
    async def forever() -> str:
        """Wait forever."""
        await asyncio.Event().wait()
        return ""

    root = plan_project(tmp_path, runtime_policy="{timeout: 3s}")
    shop = Workshop()
    plan = draft(step("a"), step("b", "a", tool="forever", parameters={}), step("c", "b"))
    result, _, _ = run_plan_with_requests(root, [*shop.tools(), forever], plan)
    assert (result.status, result.finish_reason, result.output) == ("stopped", "timeout", "did a")
    assert step_statuses(result) == {"a": "done", "b": "failed", "c": "skipped"}
    assert result.plan is not None
    assert result.plan.step("c").result == "not finished: the run ended with timeout"


def test_an_unknown_planning_model_is_a_problem_of_the_file(tmp_path: Path) -> None:
    async def main() -> list[str]:
        root = plan_project(tmp_path, plan="{model: plannnig}")
        async with Runtime.open(root, models={"scripted": ScriptedModel()}, watch=False) as runtime:
            return [f"{problem.place}: {problem.message}" for problem in runtime.catalog.current.errors]

    (problem,) = asyncio.run(main())
    assert problem.startswith("agents.d/p.yaml:8:15: unknown model 'plannnig'")


# --- models that cannot plan


@pytest.mark.hostile(35)
@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([says("Sure! First I would look around.")] * 3, "answered in text instead of calling PlanDraft"),
        ([calls(("PlanDraft", {"goal": "half"}))] * 3, "does not fit PlanDraft: steps: Field required"),
        ([calls(("PlanDraft", '{"goal": "g", "steps": [{"id": "a", "descr'))] * 3, "does not fit PlanDraft"),
        ([says('{"goal": "g", "steps"', finish="length")], "cut by max_tokens"),
    ],
    ids=["prose", "half a plan", "broken JSON", "cut"],
)
def test_a_model_that_returns_no_plan_ends_the_run_with_a_typed_error(
    tmp_path: Path, answers: list[Answer], message: str
) -> None:
    result = run_plan_over_http(tmp_path, answers)
    assert (result.status, result.finish_reason) == ("failed", "model_error")
    assert result.error is not None
    assert message in result.error.message
    assert result.tool_calls == ()


@pytest.mark.hostile(35)
def test_a_model_that_returns_no_new_plan_ends_the_run_with_the_results_so_far(tmp_path: Path) -> None:
    plan = draft(step("a"), step("b", "a"), step("c", "b")).model_dump(mode="json", exclude_defaults=True)
    result = run_plan_over_http(tmp_path, [calls(("PlanDraft", plan)), *[says("I give up.")] * 3])
    assert (result.status, result.finish_reason, result.output) == ("failed", "model_error", "did a")
    assert step_statuses(result) == {"a": "done", "b": "failed", "c": "skipped"}


@pytest.mark.hostile(35)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Sure! Here is my plan.", "the answer does not fit PlanDraft: it: Invalid JSON"),
        ('{"goal": "half a plan"}', "the answer does not fit PlanDraft: steps: Field required"),
    ],
)
def test_a_custom_client_that_returns_no_plan_is_a_model_error(tmp_path: Path, answer: str, message: str) -> None:
    result, _ = run_plan(plan_project(tmp_path), Workshop(), answer)
    assert result.finish_reason == "model_error"
    assert result.error is not None
    assert message in result.error.message


@pytest.mark.hostile(35)
def test_a_plan_of_a_thousand_steps_is_rejected_without_checking_each(tmp_path: Path) -> None:
    long = draft(*(step(f"s{n}", tool="nowhere") for n in range(1000)))
    result, requests, _ = run_plan_with_requests(plan_project(tmp_path), [], long, long, long)
    assert (result.status, result.finish_reason) == ("stopped", "max_corrections")
    findings = requests[1].messages[-1].content.partition("is invalid:")[2]
    assert findings.strip().splitlines()[0] == "- it has 1000 steps; at most 12 are allowed"
    assert len(findings.strip().splitlines()) == 2, "the other is about its size"
    assert sum(len(message.content) for message in requests[1].messages) < 20_000


def test_the_planning_model_is_the_one_in_the_file(tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        planning, working = ScriptedModel(draft(step("a"))), ScriptedModel("done")
        root = plan_project(tmp_path, plan="{model: planning}")
        models = {"scripted": working, "planning": planning}
        async with Runtime.open(root, tools=Workshop().tools(), models=models, watch=False) as runtime:
            assert (await runtime.run("go")).output == "done"
        return len(planning.requests), len(working.requests)

    assert asyncio.run(main()) == (1, 1)


# --- invariants under random failures

NAMES = st.sampled_from([f"s{n}" for n in range(6)])


class World:
    """Random failures; each new plan omits the failed steps, or replaces them by steps that succeed or fail."""

    def __init__(self, plan: PlanDraft, failing: frozenset[str], fixed: bool) -> None:
        self.plan, self.shop, self.fixed = plan, Workshop(*failing), fixed

    def script(self, request: ModelRequest) -> Turn:
        if request.output is None:
            return "the end"
        ended = {m.tool_call_id: m.content for m in request.messages if m.role == "tool"}
        made = [call for m in request.messages for call in m.tool_calls]
        done = {call.arguments["n"].removesuffix("!") for call in made if not ended[call.id].startswith("Error")}
        failed = {call.arguments["n"] for call in made} - {f"{name}!" for name in done} - done
        if not made:
            return self.plan
        left = [one for one in self.plan.steps if one.id not in done]
        return PlanDraft(
            goal="again", steps=tuple(self._next(one, failed, left) for one in left if self._kept(one, failed))
        )

    def _kept(self, one: StepDraft, failed: set[str]) -> bool:
        return self.fixed or one.id not in failed

    def _next(self, one: StepDraft, failed: set[str], left: list[StepDraft]) -> StepDraft:
        gone = set() if self.fixed else {other.id for other in left if other.id in failed}
        n = f"{one.id}!" if one.id in failed else one.id
        after = tuple(other for other in one.depends_on if other not in gone)
        return one.model_copy(update={"parameters": {"n": n}, "depends_on": after})


def check_order(world: World) -> None:
    """Check that each step ran at most once, after its dependencies, and never after a failed one."""
    begun = [entry[1:] for entry in world.shop.log if entry.startswith("+")]
    assert len(begun) == len(set(begun)), world.shop.log
    done: set[str] = set()
    needs = {one.id: set(one.depends_on) for one in world.plan.steps}
    for entry in world.shop.log:
        name = entry[1:].removesuffix("!")
        if entry.startswith("-"):
            done.add(name)
        elif world.fixed:
            assert needs[name] <= done, world.shop.log
        else:
            assert not any(
                f"-{other}" not in world.shop.log and other not in world.shop.failing for other in needs[name]
            )


TRIED_TWICE = (
    draft(step("s0"), step("s1", "s0"), step("s2"), step("s3", "s1"), step("s4", "s1"), step("s5", "s0")),
    frozenset({"s3", "s5"}),
)
"""A plan whose s5 waits for a second attempt when s3 fails, if two steps run concurrently."""


@cases(6)
@example(graph=TRIED_TWICE, ask=True, fixed=True, parallel=2)
@given(graph=plan_graphs(), ask=st.booleans(), fixed=st.booleans(), parallel=st.integers(1, 4))
def test_with_replanning_and_pauses_every_step_runs_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[PlanDraft, frozenset[str]],
    ask: bool,
    fixed: bool,
    parallel: int,
) -> None:
    plan, failing = graph
    limits = "{max_tool_calls: null, max_steps: null}"
    settings = f"{{approval: never, max_parallel: {parallel}, max_replans: 9}}"

    def done(paused: bool) -> tuple[World, RunResult]:
        policy = '{ask: [work], allow: ["*"]}' if paused else '{allow: ["*"]}'
        folder = tmp_path_factory.mktemp("plan")
        root = plan_project(folder, skill_policy=policy, plan=settings, runtime_policy=limits)
        world = World(plan, failing, fixed)

        async def main() -> RunResult:
            store = JsonStore()
            options: dict[str, Any] = {"tools": world.shop.tools(), "store": store, "watch": False}
            models = {"scripted": ScriptedModel(script=world.script)}
            async with Runtime.open(root, models=models, **options) as runtime:
                result = await runtime.run("do it")
            while result.status == "paused":
                async with Runtime.open(root, models=models, **options) as runtime:
                    decisions = {asked.id: Approve() for asked in result.pending[:1]}  # one by one
                    result = await runtime.resume(result.run_id, decisions)
            return result

        return world, asyncio.run(main())

    world, result = done(ask)
    assert result.output == "the end", result.error
    check_order(world)
    assert result.plan is not None
    assert not any(one.status in ("open", "running") for one in result.plan.steps)
    if ask:
        straight, other = done(False)
        assert sorted(straight.shop.log) == sorted(world.shop.log)
        assert step_statuses(other) == step_statuses(result)


@cases(10)
@given(graph=plan_graphs(), saves=st.integers(0, 40), fixed=st.booleans())
def test_a_crash_anywhere_during_replanning_repeats_no_finished_step(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[PlanDraft, frozenset[str]], saves: int, fixed: bool
) -> None:
    plan, failing = graph
    root = plan_project(
        tmp_path_factory.mktemp("plan"),
        plan="{approval: never, max_parallel: 3, max_replans: 9}",
        runtime_policy="{max_tool_calls: null, max_steps: null}",
    )
    world, store = World(plan, failing, fixed), JsonStore()
    options: dict[str, Any] = {"tools": world.shop.tools(), "store": store, "watch": False}

    async def main() -> RunResult | None:
        models = {"scripted": ScriptedModel(script=world.script)}
        store.crash_after(saves)
        try:
            async with Runtime.open(root, models=models, **options) as runtime:
                return await runtime.run("do it")
        except Crash:
            store.crash_after(10**9)
        left = await store.runs()
        if not left:
            return None
        kept = await store.load_run(left[0].run_id)
        before = {record.call.arguments["n"] for record in kept.calls.values() if record.result is not None}
        already = len(world.shop.log)
        async with Runtime.open(root, models=models, **options) as runtime:
            result = await runtime.resume(left[0].run_id, {})
            while result.status == "paused":
                result = await runtime.resume(result.run_id, {asked.id: Approve() for asked in result.pending})
        assert not {entry[1:] for entry in world.shop.log[already:] if entry.startswith("+")} & before
        return result

    result = asyncio.run(main())
    assert result is None or result.output == "the end"


def test_a_provider_failure_while_replanning_keeps_the_results_so_far(tmp_path: Path) -> None:
    turns: tuple[Turn, ...] = (draft(step("a"), step("b", "a"), step("c", "b")), ModelError("down"))
    result, _ = run_plan(plan_project(tmp_path), Workshop("b"), *turns)
    assert (result.status, result.finish_reason, result.output) == ("failed", "model_error", "did a")
    assert step_statuses(result) == {"a": "done", "b": "failed", "c": "skipped"}
    assert json.loads(result.model_dump_json())["plan"]["steps"][2]["result"] == "not done: down"
