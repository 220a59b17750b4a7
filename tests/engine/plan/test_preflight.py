"""Preflight rejects every invalid plan before any step runs, and no valid one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn
from framework.tools.tool import Tool
from framework.types.events import wire
from framework.types.plan import PlanDraft
from tests.support.cases import cases
from tests.support.projects import agent, write

MOST_STEPS = 5
Steps = list[dict[str, Any]]


@tool(risk="low")
def work(n: int, note: str = "") -> str:
    """Work."""
    return f"did {n} {note}".strip()


@tool(risk="low")
def wipe(n: int = 0) -> str:
    """Wipe."""
    raise AssertionError("a denied tool was called")


@tool(risk="critical")
def launch() -> str:
    """Launch."""
    raise AssertionError("a tool above the ceiling was called")


@tool(risk="low")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


TOOLS: list[Tool] = [work, wipe, launch, pay]
POLICY = '{deny: [wipe, {tool: pay, when: {amount: "> 50"}}], allow: ["*"]}'


def project(root: Path, **keys: str) -> Path:
    keys = {
        "executor": "plan",
        "skill_policy": POLICY,
        "plan": f"{{max_plan_steps: {MOST_STEPS}, approval: never}}",
        "runtime_policy": "{max_corrections: 1}",
    } | keys
    return write(root, {"agents.d/p.yaml": agent("p", **keys)})


def drafted(steps: Steps, goal: str = "g") -> PlanDraft:
    return PlanDraft.model_validate({"goal": goal, "steps": steps})


def run(root: Path, *turns: Turn) -> tuple[RunResult, list[ModelRequest], list[dict[str, Any]]]:
    async def main() -> tuple[RunResult, list[ModelRequest], list[dict[str, Any]]]:
        model = ScriptedModel(*turns)
        async with Runtime.open(root, tools=TOOLS, models={"scripted": model}, watch=False) as runtime:
            async with runtime.stream("do it") as stream:
                seen = [wire(event) async for event in stream]
            return await stream.result(), model.requests, seen

    return asyncio.run(main())


def step(name: str, *after: str, **keys: Any) -> dict[str, Any]:
    return {"id": name, "description": name, "tool": "work", "parameters": {"n": 1}, "depends_on": list(after)} | keys


@pytest.mark.parametrize(
    ("steps", "finding"),
    [
        ([], "it has no steps"),
        ([step("a", tool="wrok")], "step a: there is no tool 'wrok'; did you mean work?"),
        ([step("a", tool="wipe")], "step a: the policy forbids it: deny wipe"),
        ([step("a", tool="launch", parameters={})], "step a: the policy forbids it: max_risk medium"),
        ([step("a", tool="pay", parameters={"amount": 51})], "step a: the policy forbids it: deny pay"),
        ([step("a", "a")], "step a depends on itself"),
        ([step("a", "b")], "step a depends on 'b', which does not exist"),
        ([step("a"), step("a")], "two steps have the id 'a'"),
        ([step("c", "b"), step("a", "c"), step("b", "a")], "in a cycle: c -> b -> a -> c"),
        ([step("a", parameters={"m": 1})], "step a: work: n: it is missing; add it: integer; m: there is no such"),
        ([step("a", parameters={"n": "x"})], "step a: work: n: it has the wrong type"),
        ([step("a", tools=["work"])], "step a: it has both `tool` and `tools`"),
        ([step("a", tool=None)], "step a: it has parameters but no tool"),
        ([step("a", tool=None, parameters={}, tools=["wipe"])], "step a: there is no tool 'wipe' for it"),
        ([step("a", description=" ")], "the description of step a is empty"),
        ([step("a", description="x" * 4001)], "the description of step a is longer than 4000 characters"),
        ([step("a", parameters={"n": 1, "note": "x" * 70_000})], "characters; at most 65536 are allowed"),
        ([step(f"s{n}") for n in range(6)], "6 steps; at most 5 are allowed"),
        ([step("a"), step("b", parameters={"n": "{{ steps.a.output }}"})], "refer to step a: add a to its depends_on"),
        ([step("a", parameters={"n": "{{ steps.z.output }}"})], "refer to step 'z', which does not exist"),
        ([step("a", parameters={"n": "{{ z }}"})], "'{{ z }}' is not a valid reference: write {{ steps.ID.output }}"),
        ([step("a", parameters={"n": 1, "note": ["{{ a.output"]})], "'{{ a.output' is not a valid reference"),
        (
            [step("a"), step("b", "a", parameters={"n": "{{ steps.a.output }}", "m": 1})],
            "step b: work: m: there is no such argument",
        ),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_each_problem_is_reported_to_the_model_and_no_step_runs(tmp_path: Path, steps: Steps, finding: str) -> None:
    result, requests, _ = run(project(tmp_path), drafted(steps), drafted([step("good")]), "done")
    assert (result.status, result.output) == ("completed", "done")
    assert finding in requests[1].messages[-1].content
    assert len(result.tool_calls) == 1


def test_a_model_that_insists_that_nothing_has_to_be_done_answers(tmp_path: Path) -> None:
    root = project(tmp_path, runtime_policy="{max_corrections: 0}", plan="{approval: always}")
    result, requests, seen = run(root, drafted([]), drafted([]), "nothing to do")
    assert (result.status, result.output, result.tool_calls) == ("completed", "nothing to do", ())
    assert result.plan is not None
    assert (result.plan.steps, result.warnings) == ((), ())
    assert "it has no steps: if nothing has to be done, return it again" in requests[1].messages[-1].content
    assert requests[2].messages[-1].content.startswith("Nothing has to be done for the request")
    assert [event["status"] for event in seen if event["event"] == "done"] == ["completed"]


def test_a_plan_without_steps_between_invalid_ones_counts_no_correction(tmp_path: Path) -> None:
    bad = drafted([step("a", tool="wrok")])
    result, requests, _ = run(project(tmp_path), drafted([]), bad, drafted([step("good")]), "done")
    assert (result.status, result.output, len(requests)) == ("completed", "done", 4)


def test_a_model_sees_its_invalid_plan_as_an_assistant_message(tmp_path: Path) -> None:
    bad = drafted([step("a", tool="wrok")], goal="do the thing")
    _, requests, _ = run(project(tmp_path), bad, drafted([step("good")]), "done")
    earlier = requests[1].messages[-2]
    assert earlier.role == "assistant"
    assert '"goal": "do the thing"' in earlier.content
    assert '"wrok"' in earlier.content


def test_a_rule_on_an_unknown_value_is_evaluated_at_the_call(tmp_path: Path) -> None:
    @tool(risk="low", name="work")
    def big() -> int:
        """Return a large number."""
        return 51

    plan = drafted(
        [step("a", parameters={}), step("b", "a", tool="pay", parameters={"amount": "{{ steps.a.output }}"})]
    )

    async def main() -> RunResult:
        model = ScriptedModel(plan, "done")
        root = project(tmp_path, plan="{on_failure: skip}")
        async with Runtime.open(root, tools=[big, wipe, pay], models={"scripted": model}, watch=False) as runtime:
            return await runtime.run("do it")

    result = asyncio.run(main())
    assert [(call.tool, call.status) for call in result.tool_calls] == [("work", "success"), ("pay", "denied")]


def test_the_plan_event_has_a_verdict_for_each_step_and_an_estimate(tmp_path: Path) -> None:
    policy = '{ask: [pay], allow: ["*"]}'
    steps = [step("a"), step("b", "a", tool="pay", parameters={"amount": 5}), step("c", tool=None, parameters={})]
    _, _, seen = run(project(tmp_path, skill_policy=policy), drafted(steps), "thought", "done")
    (proposed,) = [event for event in seen if event["event"] == "plan"]
    checks = {check["id"]: check for check in proposed["preflight"]["steps"]}
    assert [(name, check["verdict"], check["risk"]) for name, check in checks.items()] == [
        ("a", "allow", "low"),
        ("b", "ask", "low"),
        ("c", "open", "low"),
    ]
    assert checks["b"]["rule"] == "ask pay (agents.d/p.yaml:6)"
    expected = proposed["preflight"]["estimate"]
    assert (expected["tool_calls"], expected["model_calls"]) == (2, 2)
    assert expected["tokens"] > 0
    assert proposed["hash"]


def test_a_plan_beyond_the_budget_is_rejected(tmp_path: Path) -> None:
    root = project(tmp_path, runtime_policy="{max_steps: 4, max_tool_calls: 2}")
    free = [step(f"s{n}", tool=None, parameters={}) for n in range(4)]
    named = [step(f"s{n}") for n in range(3)]
    _, requests, _ = run(root, drafted(free), drafted(named), drafted([step("a")]), "done")
    assert "it has 4 steps without a tool; max_steps allows 3 more model calls" in requests[1].messages[-1].content
    assert "it needs 3 tool calls; max_tool_calls allows 2 more" in requests[2].messages[-1].content


# --- generated plans


@st.composite
def good_plans(draw: st.DrawFn) -> Steps:
    """Generate valid plans: any acyclic graph, in any order, with references along its edges."""
    names = [f"s{n}" for n in range(draw(st.integers(1, MOST_STEPS)))]
    steps = []
    for place, name in enumerate(names):
        after = sorted(draw(st.sets(st.sampled_from(names[:place]), max_size=3) if place else st.just(set())))
        refers = draw(st.booleans())
        note = f"{{{{ steps.{after[0]}.output }}}}" if after and refers else "x"
        free = draw(st.integers(0, 4)) == 0
        steps.append(
            step(name, *after, tool=None, parameters={})
            if free
            else step(name, *after, parameters={"n": place, "note": note})
        )
    return draw(st.permutations(steps))


Spoil = Callable[[Steps, dict[str, Any], st.DrawFn], None]


def _denied(steps: Steps, one: dict[str, Any], draw: st.DrawFn) -> None:
    denied = {"wipe": {}, "launch": {}, "pay": {"amount": draw(st.integers(51, 10**6))}}
    one["tool"] = draw(st.sampled_from(sorted(denied)))
    one["parameters"] = denied[one["tool"]]


def _circle(steps: Steps, one: dict[str, Any], draw: st.DrawFn) -> None:
    by_name = {other["id"]: other for other in steps}
    every = draw(st.permutations(sorted(by_name)))
    circle = every[: draw(st.integers(1, len(every)))]
    for here, there in zip(circle, [*circle[1:], circle[0]], strict=True):
        by_name[here]["depends_on"] = [*by_name[here]["depends_on"], there]


def _call(parameters: st.SearchStrategy[dict[str, Any]]) -> Spoil:
    return lambda _, one, draw: one.update(tool="work", parameters=draw(parameters))


def _waits(other: str | None) -> Spoil:
    return lambda _, one, __: one.update(depends_on=[*one["depends_on"], other or one["id"]])


UNKNOWN = st.text("abcdefgh.", min_size=1).filter(lambda name: name not in {"work", "pay"})
BAD_ARGUMENTS: list[dict[str, Any]] = [{}, {"n": "x"}, {"n": None}, {"n": 1, "m": 1}, {"n": 1, "note": 3}, {"n": 1.5}]
BAD_REFERENCES = ("{{ steps.elsewhere.output }}", "{{ steps }}", "{{ 7 * 7 }}", "{{", "a {{ steps.s0 }}")
KINDS: dict[str, Spoil] = {
    "unknown tool": lambda _, one, draw: one.update(tool=draw(UNKNOWN)),
    "denied tool": _denied,
    "circle": _circle,
    "itself": _waits(None),
    "unknown step": _waits("elsewhere"),
    "same id": lambda steps, one, _: steps.append(step(one["id"])),
    "bad arguments": _call(st.sampled_from(BAD_ARGUMENTS)),
    "bad reference": _call(st.sampled_from(BAD_REFERENCES).map(lambda note: {"n": 1, "note": note})),
    "too long": lambda steps, _, __: steps.extend(step(f"t{n}") for n in range(MOST_STEPS + 1)),
}


@st.composite
def bad_plans(draw: st.DrawFn) -> tuple[str, Steps]:
    """Generate plans with one mistake, and the mistake."""
    steps = [dict(one) for one in draw(good_plans())]
    kind = draw(st.sampled_from(sorted(KINDS)))
    KINDS[kind](steps, draw(st.sampled_from(steps)), draw)
    return kind, steps


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Steps], RunResult]:
    """Run a plan twice in a row, so that a rejected one ends the run at the limit of corrections."""
    root = project(tmp_path_factory.mktemp("plan"))

    def check(steps: Steps) -> RunResult:
        plan = drafted(steps)
        script: list[Turn] = []

        def answer(request: ModelRequest) -> Turn:
            script.append("asked")
            return plan if request.output is not None else "done"

        async def main() -> RunResult:
            model = ScriptedModel(script=answer)
            async with Runtime.open(root, tools=TOOLS, models={"scripted": model}, watch=False) as runtime:
                return await runtime.run("do it")

        return asyncio.run(main())

    return check


@cases(12)
@given(bad=bad_plans())
def test_every_invalid_plan_is_rejected_before_anything_is_called(
    checked: Callable[[Steps], RunResult], bad: tuple[str, Steps]
) -> None:
    result = checked(bad[1])
    assert (result.status, result.finish_reason) == ("stopped", "max_corrections"), bad
    assert result.tool_calls == ()
    assert result.steps == 2


@cases(12)
@given(steps=good_plans())
def test_no_valid_plan_is_rejected(checked: Callable[[Steps], RunResult], steps: Steps) -> None:
    result = checked(steps)
    assert result.status == "completed", result
    assert result.plan is not None
    assert {one.status for one in result.plan.steps} == {"done"}
