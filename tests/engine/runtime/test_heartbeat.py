"""Lease renewals affect only the run they were sent for, and scheduled writes are not lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, RunResult, Runtime, tool
from framework.engine.context.events import EventHub, Journal
from framework.store.types import RunRecord
from framework.testing import JsonStore, ScriptedModel, calls
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.projects import agent, write


class SlowStore(JsonStore):
    """Delay the reply to the first renewal, which was sent while no process held the run."""

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.answer, self.looked_again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        if self.looked.is_set():
            self.looked_again.set()
            return await super().renew(run_ids)
        self.looked.set()
        await self.answer.wait()
        return {}


def test_a_late_renewal_does_not_affect_a_run_that_was_resumed_since(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy="{ask: [pay], allow: [look]}")})

    async def main() -> RunResult:
        store = SlowStore()

        @tool(risk="low")
        async def look() -> str:
            """Wait until the lease is being renewed."""
            await store.looked.wait()
            return "seen"

        @tool(risk="low")
        async def pay() -> str:
            """Wait until the lease is renewed again."""
            store.answer.set()
            await store.looked_again.wait()
            return "paid"

        model = ScriptedModel(calls(("look", {})), calls(("pay", {}), prefix="p"), "done")
        options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(root, tools=[look, pay], **options) as runtime:
            first = await runtime.run("go")
            return await runtime.resume(first.run_id, {first.pending[0].id: Approve()})

    assert asyncio.run(main()).status == "completed"


class ScarceStore(JsonStore):
    """Have no open files for the first renewal."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals = 0
        self.renewed = asyncio.Event()

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        self.renewals += 1
        if self.renewals == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        self.renewed.set()
        return await super().renew(run_ids)


def test_leases_are_renewed_again_after_open_files_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("framework.engine.runtime.launcher.RENEWAL_SECONDS", 0.001)
    root, store = write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy="{allow: [wait]}")}), ScarceStore()

    @tool(risk="low")
    async def wait() -> str:
        """Wait until the lease is renewed."""
        await store.renewed.wait()
        return "renewed"

    async def main() -> RunResult:
        model = ScriptedModel(calls(("wait", {})), "done")
        async with Runtime.open(root, tools=[wait], models={"scripted": model}, store=store, watch=False) as runtime:
            return await runtime.run("go")

    assert asyncio.run(main()).status == "completed"
    assert [record.message for record in caplog.records if "was not renewed" in record.message] == [
        "the lease on 1 runs was not renewed: [Errno 24] Too many open files"
    ]


class Writes:
    """A record whose first write waits for the test."""

    cancel_requested = False

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.steps: list[int] = []
        self.began, self.go, self.again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write(self, state: RunState, *more: Any, **options: Any) -> None:
        self.steps.append(state.steps)
        (self.again if self.began.is_set() else self.began).set()
        await self._record.write(state, *more, **options)
        await self.go.wait()

    async def release(self) -> None:
        await self._record.release()


def test_a_flush_scheduled_during_a_write_is_written_after_it() -> None:
    async def main() -> None:
        state = RunState(agent="a", messages=[Message(role="user", content="go")])
        record = Writes(await JsonStore().start(state, None, None))
        journal = Journal(state, record, EventHub(state.run_id), durable=True)
        journal.schedule_flush()
        await record.began.wait()
        state.steps = 1
        journal.schedule_flush()
        record.go.set()
        async with asyncio.timeout(30):
            await record.again.wait()
        assert record.steps == [0, 1]

    asyncio.run(main())
