"""Function calls of a model call over HTTP, beside a hand-written loop: the same in each run, on any machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

from openai import AsyncOpenAI

from benchmarks.harness import Row, Table
from benchmarks.model_server import serving
from benchmarks.wire import by_hand, note, one_run, project
from framework import Runtime

JOBS = ((10, 0, 0.18), (3, 400, 0.03))
"""Steps, earlier messages, and the promised ratio."""


async def count(work: Callable[[], Awaitable[object]]) -> int:
    """Return the number of function calls of this thread during work that was done once before."""
    await work()
    counted = 0

    def add(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(add)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return counted


async def compare(steps: int, messages: int, at_most: float) -> Table:
    """Count the calls of a run, and of the hand-written loop. There must be no tracer provider."""
    history = [{"role": ("user", "assistant")[n % 2], "content": f"{n}: some words"} for n in range(messages)]
    definition = {"type": "function", "function": {**note.definition.model_dump(), "name": "note"}}
    with serving(steps + messages // 2) as url, project(url, stream=False) as root:
        async with (
            AsyncOpenAI(base_url=url, api_key="k") as client,
            Runtime.open(root, tools=[note], watch=False) as runtime,
        ):
            run = await count(lambda: one_run(runtime, history, steps))
            loop = await count(lambda: by_hand(client, [definition], history))
    rows = [
        Row("hand-written loop on the openai SDK", loop / (steps + 1), 1),
        Row("agentsd run", run / (steps + 1), run / loop, at_most=at_most),
    ]
    return Table(f"Function calls per model call: {steps} steps, {messages} earlier messages", "calls", rows)


def tables(*, quick: bool) -> Iterator[Table]:  # noqa: ARG001 - counts need no rounds
    """Count both jobs."""
    for steps, messages, at_most in JOBS:
        yield asyncio.run(compare(steps, messages, at_most))
