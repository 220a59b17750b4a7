"""The gate that compares an edit with the live version, and how pairs are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from framework import ConfigError, Runtime
from framework.config.settings import ComparisonGate, ReloadSettings, Settings
from framework.evals.suite import Judgement
from framework.llm.client import ModelRequest, ScriptedModel, Turn
from framework.types.errors import ModelError
from framework.types.events import ConfigRejected
from tests.support.projects import agent, write

FILE, CASES = "agents.d/one.yaml", "agents.d/one.test.yaml"
TWO = """
cases:
  - {name: echoes, message: echo hello, expect: {called: [echo], output: hello}}
  - {name: says, message: x, model: [{say: yes it is}], expect: {output: "yes"}}
  - {name: fails on both, message: x, model: [{say: no}], expect: {output: "yes"}}
"""
Body = Callable[[Runtime, "list[Any]"], Awaitable[None]]


def one(allow: str = "[echo]", **keys: str) -> str:
    return agent("one", **{"model": "offline", "skill_policy": f"{{allow: {allow}}}", **keys})


def live(root: Path, body: Body, gate: Any, cases: str = TWO, **options: Any) -> None:
    write(root, {FILE: one(), CASES: cases})
    settings = Settings(reload=ReloadSettings(gate=gate, quiet=0.01))

    async def main() -> None:
        reloads: list[Any] = []
        async with Runtime.open(root, settings=settings, watch=False, **options) as runtime:
            runtime.catalog.subscribe(reloads.append)
            await body(runtime, reloads)

    asyncio.run(main())


def test_a_worse_edit_is_held_with_its_figures_and_an_equal_one_goes_live(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        before = runtime.catalog.current
        write(tmp_path, {FILE: one("[calculator]")})
        assert await runtime.reload() is before
        [rejected] = reloads
        assert isinstance(rejected, ConfigRejected)
        problem = next(one for one in rejected.problems if one.severity == "error")
        assert problem.place == f"{CASES}:2:6"
        assert problem.message == (
            "the edit makes the agents worse: 67% of the attempts passed before and 33% after, -33 points "
            f"(exact: the models are scripted); a loss of 5 is tolerated; fewer attempts pass of 'echoes' ({CASES}:2)"
        )
        write(tmp_path, {FILE: one("[echo, calculator]")})
        assert (await runtime.reload()).number == 2

    live(tmp_path, body, ComparisonGate())


def test_a_loss_that_is_tolerated_goes_live(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        write(tmp_path, {FILE: one("[calculator]")})
        assert (await runtime.reload()).number == 2

    live(tmp_path, body, ComparisonGate(worse_by=0.34))


def test_two_gates_must_both_let_an_edit_pass(tmp_path: Path) -> None:
    cases = TWO.partition("  - {name: fails")[0]

    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        before = runtime.catalog.current
        write(tmp_path, {FILE: one("[calculator]")})
        assert await runtime.reload() is before
        messages = [problem.message for problem in reloads[0].problems if problem.severity == "error"]
        assert [message.partition(":")[0] for message in messages] == [
            "case 'echoes' failed",
            "the edit makes the agents worse",
        ]
        write(tmp_path, {FILE: one("[echo, calculator]"), CASES: cases.replace("output: hello", "output: bye")})
        assert await runtime.reload() is before, "not worse, but a case fails"
        write(tmp_path, {CASES: cases})
        assert (await runtime.reload()).number == 2

    live(tmp_path, body, ("tests", ComparisonGate()), cases)


def test_two_edits_at_once_are_each_compared_with_what_is_live(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        write(tmp_path, {FILE: one("[calculator]")})
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(runtime.reload())
        assert runtime.catalog.current.number == 1
        assert len(reloads) == 1
        write(tmp_path, {FILE: one("[echo, calculator]")})
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(runtime.reload())
        assert runtime.catalog.current.number == 2

    live(tmp_path, body, ComparisonGate())


@pytest.mark.parametrize("gate", [ComparisonGate(), ComparisonGate(cases=("two",))])
def test_a_gate_without_cases_holds_every_edit(tmp_path: Path, gate: ComparisonGate) -> None:
    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        write(tmp_path, {FILE: one("[echo, calculator]"), CASES: TWO if gate.cases != "all" else "cases: []\n"})
        assert (await runtime.reload()).number == 1
        assert reloads[0].problems[0].message == "the gate has no case to compare (reload.gate)"

    live(tmp_path, body, gate)


def test_an_edit_that_removes_the_agent_of_a_case_is_held(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        write(tmp_path, {"agents.d/two.yaml": agent("two", model="offline")})
        (tmp_path / FILE).unlink()
        assert (await runtime.reload()).number == 1

    live(tmp_path, body, ComparisonGate())


def test_cases_of_a_new_agent_have_nothing_to_be_compared_with(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        write(tmp_path, {"agents.d/two.yaml": agent("two", model="offline"), "agents.d/two.test.yaml": TWO})
        assert (await runtime.reload()).number == 2

    live(tmp_path, body, ComparisonGate())


def test_an_edit_of_the_gate_does_not_decide_about_itself(tmp_path: Path) -> None:
    loose = "reload: {gate: none}\n"
    strict = "reload: {gate: {cases: all, against: live, worse_by: 0.05, confidence: 0.95}}\n"

    async def main() -> None:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            write(tmp_path, {"agentsd.yaml": loose, FILE: one("[calculator]")})
            assert (await runtime.reload()).number == 1

    write(tmp_path, {"agentsd.yaml": strict, FILE: one(), CASES: TWO})
    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    ["{worse_by: 2}", "{confidence: 1}", "{against: yesterday}", "{cases: []}", "[none]", "{repeat: 0}"],
)
def test_an_invalid_gate_is_an_error_of_the_settings(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"agentsd.yaml": f"reload: {{gate: {text}}}\n", FILE: one()})

    async def main() -> None:
        async with Runtime.open(tmp_path, watch=False):
            pass

    with pytest.raises(ConfigError):
        asyncio.run(main())


# --- live models


def answers(good: float) -> Callable[[ModelRequest], Turn]:
    """Return a model that answers well if its prompt says so, as often as `good`; else half as often."""
    asked = {"polite": 0, "rude": 0}

    def answer(request: ModelRequest) -> Turn:
        mood = "rude" if "rude" in request.messages[0].content else "polite"
        asked[mood] += 1
        share = good if mood == "polite" else good / 4
        return "yes" if int(asked[mood] * share) > int((asked[mood] - 1) * share) else "no"

    return answer


def test_a_worse_prompt_is_held_on_a_model_and_too_few_cases_cannot_tell(tmp_path: Path) -> None:
    closed: list[str] = []

    class Model(ScriptedModel):
        async def close(self) -> None:
            closed.append("closed")

    many = "cases:\n" + "".join(f"  - {{name: n{n}, message: m{n}, expect: {{output: 'yes'}}}}\n" for n in range(40))
    model = Model(script=answers(0.9))

    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        write(tmp_path, {FILE: one(instructions="Be rude.")})
        assert (await runtime.reload()).number == 1
        problem = next(one for one in reloads[0].problems if one.severity == "error")
        assert problem.message.startswith("the edit makes the agents worse: 90% of the attempts passed before and 22%")
        assert "(95% interval " in problem.message
        write(tmp_path, {CASES: TWO, FILE: one(instructions="Be very polite.")})
        assert (await runtime.reload()).number == 1
        problem = next(one for one in reloads[1].problems if one.severity == "error")
        assert problem.message.startswith("the cases cannot tell whether the edit makes the agents worse: ")
        assert "needs about " in problem.message
        assert closed == []

    live(tmp_path, body, ComparisonGate(model="mine", repeat=1), many, models={"mine": model})


@pytest.mark.parametrize("broken", ["agent", "judge", "judge says prose"])
def test_a_model_that_fails_on_both_versions_shows_nothing(tmp_path: Path, broken: str) -> None:
    count = 12
    data = "".join(f'{{"name": "n{n}", "message": "m{n}"}}\n' for n in range(count))
    cases = "data: d.jsonl\nexpect: {judge: {rubric: r, model: critic}}\n"
    is_down = True

    def answer(request: ModelRequest) -> Turn:
        return ModelError("down") if is_down and broken == "agent" else "yes"

    def judge(request: ModelRequest) -> Turn:
        if is_down and broken != "agent":
            return ModelError("down") if broken == "judge" else "I would let it pass"
        return Judgement(reason="r", verdict="pass")

    models = {"mine": ScriptedModel(script=answer), "critic": ScriptedModel(script=judge)}

    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        nonlocal is_down
        before = runtime.catalog.current
        write(tmp_path, {FILE: one(instructions="Be rude.")})
        assert await runtime.reload() is before
        problem = next(one for one in reloads[0].problems if one.severity == "error")
        assert problem.message.startswith("the cases cannot tell whether the edit makes the agents worse: ")
        assert f"{2 * count} of {2 * count} attempts have no result: " in problem.message
        is_down = False
        write(tmp_path, {FILE: one(instructions="Be polite.")})
        assert (await runtime.reload()).number == 2

    write(tmp_path, {"agents.d/d.jsonl": data})
    live(tmp_path, body, ComparisonGate(model="mine", repeat=1, cannot_tell="apply"), cases, models=models)


def test_without_a_model_the_gate_asks_no_judge(tmp_path: Path) -> None:
    critic = ScriptedModel()
    judged = TWO + "  - {name: j, message: x, expect: {judge: {rubric: r, model: critic}}}\n"

    async def body(runtime: Runtime, reloads: list[Any]) -> None:
        write(tmp_path, {FILE: one("[echo, calculator]")})
        assert (await runtime.reload()).number == 2
        assert critic.requests == []

    live(tmp_path, body, ComparisonGate(), judged, models={"critic": critic})
