"""Memory: of agents, conversations and runs, of the process after 500 chats, and the longest garbage collections.

Each group of cases has a process of its own, which this module is too: `python -m benchmarks.memory GROUP [ARGUMENT]`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, NamedTuple

from benchmarks.harness import Row, Table, resident_mb

CHATS = 500
STEPS = 2
AGENTS = 1000
LIMITS_KB = {"agent": 15, "conversation": 18, "ended": 4, "paused": 25, "in_flight": 50}
"""The memory that each object may need, with some room."""
MAX_RATIO = 1.5
"""Highest promised ratio to the process of the hand-written loop."""
NAMES = {
    "agent": f"agent, of {AGENTS:,}",
    "conversation": "idle conversation of two turns",
    "ended": "ended run of one call",
    "paused": "paused run of one call",
    "in_flight": "run in flight, in its tool",
}
AGENT = """\
version: 1
name: {name}
description: Calls a tool.
model: {model}
instructions: Call the tool, then answer.
skill_policy: {policy}
"""
Chat = Callable[[], Coroutine[Any, Any, None]]
"""Has one chat."""
ALLOW, ASK = '{allow: ["*"]}', "{ask: [note], allow: [note]}"


def measure(group: str, argument: str) -> dict[str, float]:
    """Return what a group of cases measures in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", group, argument]
    folder = Path(__file__).parent.parent
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=folder, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


class Chats(NamedTuple):
    """What a process measured while it had all chats at once."""

    before: float
    """Megabytes of the process before."""
    after: float
    collection: float
    """Milliseconds of CPU time of the longest full garbage collection."""


class FullCollections:
    """Callback for `gc` that records the CPU time of each full collection, in milliseconds."""

    def __init__(self) -> None:
        self.durations, self._began = [0.0], 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """Record the start or the end of a collection."""
        if phase == "start":
            self._began = process_time()
        elif info["generation"] == 2:
            self.durations.append((process_time() - self._began) * 1000)


