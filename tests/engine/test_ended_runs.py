"""An ended run is freed at once: no cycle of references keeps its objects until a garbage collection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime, tool
from framework.engine.context.events import Journal
from framework.engine.run import Run
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.state import RunState
from tests.support.projects import agent, write


@tool(risk="low")
async def note(n: int) -> str:
    """Return a note of the number."""
    return f"noted {n}"


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Collect what earlier tests left, and nothing during the test."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left(*kinds: type) -> list[str]:
    """Return the types of the objects of these types that exist."""
    return [type(found).__name__ for found in gc.get_objects() if type(found) in kinds]


def answer(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    if last.role == "tool" or last.content == "inner":
        return "done"
    return calls(("agent.two", {"message": "inner"})) if last.content == "delegate" else calls(("note", {"n": 1}))


@pytest.mark.parametrize("message", ["go", "delegate"])
@pytest.mark.usefixtures("uncollected")
def test_an_ended_run_is_freed_at_once(tmp_path: Path, message: str) -> None:
    one = agent("one", skill_policy='{allow: ["*"]}', sub_agents="[two]")
    root = write(tmp_path, {"agents.d/one.yaml": one, "agents.d/two.yaml": agent("two")})
    before = len(left(Run, Journal, RunState))

    async def main() -> None:
        models: dict[str, Any] = {"scripted": ScriptedModel(script=answer)}
        async with Runtime.open(root, tools=[note], models=models, watch=False) as runtime:
            await runtime.run(message, agent="one")
            async with runtime.stream(message, agent="one") as stream:
                assert [event async for event in stream][-1].run_id == stream.run_id
            del stream
            await asyncio.sleep(0)  # the task of the run has ended, and is released by the event loop
            assert left(Run, Journal, RunState)[before:] == []

    asyncio.run(main())
