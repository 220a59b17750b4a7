"""Deliveries of runs to a process: what each one does, whatever it finds in the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from framework import Approve
from framework.engine.runtime.resume import MAX_RESUME_ATTEMPTS
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.store.types import WorkScope
from framework.testing import ScriptedModel, Turn, calls
from tests.support.deliveries import Deliveries
from tests.support.projects import agent, write
from tests.support.submitted_runs import Gate, opened, project, statuses, until_statuses


def hold(request: ModelRequest) -> Turn:
    """Call the tool that waits, then answer."""
    return calls(("hold", {})) if request.messages[-1].role == "user" else "done"


def pay(request: ModelRequest) -> Turn:
    """Call the tool that needs approval, then answer."""
    return calls(("pay", {})) if request.messages[-1].role == "user" else "not paid"


def test_a_delivery_begins_the_best_ready_run(tmp_path: Path, file_url: str) -> None:
    """Which run was offered does not matter: one delivery, one run."""

    async def main() -> None:
        deliveries, model = Deliveries(), ScriptedModel(script=lambda _: "ok")
        async with opened(project(tmp_path), file_url, model, work=deliveries) as runtime:
            first, second = [await runtime.submit("m") for _ in range(2)]
            assert deliveries.offered == [first.run_id, second.run_id]
            await deliveries.worker.drive(second.run_id)
            assert await statuses(runtime) == ["completed", "queued"]
            await deliveries.worker.drive("run_unknown")
            assert await statuses(runtime) == ["completed", "completed"]
            await deliveries.worker.drive(first.run_id)
            assert len(model.requests) == 2

    asyncio.run(main())


def test_of_two_deliveries_of_a_run_one_works_and_the_other_returns(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        deliveries, gate, model = Deliveries(), Gate(), ScriptedModel(script=hold)
        async with opened(project(tmp_path), store_url, model, tools=gate.tools(), work=deliveries) as runtime:
            run_id = (await runtime.submit("m")).run_id
            working = asyncio.create_task(deliveries.worker.drive(run_id))
            await gate.began.wait()
            await deliveries.worker.drive(run_id)
            assert not working.done()
            gate.opened.set()
            await working
            assert await statuses(runtime) == ["completed"]
            assert len(model.requests) == 2

    asyncio.run(main())


def test_a_cancelled_delivery_leaves_the_run_in_progress(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        deliveries, gate, model = Deliveries(), Gate(), ScriptedModel(script=hold)
        async with opened(project(tmp_path), file_url, model, tools=gate.tools(), work=deliveries) as runtime:
            run_id = (await runtime.submit("m")).run_id
            working = asyncio.create_task(deliveries.worker.drive(run_id))
            await gate.began.wait()
            working.cancel()
            await asyncio.wait([working])
            gate.opened.set()
            assert (await runtime.result(run_id)).status == "completed"

    asyncio.run(main())


async def left_behind(root: Path, url: str) -> str:
    """Begin a run whose process ends before it does; return its id."""
    gate = Gate()
    async with opened(root, url, ScriptedModel(script=hold), tools=gate.tools(), grace=0) as runtime:
        run_id = (await runtime.submit("m")).run_id
        await gate.began.wait()
    return run_id


def test_a_delivery_continues_the_released_run_that_it_names(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, deliveries, gate = project(tmp_path), Deliveries(), Gate()
        run_id = await left_behind(root, file_url)
        gate.opened.set()
        model = ScriptedModel(script=hold)
        async with opened(root, file_url, model, tools=gate.tools(), work=deliveries) as runtime:
            waiting = await runtime.submit("m")
            await deliveries.worker.drive(run_id)
            assert await statuses(runtime) == ["completed", "queued"]
            await deliveries.worker.drive(run_id)
            assert (await runtime.result(waiting.run_id)).output == "done"

    asyncio.run(main())


def test_a_run_that_ends_its_process_three_times_fails(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root = project(tmp_path)
        run_id = await left_behind(root, file_url)
        for _ in range(MAX_RESUME_ATTEMPTS):
            store = await Store.open(file_url, root, lease_seconds=0.05)
            record = None
            while record is None:
                (info,) = await store.runs()
                record = await store.acquire(await store.load_run(run_id), {}) if info.orphaned else None
            await store.close()
        deliveries = Deliveries()
        async with opened(root, file_url, ScriptedModel(), work=deliveries) as runtime:
            while await statuses(runtime) == ["running"]:
                await deliveries.worker.drive(run_id)
            result = await runtime.result(run_id)
            assert (result.status, result.finish_reason) == ("failed", "crashed")

    asyncio.run(main())


def test_a_delivery_expires_a_confirmation(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        keys = {"runtime_policy": "{confirm: {from: high, expires: 1ms}}"}
        root, deliveries, gate = project(tmp_path, **keys), Deliveries(), Gate()
        model = ScriptedModel(script=pay)  # the first process may see it expire, too
        async with opened(root, file_url, model, tools=gate.tools()) as runtime:
            run_id = (await runtime.run("pay")).run_id
        async with opened(root, file_url, model, tools=gate.tools(), work=deliveries) as runtime:
            await deliveries.worker.drive(run_id)
            assert (await runtime.result(run_id)).output == "not paid"
            assert gate.paid == 0

    asyncio.run(main())


def test_a_delivery_of_a_paused_run_does_nothing(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        deliveries, gate = Deliveries(), Gate()
        model = ScriptedModel(calls(("pay", {})), "paid")
        async with opened(project(tmp_path), file_url, model, tools=gate.tools(), work=deliveries) as runtime:
            run_id = (await runtime.submit("pay")).run_id
            await deliveries.worker.drive(run_id)
            await deliveries.worker.drive(run_id)
            assert await statuses(runtime) == ["paused"]

    asyncio.run(main())


def test_a_decision_is_saved_and_the_run_continues_where_it_is_delivered(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, deliveries, gate = project(tmp_path), Deliveries(), Gate()
        model = ScriptedModel(calls(("pay", {})), "paid")
        async with opened(root, file_url, model, tools=gate.tools(), work=deliveries) as runtime:
            run_id = (await runtime.submit("pay")).run_id
            await deliveries.worker.drive(run_id)
            (pending,) = await runtime.pending(run_id)
            none = Deliveries(capacity=0)
            async with opened(root, file_url, ScriptedModel(), work=none) as accepting:
                await accepting.decide(run_id, {pending.id: Approve()}, by="ann")
                assert await statuses(accepting) == ["running"]
                await none.worker.drive(run_id)
                assert gate.paid == 0
            await deliveries.worker.drive(run_id)
            assert (await runtime.result(run_id)).output == "paid"
            (made,) = await runtime.store.decisions(run_id)
            assert made.by == "ann"

    asyncio.run(main())


def test_deliveries_beyond_the_capacity_wait(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        deliveries, gate = Deliveries(capacity=2), Gate()
        model = ScriptedModel(script=hold)
        async with opened(project(tmp_path), file_url, model, tools=gate.tools(), work=deliveries) as runtime:
            ids = [(await runtime.submit("m")).run_id for _ in range(5)]
            driving = [asyncio.create_task(deliveries.worker.drive(run_id)) for run_id in ids]
            await until_statuses(runtime, *["running"] * 2, *["queued"] * 3)
            assert (runtime.slots.taken, runtime.slots.free) == (2, 0)
            gate.opened.set()
            await asyncio.wait(driving)
            assert await statuses(runtime) == ["completed"] * 5
            assert runtime.slots.taken == 0

    asyncio.run(main())


def test_a_process_that_stops_offers_again_what_is_delivered_to_it(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        deliveries, gate = Deliveries(capacity=1), Gate()
        model = ScriptedModel(script=hold)
        async with opened(project(tmp_path), file_url, model, tools=gate.tools(), work=deliveries, grace=0) as runtime:
            first, second = [(await runtime.submit("m")).run_id for _ in range(2)]
            driving = [asyncio.create_task(deliveries.worker.drive(run_id)) for run_id in (first, second)]
            await gate.began.wait()
        await asyncio.wait(driving)
        assert sorted(deliveries.offered[2:]) == sorted([first, second])

    asyncio.run(main())


def test_only_runs_of_the_scope_are_begun(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/a.yaml": agent("a"), "agents.d/b.yaml": agent("b")})
        deliveries = Deliveries(scope=WorkScope(agents=frozenset({"b"})))
        async with opened(root, file_url, ScriptedModel(script=lambda _: "ok"), work=deliveries) as runtime:
            ids = [(await runtime.submit("m", agent=name)).run_id for name in ("a", "b")]
            for run_id in ids:
                await deliveries.worker.drive(run_id)
            assert await statuses(runtime) == ["queued", "completed"]

    asyncio.run(main())


def test_a_store_that_fails_is_logged_and_not_raised(
    tmp_path: Path, file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        deliveries = Deliveries()
        async with opened(project(tmp_path), file_url, ScriptedModel(), work=deliveries) as runtime:
            run_id = (await runtime.submit("m")).run_id
            await runtime.store.close()
            await deliveries.worker.drive(run_id)
            assert runtime.slots.taken == 0

    asyncio.run(main())
    assert "the queue: the store is closed" in caplog.text
