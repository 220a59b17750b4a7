"""Runs with questions to a person, by the model or about a failed step: replayed, and exported as a case."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import Respond, Runtime
from framework.evals.suite import case_file, export_case
from framework.replay import Difference, replay
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.state import Decision
from tests.support.commands import agentsd
from tests.support.plans import Workshop, draft, plan_project, step
from tests.support.projects import agent, write

ASK = calls(("ask_user", {"question": "Where to?", "choices": ["Rome", "Oslo"]}))


def recorded(root: Path, turns: list[Turn], *answers: str, edit: dict[str, str] | None = None) -> Any:
    """Return the case of a run whose questions are answered, and the differences of a replay after an edit."""
    store, shop = JsonStore(), Workshop("b")

    async def main() -> tuple[dict[str, Any], tuple[Difference, ...]]:
        models = {"scripted": ScriptedModel(*turns)}
        async with Runtime.open(root, tools=shop.tools(), models=models, store=store, watch=False) as runtime:
            result = await runtime.run("go")
            for answer in answers:
                decisions: dict[str, Decision] = {asked.id: Respond(text=answer) for asked in result.pending}
                result = await runtime.resume(result.run_id, decisions)
            assert result.status in ("completed", "failed"), result.pending
            record = await store.load_run(result.run_id)
            write(root, edit or {})
            await runtime.reload()
            found = await replay(root, await store.stored_run(record), runtime.catalog.current)
            return export_case(record, await store.events(result.run_id)), found

    return asyncio.run(main())


def test_a_run_with_a_question_is_replayed_and_exported_with_the_answer(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy="{allow: [ask_user]}")})
    case, found = recorded(root, [ASK, "to Rome"], "Rome")
    assert found == ()
    assert case["decisions"] == {"ask_user": {"respond": "Rome"}}
    assert case["expect"]["asked"] == ["ask_user"]
    assert "results" not in case
    text = case_file(case)
    write(root, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [ask_user]}")})
    write(root, {"agents.d/one.test.yaml": text})
    done = agentsd("test", cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("answers", [("retry", "skip"), ("skip",), ("stop",)])
def test_a_run_with_a_failed_step_is_replayed_with_the_users_choice(tmp_path: Path, answers: tuple[str, ...]) -> None:
    root = plan_project(tmp_path, plan="{on_failure: ask, approval: never}")
    case, found = recorded(root, [draft(step("a"), step("b", "a"), step("c")), "done"], *answers)
    assert found == ()
    assert case["expect"]["asked"] == ["step"]
    assert set(case["decisions"]) <= {"step", "failed-1-b", "failed-2-b"}


def test_a_new_confirmation_is_a_difference_not_an_error(tmp_path: Path) -> None:
    root = plan_project(tmp_path, plan="{on_failure: skip, approval: never}")
    asking = agent("p", executor="plan", plan="{on_failure: ask, approval: never}")
    _, found = recorded(root, [draft(step("b"), step("c")), "done"], edit={"agents.d/p.yaml": asking})
    assert ("asked", "failed-1-b") in [(one.what, one.subject) for one in found]
