"""A plan needs fewer tokens than the same work turn by turn, counted over complete requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.plans import AGAIN, AGENT, BROKEN, REST, TASKS, Task, by_plan, by_turns, cost


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "agents.d").mkdir()
    for name in ("react", "plan"):
        (tmp_path / "agents.d" / f"{name}.yaml").write_text(AGENT.format(name=name), "utf-8")
    return tmp_path


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_planned_task_costs_fewer_tokens_than_the_same_calls_turn_by_turn(root: Path, task: Task) -> None:
    async def main() -> tuple[int, int]:
        turns = await cost(root, "react", by_turns(task), len(task.calls))
        planned = await cost(root, "plan", by_plan(task.plan()), len(task.calls))
        assert planned.steps == 2
        assert turns.steps == len(task.turns()) + 1
        return turns.usage.total_tokens, planned.usage.total_tokens

    turn_by_turn, planned = asyncio.run(main())
    assert planned < turn_by_turn


def test_replanning_still_costs_fewer_tokens(root: Path) -> None:
    async def main() -> tuple[int, int]:
        turns = await cost(root, "react", by_turns(AGAIN), 5)
        planned = await cost(root, "plan", by_plan(BROKEN.plan(), REST), 5)
        assert planned.plan is not None
        assert planned.plan.replans == 1
        return turns.usage.total_tokens, planned.usage.total_tokens

    turn_by_turn, planned = asyncio.run(main())
    assert planned < turn_by_turn
