"""Approval of a plan: it covers exactly the shown plan, edits to it, and later revisions within its scope."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import (
    Approve,
    Edit,
    Reject,
    RequestError,
    Respond,
    RunResult,
    RunSuspended,
    Runtime,
    Tool,
    ToolContext,
    ToolError,
    tool,
)
from framework.llm.client import ModelRequest
from framework.testing import Crash, JsonStore, ScriptedModel, Turn
from framework.types.plan import Plan
from framework.types.state import Decision
from tests.support.cases import cases
from tests.support.plans import Workshop, draft, plan_project, step

Answers = list[Decision]


def decided(
    root: Path, shop: Workshop, turns: list[Turn], answers: Answers
) -> tuple[RunResult, list[ModelRequest], list[tuple[str, str]]]:
    """Resume a run with the answers in order; return its result, the requests, and each question's kind and reason."""

    async def main() -> tuple[RunResult, list[ModelRequest], list[tuple[str, str]]]:
        model = ScriptedModel(*turns)
        options: dict[str, Any] = {"tools": shop.tools(), "models": {"scripted": model}, "watch": False}
        asked: list[tuple[str, str]] = []
        store = JsonStore()
        async with Runtime.open(root, store=store, **options) as runtime:
            result = await runtime.run("do it")
        for answer in answers:
            assert result.status == "paused"
            (question,) = result.pending
            asked.append((question.kind, question.reason))
            async with Runtime.open(
                root, store=store, **options
            ) as runtime:  # through JSON, in another process's runtime
                result = await runtime.resume(result.run_id, {question.id: answer})
        return result, model.requests, asked

    return asyncio.run(main())


def always(root: Path, **keys: str) -> Path:
    return plan_project(root, **({"plan": "{approval: always}", "skill_policy": '{ask: [work], allow: ["*"]}'} | keys))


# --- what counts as an approval


def test_a_question_shows_the_plan_its_hash_the_verdicts_and_the_estimate(tmp_path: Path) -> None:
    result, _, _ = decided(always(tmp_path), Workshop(), [draft(step("a"), step("b", "a"))], [])
    (asked,) = result.pending
    assert asked.kind == "plan"
    assert asked.plan is not None
    assert asked.hash == asked.plan.hash
    assert asked.hash in asked.id
    assert asked.preflight is not None
    assert [check.verdict for check in asked.preflight.steps] == ["ask", "ask"]
    assert asked.preflight.estimate.tool_calls == 2
    assert asked.rule == "plan.approve (agents.d/p.yaml:8)"


@cases(10)
@given(
    answers=st.lists(
        st.sampled_from(["respond", "reject", "bad edit", "nothing", "another's", "approve"]), min_size=1, max_size=4
    )
)
def test_no_step_runs_before_approval_of_exactly_this_plan(
    tmp_path_factory: pytest.TempPathFactory, answers: list[str]
) -> None:
    root, shop = always(tmp_path_factory.mktemp("plan")), Workshop()
    revisions = iter(range(100))

    def script(request: ModelRequest) -> Turn:
        return draft(step("a"), goal=f"goal {next(revisions)}") if request.output else "done"

    meanings: dict[str, Decision] = {
        "respond": Respond(text="another one"),
        "reject": Reject(),
        "bad edit": Edit(arguments={"goal": "g", "steps": [{"id": "x", "description": "x", "tool": "nothing"}]}),
        "approve": Approve(),
    }

    async def main() -> None:
        store = JsonStore()
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(script=script)}, "watch": False}
        async with Runtime.open(root, tools=shop.tools(), store=store, **options) as runtime:
            result = await runtime.run("do it")
            earlier: list[str] = []
            for answer in answers:
                assert shop.log == [], "nothing is approved yet"
                (asked,) = result.pending
                if answer == "another's":
                    wrong = next((one for one in reversed(earlier) if one != asked.id), f"{asked.id}0")
                    with pytest.raises(RequestError, match=r"no pending decision|has already been decided"):
                        await runtime.resume(result.run_id, {wrong: Approve()})
                    continue
                decisions = {asked.id: meanings[answer]} if answer in meanings else {}
                result = await runtime.resume(result.run_id, decisions)
                earlier.append(asked.id)
                if answer in ("approve", "reject"):
                    break
                assert result.status == "paused"
        assert (shop.log != []) == ("approve" in answers and answers.index("approve") < _end(answers, "reject"))

    asyncio.run(main())


def _end(answers: list[str], what: str) -> int:
    return answers.index(what) if what in answers else len(answers)


