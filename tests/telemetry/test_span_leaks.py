"""Every span ends, however the run ends, and contains no spans of other runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import INVALID_SPAN

from framework import RunResult, Runtime, events, tool
from framework.testing import ScriptedModel, calls
from tests.support.projects import agent, write
from tests.support.waiting import until

PATIENCE = 30
"""Timeout in seconds, for waits that should be short."""


class Counting(SpanProcessor):
    """Open spans."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.errors: dict[str, object] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.open[span.name] += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.open[span.name] -= 1
        self.errors[span.name] = (span.attributes or {}).get("error.type")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(counting)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return counting


@tool(risk="low")
async def forever(n: str) -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return n


@tool(risk="low")
async def quick(n: str) -> str:
    """Ends."""
    return n


Ending = Callable[[Runtime], Awaitable[None]]


async def breaks_off(runtime: Runtime) -> None:
    async with runtime.stream("go", agent="one") as stream:
        async for event in stream:
            assert trace.get_current_span() is INVALID_SPAN, "the code that reads events runs outside the run's spans"
            if isinstance(event, events.ToolStarted):
                break


async def never_reads(runtime: Runtime) -> None:
    async with runtime.stream("go", agent="one"):
        pass


async def breaks_off_at_once(runtime: Runtime) -> None:
    async with runtime.stream("go", agent="one") as stream:
        await anext(aiter(stream))


async def is_cancelled(runtime: Runtime) -> None:
    async with runtime.stream("go", agent="one") as stream:
        async for event in stream:
            if isinstance(event, events.ToolStarted):
                stream.cancel()
        assert (await stream.result()).status == "cancelled"


async def runs_out_of_time(runtime: Runtime, seconds: float = 0.05) -> None:
    result: RunResult = await runtime.run("go", agent="one", limits={"timeout": seconds})
    assert result.finish_reason == "timeout"


async def has_a_tool_that_takes_too_long(runtime: Runtime) -> None:
    result = await runtime.run("go", agent="one", limits={"tool_timeout": 0.05, "max_steps": 1})
    assert result.finish_reason == "max_steps"


async def has_a_caller_that_gives_up(runtime: Runtime) -> None:
    waiting = asyncio.create_task(runtime.run("go", agent="one"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def is_closed_upon(runtime: Runtime) -> None:
    task = asyncio.create_task(runtime.run("go", agent="one"))
    (run,) = await until(runtime.store.runs, "the run is stored")
    await runtime.cancel(run.run_id)
    assert (await task).status == "cancelled"


@pytest.mark.parametrize(
    "ending",
    [
        breaks_off,
        never_reads,
        breaks_off_at_once,
        is_cancelled,
        runs_out_of_time,
        has_a_tool_that_takes_too_long,
        has_a_caller_that_gives_up,
        is_closed_upon,
    ],
    ids=lambda ending: ending.__name__,
)
@pytest.mark.parametrize("executor", ["react", "sub-agent"])
def test_no_span_is_left_open(ending: Ending, executor: str, tmp_path: Path, counted: Counting) -> None:
    model = ScriptedModel(calls(("forever", {"n": "1"}), ("quick", {"n": "2"})), "ok")
    files = {"agents.d/one.yaml": agent("one")}
    if executor == "sub-agent":
        files = {"agents.d/one.yaml": agent("one", sub_agents="[two]"), "agents.d/two.yaml": agent("two")}
        turns = calls(("forever", {"n": "1"}), ("quick", {"n": "2"}))
        model = ScriptedModel(calls(("agent.two", {"message": "go"})), turns, "inner", "outer")

    async def main() -> None:
        options = {"scripted": model}
        async with Runtime.open(write(tmp_path, files), tools=[forever, quick], models=options, watch=False) as runtime:
            await ending(runtime)
        assert trace.get_current_span() is INVALID_SPAN

    asyncio.run(main())
    assert [name for name, number in counted.open.items() if number] == []
    assert "invoke_workflow one" in counted.errors


def test_a_timeout_marks_the_span_that_timed_out(tmp_path: Path, counted: Counting) -> None:
    model = ScriptedModel(calls(("forever", {"n": "1"})), "ok")

    async def main() -> None:
        root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
        async with Runtime.open(root, tools=[forever], models={"scripted": model}, watch=False) as runtime:
            await runs_out_of_time(runtime, 3)  # by then, the tool has begun

    asyncio.run(main())
    errors = {name: error for name, error in counted.errors.items() if error}
    assert errors == {
        "execute_tool forever": "cancelled",
        "agent.step 1": "cancelled",
        "invoke_agent one": "timeout",
        "invoke_workflow one": "timeout",
    }
