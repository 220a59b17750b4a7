"""Shared budgets in whole runs: what counts, who shares them, where a run stops, and edits during a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, ConfigError, ModelError, RunResult, Runtime, tool
from framework.engine.runtime.project import Project
from framework.llm.client import ModelRequest, Turn, calls
from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.testing import JsonStore
from framework.types.budget import BudgetUse
from framework.types.errors import LimitExceeded
from framework.types.events import Event
from framework.types.plan import PlanDraft
from framework.types.report import SpanRecord
from framework.types.state import RunState
from tests.support.budgets import CENT, FREE_LIMITS, PaidModel, cents, done, opened, project, spent, total
from tests.support.projects import agent, write

# --- the stop


def test_a_run_stops_with_the_reason_and_the_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(project(tmp_path, "{team: {max_cost_usd: 0.015, per: day}}")) as runtime:
            first = await runtime.run("go")
            assert (first.status, first.stopped_by) == ("completed", None)
            second, third = await runtime.run("go"), await runtime.run("go")
            assert [warning.code for warning in second.warnings] == ["budget"]
            assert second.warnings[0].message.startswith("budget team: 0.02 of 0.015 US dollars per day, resets at ")
            assert (third.status, third.finish_reason, third.steps) == ("stopped", "budget", 0)
            assert third.stopped_by is not None
            assert third.stopped_by.place == "agentsd.yaml:1"
            assert third.stopped_by.budget is not None
            assert third.stopped_by.budget.resets_at is not None
            day = third.stopped_by.budget.resets_at
            with pytest.raises(LimitExceeded) as stopped:
                await runtime.run("go", raise_on_limit=True)
            expected = "budget team reached: 0.02 of 0.015 US dollars per day, resets at"
            assert str(stopped.value) == f"{expected} {day:%Y-%m-%d} 00:00 UTC (set at agentsd.yaml:1)"
            assert stopped.value.budget == third.stopped_by.budget

    asyncio.run(main())


def test_a_request_that_is_larger_than_the_rest_is_not_sent(tmp_path: Path) -> None:
    async def main() -> None:
        model = PaidModel(done, lambda: (1, 0.0))
        async with opened(project(tmp_path, "{team: {max_total_tokens: 5000, per: total}}"), model) as runtime:
            assert (await runtime.run("go")).status == "completed"
            result = await runtime.run("word " * 20_000)
            assert (result.finish_reason, model.calls) == ("budget", 1)
            assert (await runtime.run("go")).status == "completed"
            assert "never resets" in LimitExceeded.of(result.stopped_by).message

    asyncio.run(main())


def test_a_run_stops_at_the_first_of_several_budgets(tmp_path: Path) -> None:
    budgets = "{team: {max_cost_usd: 1, per: day}, free: {max_total_tokens: 50000, per: [tenant, day]}}"

    async def main() -> None:
        model = PaidModel(done, lambda: (30_000, CENT))
        root = project(tmp_path, budgets, uses="[team, free]")
        async with opened(root, model) as runtime:
            for _ in range(2):
                await runtime.run("go", tenant="a")
            stopped = await runtime.run("go", tenant="a")
            assert stopped.stopped_by is not None
            assert stopped.stopped_by.budget is not None
            assert stopped.stopped_by.budget.name == "free"
            assert (await runtime.run("go", tenant="b")).status == "completed"
            status = await runtime.budgets()
            assert [(one.budget, one.scope, one.tokens) for one in status] == [
                ("free", {"tenant": "a"}, 60_000),
                ("free", {"tenant": "b"}, 30_000),
                ("team", {}, 90_000),
            ]

    asyncio.run(main())


# --- scopes and periods


def test_the_day_begins_at_midnight_utc(tmp_path: Path) -> None:
    now = [datetime(2026, 11, 22, 23, 59, 59, tzinfo=UTC).timestamp()]
    budgets = "{team: {max_cost_usd: 0.01, per: day}, all: {max_cost_usd: 0.02, per: month}}"

    async def main() -> None:
        root = project(tmp_path, budgets, uses="[team, all]")
        model = PaidModel(done, cents)
        read = await Project.read(root, models=["scripted"])
        runtime = Runtime(read, MemoryStore(), {"scripted": model}, None, clock=lambda: now[0])
        assert (await runtime.run("go")).status == "completed"
        assert (await runtime.run("go")).finish_reason == "budget"
        now[0] += 1
        assert (await runtime.run("go")).status == "completed"
        now[0] += 24 * 3600
        month = await runtime.run("go")
        assert month.stopped_by is not None
        assert month.stopped_by.budget is not None
        assert month.stopped_by.budget.name == "all"
        assert month.stopped_by.budget.resets_at == datetime(2026, 12, 1, tzinfo=UTC)
        assert await spent(runtime.store) == {("{}", "2026-11-22"): (10, CENT), ("{}", "2026-11-23"): (10, CENT)}
        await read.catalog.close()

    asyncio.run(main())


def test_a_call_counts_for_the_day_on_which_it_began(tmp_path: Path) -> None:
    now = [datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()]

    def at_midnight() -> tuple[int, float]:
        now[0] += 1
        return cents()

    async def main() -> None:
        root = project(tmp_path, "{team: {max_cost_usd: 1, per: day}}")
        read = await Project.read(root, models=["scripted"])
        models = {"scripted": PaidModel(done, at_midnight)}
        runtime = Runtime(read, MemoryStore(), models, None, clock=lambda: now[0])
        await runtime.run("go")
        assert await spent(runtime.store) == {("{}", "2026-12-31"): (10, CENT)}
        await read.catalog.close()

    asyncio.run(main())


def test_a_conversation_has_one_counter_for_all_its_turns(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path, "{team: {max_total_tokens: 50000, per: conversation}}")
        async with opened(root, PaidModel(done, lambda: (30_000, CENT))) as runtime:
            results = [await runtime.run("go", conversation=name) for name in ("a", "a", "a", "b")]
            assert [result.finish_reason for result in results] == ["final", "final", "budget", "final"]
            for _ in range(3):  # each run outside a conversation has its own
                assert (await runtime.run("go")).status == "completed"

    asyncio.run(main())


def test_tenants_and_users_have_their_own_counters(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path, "{team: {max_cost_usd: 0.01, per: user}}")
        async with opened(root) as runtime:
            callers = [("a", "ann"), ("b", "ann"), ("a", "bob"), ("a", None), (None, None), (None, "ann")]
            for tenant, user in callers:
                assert (await runtime.run("go", tenant=tenant, user=user)).status == "completed"
            for tenant, user in callers:
                assert (await runtime.run("go", tenant=tenant, user=user)).finish_reason == "budget"
            assert len(await spent(runtime.store)) == len(callers)

    asyncio.run(main())


# --- what counts


def test_failed_attempts_count_and_stop_the_next_attempt(tmp_path: Path) -> None:
    failure = ModelError("down", retryable=True)

    async def main() -> None:
        root = project(tmp_path, "{}")
        write(root, {"agentsd.yaml": "budgets: {team: {max_cost_usd: 0.02, per: day}}\nmodel_calls: {backoff: 1ms}\n"})
        model = PaidModel(lambda _: failure, cents)
        async with opened(root, model) as runtime:
            result = await runtime.run("go")
            assert (result.finish_reason, model.calls) == ("budget", 2)
            assert await total(runtime.store) == pytest.approx(2 * CENT)
            assert result.usage.cost_usd == pytest.approx(2 * CENT)

    asyncio.run(main())


def planned(request: ModelRequest) -> Turn:
    if request.output:
        steps = [{"id": name, "description": f"think about {name}"} for name in "ab"]
        return PlanDraft.model_validate({"goal": "g", "steps": steps})
    return "done"


def test_a_plan_with_its_planner_and_steps_counts(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path, "{team: {max_cost_usd: 1, per: day}}", executor="plan", plan="{approval: never}")
        async with opened(root, PaidModel(planned, cents)) as runtime:
            result = await runtime.run("go")
            assert (result.status, result.usage.cost_usd) == ("completed", pytest.approx(4 * CENT))
            assert await total(runtime.store) == pytest.approx(4 * CENT)

    asyncio.run(main())


def test_sub_agents_use_their_own_budgets_and_those_of_their_callers(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Turn:
        is_parent = any(tool.name == "agent.helper" for tool in request.tools)
        asked = any(message.role == "tool" for message in request.messages)
        return calls(("agent.helper", {"message": "help"})) if is_parent and not asked else "done"

    async def main() -> None:
        budgets = "{team: {max_cost_usd: 1, per: day}, helpers: {max_cost_usd: 0.01, per: day}}"
        root = project(tmp_path, budgets, sub_agents="[helper]")
        write(root, {"agents.d/helper.yaml": agent("helper", budgets="[helpers, team]", runtime_policy=FREE_LIMITS)})
        async with opened(root, PaidModel(script, cents)) as runtime:
            first, second = await runtime.run("go", agent="one"), await runtime.run("go", agent="one")
            assert await total(runtime.store) == pytest.approx(5 * CENT)
            assert await total(runtime.store, "helpers") == pytest.approx(CENT)
            assert (first.status, second.status) == ("completed", "completed")
            assert second.tool_calls[0].status == "error"
            assert "budget" in str(second.tool_calls[0].result)

    asyncio.run(main())


def test_the_choice_of_the_agent_counts_for_the_chosen_one(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Turn:
        return request.output.model_validate({"agent": "one", "confidence": 1}) if request.output else "done"

    async def main() -> None:
        root = project(tmp_path, "")
        settings = "budgets: {team: {max_cost_usd: 1, per: day}}\nrouting: {model: scripted}\n"
        write(root, {"agentsd.yaml": settings, "agents.d/two.yaml": agent("two")})
        async with opened(root, PaidModel(script, cents), store=JsonStore()) as runtime:
            result = await runtime.run("go")
            assert (result.agent, result.usage.cost_usd) == ("one", pytest.approx(2 * CENT))
            assert await total(runtime.store) == pytest.approx(2 * CENT)

    asyncio.run(main())


def test_a_tool_call_outside_a_run_counts(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path, "{team: {max_cost_usd: 0.01, per: day}}", sub_agents="[helper]")
        write(root, {"agents.d/helper.yaml": agent("helper")})
        async with opened(root) as runtime:
            first = await runtime.call_tool("one", "agent.helper", {"message": "x"})
            assert (first.status, await total(runtime.store)) == ("success", CENT)
            assert (await runtime.call_tool("one", "agent.helper", {"message": "x"})).status == "error"

    asyncio.run(main())


class SlowStore(JsonStore):
    """A store whose writes of budgets wait for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def start(self, *begun: Any) -> RunRecord:
        """Save a new run."""
        return SlowRecord(await super().start(*begun), self)


