"""Streamed answers: CPU of a token, many streams at once, and CPU of an event at each follower of the HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import aiohttp
from openai import AsyncOpenAI

from benchmarks.harness import Row, Table, paired
from benchmarks.loop import LOOPER, STEPS, note, script
from benchmarks.model_server import serving
from benchmarks.serving import Server, connected, served
from benchmarks.wire import AGENT, cpu, project
from framework import Runtime
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn
from framework.types.events import ContentReceived, Event

WORDS = 500
TOKEN_LIMIT_US = 30
"""Promised CPU time of a streamed token, from the bytes of the model server to the event."""
STREAMS = 500
STREAM_WORDS = 50
FOLLOWERS = 50
FOLLOWED_WORDS = 100
PAUSE = 0.005
"""Seconds between the tokens that followers get, so that few of them are merged."""
READERS = (10, 100)
ANSWER = "word " * 300
ACCEPT_SECONDS = 0.3
"""Until the model begins to answer, so that all followers are connected."""


async def by_hand(client: AsyncOpenAI, words: int) -> None:
    """Read a stream with the SDK's typed client."""
    pieces = 0
    async for chunk in await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "go"}], stream=True, stream_options={"include_usage": True}
    ):
        pieces += bool(chunk.choices and chunk.choices[0].delta.content)
    assert pieces == words + 1


async def one_stream(runtime: Runtime, words: int) -> float:
    """Read the events of a run; return the seconds until its first text."""
    started, first, text = perf_counter(), 0.0, list[str]()
    async with runtime.stream("go") as run:
        async for event in run:
            if isinstance(event, ContentReceived) and not event.seq:
                first = first or perf_counter() - started
                text.append(event.text)
    assert "".join(text).count(" word") == words, "a stream is incomplete"
    return first


async def _discard(runtime: Runtime, words: int) -> None:
    await one_stream(runtime, words)


async def token_cpu(rounds: int) -> Table:
    """Compare the CPU time of a token with that of the SDK's stream, in turns."""
    runtime_times, baseline = list[float](), list[float]()
    with serving(0, words=WORDS) as url, project(url) as root:
        client = AsyncOpenAI(base_url=url, api_key="k")
        async with Runtime.open(root, watch=False) as runtime:
            for _ in range(rounds + 1):
                runtime_times.append(await cpu(partial(_discard, runtime, WORDS), 6))
                baseline.append(await cpu(partial(by_hand, client, WORDS), 2))
        await client.close()
    runtime_times, baseline = runtime_times[1:], baseline[1:]  # the first round is a warm-up
    token = min(runtime_times) / WORDS * 1e6
    rows = [
        Row("openai SDK", min(baseline) / WORDS * 1e6, 1),
        Row("agentsd, to the event", token, paired(runtime_times, baseline)),
        Row.limited("agentsd, beside its limit", token, TOKEN_LIMIT_US),
    ]
    return Table(
        f"CPU time of a streamed token, in answers of {WORDS} words", "µs", rows, "A run's other work included."
    )


async def streams_at_once(number: int) -> Table:
    """Measure the first text of streams that all begin at once."""
    with serving(0, words=STREAM_WORDS) as url, project(url) as root:
        async with Runtime.open(root, watch=False) as runtime:
            alone = median([await one_stream(runtime, STREAM_WORDS) for _ in range(6)][1:])
            used, began = process_time(), perf_counter()
            async with asyncio.TaskGroup() as group:
                streams = [group.create_task(one_stream(runtime, STREAM_WORDS)) for _ in range(number)]
            seconds, used = perf_counter() - began, process_time() - used
    firsts = quantiles([one.result() for one in streams], n=100)
    rate = f"{number * STREAM_WORDS / seconds:,.0f} tokens/s, {used / number / STREAM_WORDS * 1e6:.0f} µs CPU each"
    rows = [
        Row("one stream alone", alone * 1000, 1),
        Row(f"{number} streams, median", firsts[49] * 1000, firsts[49] / alone, rate),
        Row(f"{number} streams, 99th percentile", firsts[98] * 1000, firsts[98] / alone),
    ]
    return Table(f"First text of {number} streams that begin at once, of {STREAM_WORDS} words each", "ms", rows)


