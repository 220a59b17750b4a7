"""Model calls a second of many concurrent conversations: with the bare SDK, by hand, with agentsd, in a process each.

The model answers after 20 ms. The bare SDK sends bytes that were prepared before, and keeps nothing: what it reaches is
the most that a loop on this SDK can reach. All processes take turns, so that they have the same load.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson
from openai import AsyncOpenAI, DefaultAioHttpClient

from benchmarks.harness import Row, Table, end_on_interrupt, paired, resident_mb
from benchmarks.model_server import serving
from benchmarks.wire import by_hand, note
from framework import Runtime
from framework.cli.serve import tune_memory

STEPS = 2
CALLS = STEPS + 1
LATENCY = 0.02
"""Seconds until the model answers."""
TICK = 0.01
"""Seconds between two measurements of the event loop's delay and of the process's memory."""
HAND_WRITTEN_SHARE = 0.6
"""Promised ratio to the CPU time of the hand-written loop."""
AGENT = """\
version: 1
name: looper
description: Calls a tool.
model: wire
instructions: Call the tool.
guidance: none
skill_policy: {allow: [note]}
"""
WIRE_TOOL = {"type": "function", "function": {**note.definition.model_dump(), "name": note.name}}
WARM_UP = 20
"""Conversations of each peer before the first turn."""
BY_HAND, BARE, RAW = "hand-written loop on the openai SDK", "bare SDK, prepared bytes, aiohttp", "raw sockets"
AGENTSD, TUNED, UVLOOP = "agentsd", "agentsd, memory as in agentsd serve", "the same, on uvloop"

Converse = Callable[[], Awaitable[bool]]
"""Has one conversation; returns whether it ended as it should."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one process measured while it had a number of conversations at once."""

    rate: float
    """Model calls a second."""
    cpu: float
    """CPU seconds of the process per model call."""
    durations: Sequence[float]
    """Seconds of each conversation."""
    lag: float
    """99th percentile of the event loop's delay, in seconds."""
    errors: int
    grown: float
    """Megabytes of memory that the process had more at most, beside its memory before the first turn."""


# --- the peers


def prepared_requests() -> list[bytes]:
    """Return the requests of one conversation, which the answers of the server determine."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Call the tool."},
        {"role": "user", "content": "go"},
    ]
    requests = []
    for turn in range(CALLS):
        requests.append(orjson.dumps({"model": "m", "messages": messages, "tools": [WIRE_TOOL]}))
        function = {"name": note.name, "arguments": json.dumps({"n": turn})}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"noted {turn}"})
    return requests


@asynccontextmanager
async def hand_written(url: str) -> AsyncIterator[Converse]:
    """Yield conversations of the hand-written loop of `wire.py`."""
    async with AsyncOpenAI(base_url=url, api_key="k") as client:

        async def converse() -> bool:
            await by_hand(client, [WIRE_TOOL], [])
            return True

        yield converse


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[Converse]:
    """Yield conversations of prepared requests, sent through the SDK's `post`; only the answers are parsed."""
    requests = prepared_requests()
    http_client = DefaultAioHttpClient(limits=httpx2.Limits(max_connections=None))
    async with AsyncOpenAI(base_url=url, api_key="k", http_client=http_client) as client:

        async def converse() -> bool:
            for content in requests:
                response = await client.post("/chat/completions", content=content, cast_to=httpx2.Response)
                message = orjson.loads(response.content)["choices"][0]["message"]
                for call in message.get("tool_calls", ()):
                    await note.function(**orjson.loads(call["function"]["arguments"]))
            return bool(message["content"] == "done")

        yield converse


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Converse]:
    """Yield conversations of prepared requests on sockets, which show what the server is able to answer."""
    address = urlsplit(url)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n"
    requests = [head.format(len(body)).encode() + body for body in prepared_requests()]
    idle = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    async def converse() -> bool:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(address.hostname, address.port)
        for request in requests:
            writer.write(request)
            headers = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(headers.rpartition(b":")[2]))
        idle.append((reader, writer))
        return b'"done"' in body

    yield converse
    for _, writer in idle:
        writer.close()


