"""CPU time of a model call over HTTP: agentsd, and a hand-written loop on the openai SDK, against the same server.

The hand-written loop uses the SDK with its defaults. agentsd has a store in memory and no tracing, and also offers the
built-in tools. Both request complete responses, as from a hosted provider, and then streams, as from a local server.
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
words = [" word"] * int(sys.argv[3]) + ["done"]
def answer(body):
    turn = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
    call = {"id": f"c{turn}", "type": "function", "function": {"name": "note", "arguments": json.dumps({"n": turn})}}
    more = turn < int(sys.argv[1])
    message = {"role": "assistant", "content": None if more else "done", **({"tool_calls": [call]} if more else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if more else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()
def chunks(body):
    (choice,), usage = body.pop("choices"), body.pop("usage")
    head = {**body, "object": "chat.completion.chunk"}
    calls = choice["message"].get("tool_calls", ())
    deltas = [] if calls else [{"content": word} for word in words]
    for call in calls:
        text, call["function"]["arguments"] = call["function"]["arguments"], ""
        deltas.append({"tool_calls": [{**call, "index": 0}]})
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": char}}]} for char in text]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield {**head, "choices": [], "usage": usage}
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
                writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\n")
                writer.write(b"transfer-encoding: chunked\\r\\n\\r\\n")
                for data in (*map(json.dumps, chunks(json.loads(body))), "[DONE]"):
                    event = b"data: " + data.encode() + b"\\n\\n"
                    writer.write(b"%x\\r\\n%b\\r\\n" % (len(event), event))
                    await asyncio.sleep(0)
                writer.write(b"0\\r\\n\\r\\n")
                await writer.drain()
                continue
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
def serving(turns: int, seconds: float = 0, *, words: int = 0) -> Iterator[str]:
    """Start a model server in another process. Yield its URL.

    Each response takes `seconds`; the first `turns` of them call the tool. A streamed answer has `words` more words.
    """
    command = [sys.executable, "-c", SERVER, str(turns), str(seconds), str(words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


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
    steps: int, tools: list[Tool], history: History, rounds: int, runs: int, *, words: int | None = None
) -> None:
    """Compare both loops, alternating after `runs` runs, so that both run under the same load.

    With `words`, responses are streamed, and that many words are in the answer.
    """
    stream = words is not None
    runtime_times, baseline = list[float](), list[float]()
    wire = [{"type": "function", "function": {**one.definition.model_dump(), "name": one.name}} for one in tools]
    with serving(steps + len(history) // 2, words=words or 0) as url, project(url, stream=stream) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, tools=tools, watch=False) as runtime:
            for _ in range(rounds + 1):
                runtime_times.append(await cpu(partial(one_run, runtime, history, steps), runs))
                baseline.append(await cpu(partial(by_hand, client, wire, history, stream=stream), runs))
        await client.close()
    runtime_times, baseline = runtime_times[1:], baseline[1:]  # the first round is a warm-up
    ratio = median(time / base for time, base in zip(runtime_times, baseline, strict=True))
    per_call = 1e6 / (steps + 1)
    rows = [
        Row("hand-written loop on the openai SDK", min(baseline) * per_call, 1),
        Row("agentsd run", min(runtime_times) * per_call, ratio, "with policy, limits, events and records"),
    ]
    size = f"{steps} steps, {len(tools)} tools, {len(history)} earlier messages"
    table(f"CPU time per model call: {size}{f', answers of {words} words, streamed' if stream else ''}", "µs", rows)


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
                await anext(aiter(stream))
                baseline.append(perf_counter() - started)
                await stream.close()
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
    asyncio.run(compare(10, [note], [], rounds, 3, words=100))
    asyncio.run(first_token(2 if quick else 5))
