from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from framework import Runtime, tool
from framework.testing import ScriptedModel
from framework.types.messages import ToolCall

AGENT = """\
version: 1
name: helper
description: Helps.
model: scripted
instructions: Help.
skill_policy: {allow: [echo]}
"""


@tool(risk="low")
async def echo(text: str) -> str:
    """Say it twice."""
    return f"{text} {text}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "helper.yaml"
    path.write_text(AGENT, "utf-8")
    return path


def scripted() -> ScriptedModel:
    return ScriptedModel((ToolCall(id="c", tool="echo", arguments={"text": "hi"}),), "done")


def test_a_tool_of_the_program_replaces_the_built_in_one_of_its_name(project: Path) -> None:
    async def run() -> tuple[int, object]:
        async with Runtime.open(project, tools=[echo], models={"scripted": scripted()}, watch=False) as runtime:
            result = await runtime.run("go")
            return len(runtime.catalog.current.tools), result.tool_calls[0].result

    async def usual() -> int:
        async with Runtime.open(project, models={"scripted": scripted()}, watch=False) as runtime:
            return len(runtime.catalog.current.tools)

    assert asyncio.run(run()) == (asyncio.run(usual()), "hi hi")


def test_a_runtime_entered_without_async_with_is_not_garbage_collected(project: Path) -> None:
    async def run() -> str:
        runtime = await Runtime.open(project, models={"scripted": scripted()}, watch=False).__aenter__()
        gc.collect()
        await asyncio.sleep(0)  # what the collector closes, the loop does
        result = await runtime.run("go")
        return result.finish_reason

    assert asyncio.run(run()) == "final"


def test_a_runtime_of_an_ended_event_loop_says_so(project: Path) -> None:
    async def opened() -> Runtime:
        return await Runtime.open(project, models={"scripted": scripted()}, watch=False).__aenter__()

    runtime = asyncio.run(opened())

    async def used(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(RuntimeError, match="this Runtime was opened in another event loop: open a"):
            await call()

    async def streamed() -> None:
        async with runtime.stream("go"):
            pass

    for call in (
        lambda: runtime.run("go"),
        streamed,
        lambda: runtime.submit("go"),
        lambda: runtime.resume("run", {}),
        lambda: runtime.decide("run", {}),
        lambda: runtime.result("run"),
        lambda: runtime.cancel("run"),
        runtime.start_queued,
    ):
        asyncio.run(used(call))


def test_run_sync_in_a_running_loop_says_what_to_write(project: Path) -> None:
    async def notebook() -> None:
        with pytest.raises(RuntimeError, match=r"as in Jupyter.*: write `async with .* await runtime\.run\(message\)`"):
            Runtime.run_sync(project, "go")

    asyncio.run(notebook())