async def traced(work: Callable[[int], Awaitable[object]], number: int) -> float:
    """Return the memory that each of `number` pieces of work leaves, in kilobytes; the first one is a warm-up."""
    await work(0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(number):
        await work(n + 1)
    gc.collect()
    size = (tracemalloc.get_traced_memory()[0] - before) / number / 1000
    tracemalloc.stop()
    return size


# --- groups of cases, each in a process of its own


async def objects(root: Path, kind: str, number: int) -> float:
    """Measure what each agent, conversation or run needs, in kilobytes."""
    from framework import Runtime, tool
    from framework.llm.client import ModelRequest
    from framework.testing import ScriptedModel, Turn, calls

    arrived, leave = asyncio.Semaphore(0), asyncio.Event()

    @tool(risk="low")
    async def note(n: int) -> str:
        """Return a note of the number."""
        arrived.release()
        if kind == "in_flight":
            await leave.wait()
        return f"noted {n}"

    def answer(request: ModelRequest) -> Turn:
        return "done" if request.messages[-1].role == "tool" else calls(("note", {"n": 1}))

    policy = ASK if kind == "paused" else ALLOW
    write(root, 1, "scripted", policy)
    model = ScriptedModel(script=answer)
    async with Runtime.open(root, tools=[note], models={"scripted": model}, watch=False) as runtime:
        tasks = list[asyncio.Task[Any]]()

        async def one(n: int) -> None:
            if kind == "agent":
                if n < 2:  # the warm-up has one agent, and the reload that is measured the rest
                    write(root, n * number + 1, "scripted", policy)
                    await runtime.reload()
            elif kind == "in_flight":
                tasks.append(asyncio.create_task(runtime.run("go", agent="agent-0")))
                await arrived.acquire()
            else:
                conversation = f"c{n}" if kind == "conversation" else None
                for _ in range(2 if conversation else 1):
                    await runtime.run("go", agent="agent-0", conversation=conversation)
            model.requests.clear()

        size = await traced(one, number)
        leave.set()
        if tasks:
            await asyncio.wait(tasks)
    return size


def write(root: Path, number: int, model: str, policy: str) -> None:
    """Write `number` agent files."""
    (root / "agents.d").mkdir(exist_ok=True)
    for n in range(number):
        text = AGENT.format(name=f"agent-{n}", model=model, policy=policy)
        (root / f"agents.d/{n}.yaml").write_text(text, "utf-8")


async def agentsd(url: str) -> dict[str, float]:
    """Run the chats with agentsd."""
    with TemporaryDirectory() as folder:
        async with opened(Path(folder), url, 1) as chat:
            return (await chats(chat))._asdict()


async def frozen(url: str) -> dict[str, float]:
    """Return the longest collection of the chats among many agents, by the objects that garbage collection skips."""
    from framework import Runtime  # noqa: F401 - its objects are frozen

    longest = dict[str, float]()
    freeze()
    with TemporaryDirectory() as folder:
        async with opened(Path(folder), url, AGENTS) as chat:
            longest["imports"] = (await chats(chat)).collection
            gc.unfreeze()
            longest["nothing"] = (await chats(chat)).collection
            freeze()
            longest["all"] = (await chats(chat)).collection
    return longest


def freeze() -> None:
    """Exclude all objects that are not garbage from collections."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def opened(root: Path, url: str, agents: int) -> AsyncIterator[Chat]:
    """Open a project of some agents, and yield a function that chats with the first one."""
    from framework import Runtime, tool

    @tool(risk="low")
    async def note(n: int) -> str:
        """Return a note of the number."""
        return f"noted {n}"

    write(root, agents, "wire", ALLOW)
    (root / "agentsd.yaml").write_text(f"models: {{wire: {{model: openai/m, base_url: '{url}', api_key: k}}}}\n")
    async with Runtime.open(root, tools=[note], watch=False) as runtime:

        async def chat() -> None:
            assert (await runtime.run("go", agent="agent-0")).output.endswith("done")

        await chat()
        yield chat


async def by_hand(url: str) -> dict[str, float]:
    """Run the chats with a hand-written loop on the openai SDK."""
    from openai import AsyncOpenAI

    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    described = {"name": "note", "description": "Return a note of the number.", "parameters": parameters}
    client = AsyncOpenAI(base_url=url, api_key="k", timeout=300)  # 500 connections at once, on a busy machine

    async def chat() -> None:
        messages: list[Any] = [{"role": "system", "content": "Call the tool."}, {"role": "user", "content": "go"}]
        tools: Any = [{"type": "function", "function": described}]
        while True:
            completion = await client.chat.completions.create(model="m", messages=messages, tools=tools)
            message = completion.choices[0].message.model_dump(exclude_none=True)
            messages.append(message)
            if not message.get("tool_calls"):
                return
            for call in message["tool_calls"]:
                result = f"noted {json.loads(call['function']['arguments'])['n']}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    await chat()
    return (await chats(chat))._asdict()


async def chats(chat: Chat) -> Chats:
    """Run all chats at once, and measure the memory before and after, and the full garbage collections."""
    before, collections = resident_mb(), FullCollections()
    gc.callbacks.append(collections)
    async with asyncio.TaskGroup() as group:
        for _ in range(CHATS):
            group.create_task(chat())
    after = resident_mb()
    gc.collect()  # a host's own garbage begins one at some time
    gc.callbacks.remove(collections)
    return Chats(before, after, max(collections.durations))


def main(group: str, argument: str) -> None:
    """Measure the cases of a group, and print the result as JSON."""
    measured = dict[str, float]()
    if group == "objects":
        for kind in NAMES:
            with TemporaryDirectory() as folder:
                number = AGENTS if kind == "agent" else int(argument)
                measured[kind] = asyncio.run(objects(Path(folder), kind, number))
    else:
        measured = asyncio.run({"agentsd": agentsd, "by_hand": by_hand, "frozen": frozen}[group](argument))
    print(json.dumps(measured))


# --- tables


def sizes(number: int) -> Table:
    """Measure the memory of each kind of object."""
    measured = measure("objects", str(number))
    rows = [Row.limited(name, measured[kind], LIMITS_KB[kind]) for kind, name in NAMES.items()]
    return Table("Memory of one object, with a store in memory", "kB", rows)


def resident(url: str) -> Table:
    """Compare the processes of both loops."""
    base, own = measure("by_hand", url), measure("agentsd", url)
    before = "{:.0f} MB before"
    rows = [
        Row("hand-written loop on the openai SDK", base["after"], 1, before.format(base["before"])),
        Row("agentsd", own["after"], own["after"] / base["after"], before.format(own["before"]), MAX_RATIO),
    ]
    return Table(f"Resident memory after {CHATS} chats at once, {STEPS} steps each", "MB", rows)


def collections(url: str) -> Table:
    """Measure the longest full collection of a program with many agents, by what is frozen. CPU time."""
    longest = measure("frozen", url)
    base = longest["nothing"]
    rows = [
        Row("nothing frozen", base, 1),
        Row("imports frozen", longest["imports"], longest["imports"] / base),
        Row("frozen after opening", longest["all"], longest["all"] / base, at_most=0.75),
    ]
    return Table(f"Longest full garbage collection, {AGENTS:,} agents and {CHATS} chats, CPU time", "ms", rows)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure sizes of objects, then processes, then garbage collections."""
    from benchmarks.model_server import serving  # the processes of the cases do not need its imports

    yield sizes(50 if quick else 150)
    with serving(STEPS, 0.02) as url:
        yield resident(url)
        yield collections(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