def test_a_plan_made_after_feedback_always_needs_approval(tmp_path: Path) -> None:
    root = plan_project(tmp_path, runtime_policy="{risk_level: high}")
    shop = Workshop()
    turns: list[Turn] = [draft(step("a", tool="drill")), draft(step("b"), goal="harmless"), "done"]
    result, requests, asked = decided(root, shop, turns, [Respond(text="do not drill")])
    assert result.status == "paused", "its steps alone would need no approval"
    assert result.pending[0].reason == "you requested another plan"
    assert asked == [("plan", "the agent's file requires approval of plans")]
    assert "The user saw your last plan and wants another one: do not drill" in requests[1].messages[-1].content
    assert '"drill"' in requests[1].messages[-2].content, "it sees the plan it made"
    assert shop.log == []


@pytest.mark.parametrize(
    ("confirm", "asked"), [("high", False), ("never", True)], ids=["asked one by one", "never asked"]
)
def test_a_goal_step_counts_with_the_risk_of_tools_it_can_call_without_approval(
    tmp_path: Path, confirm: str, asked: bool
) -> None:
    root = plan_project(tmp_path, runtime_policy=f"{{risk_level: high, confirm: {{from: {confirm}}}}}")
    turns: list[Turn] = [draft({"id": "think", "description": "think"}), "a thought", "done"]
    result, _, _ = decided(root, Workshop(), turns, [])
    assert (result.status == "paused") is asked


# --- plans edited by a human

GOOD_EDIT = {"goal": "less", "steps": [{"id": "b", "description": "b", "tool": "work", "parameters": {"n": "b"}}]}
BAD_EDIT = {"goal": "less", "steps": [{"id": "b", "description": "b", "tool": "wrok", "parameters": {"n": "b"}}]}


def test_an_invalid_edit_is_asked_about_again_without_a_model_call(tmp_path: Path) -> None:
    shop = Workshop()
    answers: Answers = [Edit(arguments=BAD_EDIT), Edit(arguments={"goal": 3}), Edit(arguments=GOOD_EDIT)]
    result, requests, asked = decided(always(tmp_path), shop, [draft(step("a")), "done"], answers)
    assert result.status == "completed"
    assert shop.log == ["+b", "-b"], "the edited plan's calls were written by a human: no second approval"
    assert len(requests) == 2
    assert asked[0][1] == "the agent's file requires approval of plans"
    assert asked[1][1] == "your edit is invalid: step b: there is no tool 'wrok'; did you mean work?"
    assert asked[2][1].startswith("your edit is invalid: goal: Input should be a valid string; steps: Field required")


@pytest.mark.parametrize("writes", range(6))
def test_an_edited_plan_needs_no_approval_wherever_the_process_dies(tmp_path: Path, writes: int) -> None:
    root, shop = always(tmp_path), Workshop()

    async def main() -> None:
        store, model = JsonStore(), ScriptedModel(draft(step("a")), "done")
        options: dict[str, Any] = {"tools": shop.tools(), "models": {"scripted": model}, "watch": False}
        try:
            async with Runtime.open(root, store=store, **options) as runtime:
                first = await runtime.run("do it")
                store.crash_after(writes)
                await runtime.resume(first.run_id, {first.pending[0].id: Edit(arguments=GOOD_EDIT)})
        except Crash:
            pass
        store.crash_after(None)
        async with Runtime.open(root, store=store, **options) as runtime:
            left = await store.load_run(first.run_id)
            if left.status != "running" or not left.plan or left.plan.revision == 1:
                return  # the run had ended, or the process died before the edit was applied
            result = await runtime.resume(first.run_id, {})
            assert [asked.kind for asked in result.pending] in ([], ["tool"])

    asyncio.run(main())


def test_after_an_invalid_edit_the_original_plan_can_be_approved(tmp_path: Path) -> None:
    shop = Workshop()
    turns: list[Turn] = [draft(step("a")), "done"]
    result, _, _ = decided(always(tmp_path), shop, turns, [Edit(arguments=BAD_EDIT), Approve()])
    assert result.status == "completed"
    assert shop.log == ["+a", "-a"]


