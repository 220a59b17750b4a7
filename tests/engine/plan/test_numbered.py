"""Plans in the literal form `{"steps": [{"step": 1, …}]}`: from the model, from an edit, and as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from framework import Edit
from framework.cli.confirm import as_text, read_text
from framework.types.plan import FixedDraft, Plan, PlanDraft
from tests.support.plans import (
    Workshop,
    draft,
    plan_project,
    run_plan,
    run_plan_over_http,
    run_plan_with_requests,
    step,
    step_statuses,
)
from tests.support.wire import calls, says


def numbered(number: int, n: str, **keys: Any) -> dict[str, Any]:
    return {"step": number, "description": f"do {n}", "tool": "work", "parameters": {"n": n}} | keys


LITERAL = {"steps": [numbered(1, "a"), numbered(2, "x {{ steps.1.output }}")]}


def test_a_model_may_number_its_steps_and_omit_the_goal(tmp_path: Path) -> None:
    result = run_plan_over_http(tmp_path, [calls(("PlanDraft", LITERAL)), says("done")])
    assert (result.status, result.output) == ("completed", "done"), result.error
    assert step_statuses(result) == {"1": "done", "2": "done"}
    assert [call.arguments["n"] for call in result.tool_calls] == ["a", "x did a"]
    assert result.plan is not None
    assert result.plan.goal == "go"
    assert [one.depends_on for one in result.plan.steps] == [(), ("1",)]


def test_an_edit_may_number_its_steps_and_omit_the_goal(tmp_path: Path) -> None:
    shop = Workshop()
    root = plan_project(tmp_path, plan="{approval: always}")
    result, _, _ = run_plan_with_requests(
        root, shop.tools(), draft(step("b")), "done", decide={"plan": Edit(arguments=LITERAL)}
    )
    assert result.status == "completed"
    assert shop.log == ["+a", "-a", "+x did a", "-x did a"]
    assert result.plan is not None
    assert result.plan.goal == "get it done"


def test_the_text_of_a_numbered_plan_is_the_same_plan() -> None:
    plan = FixedDraft.model_validate(LITERAL)
    assert read_text(json.dumps(LITERAL)) == plan
    assert read_text(as_text(plan, Plan.from_draft(plan))) == plan
    assert read_text("steps:\n  - {step: 1, description: look}\n").steps[0].id == "1"


def test_dependencies_that_are_given_are_kept(tmp_path: Path) -> None:
    free = {"steps": [numbered(1, "a"), numbered(2, "b", depends_on=[]), numbered(3, "c", depends_on=[1])]}
    assert [one.depends_on for one in PlanDraft.model_validate(free).steps] == [(), (), ("1",)]
    shop = Workshop()
    result, _ = run_plan(plan_project(tmp_path), shop, PlanDraft.model_validate(free), "done")
    assert shop.log[:2] == ["+a", "+b"]
    assert result.status == "completed"


@pytest.mark.parametrize("wrong", [{"step": True}, {"step": 1.5}, {"step": None}, {"step": 1, "id": "a"}, {"step": ""}])
def test_other_steps_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PlanDraft.model_validate({"steps": [{"description": "d", **wrong}]})
