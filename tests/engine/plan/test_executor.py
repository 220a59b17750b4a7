"""The plan executor: planning, preflight, approval, execution, answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Edit, Reject, Respond, RunResult, Runtime
from framework.llm.client import ModelRequest
from framework.testing import Crash, JsonStore, ScriptedModel, Turn, calls
from framework.types.plan import PlanDraft
from framework.types.state import Decision
from tests.support.cases import cases
from tests.support.plans import Workshop, draft, plan_graphs, plan_project, run_plan, run_plan_with_requests, step
from tests.support.projects import write


def test_steps_run_after_their_dependencies_and_independent_ones_concurrently(tmp_path: Path) -> None:
    shop = Workshop()
    plan = draft(step("a"), step("b"), step("c", "a", "b"))
    result, seen = run_plan(plan_project(tmp_path), shop, plan, "all done")
    assert result.output == "all done"
    assert shop.log == ["+a", "+b", "-a", "-b", "+c", "-c"]
    assert result.steps == 2, "one model call for the plan, one for the answer: steps that name their tool need none"
    states = [(e["id"], e["status"]) for e in seen if e["event"] == "plan_step"]
    assert [s for s in states if s[0] == "c"] == [("c", "running"), ("c", "done")]
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "tool", "tool", "assistant"]


def test_dependents_of_a_failed_step_are_skipped_with_the_reason(tmp_path: Path) -> None:
    shop = Workshop("a")
    plan = draft(step("a"), step("b", "a"), step("c", "b"), step("d"))
    result, seen = run_plan(plan_project(tmp_path, plan="{on_failure: skip}"), shop, plan, "half done")
    assert result.status == "completed"
    (warning,) = (e for e in seen if e["event"] == "warning")
    message = "the plan completed without these steps: a failed, b skipped, c skipped"
    assert (warning["code"], warning["message"]) == ("steps_not_done", message)
    assert [(one.id, one.status) for one in result.incomplete] == [("a", "failed"), ("b", "skipped"), ("c", "skipped")]
    assert "broken" in result.incomplete[0].reason
    assert result.incomplete[1].reason == "a was not done"
    assert "+b" not in shop.log
    assert "+d" in shop.log
    ends = {e["id"]: (e["status"], e.get("result")) for e in seen if e["event"] == "plan_step"}
    assert ends["a"][0] == "failed"
    assert "broken" in (ends["a"][1] or "")
    assert ends["b"] == ("skipped", "a was not done")
    assert ends["c"] == ("skipped", "b was not done")


def test_a_goal_step_runs_with_react_and_gets_earlier_results(tmp_path: Path) -> None:
    shop = Workshop()
    plan = draft(step("a"), {"id": "think", "description": "think about it", "depends_on": ["a"]})
    model: list[ModelRequest] = []

    async def main() -> RunResult:
        scripted = ScriptedModel(plan, calls(("work", {"n": "x"})), "a thought", "the end")
        async with Runtime.open(
            plan_project(tmp_path), tools=shop.tools(), models={"scripted": scripted}, watch=False
        ) as runtime:
            result = await runtime.run("do it")
        model.extend(scripted.requests)
        return result

    result = asyncio.run(main())
    assert result.output == "the end"
    *earlier, recited = model[1].messages[1:]
    assert recited.content.endswith("[x] a: a\n[>] think: think about it")
    assert [(m.role, m.content) for m in earlier] == [
        ("user", "think about it"),
        ("assistant", ""),
        ("tool", "did a"),
    ]
    assert shop.log == ["+a", "-a", "+x", "-x"]


@pytest.mark.parametrize(
    ("bad", "finding"),
    [
        (step("a", tool="wrok"), "there is no tool 'wrok'; did you mean work?"),
        (step("a", parameters={"m": 1}), "work: n: it is missing; add it: string; m: there is no such argument"),
        (step("a", tool="drill"), "the policy forbids it: max_risk medium"),
    ],
)
def test_an_invalid_plan_is_requested_again_with_its_problems(
    tmp_path: Path, bad: dict[str, Any], finding: str
) -> None:
    shop = Workshop()

    async def main() -> None:
        model = ScriptedModel(draft(bad), draft(step("a")), "ok")
        async with Runtime.open(
            plan_project(tmp_path), tools=shop.tools(), models={"scripted": model}, watch=False
        ) as runtime:
            result = await runtime.run("do it")
        assert result.status == "completed"
        assert finding in model.requests[1].messages[-1].content
        assert shop.log == ["+a", "-a"]

    asyncio.run(main())


@pytest.mark.hostile(35)
def test_a_model_that_never_makes_a_valid_plan_is_stopped(tmp_path: Path) -> None:
    bad = draft(step("a", tool="nothing"))
    result, _ = run_plan(plan_project(tmp_path), Workshop(), bad, bad, bad)
    assert (result.status, result.finish_reason) == ("stopped", "max_corrections")


def test_a_plan_of_too_many_steps_is_refused(tmp_path: Path) -> None:
    root = plan_project(tmp_path, plan="{max_plan_steps: 2}")
    long = draft(*(step(f"s{n}") for n in range(3)))
    result, _ = run_plan(root, Workshop(), long, draft(step("a")), "ok")
    assert result.status == "completed"


# --- approval


def approved(tmp_path: Path, decision: Decision, *turns: Turn) -> tuple[RunResult, Workshop]:
    root = plan_project(tmp_path, plan="{approval: always}", skill_policy='{ask: [work], allow: ["*"]}')
    shop = Workshop()

    async def main() -> RunResult:
        models = {"scripted": ScriptedModel(draft(step("a"), step("b", "a")), *turns)}
        store = JsonStore()
        async with Runtime.open(root, tools=shop.tools(), models=models, store=store, watch=False) as runtime:
            first = await runtime.run("do it")
            assert first.status == "paused"
            assert [asked.kind for asked in first.pending] == ["plan"]
            assert first.pending[0].plan is not None
            assert shop.log == []
            return await runtime.resume(first.run_id, {first.pending[0].id: decision})

    return asyncio.run(main()), shop


def test_an_approved_plan_covers_the_steps_that_were_shown(tmp_path: Path) -> None:
    result, shop = approved(tmp_path, Approve(), "done")
    assert result.status == "completed"
    assert shop.log == ["+a", "-a", "+b", "-b"]


def test_a_rejected_plan_executes_no_step(tmp_path: Path) -> None:
    result, shop = approved(tmp_path, Reject(reason="not today"))
    assert result.output == "The plan was not approved: not today"
    assert shop.log == []


def test_an_edited_plan_is_checked_and_executed(tmp_path: Path) -> None:
    edited = {"goal": "less", "steps": [{"id": "b", "description": "b", "tool": "work", "parameters": {"n": "b"}}]}
    result, shop = approved(tmp_path, Edit(arguments=edited), "done")
    assert result.status == "completed"
    assert shop.log == ["+b", "-b"]


def test_feedback_leads_to_a_new_plan_that_needs_approval(tmp_path: Path) -> None:
    result, shop = approved(tmp_path, Respond(text="only b"), draft(step("b")))
    assert result.status == "paused"
    assert result.pending[0].plan is not None
    assert result.pending[0].plan.revision == 2
    assert shop.log == []


def test_an_invalid_edit_is_not_an_approval(tmp_path: Path) -> None:
    edited = {"goal": "more", "steps": [{"id": "b", "description": "b", "tool": "nothing", "parameters": {}}]}
    result, shop = approved(tmp_path, Edit(arguments=edited), draft(step("a")))
    assert result.status == "paused"
    assert shop.log == []


def test_high_risk_in_a_plan_asks_by_default(tmp_path: Path) -> None:
    root = plan_project(tmp_path, runtime_policy="{risk_level: high}")
    result, _ = run_plan(root, Workshop(), draft(step("a"), step("b", tool="drill")))
    assert result.status == "paused"
    assert result.pending[0].kind == "plan"


# --- pauses and crashes anywhere in a plan


@cases(8)
@given(graph=plan_graphs(), ask=st.booleans())
def test_every_step_runs_once_after_its_dependencies_and_never_after_a_failed_one(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[PlanDraft, frozenset[str]], ask: bool
) -> None:
    plan, failing = graph
    policy = '{ask: [work], allow: ["*"]}' if ask else '{allow: ["*"]}'
    root = plan_project(
        tmp_path_factory.mktemp("plan"),
        skill_policy=policy,
        plan="{approval: never, max_parallel: 3, on_failure: skip}",
    )
    shop = Workshop(*failing)

    async def main() -> RunResult:
        store = JsonStore()
        model = ScriptedModel(plan, "the end")
        options: dict[str, Any] = {"tools": shop.tools(), "models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(root, **options) as runtime:
            result = await runtime.run("do it")
        while result.status == "paused":
            async with Runtime.open(root, **options) as runtime:
                result = await runtime.resume(result.run_id, {asked.id: Approve() for asked in result.pending})
        return result

    result = asyncio.run(main())
    assert result.output == "the end"
    begun = [entry[1:] for entry in shop.log if entry.startswith("+")]
    assert len(begun) == len(set(begun))
    done: set[str] = set()
    for entry in shop.log:
        if entry.startswith("-"):
            done.add(entry[1:])
        else:
            needs = set(next(s for s in plan.steps if s.id == entry[1:]).depends_on)
            assert needs <= done
    for planned in plan.steps:
        assert (planned.id in begun) == set(planned.depends_on).issubset(done)


@cases(12)
@given(graph=plan_graphs(), saves=st.integers(0, 25))
def test_after_a_crash_anywhere_in_a_plan_no_finished_step_is_repeated(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[PlanDraft, frozenset[str]], saves: int
) -> None:
    plan, _ = graph
    root = plan_project(tmp_path_factory.mktemp("plan"), plan="{approval: never, max_parallel: 3}")
    shop = Workshop()
    store = JsonStore()

    def script(request: ModelRequest) -> Turn:
        return plan if request.output else "the end"

    async def main() -> RunResult | None:
        options: dict[str, Any] = {"tools": shop.tools(), "store": store, "watch": False}
        store.crash_after(saves)
        try:
            async with Runtime.open(root, models={"scripted": ScriptedModel(script=script)}, **options) as runtime:
                return await runtime.run("do it")
        except Crash:
            store.crash_after(10**9)
        left = await store.runs()
        if not left:
            return None
        planned = (await store.load_run(left[0].run_id)).plan
        before = {s.id for s in (planned.steps if planned else ()) if s.status == "done"}
        already = shop.log.copy()
        async with Runtime.open(root, models={"scripted": ScriptedModel(script=script)}, **options) as runtime:
            result = await runtime.resume(left[0].run_id, {})
            while result.status == "paused":
                result = await runtime.resume(result.run_id, {asked.id: Approve() for asked in result.pending})
        again = {entry[1:] for entry in shop.log[len(already) :] if entry.startswith("+")}
        assert not again & before
        return result

    result = asyncio.run(main())
    assert result is None or result.output == "the end"


def test_an_agent_plans_with_its_own_template(tmp_path: Path) -> None:
    root = plan_project(tmp_path, plan="{template: mine.j2}")
    write(root, {"prompts/mine.j2": "MINE {{ message }}{% for one in findings %} BAD {{ one }}{% endfor %}"})
    bad = draft(step("a", tool="nosuch"))
    result, requests, _ = run_plan_with_requests(root, Workshop().tools(), bad, draft(step("a")), "done")
    assert result.output == "done"
    assert requests[0].messages[-1].content == "MINE do it"
    assert requests[1].messages[-1].content.startswith("MINE do it BAD ")
    assert "nosuch" in requests[1].messages[-1].content