def test_an_edit_cannot_remove_or_repeat_finished_steps(tmp_path: Path) -> None:
    shop = Workshop("b")
    turns: list[Turn] = [draft(step("a"), step("b", "a")), draft(step("c", tool="drill")), "done"]
    root = always(tmp_path, runtime_policy="{risk_level: high}")
    again = {"goal": "again", "steps": [{"id": "a", "description": "a", "tool": "work", "parameters": {"n": "z"}}]}
    fine = {"goal": "rest", "steps": [{"id": "d", "description": "d", "tool": "work", "parameters": {"n": "d"}}]}
    answers: Answers = [Approve(), Edit(arguments=again), Edit(arguments=fine)]
    result, _, asked = decided(root, shop, turns, answers)
    assert asked[2][1] == "your edit is invalid: step a is already done: use another id for a new step"
    assert result.status == "completed"
    assert [entry for entry in shop.log if entry.startswith("+")] == ["+a", "+b", "+d"]


# --- what an approval covers later


def test_with_always_each_new_plan_of_the_model_needs_approval(tmp_path: Path) -> None:
    shop = Workshop("b")
    root = always(tmp_path, skill_policy='{allow: ["*"]}')
    turns: list[Turn] = [draft(step("b")), draft(step("b", parameters={"n": "mallory"})), "done"]
    result, _, asked = decided(root, shop, turns, [Approve()])
    assert shop.log == ["+b"], "the new arguments were not shown to a person"
    (question,) = result.pending
    assert (question.kind, question.reason) == (
        "plan",
        "the model changed the plan after its approval, and the agent's file requires approval of every plan",
    )
    assert asked == [("plan", "the agent's file requires approval of plans")]


@cases(5)
@given(failures=st.lists(st.integers(0, 2), min_size=1, max_size=2), steps=st.integers(1, 3))
def test_with_always_no_revision_runs_before_its_own_approval(
    tmp_path_factory: pytest.TempPathFactory, failures: list[int], steps: int
) -> None:
    """Each plan fails once and is replaced by one with fewer, as many or more steps; all arguments differ."""
    names = [[f"r{revision}s{n}" for n in range(steps)] for revision in range(len(failures) + 1)]
    shop = Workshop(*(plan[failed % steps] for plan, failed in zip(names, failures, strict=False)))
    root = always(tmp_path_factory.mktemp("plan"), skill_policy='{allow: ["*"]}')
    plans: list[Turn] = [draft(*(step(name) for name in plan)) for plan in names]
    for approvals in range(len(plans)):
        shop.log.clear()
        result, _, _ = decided(root, shop, [*plans, "done"], [Approve()] * approvals)
        assert [asked.kind for asked in result.pending] == ["plan"]
        seen = {name for plan in names[:approvals] for name in plan}
        assert {entry[1:] for entry in shop.log} <= seen


def test_with_always_a_retry_that_the_user_chose_is_not_asked_about_again(tmp_path: Path) -> None:
    shop = Workshop("b")
    root = always(tmp_path, plan="{approval: always, on_failure: ask}", skill_policy='{allow: ["*"]}')
    answers: Answers = [Approve(), Respond(text="retry"), Respond(text="skip")]
    result, _, asked = decided(root, shop, [draft(step("b")), "done"], answers)
    assert [kind for kind, _ in asked] == ["plan", "step", "step"]
    assert shop.log == ["+b", "+b"]
    assert result.status == "completed"


@pytest.mark.parametrize(
    ("again", "beyond"),
    [
        ([step("b", n=1)], ""),
        ([step("b2", parameters={"n": "b2"})], ""),
        ([step("b2", parameters={"n": "b2"}), step("c2", parameters={"n": "c2"})], ""),
        ([step("b2", tool="drill")], "it may use drill; its risk is high"),
        (
            [step(f"b{n}", parameters={"n": f"b{n}"}) for n in range(3)],
            "it has 3 remaining steps instead of 2",
        ),
        ([{"id": "think", "description": "think", "tools": ["work"]}], "1 of its steps have no tool instead of 0"),
        (
            [{"id": "think", "description": "think"}],
            "drill",
        ),
    ],
    ids=[
        "the same",
        "another call",
        "as many",
        "a new tool",
        "more steps",
        "a free step",
        "a free step with all tools",
    ],
)
def test_a_new_revision_needs_approval_only_beyond_the_approved_scope(
    tmp_path: Path, again: list[dict[str, Any]], beyond: str
) -> None:
    shop = Workshop("b")
    again = [{key: value for key, value in one.items() if key != "n"} for one in again]
    keys = {"plan": "{approval: {from: low}}", "runtime_policy": "{risk_level: high}"}
    root = always(tmp_path, **keys, skill_policy='{allow: ["*"]}')
    turns: list[Turn] = [draft(step("a"), step("b", "a"), step("c", "b")), draft(*again), draft(), "thought", "done"]
    result, _, _ = decided(root, shop, turns, [Approve()])
    if not beyond:  # the same step fails the same way again, and then nothing is planned in its place
        assert result.status == ("failed" if again[0]["id"] == "b" else "completed")
        return
    assert result.status == "paused"
    (asked,) = result.pending
    assert asked.kind == "plan"
    assert asked.reason.startswith("it goes beyond the plan that was approved: ")
    assert beyond in asked.reason
    assert asked.plan is not None
    assert asked.plan.revision == 2
    assert asked.plan.step("a").status == "done"


