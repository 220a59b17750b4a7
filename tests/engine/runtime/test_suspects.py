"""Runs with one attempt left are resumed one at a time, so that one which crashes its process takes no other along."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from framework import Runtime, Tool, tool
from framework.engine.runtime import suspects
from framework.engine.runtime.suspects import MAX_RESUME_ATTEMPTS
from framework.llm.client import ModelRequest
from framework.store.sql.store import SqlStore
from framework.testing import ScriptedModel, Turn, calls
from tests.support.deliveries import Deliveries
from tests.support.submitted_runs import Gate, opened, project, statuses

RUNS = 4


def hold(request: ModelRequest) -> Turn:
    """Call the tool that waits, then answer."""
    return calls(("hold", {})) if request.messages[-1].role == "user" else "done"


class Crowd:
    """A tool that counts how many of its calls are in progress at once."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.present = self.peak = 0
        self.expected = 0
        """Number of calls that a call waits for."""

    def tools(self) -> list[Tool]:
        @tool(risk="low", idempotent=True)
        async def hold() -> str:
            """Let the other runs go on for a while."""
            assert self.runtime
            self.present += 1
            self.peak = max(self.peak, self.present)
            for _ in range(5):
                await self.runtime.store.runs()
            while self.peak < self.expected:
                await self.runtime.store.runs()
            self.present -= 1
            return "held"

        return [hold]


async def left_with_one_attempt(root: Path, url: str) -> list[str]:
    """Begin runs whose processes end again and again; return their ids."""
    gate = Gate()
    async with opened(root, url, ScriptedModel(script=hold), tools=gate.tools(), grace=0) as runtime:
        ids = [(await runtime.submit("m")).run_id for _ in range(RUNS)]
        while await statuses(runtime) != ["running"] * RUNS:
            pass
        await gate.began.wait()
    for _ in range(MAX_RESUME_ATTEMPTS - 1):
        store = await SqlStore.open(url, root, lease_seconds=0.05)
        left = set(ids)
        while left:
            for info in await store.runs():
                if info.orphaned and info.run_id in left:
                    await store.take(await store.load_run(info.run_id), {})
                    left.discard(info.run_id)
        await store.close()
    return ids


def test_interrupted_runs_are_resumed_one_at_a_time_if_each_has_one_attempt_left(
    tmp_path: Path, store_url: str
) -> None:
    async def main() -> None:
        root, crowd = project(tmp_path), Crowd()
        ids = await left_with_one_attempt(root, store_url)
        async with opened(root, store_url, ScriptedModel(script=hold), tools=crowd.tools()) as runtime:
            crowd.runtime = runtime
            resumed: list[str] = []
            while len(resumed) < RUNS:
                resumed += await runtime.resume_orphans()
            assert sorted(resumed) == sorted(ids), "each of them once"
            assert [(await runtime.result(run_id)).status for run_id in ids] == ["completed"] * RUNS
            assert crowd.peak == 1

    asyncio.run(main())


def test_a_run_whose_step_takes_long_delays_the_others_only_for_a_while(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "TRIAL_SECONDS", 0.2)

    async def main() -> None:
        root, crowd = project(tmp_path), Crowd()
        crowd.expected = RUNS
        ids = await left_with_one_attempt(root, store_url)
        async with opened(root, store_url, ScriptedModel(script=hold), tools=crowd.tools()) as runtime:
            crowd.runtime = runtime
            resumed: list[str] = []
            while len(resumed) < RUNS:
                resumed += await runtime.resume_orphans()
            assert [(await runtime.result(run_id)).status for run_id in ids] == ["completed"] * RUNS

    asyncio.run(main())


def test_a_delivery_of_a_run_that_waits_for_its_turn_begins_another_one(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        root, deliveries, gate = project(tmp_path), Deliveries(), Gate()
        first, second, *_ = await left_with_one_attempt(root, store_url)
        model = ScriptedModel(script=hold)
        async with opened(root, store_url, model, tools=gate.tools(), work=deliveries) as runtime:
            while not [info for info in await runtime.orphans() if info.run_id in (first, second)][1:]:
                pass
            driving = [asyncio.create_task(deliveries.worker.drive(first))]
            await gate.began.wait()
            other = await runtime.submit("m")
            while (await runtime.store.load_run(other.run_id)).status == "queued":
                driving.append(asyncio.create_task(deliveries.worker.drive(second)))
            assert not driving[0].done()
            gate.opened.set()
            await asyncio.wait(driving)
            assert [(await runtime.result(one)).status for one in (first, second, other.run_id)] == ["completed"] * 3

    asyncio.run(main())