@asynccontextmanager
async def agentsd(url: str) -> AsyncIterator[Converse]:
    """Yield runs of an agent, with policy, limits and a store in memory."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
        alias = f"{{model: openai/m, base_url: '{url}', api_key: k, stream: false}}"
        (root / "agentsd.yaml").write_text(f"models: {{wire: {alias}}}\n", "utf-8")
        async with Runtime.open(root, tools=[note], watch=False) as runtime:

            async def converse() -> bool:
                result = await runtime.run("go")
                return result.output == "done" and result.steps == CALLS

            yield converse


PEERS: Mapping[str, Callable[[str], AbstractAsyncContextManager[Converse]]] = {
    BY_HAND: hand_written,
    BARE: bare,
    AGENTSD: agentsd,
    TUNED: agentsd,
    UVLOOP: agentsd,
    RAW: raw,
}


# --- in the process of a peer


def work(peer: str, url: str, parent: Connection) -> None:
    """Have as many conversations at once as the parent says, whenever it says so."""
    end_on_interrupt()
    new_loop = import_module("uvloop").new_event_loop if peer == UVLOOP else None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_work(peer, url, parent))


async def _work(peer: str, url: str, parent: Connection) -> None:
    async with PEERS[peer](url) as converse:
        await converse()
        if peer in (TUNED, UVLOOP):
            tune_memory()
        memory = resident_mb()
        parent.send(None)
        with suppress(EOFError):  # the parent has closed its end
            while True:
                parent.send(await _measure(converse, await asyncio.to_thread(parent.recv), memory))


async def _measure(converse: Converse, conversations: int, memory: float) -> Turn:
    delays, peak, errors = list[float](), list[float](), list[bool]()

    async def timed() -> float:
        started = perf_counter()
        try:
            errors.append(not await converse())
        except Exception:  # noqa: BLE001 - any failure counts as one
            errors.append(True)
        return perf_counter() - started

    async def watch() -> None:
        while True:
            started = perf_counter()
            await asyncio.sleep(TICK)
            delays.append(perf_counter() - started - TICK)
            peak.append(resident_mb())

    watcher, started, cpu = asyncio.create_task(watch()), perf_counter(), process_time()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(timed()) for _ in range(conversations)]
    seconds, cpu = perf_counter() - started, process_time() - cpu
    await asyncio.sleep(TICK)
    watcher.cancel()
    lag = quantiles([0, *delays], n=100)[-1]
    calls = conversations * CALLS
    return Turn(
        calls / seconds, cpu / calls, [task.result() for task in tasks], lag, sum(errors), max([memory, *peak]) - memory
    )


# --- in the process of the benchmark


@contextmanager
def started(peers: Sequence[str], url: str) -> Iterator[dict[str, Connection]]:
    """Start a process for each peer; yield the connections to them."""
    context, connections = get_context("spawn"), dict[str, Connection]()
    with ExitStack() as stack:
        for peer in peers:
            connections[peer], child = context.Pipe()
            process = context.Process(target=work, args=(peer, url, child), daemon=True)
            process.start()
            child.close()
            stack.callback(process.join)
            stack.callback(process.kill)
        for connection in connections.values():
            connection.recv()
        yield connections


def turn(peer: Connection, conversations: int) -> Turn:
    """Let a peer have conversations, while the others wait."""
    peer.send(conversations)
    measured: Turn = peer.recv()
    return measured


def compare(peers: Mapping[str, Connection], conversations: int, rounds: int) -> Iterator[Table]:
    """Compare all peers at a number of conversations, in turns: their rates, then their CPU times."""
    turns: dict[str, list[Turn]] = {peer: [] for peer in peers}
    for _ in range(rounds):
        for peer, connection in peers.items():
            turns[peer].append(turn(connection, conversations))
    title = f"{conversations:,} concurrent conversations"
    rates = {peer: [one.rate for one in measured] for peer, measured in turns.items()}
    rows = [
        Row(peer, median(rates[peer]), paired(rates[peer], rates[BARE]), describe(measured))
        for peer, measured in turns.items()
    ]
    yield Table(f"Model calls a second of {title}", "calls/s", rows)
    times = {peer: [one.cpu * 1e6 for one in measured] for peer, measured in turns.items()}
    rows = [Row(peer, median(values), paired(values, times[BARE])) for peer, values in times.items()]
    if BY_HAND in times:
        name, ratio = f"{TUNED}, beside the hand-written loop", paired(times[TUNED], times[BY_HAND])
        rows.append(Row(name, median(times[TUNED]), ratio, at_most=HAND_WRITTEN_SHARE))
    yield Table(f"CPU time of a model call of {title}", "µs", rows)


def describe(turns: Sequence[Turn]) -> str:
    """Return what belongs to the rate of a peer, as text."""
    cuts = quantiles([duration for one in turns for duration in one.durations], n=100)
    lag, errors = max(one.lag for one in turns), sum(one.errors for one in turns)
    memory = max(one.grown / len(one.durations) for one in turns) * 1000
    times = f"p50 {cuts[49] * 1000:,.0f} ms, p99 {cuts[98] * 1000:,.0f} ms a conversation"
    return f"{times}, loop {lag * 1000:,.0f} ms late, {memory:,.0f} kB each, {errors} errors"


def tables(*, quick: bool) -> Iterator[Table]:
    """Compare all peers at several numbers of conversations."""
    loops = [BARE, BY_HAND, AGENTSD, TUNED]
    every = [*loops, *([UVLOOP] if find_spec("uvloop") else []), RAW]
    most, few = [BARE, BY_HAND, TUNED, RAW], [BARE, TUNED, RAW]
    sizes = {100: (1, every)} if quick else {100: (2, every), 500: (1, most), 1000: (1, few)}
    with serving(STEPS, LATENCY) as url, started(every, url) as connections:
        for connection in connections.values():
            turn(connection, WARM_UP)
        for conversations, (rounds, names) in sizes.items():
            yield from compare({name: connections[name] for name in names}, conversations, rounds)
