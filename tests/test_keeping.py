"""Holding on to runs: who has lost one stops it, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from framework import Approve, RunResult, Runtime, tool
from framework.testing import JsonStore, ScriptedModel, calls
from tests.projects import agent, write


class Slow(JsonStore):
    """Answers the first look when it is told to: with what was so while the run waited, and nobody held it."""

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


def test_a_run_that_was_resumed_meanwhile_is_not_taken_for_the_one_that_ended(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy="{ask: [pay], allow: [look]}")})

    async def main() -> RunResult:
        store = Slow()

        @tool(risk="low")
        async def look() -> str:
            """Look until the store was asked who holds the run."""
            await store.looked.wait()
            return "seen"

        @tool(risk="low")
        async def pay() -> str:
            """Pay, until the store is asked again."""
            store.answer.set()
            await store.looked_again.wait()
            return "paid"

        model = ScriptedModel(calls(("look", {})), calls(("pay", {}), prefix="p"), "done")
        options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(root, tools=[look, pay], **options) as runtime:
            first = await runtime.run("go")
            return await runtime.resume(first.run_id, {first.pending[0].id: Approve()})

    assert asyncio.run(main()).status == "completed"
