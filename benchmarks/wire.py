"""CPU time of a model call over HTTP: agentsd, and a hand-written loop on the openai SDK, against the same server.

The hand-written loop uses the SDK with its defaults. agentsd has a store in memory and no tracing, and also offers the
built-in tools. Both request complete responses, as from a hosted provider, and then streams, as from a local server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from openai import AsyncOpenAI

from benchmarks.harness import Row, Table, paired
from benchmarks.model_server import serving
from framework import Runtime, Tool, tool
from framework.types.events import ContentReceived

AGENT = """\
version: 1
name: looper
description: Calls a tool.
model: wire
instructions: Call the tool, then answer.
skill_policy: {allow: ["*"]}
conversation: {window: 1000}
runtime_policy: {max_steps: null, max_tool_calls: null, max_total_tokens: null}
"""
History = list[dict[str, Any]]
FIRST_TOKEN_MS = 2000
"""Promised time to the first token, with a model that needs a second for it."""


@tool(risk="low")
async def note(n: int) -> str:
    """Return a note of the number.

    Args:
        n: a number
    """
    return f"noted {n}"


@tool(risk="low")
async def look_up(query: str, limit: int = 10, exact: bool = False) -> str:
    """Look up records in the company store and return them as text.

    Args:
        query: The search terms.
        limit: Maximum number of records.
        exact: Whether to match exactly.
    """
    return f"{limit} of {query}, {exact}"


@contextmanager
def project(url: str, *, stream: bool = True) -> Iterator[Path]:
    """Yield a project folder with one agent, whose model is at `url`."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
        alias = f"{{model: openai/m, base_url: '{url}', api_key: k, stream: {str(stream).lower()}}}"
        (root / "agentsd.yaml").write_text(f"models: {{wire: {alias}}}\n", "utf-8")
        yield root


