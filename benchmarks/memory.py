"""Memory: of agents, conversations and runs, of the process after 500 chats, and the longest garbage collections.

Each case is measured in a process of its own, which this module is too: `python -m benchmarks.memory CASE [URL]`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

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
ALLOW, ASK = '{allow: ["*"]}', "{ask: [note], allow: [note]}"


def measure(*case: str) -> dict[str, float]:
    """Return what a case measures in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", *case]
    folder = Path(__file__).parent.parent
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=folder, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


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
    return (tracemalloc.get_traced_memory()[0] - before) / number / 1000


# --- cases, each in a process of its own


async def objects(root: Path, kind: str, number: int) -> dict[str, float]:
    """Measure what each agent, conversation or run needs."""
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
    return {"kb": size}


def write(root: Path, number: int, model: str, policy: str) -> None:
    """Write `number` agent files."""
    (root / "agents.d").mkdir(exist_ok=True)
    for n in range(number):
        text = AGENT.format(name=f"agent-{n}", model=model, policy=policy)
        (root / f"agents.d/{n}.yaml").write_text(text, "utf-8")


async def agentsd(root: Path, url: str, frozen: str, agents: int) -> dict[str, float]:
    """Run the chats with agentsd. `frozen`: objects that garbage collection skips: `nothing`, `imports` or `all`."""
    from framework import Runtime, tool

    if frozen == "imports":
        gc.collect()
        gc.freeze()

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
        if frozen == "all":
            gc.collect()
            gc.freeze()
        return await chats(chat)


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
    return await chats(chat)


async def chats(chat: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, float]:
    """Run all chats at once, and measure the memory before and after, and the full garbage collections."""
    before, collections = resident_mb(), FullCollections()
    gc.callbacks.append(collections)
    async with asyncio.TaskGroup() as group:
        for _ in range(CHATS):
            group.create_task(chat())
    after = resident_mb()
    gc.collect()  # a host's own garbage begins one at some time
    gc.callbacks.remove(collections)
    return {"before": before, "after": after, "collection": max(collections.durations)}


def main(case: str, *given: str) -> None:
    """Measure one case, and print the result as JSON."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        if case == "agentsd":
            url, frozen, agents = given
            measured = asyncio.run(agentsd(root, url, frozen, int(agents)))
        elif case == "by_hand":
            measured = asyncio.run(by_hand(*given))
        else:
            measured = asyncio.run(objects(root, case, int(given[0])))
    print(json.dumps(measured))


# --- tables


def sizes(number: int) -> Table:
    """Measure the memory of each kind of object."""
    rows = []
    for kind, name in NAMES.items():
        size = measure(kind, str(AGENTS if kind == "agent" else number))["kb"]
        rows.append(Row.limited(name, size, LIMITS_KB[kind]))
    return Table("Memory of one object, with a store in memory", "kB", rows)


def resident(url: str, rounds: int) -> Table:
    """Compare the processes of both loops, in turn."""
    pairs = [(measure("by_hand", url), measure("agentsd", url, "nothing", "1")) for _ in range(rounds)]
    base, own = ([pair[n]["after"] for pair in pairs] for n in (0, 1))
    ratio = median(after / base_after for after, base_after in zip(own, base, strict=True))
    begun = [f"{median(pair[n]['before'] for pair in pairs):.0f} MB before" for n in (0, 1)]
    rows = [
        Row("hand-written loop on the openai SDK", median(base), 1, begun[0]),
        Row("agentsd", median(own), ratio, begun[1], MAX_RATIO),
    ]
    return Table(f"Resident memory after {CHATS} chats at once, {STEPS} steps each", "MB", rows)


def collections(url: str, rounds: int) -> Table:
    """Measure the longest full collection of a program with many agents, by what is frozen. CPU time."""
    frozen = {"nothing": "nothing frozen", "imports": "imports frozen", "all": "frozen after opening"}
    turns = [{kind: measure("agentsd", url, kind, str(AGENTS))["collection"] for kind in frozen} for _ in range(rounds)]
    rows = []
    for kind, name in frozen.items():
        ratio = median(turn[kind] / turn["nothing"] for turn in turns)
        rows.append(Row(name, median(turn[kind] for turn in turns), ratio, at_most=0.75 if kind == "all" else None))
    return Table(f"Longest full garbage collection, {AGENTS:,} agents and {CHATS} chats, CPU time", "ms", rows)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure sizes of objects, then processes, then garbage collections."""
    from benchmarks.model_server import serving  # the processes of the cases do not need its imports

    yield sizes(50 if quick else 150)
    with serving(STEPS, 0.02) as url:
        yield resident(url, 1)
        yield collections(url, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