def test_a_new_call_within_an_approved_plan_still_needs_confirmation_by_rules(tmp_path: Path) -> None:
    shop = Workshop("b")
    turns: list[Turn] = [draft(step("a"), step("b", "a")), draft(step("x", parameters={"n": "x"})), "done"]
    root = always(tmp_path, plan="{approval: {from: low}}")
    result, _, asked = decided(root, shop, turns, [Approve(), Approve()])
    assert [kind for kind, _ in asked] == ["plan", "tool"], "the new parameters were not shown to a human"
    assert result.status == "completed"
    assert "+x" in shop.log


class Changed(Workshop):
    """The definition of `work` changes during the run."""

    def tools(self) -> list[Tool]:
        work, drill = super().tools()
        changed_definition = work.definition.model_copy(update={"description": "Works, and notifies everyone."})
        return [replace(work, definition=changed_definition), drill]


def test_an_approval_does_not_cover_a_tool_that_changed_since_it_was_shown(tmp_path: Path) -> None:
    root = always(tmp_path)
    shop = Workshop()

    async def main() -> RunResult:
        store, model = JsonStore(), ScriptedModel(draft(step("a")), "done")
        options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(root, tools=shop.tools(), **options) as runtime:
            result = await runtime.run("do it")
        async with Runtime.open(root, tools=Changed().tools(), **options) as runtime:
            return await runtime.resume(result.run_id, {result.pending[0].id: Approve()})

    result = asyncio.run(main())
    assert result.status == "paused"
    assert [asked.kind for asked in result.pending] == ["tool"]


def test_an_approval_is_not_passed_on_to_a_changed_tool_by_replanning(tmp_path: Path) -> None:
    root, shop = always(tmp_path, plan="{approval: {from: low}, max_parallel: 1}"), Changed()

    @tool(risk="low")
    async def ask(n: str, context: ToolContext) -> str:
        """Ask a person."""
        said = await context.ask_human(n)
        if said == "no":
            raise ToolError("they said no")
        return said

    async def main() -> RunResult:
        asking = [step("fails", tool="ask"), step("waits", tool="ask"), step("b", "waits")]
        model = ScriptedModel(draft(*asking), draft(step("b", "waits")), "done")
        options: dict[str, Any] = {"models": {"scripted": model}, "store": JsonStore(), "watch": False}
        async with Runtime.open(root, tools=[*Workshop().tools(), ask], **options) as runtime:
            result = await runtime.run("do it")
            result = await runtime.resume(result.run_id, {result.pending[0].id: Approve()})
            assert [asked.reason for asked in result.pending] == ["fails", "waits"]
        async with Runtime.open(root, tools=[*shop.tools(), ask], **options) as runtime:
            answers = dict(zip([asked.id for asked in result.pending], ["no", "yes"], strict=True))
            return await runtime.resume(result.run_id, {key: Respond(text=text) for key, text in answers.items()})

    result = asyncio.run(main())
    assert shop.log == [], "the new definition was not shown to a human"
    assert result.status == "paused"
    assert [(asked.kind, asked.tool) for asked in result.pending] == [("tool", "work")]
    assert result.plan is not None
    assert result.plan.revision == 2


def test_an_edit_does_not_approve_a_tool_that_changed_since_the_plan_was_shown(tmp_path: Path) -> None:
    root, shop = always(tmp_path), Changed()

    async def main() -> RunResult:
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(draft(step("a")), "done")}, "watch": False}
        store = JsonStore()
        async with Runtime.open(root, tools=Workshop().tools(), store=store, **options) as runtime:
            result = await runtime.run("do it")
        async with Runtime.open(root, tools=shop.tools(), store=store, **options) as runtime:
            return await runtime.resume(result.run_id, {result.pending[0].id: Edit(arguments=GOOD_EDIT)})

    result = asyncio.run(main())
    assert shop.log == []
    assert [(asked.kind, asked.tool) for asked in result.pending] == [("tool", "work")]


