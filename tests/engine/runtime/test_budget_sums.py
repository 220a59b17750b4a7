"""Counters of shared budgets: the sum of what all runs report, despite crashes, and at most one call each too high."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, RunResult, Runtime
from framework.llm.client import ModelRequest, Turn, calls
from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.testing import Crash, JsonStore
from framework.types.budget import BudgetUse
from framework.types.state import RunState
from tests.support import budgets as support
from tests.support import worlds
from tests.support.budgets import CENT, PaidModel, cents, opened, project, total
from tests.support.cases import cases
from tests.support.connections import until_disconnected
from tests.support.forks import FORKS
from tests.support.projects import agent, write
from tests.support.stores import LONG_ON_POSTGRESQL
from tests.support.worlds import Turns, World

COSTS = st.lists(st.integers(1, 50), min_size=1, max_size=8)
"""Thousandths of a dollar of the model calls, repeated."""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents with sub-agents that work in parallel; the leaf has a budget of its own."""
    root = worlds.project(tmp_path_factory.mktemp("nested"), ask=False)
    for level in worlds.LEVELS:
        file = root / "agents.d" / f"{level}.yaml"
        uses = {"root": "[team]", "middle": "[]", "leaf": "[leaf]"}[level]
        file.write_text(f"{file.read_text('utf-8')}budgets: {uses}\n", "utf-8")
    return root


def set_limits(root: Path, team: int, leaf: int) -> None:
    text = "".join(
        f"  {name}: {{max_cost_usd: {limit / 1000}, per: day}}\n" for name, limit in (("team", team), ("leaf", leaf))
    )
    calls_fast = "model_calls: {max_retries: 20, backoff: 1ms, max_backoff: 1ms, cooldown_after: 1000}\n"
    (root / "agentsd.yaml").write_text(f"budgets:\n{text}{calls_fast}", "utf-8")


def costly(world: World, costs: list[int], max_output: int | None) -> PaidModel:
    prices = cycle(costs)

    def usage() -> tuple[int, float]:
        cost = next(prices)
        return cost, cost / 1000

    return PaidModel(world.model(), usage, max_output=max_output)


def used_by_leaves(state: RunState) -> float:
    return sum((one.usage.cost_usd or 0) for one in state.with_sub_runs() if one.agent == "leaf")


@cases(12)
@given(
    scripts=st.lists(worlds.turns_of(2), min_size=1, max_size=4),
    costs=COSTS,
    limits=st.tuples(st.integers(1, 400), st.integers(1, 200)),
    faults=st.lists(st.booleans(), max_size=3),
    max_output=st.sampled_from([None, 50]),
)
def test_counters_are_the_sum_of_all_runs_and_exceed_a_limit_by_one_call_each(
    nested: Path,
    scripts: list[Turns],
    costs: list[int],
    limits: tuple[int, int],
    faults: list[bool],
    max_output: int | None,
) -> None:
    set_limits(nested, *limits)

    async def main() -> None:
        store = MemoryStore()
        async with AsyncExitStack() as stack:
            runs = []
            for turns in scripts:  # each in a runtime of its own, like processes that share a store
                world = World(turns, faults=[False, *faults])
                model = {"scripted": costly(world, costs, max_output)}
                opening = Runtime.open(nested, models=model, tools=world.tools(), store=store, watch=False)
                runs.append((await stack.enter_async_context(opening)).run("0", agent="root"))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run) for run in runs]
        results = [task.result() for task in tasks]
        states = [await store.load_run(result.run_id) for result in results]
        used = await total(store), await total(store, "leaf")
        assert used[0] == pytest.approx(sum(result.usage.cost_usd or 0 for result in results))
        assert used[1] == pytest.approx(sum(map(used_by_leaves, states)))
        for spent_usd, limit in zip(used, limits, strict=True):
            assert spent_usd < limit / 1000 + len(results) * max(costs) / 1000 + 1e-9
        exceeded = [result.finish_reason for result in results if result.finish_reason != "final"]
        assert set(exceeded) <= {"budget"}

    asyncio.run(main())


@cases(8)
@given(turns=worlds.turns_of(2), costs=COSTS, saves=st.integers(1, 40), faults=st.lists(st.booleans(), max_size=3))
def test_counters_equal_the_usage_of_a_run_that_was_resumed_after_a_crash_at_any_write(
    nested: Path, turns: Turns, costs: list[int], saves: int, faults: list[bool]
) -> None:
    set_limits(nested, 10**6, 10**6)
    world, store = World(turns, faults=[False, *faults]), JsonStore()
    options: dict[str, Any] = {"tools": world.tools(), "store": store, "watch": False}

    async def live(run: Callable[[Runtime], Awaitable[RunResult]]) -> RunResult:
        async with Runtime.open(nested, models={"scripted": costly(world, costs, 50)}, **options) as runtime:
            result = await run(runtime)
            while result.status == "paused":
                result = await runtime.resume(result.run_id, {asked.id: Approve() for asked in result.pending})
            return result

    store.crash_after(saves)
    try:
        result = asyncio.run(live(lambda runtime: runtime.run("0", agent="root")))
    except Crash:
        store.crash_after(10**9)
        (left,) = asyncio.run(store.runs())
        result = asyncio.run(live(lambda runtime: runtime.resume(left.run_id, {})))
    state = asyncio.run(store.load_run(result.run_id))
    assert state.uncounted == []
    assert asyncio.run(total(store)) == pytest.approx(result.usage.cost_usd)
    assert asyncio.run(total(store, "leaf")) == pytest.approx(used_by_leaves(state))


