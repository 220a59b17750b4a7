"""CPU of a model call over HTTP: ours, and a loop written by hand on the openai SDK, against one server in turns.

Both ask for whole answers, as everybody does who does not show them word by word. The loop by hand uses the SDK as it
comes; ours has its store in memory and no tracing. Ours offers the built-in tools besides, the other one does not.
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
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(whole).encode()
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            lines = (line.split(b":") for line in head.lower().split(b"\\r\\n"))
            size = next(int(line[1]) for line in lines if line[0] == b"content-length")
            asked = await reader.readexactly(size)
            body = answer(asked)
            await asyncio.sleep(float(sys.argv[2]))
            if b'"stream":true' in asked.replace(b" ", b""):
                piece = {"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}
                chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [piece]}
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
    """Note a number.

    Args:
        n: a number
    """
    return f"noted {n}"


@tool(risk="low")
async def look_up(query: str, limit: int = 10, exact: bool = False) -> str:
    """Look up records in the company store and return them as text.

    Args:
        query: What to look for.
        limit: How many records at most.
        exact: Whether to match exactly.
    """
    return f"{limit} of {query}, {exact}"


@contextmanager
def serving(turns: int, seconds: float = 0) -> Iterator[str]:
    """A server in a process of its own that asks for the tool so many times, after some time each; its address."""
    command = [sys.executable, "-c", SERVER, str(turns), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@contextmanager
def project(url: str) -> Iterator[Path]:
    """A folder with one agent, whose model is at that address."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
        alias = f"{{model: openai/m, base_url: '{url}', api_key: k}}"
        (root / "agentsd.yaml").write_text(f"models: {{wire: {alias}}}\n", "utf-8")
        yield root


async def by_hand(client: AsyncOpenAI, wire: Any, history: History) -> None:
    """The loop as one would write it: no policy, no limits, no record."""
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
    """Ours."""
    result = await runtime.run("go", history=history)
    assert (result.output, result.steps) == ("done", steps + 1)


async def cpu(function: Callable[[], Awaitable[None]], runs: int) -> float:
    """Seconds of this process's CPU for one of some runs in a row: the median."""
    taken = list[float]()
    for _ in range(runs):
        began = process_time()
        await function()
        taken.append(process_time() - began)
    return median(taken)


async def compare(steps: int, tools: list[Tool], history: History, rounds: int, runs: int) -> None:
    """Print one table: both loops in turns of some runs, so that they see the same machine."""
    ours, theirs = list[float](), list[float]()
    wire = [{"type": "function", "function": {**one.definition.model_dump(), "name": one.name}} for one in tools]
    with serving(steps + len(history) // 2) as url, project(url) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, tools=tools, watch=False) as runtime:
            for _ in range(rounds + 1):
                ours.append(await cpu(partial(one_run, runtime, history, steps), runs))
                theirs.append(await cpu(partial(by_hand, client, wire, history), runs))
        await client.close()
    ours, theirs = ours[1:], theirs[1:]  # the first warm up
    ratio = median(own / other for own, other in zip(ours, theirs, strict=True))
    per_call = 1e6 / (steps + 1)
    rows = [
        Row("a loop by hand on the openai SDK", min(theirs) * per_call, 1),
        Row("a run of ours", min(ours) * per_call, ratio, "with policy, limits, events and record"),
    ]
    table(f"CPU of a model call: {steps} steps, {len(tools)} tools, {len(history)} earlier messages", "µs", rows)


async def first_words(rounds: int) -> None:
    """Print how long the first words of a model take that takes a second itself."""
    ours, theirs = list[float](), list[float]()
    with serving(0, 1.0) as url, project(url) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, watch=False) as runtime:
            for _ in range(rounds + 1):
                began = perf_counter()
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "go"}], stream=True
                )
                async for _ in stream:
                    theirs.append(perf_counter() - began)
                began = perf_counter()
                async with runtime.stream("go") as run:
                    async for event in run:
                        if isinstance(event, ContentReceived):
                            ours.append(perf_counter() - began)
        await client.close()
    ours, theirs = ours[1:], theirs[1:]  # the first warms up
    ratio = median(own / other for own, other in zip(ours, theirs, strict=True))
    rows = [
        Row("the openai SDK by hand", median(theirs) * 1000, 1),
        Row("a run of ours", median(ours) * 1000, ratio, "from the request to the event"),
    ]
    table("The first words of a model that takes a second to begin, wall time", "ms", rows)


def main(*, quick: bool) -> None:
    """Print the tables of this part."""
    rounds = 3 if quick else 9
    many = [note, *(look_up.named(f"look_up_{n}", "python") for n in range(99))]
    roles = ("user", "assistant")
    words = "Some words of a conversation that went before this one, long enough to look like chat. " * 2
    history = [{"role": roles[n % 2], "content": f"{n}: {words}"} for n in range(400)]
    asyncio.run(compare(10, [note], [], rounds, 6))
    asyncio.run(compare(3, many, [], rounds, 4))
    asyncio.run(compare(3, [note], history, rounds, 2))
    asyncio.run(first_words(2 if quick else 5))
