"""Closing a runtime cancels or suspends its runs, including those that begin while it closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, RunResult, RunSuspended, Runtime, tool
from framework.llm.client import Delta, ModelRequest
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.messages import ToolCall
from tests.support.projects import agent, write

HOOK = """
from framework import hook

@hook
async def message(context, text):
    context.deps.append(text)
"""


def project(root: Path) -> Path:
    one = agent("one", hooks="{before_run: [guard.message]}")
    return write(root, {"agents.d/one.yaml": one, "plugins/guard.py": HOOK})


class World:
    """A first run whose call lasts until a second run, begun while the runtime closes, has ended."""

    def __init__(self, root: Path, store: JsonStore | None) -> None:
        self.root, self.store = project(root), store
        self.looked_at: list[str] = []
        self.began, self.closing, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def open(self, *turns: Turn) -> AbstractAsyncContextManager[Runtime]:
        @tool(risk="low")
        async def slow() -> str:
            """End late, even after a cancellation."""
            self.began.set()
            try:
                await (self.go.wait() if self.store else asyncio.Event().wait())
            finally:
                await self.go.wait()
            return "slow"

        models: dict[str, Any] = {"scripted": ScriptedModel(*turns)}
        options: dict[str, Any] = {"deps": self.looked_at, "store": self.store, "grace": 30, "watch": False}
        return Runtime.open(self.root, tools=[slow], models=models, **options)

    async def late(self, runtime: Runtime) -> RunResult:
        await self.closing.wait()
        try:
            return await runtime.run("second")
        finally:
            self.go.set()

    async def close(self, *turns: Turn) -> tuple[Runtime, list[RunResult | BaseException]]:
        """Return the closed runtime, and the results or errors of both runs."""
        async with self.open(*turns) as runtime:
            runs = asyncio.create_task(runtime.run("first")), asyncio.create_task(self.late(runtime))
            await self.began.wait()
            asyncio.get_running_loop().call_soon(self.closing.set)
        await asyncio.wait(runs)
        return runtime, [run.exception() or run.result() for run in runs]


def test_a_run_that_begins_while_the_runtime_closes_is_suspended(tmp_path: Path) -> None:
    async def main() -> None:
        store = JsonStore()
        world = World(tmp_path, store)
        runtime, ends = await world.close(calls(("slow", {})), "never")
        assert [type(end) for end in ends] == [RunSuspended, RunSuspended]
        assert world.looked_at == ["first"], "the second run has not begun"
        with pytest.raises(RunSuspended):
            await runtime.run("third")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with world.open("done", "done", "done") as runtime:
            for left in await runtime.orphans():
                assert (await runtime.resume(left.run_id, {})).status == "completed"
        assert world.looked_at == ["first", "second", "third"]

    asyncio.run(main())


def test_a_run_that_begins_while_the_runtime_closes_is_cancelled_without_a_durable_store(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, None)
        runtime, ends = await world.close(calls(("slow", {})), "never")
        assert [end.status for end in ends if isinstance(end, RunResult)] == ["cancelled", "cancelled"]
        assert (await runtime.run("third")).status == "cancelled"
        assert world.looked_at == ["first"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_closing_waits_for_tool_calls_but_not_for_model_calls_of_sub_agents(tmp_path: Path) -> None:
    """Model calls are cancelled when the runtime closes, in sub-runs as well."""
    cut: list[str] = []

    class Thinking(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            if request.messages[-1].content == "think":
                asyncio.get_running_loop().call_later(20, thought.set)  # within the grace period
                began.set()
                try:
                    await thought.wait()
                except asyncio.CancelledError:
                    cut.append("off")
                    raise
            async for delta in super().stream(request):
                yield delta

    began, thought = asyncio.Event(), asyncio.Event()
    write(tmp_path, {"agents.d/a.yaml": agent("a", sub_agents="[b]"), "agents.d/b.yaml": agent("b")})

    async def main() -> None:
        models: dict[str, Any] = {"scripted": Thinking(calls(("agent.b", {"message": "think"})), "thought")}
        async with Runtime.open(tmp_path, models=models, store=JsonStore(), watch=False, grace=30) as runtime:
            running = asyncio.create_task(runtime.run("go", agent="a"))
            await began.wait()
        with pytest.raises(RunSuspended):
            await running

    asyncio.run(main())
    assert cut == ["off"]


@pytest.mark.parametrize("odd", ["c1~1", "c1?1", "a/c1"])
def test_a_call_id_chosen_by_the_model_never_matches_the_confirmation_of_another_call(tmp_path: Path, odd: str) -> None:
    """One call was approved. Another has an unknown outcome, and its confirmation id is derived from its call id."""
    write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy="{ask: [pay], allow: [slow]}")})
    made: list[str] = []

    @tool(risk="low")
    async def pay() -> str:
        """Pay."""
        return "paid"

    @tool(risk="low")
    async def slow() -> str:
        """Take effect without returning."""
        made.append("slow")
        began.set()
        await asyncio.Event().wait()
        return "slow"

    began = asyncio.Event()

    async def main() -> RunResult:
        turns = (ToolCall(id=odd, tool="pay"),), (ToolCall(id="c1", tool="slow"),), "done"
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(*turns)}, "store": JsonStore(), "grace": 0}
        async with Runtime.open(tmp_path, tools=[pay, slow], watch=False, **options) as runtime:
            asked = await runtime.run("go")
            running = asyncio.create_task(runtime.resume(asked.run_id, {asked.pending[0].id: Approve()}))
            await began.wait()
        with pytest.raises(RunSuspended):
            await running
        async with Runtime.open(tmp_path, tools=[pay, slow], watch=False, **options) as runtime:
            return await runtime.resume(asked.run_id, {})

    result = asyncio.run(asyncio.wait_for(main(), 20))
    assert made == ["slow"]
    assert [asked.tool for asked in result.pending] == ["slow"]
    assert not set("/~?") & set("".join(call.id for call in result.tool_calls))