def test_calls_of_parallel_sub_agents_overlap_while_they_certainly_fit(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Turn:
        is_parent = any(tool.name == "agent.helper" for tool in request.tools)
        if is_parent and not any(message.role == "tool" for message in request.messages):
            return calls(*(("agent.helper", {"message": str(n)}) for n in range(4)))
        return "done"

    async def most_in_flight(limit: str, max_output: int | None) -> int:
        root = project(tmp_path, f"{{team: {{max_cost_usd: {limit}, per: total}}}}", sub_agents="[helper]")
        write(root, {"agents.d/helper.yaml": agent("helper")})
        model = PaidModel(script, cents, max_output=max_output)
        async with opened(root, model) as runtime:
            await runtime.run("go", agent="one")
        return model.most_in_flight

    async def main() -> None:
        assert await most_in_flight("100", 50) == 4
        assert await most_in_flight("100", None) == 1
        assert await most_in_flight("0.1", 50) == 1

    asyncio.run(main())


# --- processes


def test_a_hundred_runs_of_two_processes_exceed_the_last_cent_by_one_call_each(tmp_path: Path, store_url: str) -> None:
    root = project(tmp_path, "{team: {max_cost_usd: 0.3, per: total}}")
    asyncio.run(count(store_url, BudgetUse(budget="team", tokens=290, cost_usd=0.29)))
    pipes = [FORKS.Pipe() for _ in range(2)]
    processes = [FORKS.Process(target=support.spend_in_process, args=(store_url, root, 50, end)) for _, end in pipes]
    for process in processes:
        process.start()
    for ours, _ in pipes:
        assert ours.recv() == "ready"
    for ours, _ in pipes:
        ours.send("go")
    reported = [one for ours, _ in pipes for one in ours.recv()]
    for process in processes:
        process.join()
    assert {reason for reason, _, _ in reported} <= {"final", "budget"}
    assert len(reported) == 100
    cost = asyncio.run(counted(store_url))
    assert cost == pytest.approx(0.29 + sum(paid for _, paid, _ in reported))
    assert 0.3 <= cost + 1e-9 <= 0.3 + 100 * CENT
    again = FORKS.Pipe()
    last = FORKS.Process(target=support.spend_in_process, args=(store_url, root, 3, again[1]))
    last.start()
    again[0].recv()
    again[0].send("go")
    assert again[0].recv() == [("budget", 0.0, 0)] * 3
    last.join()


@LONG_ON_POSTGRESQL
def test_a_process_that_is_killed_leaves_counters_equal_to_the_saved_usage(tmp_path: Path, store_url: str) -> None:
    root = project(tmp_path, "{team: {max_cost_usd: 10, per: total}}")
    random, kills = Random(7), 0
    while kills < 4 or not asyncio.run(in_progress(store_url)):  # the last run may have ended just before
        kills += 1
        ours, theirs = FORKS.Pipe()
        process = FORKS.Process(target=support.work_until_killed, args=(store_url, root, theirs))
        process.start()
        theirs.close()
        for _ in range(random.randint(1, 25)):
            ours.recv()
        process.kill()
        process.join()
        until_disconnected(store_url)
        assert asyncio.run(counted(store_url)) == pytest.approx(asyncio.run(saved(store_url)))
    assert asyncio.run(saved(store_url)) > 0
    assert asyncio.run(support.resume_all(store_url, root)) > 0
    assert asyncio.run(counted(store_url)) == pytest.approx(asyncio.run(saved(store_url)))


async def count(url: str, use: BudgetUse) -> None:
    store = await Store.open(url, Path("/"))
    await store.count_use([use])
    await store.close()


async def counted(url: str) -> float:
    store = await Store.open(url, Path("/"))
    cost = await total(store)
    await store.close()
    return cost


async def in_progress(url: str) -> int:
    store = await Store.open(url, Path("/"))
    number = len(await store.runs(support.IN_PROGRESS))
    await store.close()
    return number


async def saved(url: str) -> float:
    store = await Store.open(url, Path("/"))
    states = [await store.load_run(info.run_id) for info in await store.runs()]
    await store.close()
    assert not any(state.uncounted for state in states)
    return sum(state.usage.cost_usd or 0 for state in states)
