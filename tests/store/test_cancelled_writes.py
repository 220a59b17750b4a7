"""A cancellation during a write leaves no run that is unknown to its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, RunResult, Runtime, StoreError, Tool, tool
from framework.store.store import Store
from framework.testing import ScriptedModel, calls
from framework.types.report import Status
from tests.support.halts import Halt, halted
from tests.support.projects import agent, write

PAY = calls(("pay", {}))


class Shop:
    """A tool that records whether it was called."""

    paid = False

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def pay() -> str:
            """Pay."""
            self.paid = True
            return "paid"

        return [pay]


def project(root: Path, *, asks: bool) -> Path:
    ask = "ask: [{tool: pay, reason: money}], " if asks else ""
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy=f"{{{ask}allow: [pay]}}")})


async def in_time(work: Coroutine[Any, Any, RunResult], halt: Halt) -> RunResult:
    """Execute work that times out while a transaction is halted."""
    task = asyncio.current_task()
    assert task is not None
    async with asyncio.timeout(None) as deadline:
        ending = asyncio.create_task(_end(deadline, task, halt))
        try:
            return await work
        finally:
            await ending


async def _end(deadline: asyncio.Timeout, late: asyncio.Task[Any], halt: Halt) -> None:
    await halt.reached()
    deadline.reschedule(0)
    while not late.cancelling():  # noqa: ASYNC110 - nothing else shows it
        await asyncio.sleep(0)
    halt.go()


async def must_be_over(store: Store, status: Status) -> None:
    """Check that the conversation's only run has ended, and that another may begin."""
    (info,) = await store.runs()
    assert (info.status, info.held) == (status, False)
    assert (await store.events(info.run_id))[-1]["event"] == "done"
    assert (await store.conversation("c")).open_run is None


def test_a_run_cancelled_during_its_first_write_has_ended(tmp_path: Path, store_url: str) -> None:
    shop = Shop()

    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        models = {"scripted": ScriptedModel(PAY, "done")}
        async with Runtime.open(
            project(tmp_path, asks=False), tools=shop.tools(), models=models, store=store, watch=False
        ) as runtime:
            with halted(store, "UPDATE agentsd_conversations") as halt:
                asked = asyncio.create_task(runtime.run("go", conversation="c"))
                await halt.reached()
                asked.cancel()
                halt.go()
                with pytest.raises(asyncio.CancelledError):
                    await asked
            await must_be_over(store, "cancelled")
            assert not shop.paid
        await store.close()

    asyncio.run(main())


def test_a_run_that_times_out_during_its_takeover_has_ended(tmp_path: Path, store_url: str) -> None:
    shop = Shop()

    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        models = {"scripted": ScriptedModel(PAY, "done")}
        async with Runtime.open(
            project(tmp_path, asks=True), tools=shop.tools(), models=models, store=store, watch=False
        ) as runtime:
            first = await runtime.run("go", conversation="c")
            with halted(store, "INSERT INTO agentsd_decisions") as halt:
                asked = asyncio.create_task(
                    in_time(runtime.resume(first.run_id, {first.pending[0].id: Approve()}), halt)
                )
                with pytest.raises(TimeoutError):
                    await asked
            await must_be_over(store, "cancelled")
            assert not shop.paid
        await store.close()

    asyncio.run(main())


def test_a_closed_store_rejects_work_and_contains_earlier_writes(tmp_path: Path, store_url: str) -> None:
    shop = Shop()

    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        models = {"scripted": ScriptedModel("done")}
        async with Runtime.open(
            project(tmp_path, asks=True), tools=shop.tools(), models=models, store=store, watch=False
        ) as runtime:
            with halted(store, "UPDATE agentsd_conversations") as halt:
                asked = asyncio.create_task(runtime.run("go", conversation="c"))
                await halt.reached()
                closing = asyncio.create_task(store.close())
                halt.go()
                with pytest.raises(StoreError, match="the store is closed"):
                    await asked
            await closing
            with pytest.raises(StoreError, match="the store is closed"):
                await store.runs()
        again = await Store.open(store_url, tmp_path)
        assert [info.message for info in await again.runs()] == ["go"]
        await again.close()

    asyncio.run(main())