async def by_hand(client: AsyncOpenAI, wire: Any, history: History, *, stream: bool = False) -> None:
    """Run a hand-written loop, without policy, limits or records."""
    messages: list[Any] = [{"role": "system", "content": "Call the tool."}, *history, {"role": "user", "content": "go"}]
    while True:
        message = await (streamed if stream else unstreamed)(client, messages, wire)
        messages.append(message)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            result = await note.function(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def unstreamed(client: AsyncOpenAI, messages: Any, wire: Any) -> dict[str, Any]:
    """Return the message of a complete response."""
    completion = await client.chat.completions.create(model="m", messages=messages, tools=wire)
    return completion.choices[0].message.model_dump(exclude_none=True)


async def streamed(client: AsyncOpenAI, messages: Any, wire: Any) -> dict[str, Any]:
    """Return the message of a streamed response with at most one tool call."""
    text, call = list[str](), dict[str, Any]()
    async for chunk in await client.chat.completions.create(
        model="m", messages=messages, tools=wire, stream=True, stream_options={"include_usage": True}
    ):
        delta: Any = chunk.choices[0].delta if chunk.choices else None
        text += [delta.content] if delta and delta.content else []
        for part in (delta and delta.tool_calls) or ():
            function = call.setdefault("function", {"name": part.function.name, "arguments": ""})
            function["arguments"] += part.function.arguments
            call.update({"type": "function", "id": part.id} if part.id else {})
    return {"role": "assistant", "content": "".join(text), **({"tool_calls": [call]} if call else {})}


async def one_run(runtime: Runtime, history: History, steps: int) -> None:
    """Run the agent once."""
    result = await runtime.run("go", history=history)
    assert result.output.endswith("done")
    assert result.steps == steps + 1


async def cpu(function: Callable[[], Awaitable[None]], runs: int) -> float:
    """Return the median CPU seconds of `runs` consecutive runs."""
    durations = list[float]()
    for _ in range(runs):
        started = process_time()
        await function()
        durations.append(process_time() - started)
    return median(durations)


async def compare(
    steps: int,
    tools: list[Tool],
    history: History,
    rounds: int,
    runs: tuple[int, int],
    *,
    words: int | None = None,
    at_most: float | None = None,
) -> Table:
    """Compare both loops, alternating after some runs of each, so that both run under the same load.

    `runs`: of agentsd and of the hand-written loop in a round. With `words`, responses are streamed, and that many
    words are in the answer.
    """
    stream = words is not None
    runtime_times, baseline = list[float](), list[float]()
    wire = [{"type": "function", "function": {**one.definition.model_dump(), "name": one.name}} for one in tools]
    with serving(steps + len(history) // 2, words=words or 0) as url, project(url, stream=stream) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, tools=tools, watch=False) as runtime:
            for _ in range(rounds + 1):
                runtime_times.append(await cpu(partial(one_run, runtime, history, steps), runs[0]))
                baseline.append(await cpu(partial(by_hand, client, wire, history, stream=stream), runs[1]))
        await client.close()
    runtime_times, baseline = runtime_times[1:], baseline[1:]  # the first round is a warm-up
    ratio = paired(runtime_times, baseline)
    per_call = 1e6 / (steps + 1)
    rows = [
        Row("hand-written loop on the openai SDK", min(baseline) * per_call, 1),
        Row("agentsd run", min(runtime_times) * per_call, ratio, "with policy, limits, events and records", at_most),
    ]
    size = f"{steps} steps, {len(tools)} tools, {len(history)} earlier messages"
    size += f", answers of {words} words, streamed" if stream else ""
    return Table(f"CPU time per model call: {size}", "µs", rows)


async def first_token(rounds: int) -> Table:
    """Compare the time to the first token, with a model that needs a second for it, for which both wait at once."""
    runtime_times, baseline = list[float](), list[float]()
    with serving(0, 1.0) as url, project(url) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, watch=False) as runtime:
            for _ in range(rounds + 1):
                async with asyncio.TaskGroup() as group:
                    of_sdk = group.create_task(_first_of_sdk(client))
                    of_run = group.create_task(_first_of_run(runtime))
                baseline.append(of_sdk.result())
                runtime_times.append(of_run.result())
        await client.close()
    runtime_times, baseline = runtime_times[1:], baseline[1:]  # the first round is a warm-up
    ratio = paired(runtime_times, baseline)
    rows = [
        Row("openai SDK", median(baseline) * 1000, 1),
        Row("agentsd run", median(runtime_times) * 1000, ratio, "from the request to the event"),
        Row.limited("agentsd run, slowest, beside its limit", max(runtime_times) * 1000, FIRST_TOKEN_MS),
    ]
    return Table("Time to the first token, with a model that needs a second, wall time", "ms", rows)


async def _first_of_sdk(client: AsyncOpenAI) -> float:
    """Return the seconds until the SDK's stream yields its first chunk."""
    started = perf_counter()
    stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}], stream=True)
    await anext(aiter(stream))
    seconds = perf_counter() - started
    await stream.close()
    return seconds


async def _first_of_run(runtime: Runtime) -> float:
    """Return the seconds until the first text of a run."""
    started, first = perf_counter(), 0.0
    async with runtime.stream("go") as run:
        async for event in run:
            if isinstance(event, ContentReceived):
                first = first or perf_counter() - started
    return first


def tables(*, quick: bool) -> Iterator[Table]:
    """Compare loops of several sizes, then first tokens."""
    rounds, many_rounds = (2, 2) if quick else (5, 20)  # a promise close to its limit needs the most rounds
    many = [note, *(look_up.named(f"look_up_{n}", "python") for n in range(99))]
    roles = ("user", "assistant")
    text = "Some words of an earlier conversation, long enough to look like chat, with a few more words. " * 2
    history = [{"role": roles[n % 2], "content": f"{n}: {text}"} for n in range(400)]
    yield asyncio.run(compare(10, [note], [], many_rounds, (8, 3), at_most=0.35))
    yield asyncio.run(compare(3, many, [], rounds, (8, 3), at_most=0.13))
    yield asyncio.run(compare(3, [note], history, rounds, (6, 1), at_most=0.05))
    yield asyncio.run(compare(10, [note], [], rounds, (5, 2), words=100))
    yield asyncio.run(first_token(1 if quick else 3))