def fan_out(followers: int) -> Table:
    """Measure the CPU time of the server per event and follower: that of a followed run less that of one alone."""
    with serving(0, ACCEPT_SECONDS, words=FOLLOWED_WORDS, pause=PAUSE) as url, TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
        alias = f"{{model: openai/m, base_url: '{url}', api_key: k, stream: true}}"
        text = f"models: {{wire: {alias}}}\nserver: {{port: 0}}\nstore: {{url: 'memory:'}}\n"
        (root / "agentsd.yaml").write_text(text, "utf-8")
        with served(root) as server:
            asyncio.run(followed_run(server, 1))  # a warm-up
            alone, _ = asyncio.run(followed_run(server, 1))
            used, events = asyncio.run(followed_run(server, followers))
    each = max(used - alone, 0) / events * 1000
    note = f"{events / followers:.0f} events each, of {FOLLOWED_WORDS} tokens; adjacent ones are merged"
    return Table(
        f"A run with {followers} followers over HTTP", "µs", [Row("CPU of an event at a follower", each)], note
    )


async def followed_run(server: Server, followers: int) -> tuple[float, int]:
    """Return the CPU milliseconds of the server during a run, and the number of events at all followers."""
    before = server.cpu_ms()
    async with connected() as session:
        async with session.post(f"{server.url}/agent/runs", json={"message": "go"}) as response:
            assert response.status == 202, await response.text()
            events = f"{server.url}/agent/runs/{(await response.json())['run_id']}/events"
        async with asyncio.TaskGroup() as group:
            counts = [group.create_task(count_events(session, events)) for _ in range(followers)]
    return server.cpu_ms() - before, sum(count.result() for count in counts)


async def count_events(session: aiohttp.ClientSession, url: str) -> int:
    """Follow a run to its end; return the number of its events."""
    number, last = 0, b""
    async with session.get(url) as response:
        async for line in response.content:
            if line.startswith(b"event:"):
                number, last = number + 1, line
    assert last.strip() == b"event: done", f"a follower's last line is {last!r}"
    return number


def talkative(request: ModelRequest) -> Turn:
    """Return the turns of the loop, and a long answer at its end."""
    turn = script(request)
    return ANSWER.strip() if isinstance(turn, str) else turn


async def read_run(runtime: Runtime, followers: int, *, idle: bool) -> float:
    """Stream a run while others follow it; return the CPU time of all in seconds.

    Args:
        runtime: the runtime.
        followers: number of further readers.
        idle: whether they stop reading after the first event.
    """
    started = process_time()
    async with runtime.stream("go", agent="looper") as stream:
        others = [runtime.follow(stream.run_id) for _ in range(followers)]
        for other in others:
            await anext(other)
        reading = [asyncio.create_task(_read(other)) for other in others if not idle]
        async for _ in stream:
            pass
        assert (await stream.result()).output == ANSWER.strip()
        if reading:
            await asyncio.wait(reading)
        spent = process_time() - started
        for other in others:
            await other.aclose()
    return spent


async def _read(events: AsyncIterator[Event]) -> None:
    async for _ in events:
        pass


async def readers(root: Path, rounds: int) -> Table:
    """Compare runs with different readers, interleaved, so that all run under the same load."""
    kinds = {"stream": (0, False), "and one that stops reading": (1, True)}
    kinds |= {f"and {number} more": (number, False) for number in READERS}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    model = ScriptedModel(script=talkative)
    async with Runtime.open(root, tools=[note], models={"scripted": model}, watch=False) as runtime:
        for _ in range(rounds + 1):
            for name, (followers, idle) in kinds.items():
                times[name].append(await read_run(runtime, followers, idle=idle))
    first, *_ = times.values()
    rows = [
        Row(name, median(spent[1:]) * 1e3, paired(spent[1:], first[1:]), at_most=1.1 if "stops" in name else None)
        for name, spent in times.items()
    ]
    return Table(f"A streamed run of {STEPS} tool calls and 300 words, CPU time with its readers", "ms", rows)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure tokens, streams at once, followers of a server, then readers in the process of a run."""
    yield asyncio.run(token_cpu(2 if quick else 5))
    yield asyncio.run(streams_at_once(100 if quick else STREAMS))
    yield fan_out(20 if quick else FOLLOWERS)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "looper.yaml"
        path.write_text(LOOPER, "utf-8")
        yield asyncio.run(readers(path, 3 if quick else 5))