class SlowRecord:
    """A run of a `SlowStore`."""

    cancel_requested = False

    def __init__(self, record: RunRecord, store: SlowStore) -> None:
        self._record, self._store = record, store

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Save a step; the use of budgets waits."""
        if uses:
            self._store.reached.set()
            await self._store.go.wait()
        await self._record.write(state, events, spans, last=last, uses=uses)

    async def release(self) -> None:
        """Release the run."""
        await self._record.release()


def test_a_run_that_is_cancelled_while_its_use_is_saved_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        store = SlowStore()
        root = project(tmp_path, "{team: {max_cost_usd: 1, per: day}}")
        async with opened(root, store=store) as runtime, runtime.stream("go") as stream:
            await store.reached.wait()
            stream.cancel()
            store.go.set()
            result = await stream.result()
            assert (result.status, result.usage.cost_usd) == ("cancelled", CENT)
            assert await total(store) == CENT

    asyncio.run(main())


def test_a_run_without_budgets_reads_and_writes_no_counter(tmp_path: Path) -> None:
    class Untouched(MemoryStore):
        async def budget_uses(self, keys: object = None) -> list[BudgetUse]:
            raise AssertionError("read")

        def add_use(self, uses: object) -> None:
            assert not uses

    async def main() -> None:
        async with opened(project(tmp_path, "{team: {max_cost_usd: 1, per: day}}", uses="[]"), store=Untouched()) as r:
            assert (await r.run("go")).status == "completed"

    asyncio.run(main())


def test_a_shared_cost_limit_needs_the_price_of_every_model_that_is_called(tmp_path: Path) -> None:
    async def main() -> None:
        unpriced = PaidModel(done, cents, is_priced=False)
        async with opened(project(tmp_path, "{team: {max_cost_usd: 1, per: day}}"), unpriced) as runtime:
            result = await runtime.run("go")
            assert result.error is not None
            assert result.error.code == "config_invalid"
            assert "max_cost_usd (agentsd.yaml:1) cannot be enforced" in result.error.message
            assert "unknown_ok" not in result.error.message
            assert unpriced.calls == 0

    asyncio.run(main())


# --- edits


@pytest.mark.parametrize(
    ("edit", "allowed", "place"),
    [
        ("# now\nbudgets: {team: {max_cost_usd: 0.03, per: day}}\n", 0.03, "agentsd.yaml:2"),
        ("budgets: {team: {max_cost_usd: 1, per: day}}\n", 0.05, "agentsd.yaml:1"),
        ("# now\nbudgets: {team: {max_cost_usd: 0.03, per: day, speed: 1}}\n", 0.03, "agentsd.yaml:2"),
        ("budgets: {}\n", 0.05, "agentsd.yaml:1"),
    ],
    ids=["lowered", "raised", "lowered in an invalid file", "removed"],
)
def test_stricter_limits_reach_runs_in_progress(tmp_path: Path, edit: str, allowed: float, place: str) -> None:
    root = project(tmp_path, "{team: {max_cost_usd: 0.05, per: day}}")
    stop = asyncio.run(run_with_edit(root, {"agentsd.yaml": edit})).stopped_by
    assert stop is not None
    assert (stop.limit, stop.allowed, stop.place) == ("budget", allowed, place)


def test_a_budget_that_an_agent_file_adds_applies_at_once_also_if_the_file_is_invalid(tmp_path: Path) -> None:
    root = project(tmp_path, "{team: {max_cost_usd: 0.02, per: day}}", uses="[]")
    edited = (root / "agents.d/one.yaml").read_text("utf-8").replace("budgets: []", "budgets: [team]\nspeed: 1")
    result = asyncio.run(run_with_edit(root, {"agents.d/one.yaml": edited}))
    assert result.finish_reason == "budget"
    assert result.usage.cost_usd == pytest.approx(3 * CENT), "what it used before does not count"


async def run_with_edit(root: Path, files: dict[str, str]) -> RunResult:
    """Run an agent that calls a tool until it is stopped; the first call edits files and reloads them."""
    opened_runtimes: list[Runtime] = []

    @tool(risk="low")
    async def edit(n: str) -> str:
        """Edit the files once."""
        if n == "2":
            write(root, files)
            await opened_runtimes[0].reload()
        return n

    model = PaidModel(lambda request: calls(("edit", {"n": str(len(request.messages))})), cents)
    async with opened(root, model, tools=[edit]) as runtime:
        opened_runtimes.append(runtime)
        result: RunResult = await runtime.run("go", agent="one", limits={"max_steps": 20})
        return result


def test_the_last_good_version_of_an_agent_keeps_a_budget_that_was_removed(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path, "{team: {max_cost_usd: 0.01, per: day}}")
        async with opened(root) as runtime:
            assert (await runtime.run("go")).status == "completed"
            write(root, {"agentsd.yaml": "version: 1\n"})
            await runtime.reload()
            (problem,) = runtime.catalog.problems
            assert "there is no budget 'team'" in problem.message
            result = await runtime.run("go")
            assert result.stopped_by is not None
            assert result.stopped_by.place == "agentsd.yaml:1"

    asyncio.run(main())


def test_a_run_is_not_resumed_without_its_budget(tmp_path: Path) -> None:
    budget = "{team: {max_cost_usd: 1, per: day}}"

    async def main() -> None:
        root = project(tmp_path, budget, skill_policy="{ask: [echo], allow: [echo]}")
        store = await Store.open("sqlite:///state.db", tmp_path)
        model = PaidModel(lambda request: calls(("echo", {"text": "x"})), cents)
        async with opened(root, model, store=store) as runtime:
            paused = await runtime.run("go")
        project(tmp_path, "{}", uses="[]")
        async with opened(root, store=store) as runtime:
            with pytest.raises(ConfigError, match=r"agent 'one' needs the budget team: agentsd\.yaml must define it"):
                await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})
        project(tmp_path, budget, uses="[]")
        async with opened(root, store=store) as runtime:
            resumed = await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})
            assert (resumed.status, resumed.usage.cost_usd) == ("completed", pytest.approx(2 * CENT))
            assert await total(store) == pytest.approx(2 * CENT)
        await store.close()

    asyncio.run(main())
