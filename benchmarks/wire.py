"""CPU time of a model call over HTTP: agentsd, and a hand-written loop on the openai SDK, against the same server.

Both request complete responses instead of streams. The hand-written loop uses the SDK with its defaults. agentsd has a
store in memory and no tracing, and also offers the built-in tools.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from openai import AsyncOpenAI

from benchmarks.measure import Row, table
from framework import Runtime, Tool, tool
from framework.types.events import ContentReceived

SERVER = """
import asyncio, json, sys
def answer(body):
    turn = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
    call = {"id": f"c{turn}", "type": "function", "function": {"name": "note", "arguments": json.dumps({"n": turn})}}
    more = turn < int(sys.argv[1])
    message = {"role": "assistant", "content": None if more else "done", **({"tool_calls": [call]} if more else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if more else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            lines = (line.split(b":") for line in head.lower().split(b"\\r\\n"))
            size = next(int(line[1]) for line in lines if line[0] == b"content-length")
            request = await reader.readexactly(size)
            body = answer(request)
            await asyncio.sleep(float(sys.argv[2]))
            if b'"stream":true' in request.replace(b" ", b""):
                choice = {"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}
                chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
                writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\nconnection: close\\r\\n\\r\\n")
                writer.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\ndata: [DONE]\\n\\n")
                break
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\n")
            writer.write(b"content-length: %d\\r\\n\\r\\n" % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
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
def serving(turns: int, seconds: float = 0) -> Iterator[str]:
    """Start a model server in another process. Yield its URL.

    Each response takes `seconds`; the first `turns` of them call the tool.
    """
    command = [sys.executable, "-c", SERVER, str(turns), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@contextmanager
def project(url: str) -> Iterator[Path]:
    """Yield a project folder with one agent, whose model is at `url`."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
        alias = f"{{model: openai/m, base_url: '{url}', api_key: k}}"
        (root / "agentsd.yaml").write_text(f"models: {{wire: {alias}}}\n", "utf-8")
        yield root


async def by_hand(client: AsyncOpenAI, wire: Any, history: History) -> None:
    """Run a hand-written loop, without policy, limits or records."""
    messages: list[Any] = [{"role": "system", "content": "Call the tool."}, *history, {"role": "user", "content": "go"}]
    while True:
        completion = await client.chat.completions.create(model="m", messages=messages, tools=wire)
        message: Any = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            result = await note.function(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def one_run(runtime: Runtime, history: History, steps: int) -> None:
    """Run the agent once."""
    result = await runtime.run("go", history=history)
    assert (result.output, result.steps) == ("done", steps + 1)


async def cpu(function: Callable[[], Awaitable[None]], runs: int) -> float:
    """Return the median CPU seconds of `runs` consecutive runs."""
    durations = list[float]()
    for _ in range(runs):
        started = process_time()
        await function()
        durations.append(process_time() - started)
    return median(durations)


async def compare(steps: int, tools: list[Tool], history: History, rounds: int, runs: int) -> None:
    """Compare both loops, alternating after `runs` runs, so that both run under the same load."""
    runtime_times, baseline = list[float](), list[float]()
    wire = [{"type": "function", "function": {**one.definition.model_dump(), "name": one.name}} for one in tools]
    with serving(steps + len(history) // 2) as url, project(url) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, tools=tools, watch=False) as runtime:
            for _ in range(rounds + 1):
                runtime_times.append(await cpu(partial(one_run, runtime, history, steps), runs))
                baseline.append(await cpu(partial(by_hand, client, wire, history), runs))
        await client.close()
    runtime_times, baseline = runtime_times[1:], baseline[1:]  # the first round is a warm-up
    ratio = median(time / base for time, base in zip(runtime_times, baseline, strict=True))
    per_call = 1e6 / (steps + 1)
    rows = [
        Row("hand-written loop on the openai SDK", min(baseline) * per_call, 1),
        Row("agentsd run", min(runtime_times) * per_call, ratio, "with policy, limits, events and records"),
    ]
    table(f"CPU time per model call: {steps} steps, {len(tools)} tools, {len(history)} earlier messages", "µs", rows)


async def first_token(rounds: int) -> None:
    """Compare the time to the first token, with a model that needs a second for it."""
    runtime_times, baseline = list[float](), list[float]()
    with serving(0, 1.0) as url, project(url) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, watch=False) as runtime:
            for _ in range(rounds + 1):
                started = perf_counter()
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "go"}], stream=True
                )
                async for _ in stream:
                    baseline.append(perf_counter() - started)
                started = perf_counter()
                async with runtime.stream("go") as run:
                    async for event in run:
                        if isinstance(event, ContentReceived):
                            runtime_times.append(perf_counter() - started)
        await client.close()
    runtime_times, baseline = runtime_times[1:], baseline[1:]  # the first round is a warm-up
    ratio = median(time / base for time, base in zip(runtime_times, baseline, strict=True))
    rows = [
        Row("openai SDK", median(baseline) * 1000, 1),
        Row("agentsd run", median(runtime_times) * 1000, ratio, "from the request to the event"),
    ]
    table("Time to the first token, with a model that needs a second, wall time", "ms", rows)


def main(*, quick: bool) -> None:
    """Print the tables."""
    rounds = 3 if quick else 9
    many = [note, *(look_up.named(f"look_up_{n}", "python") for n in range(99))]
    roles = ("user", "assistant")
    text = "Some words of an earlier conversation, long enough to look like chat, with a few more words. " * 2
    history = [{"role": roles[n % 2], "content": f"{n}: {text}"} for n in range(400)]
    asyncio.run(compare(10, [note], [], rounds, 6))
    asyncio.run(compare(3, many, [], rounds, 4))
    asyncio.run(compare(3, [note], history, rounds, 2))
    asyncio.run(first_token(2 if quick else 5))