def test_an_approved_step_in_progress_is_asked_about_again_if_its_tool_changed(tmp_path: Path) -> None:
    """The step may be repeated safely, but its tool is not the one that was approved."""
    root, began, did = always(tmp_path), asyncio.Event(), list[str]()

    @tool(risk="low", idempotent=True)
    async def work(n: str) -> str:
        """Works."""
        began.set()
        await asyncio.Event().wait()
        return n

    @tool(risk="low", idempotent=True, name="work")
    async def changed(n: str) -> str:
        """Works, and notifies everyone."""
        did.append(n)
        return n

    async def main() -> RunResult:
        model = ScriptedModel(draft(step("a")), "done")
        options: dict[str, Any] = {"models": {"scripted": model}, "store": JsonStore(), "watch": False, "grace": 0}
        async with Runtime.open(root, tools=[work], **options) as runtime:
            result = await runtime.run("do it")
            running = asyncio.create_task(runtime.resume(result.run_id, {result.pending[0].id: Approve()}))
            await began.wait()
        with pytest.raises(RunSuspended):
            await running
        async with Runtime.open(root, tools=[changed], **options) as runtime:
            again = await runtime.resume(result.run_id, {})
            assert did == []
            assert [asked.tool for asked in again.pending] == ["work"]
            assert "has changed since approval" in again.pending[0].reason
            return await runtime.resume(result.run_id, {again.pending[0].id: Approve()})

    assert asyncio.run(main()).status == "completed"
    assert did == ["a"]


def test_a_rejected_revision_keeps_finished_steps_and_reports_them(tmp_path: Path) -> None:
    shop = Workshop("b")
    root = always(tmp_path, runtime_policy="{risk_level: high}", skill_policy='{allow: ["*"]}')
    turns: list[Turn] = [draft(step("a"), step("b", "a"), step("c", "b")), draft(step("d", tool="drill"))]
    result, _, _ = decided(root, shop, turns, [Approve(), Reject(reason="too loud")])
    assert result.output == "The plan was not approved: too loud\n\ndid a"
    assert result.plan is not None
    assert {one.id: one.status for one in result.plan.steps} == {"a": "done", "b": "failed", "d": "skipped"}
    assert "drill" not in " ".join(shop.log)


def test_a_tightened_approval_setting_applies_immediately_to_a_waiting_run(tmp_path: Path) -> None:
    root = plan_project(tmp_path, plan="{approval: never}", skill_policy='{ask: [drill], allow: ["*"]}')
    root = plan_project(root, plan="{approval: never}", runtime_policy="{risk_level: high}")
    shop = Workshop("a")

    async def main() -> RunResult:
        model = ScriptedModel(draft(step("d", tool="drill", parameters={"n": "d"}), step("a", "d")), draft(step("z")))
        options: dict[str, Any] = {"models": {"scripted": model}, "store": JsonStore(), "watch": False}
        async with Runtime.open(root, tools=shop.tools(), **options) as runtime:
            result = await runtime.run("do it")
            assert [asked.kind for asked in result.pending] == ["tool"], "high risks are asked about one by one"
            plan_project(root, plan="{approval: always}", runtime_policy="{risk_level: high}")
            await runtime.reload()
            return await runtime.resume(result.run_id, {result.pending[0].id: Approve()})

    result = asyncio.run(main())
    assert [asked.kind for asked in result.pending] == ["plan"]


# --- the hash


@cases(100)
@given(st.data())
def test_the_hash_covers_exactly_the_shown_plan(data: st.DataObject) -> None:
    plan = Plan.from_draft(draft(step("a"), step("b", "a")))
    progress = plan.with_step("a", data.draw(st.sampled_from(["running", "done", "failed"])), data.draw(st.text()))
    assert progress.hash == plan.hash
    key, value = data.draw(
        st.sampled_from(
            [
                ("description", "other"),
                ("tool", "drill"),
                ("tool", None),
                ("parameters", {"n": "z"}),
                ("tools", ("work",)),
                ("depends_on", ("a",)),
                ("expected", "more"),
                ("id", "c"),
            ]
        )
    )
    changed = tuple(one.model_copy(update={key: value}) if one.id == "a" else one for one in plan.steps)
    assert plan.model_copy(update={"steps": changed}).hash != plan.hash
    assert plan.model_copy(update={"goal": "other"}).hash != plan.hash
