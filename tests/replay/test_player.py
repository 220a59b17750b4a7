"""Replays have no differences under the same files, and exactly the effects of an edit under other files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, ModelError, Reject, Respond, RunResult, Runtime, ToolError, tool
from framework.config.yaml.document import read_document
from framework.config.yaml.parse import parse
from framework.engine.routing import RouteChoice
from framework.evals.suite import case_file, export_case
from framework.llm.client import ModelRequest
from framework.replay import Difference, replay
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.case import CaseFile
from framework.types.plan import PlanDraft, StepDraft
from framework.types.state import Decision, RunState
from tests.support.cases import cases
from tests.support.projects import agent, write
from tests.support.worlds import Turns, World, project, turns_of

DECISIONS: st.SearchStrategy[Decision] = st.sampled_from([Approve(), Reject(reason="no"), Respond(text="by hand")])


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("asking"), ask=True)


@cases(13)
@given(data=st.data(), turns=turns_of(2))
def test_a_replay_under_the_same_files_has_no_differences(asking: Path, data: st.DataObject, turns: Turns) -> None:
    """Nested agents run concurrently, with some of the questions answered and the rest left open."""
    world, store = World(turns), JsonStore()

    async def main() -> tuple[Difference, ...]:
        models = {"scripted": world.model()}
        async with Runtime.open(asking, tools=world.tools(), models=models, store=store, watch=False) as runtime:
            result = await runtime.run("0", agent="root")
            for _ in range(data.draw(st.integers(0, 4))):
                if result.status != "paused":
                    break
                decided = data.draw(st.lists(st.sampled_from(result.pending), min_size=1, unique_by=lambda one: one.id))
                result = await runtime.resume(result.run_id, {one.id: data.draw(DECISIONS) for one in decided})
            before = dict(world.ran)
            record = await store.load_run(result.run_id)
            found = await replay(asking, await store.stored_run(record), runtime.catalog.current)
            assert dict(world.ran) == before, "no tool was called"
            return found

    assert asyncio.run(main()) == ()


# --- one project, one run, one edit


@tool(risk="low")
async def find(order: str) -> str:
    """Find an order."""
    if order == "0":
        raise ToolError("there is no such order")
    return f"order {order}"


def run_then_edit(
    root: Path,
    model: ScriptedModel,
    edit: dict[str, str] | None = None,
    decide: Decision | None = None,
    helper: str | None = None,
    **keys: str,
) -> tuple[RunResult, RunState, Sequence[Difference], dict[str, Any]]:
    """Return a run, its record, the differences of a replay after an edit, and the run as a case."""
    write(root, {"agents.d/a.yaml": agent("a", **keys), "agents.d/helper.yaml": helper or agent("helper")})
    store = JsonStore()

    async def main() -> tuple[RunResult, RunState, Sequence[Difference], dict[str, Any]]:
        async with Runtime.open(root, tools=[find], models={"scripted": model}, store=store, watch=False) as runtime:
            assert runtime.catalog.problems == (), runtime.catalog.problems
            result = await runtime.run("go", agent="a", inputs={})
            while decide and result.status == "paused":
                result = await runtime.resume(result.run_id, {one.id: decide for one in result.pending})
            asked = len(model.requests)
            if edit is not None:
                write(root, {"agents.d/a.yaml": agent("a", **{**keys, **edit})})
                await runtime.reload()
                assert runtime.catalog.problems == (), runtime.catalog.problems
            record = await store.load_run(result.run_id)
            found = await replay(root, await store.stored_run(record), runtime.catalog.current)
            assert len(model.requests) == asked, "no model was asked"
            return result, record, found, export_case(record, await store.events(record.run_id))

    return asyncio.run(main())


def rows(found: Sequence[Difference]) -> list[tuple[str, str, str, str]]:
    return [(one.what, one.subject, one.before, one.after) for one in found if one.what != "prompt"]


def finds(*orders: str) -> ScriptedModel:
    return ScriptedModel(*(calls(("find", {"order": order}), prefix=f"c{order}-") for order in orders), "done")


@pytest.mark.parametrize("edit", [None, {"plan": "{max_parallel: 1}"}], ids=["as it was", "an edit of no effect"])
def test_a_replay_of_a_run_with_failures_has_no_differences(tmp_path: Path, edit: dict[str, str] | None) -> None:
    _, _, found, _ = run_then_edit(tmp_path, finds("1", "0", "2"), edit, skill_policy="{allow: [find]}")
    assert found == ()


def test_a_new_denial_is_a_difference_of_that_call_only(tmp_path: Path) -> None:
    edit = {"skill_policy": '{deny: [{tool: find, when: {order: "2"}}], allow: [find]}'}
    _, _, found, _ = run_then_edit(tmp_path, finds("1", "2"), edit, skill_policy="{allow: [find]}")
    ((what, subject, before, after),) = rows(found)
    assert (what, subject, before) == ("call", 'c2-1 find {"order": "2"}', "success")
    assert after.startswith("denied: the policy forbids this call: deny find (agents.d/a.yaml:6)")


def test_a_new_confirmation_is_a_difference_and_counts_as_approved(tmp_path: Path) -> None:
    edit = {"skill_policy": "{ask: [find], allow: []}"}
    _, _, found, _ = run_then_edit(tmp_path, finds("1"), edit, skill_policy="{allow: [find]}")
    assert rows(found) == [("asked", "c1-1", "not asked", "asked")]


def test_a_removed_confirmation_is_a_difference(tmp_path: Path) -> None:
    edit = {"skill_policy": "{allow: [find]}"}
    _, _, found, _ = run_then_edit(tmp_path, finds("1"), edit, Approve(), skill_policy="{ask: [find], allow: []}")
    assert rows(found) == [("asked", "c1-1", "asked", "not asked")]


def test_tools_and_prompts_are_compared_with_the_original_files(tmp_path: Path) -> None:
    edit = {"skill_policy": "{allow: [find, calculator]}", "instructions": "Be brief."}
    _, _, found, _ = run_then_edit(tmp_path, finds("1"), edit, skill_policy="{allow: [find, echo]}")
    assert rows(found) == [("offered", "a", "echo", "calculator")]
    (prompt,) = [one for one in found if one.what == "prompt"]
    assert prompt.before.startswith("You are a.")
    assert prompt.after.startswith("Be brief.")


def test_a_lower_limit_stops_the_replay(tmp_path: Path) -> None:
    edit = {"runtime_policy": "{max_steps: 2}"}
    _, _, found, _ = run_then_edit(tmp_path, finds("1", "2", "3"), edit, skill_policy="{allow: [find]}")
    assert ("status", "", "completed (final)", "stopped (max_steps)") in rows(found)
    assert ("call", 'c3-1 find {"order": "3"}', "success", "not asked for") in rows(found)


@pytest.mark.parametrize(
    ("turns", "keys"),
    [
        ([calls(("find", {"order": "1"})), ModelError("down")], {}),
        ([calls(("find", {"order": str(n)}), prefix=f"{n}") for n in range(9)], {"runtime_policy": "{max_steps: 4}"}),
        ([calls(("find", {"order": "1"}))], {"runtime_policy": "{max_total_tokens: 5}"}),
        ([calls(("fnd", {"order": "1"}), prefix=f"{n}") for n in range(9)], {}),
    ],
    ids=["its provider failed", "a limit", "its tokens", "wrong calls"],
)
def test_an_interrupted_run_is_replayed_to_the_end_of_its_record(
    tmp_path: Path, turns: list[Turn], keys: dict[str, Any]
) -> None:
    result, _, found, _ = run_then_edit(tmp_path, ScriptedModel(*turns), **keys)
    assert result.status in ("failed", "stopped")
    assert found == ()


def planned(request: ModelRequest) -> Turn:
    if request.output is PlanDraft:
        steps = (
            StepDraft(id="look", description="look it up", tool="find", parameters={"order": "1"}),
            StepDraft(id="think", description="think", depends_on=("look",)),
        )
        return PlanDraft(goal="know", steps=steps)
    goal = next(message.content for message in reversed(request.messages) if message.role == "user")
    if not goal.startswith("think"):
        return "summed up"
    results = [message.content for message in request.messages if message.role == "tool"]
    return "thought" if len(results) > 1 else calls(("find", {"order": "2"}), prefix="t")


def test_a_plan_is_replayed_with_its_goal_steps(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"executor": "plan", "plan": "{approval: always}", "skill_policy": "{allow: [find]}"}
    result, record, found, case = run_then_edit(tmp_path, ScriptedModel(script=planned), None, Approve(), **keys)
    assert (result.output, found) == ("summed up", ())
    assert len(record.typed) == 1
    parse("a.test.yaml", case_file(case).encode(), CaseFile)
    assert list(case["model"][0]) == ["plan"]
    assert case["decisions"] == {"plan": "approve"}
    assert case["expect"]["called_exactly"] == ["find", "find"]


def test_a_plan_shows_new_denials(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"executor": "plan", "plan": "{approval: never}", "skill_policy": "{allow: [find]}"}
    edit = {"skill_policy": '{deny: [{tool: find, when: {order: "2"}}], allow: [find]}'}
    _, _, found, _ = run_then_edit(tmp_path, ScriptedModel(script=planned), edit, **keys)
    assert next(what for what, *_ in rows(found)) == "call"


def test_a_sub_agent_is_replayed_from_its_own_record(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Turn:
        last = request.messages[-1]
        if last.role == "user":
            wanted = calls(("find", {"order": "7"}), prefix="h")
            return wanted if last.content == "help" else calls(("agent.helper", {"message": "help"}))
        return f"said {last.content}"

    keys: dict[str, Any] = {"sub_agents": "[helper]", "skill_policy": "{allow: []}"}
    result, _, found, case = run_then_edit(tmp_path, ScriptedModel(script=script), **keys)
    assert (result.output, found) == ("said said order 7", ())
    assert [answer.get("call", answer.get("say")) for answer in case["model"]] == [
        "agent.helper",
        "find",
        "said order 7",
        "said said order 7",
    ]
    assert case["expect"]["called_exactly"] == ["agent.helper", "find"]


def choosing(request: ModelRequest) -> Turn:
    """Return a model that chooses the plan executor whenever it is asked."""
    if request.output is RouteChoice:
        return RouteChoice(agent=request.messages[0].content.rpartition("- ")[2].partition(":")[0], executor="plan")
    if request.messages[-1].content == "go" and any(tool.name == "agent.helper" for tool in request.tools):
        return calls(("agent.helper", {"message": "help"}))
    return f"said {request.messages[-1].content}" if request.messages[-1].role == "tool" else planned(request)


@pytest.mark.parametrize("routing", ["{}", "{model: scripted}"], ids=["by its own model", "by the router's"])
@pytest.mark.parametrize("agents", ["one", "a sub-agent"])
def test_a_replay_uses_the_recorded_choice_of_executor(tmp_path: Path, routing: str, agents: str) -> None:
    write(tmp_path, {"agentsd.yaml": f"routing: {routing}\n"})
    how: dict[str, Any] = {"skill_policy": "{allow: [find]}", "plan": "{approval: never}"}
    one = how | ({"executor": "auto"} if agents == "one" else {"sub_agents": "[helper]"})
    helper = agent("helper", **(how | {"executor": "auto"})) if agents != "one" else None
    result, record, found, _ = run_then_edit(tmp_path, ScriptedModel(script=choosing), None, helper=helper, **one)
    assert result.status == "completed", result.error
    planning = record if agents == "one" else next(iter(record.children.values()))
    assert (planning.executor, len(planning.typed)) == ("plan", 1)
    assert found == ()


# --- the text of a case

ODD = st.sampled_from(
    ["yes", "0o17", "1e3", "null", "~", "a: b", "- x", "# c", "a\nb", " a", "a\n b\n", "é\u2028", "{", "'", '"']
)
TEXTS = ODD | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)


@cases(200)
@given(say=TEXTS, arguments=st.dictionaries(TEXTS, TEXTS | st.integers() | st.none() | st.booleans(), max_size=3))
def test_a_written_case_parses_to_the_same_data(say: str, arguments: dict[str, Any]) -> None:
    case = {"name": say, "message": say, "model": [{"call": "t", "arguments": arguments}, {"say": say}]}
    assert read_document("x", case_file(case).encode()).data == {"cases": [case]}
