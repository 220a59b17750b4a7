"""Cost of persisting every step: one step, a hundred concurrent conversations, many paused runs."""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from benchmarks.harness import LoopDelays, Row, Table
from benchmarks.loop import LOOPER, STEPS, note, script
from framework import Runtime, tool
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.testing import ScriptedModel, Turn, calls
from framework.types.events import ToolFinished, ToolStarted
from framework.types.messages import Message, ToolCall, ToolResult
from framework.types.state import CallRecord, RunState

HISTORY = 400
LIMIT_MS = 0.6
MAX_LAG_MS = 20
LIMIT_BYTES = 25_000
CONVERSATIONS, CALLS = 100, 5
"""Concurrent conversations, and tool calls of each."""
WAITING = 100
ASKER = """\
version: 1
name: asker
description: Asks before each call.
model: scripted
instructions: Call the tool.
skill_policy: {ask: [note], allow: [note]}
"""


def turn(request: ModelRequest) -> Turn:
    """Return the next of five turns with one call each, then the answer."""
    done = sum(message.role == "assistant" for message in request.messages)
    return script(request) if done < CALLS else "done"


async def steps(root: Path, rounds: int) -> Table:
    """Run ten tool calls on each store, interleaved, so that both run under the same load."""
    model = {"scripted": ScriptedModel(script=script)}
    async with (
        Runtime.open(root, tools=[note], models=model, watch=False) as memory,
        Runtime.open(root, tools=[note], models=model, watch=False, store="sqlite:///steps.db") as sqlite,
    ):
        durations: dict[str, list[float]] = {"memory": [], "sqlite": []}
        for _ in range(rounds + 1):
            for name, runtime in (("memory", memory), ("sqlite", sqlite)):
                started = process_time()
                result = await runtime.run("go", agent="looper")
                durations[name].append((process_time() - started) * 1000 / (STEPS + 1))
                assert result.output == "done", result
    base = median(durations["memory"][1:])
    rows = [Row(name, median(times[1:]), median(times[1:]) / base) for name, times in durations.items()]
    return Table("One complete step of a run, CPU time", "ms", rows)


async def writes(root: Path, rounds: int) -> Table:
    """Measure the two writes of a step: a turn with its call, then the result of the call."""
    rows = []
    for before in (0, HISTORY):
        store = await Store.open(f"sqlite:///{before}.db", root)
        state = RunState(agent="looper", messages=[Message(role="user", content="go")])
        state.messages += [Message(role="assistant", content="x" * 600) for _ in range(before)]
        record = await store.start(state, None, None)
        durations = [await _two_writes(record, state, n) for n in range(rounds)]
        await store.close()
        rows.append(Row.limited(f"{before} earlier messages", median(durations), LIMIT_MS))
    return Table("Both writes of a step on a SQLite file, median", "ms", rows)


async def _two_writes(record: RunRecord, state: RunState, n: int) -> float:
    call = ToolCall(id=f"c{n}", tool="note", arguments={"n": n})
    head = {"run_id": state.run_id, "generation": 1, "id": call.id, "tool": call.tool}
    started = perf_counter()
    state.messages.append(Message(role="assistant", tool_calls=(call,)))
    state.calls[call.id] = CallRecord(call=call, started=1)
    state.seq += 1
    await record.write(state, [ToolStarted(**head, seq=state.seq, arguments=call.arguments)])
    result = ToolResult(status="success", output="noted")
    state.calls[call.id] = CallRecord(call=call, started=1, result=result)
    state.messages.append(Message(role="tool", tool_call_id=call.id, content="noted"))
    state.seq += 1
    finished = ToolFinished(**head, seq=state.seq, status="success", result="noted", elapsed_ms=0.1)
    await record.write(state, [finished])
    elapsed = (perf_counter() - started) * 1000
    del state.calls[call.id]  # keeps the state at the size of a short run
    return elapsed


async def concurrent_conversations(root: Path) -> Table:
    """Run a hundred conversations whose tool waits as long as a model would: about 250 steps per second."""
    rows = []
    for name, store in (("memory", None), ("sqlite", "sqlite:///many.db")):
        lag, rate = await _lag(root, store)
        rows.append(Row.limited(f"loop lag p99, {name}", lag, MAX_LAG_MS, f"at {rate:.0f} steps/s"))
    return Table(f"{CONVERSATIONS} concurrent conversations", "ms", rows)


async def _lag(root: Path, store: str | None) -> tuple[float, float]:
    """Return the 99th percentile of the loop's delay in milliseconds, and the steps per second."""

    @tool(name="note", risk="low")
    async def slow(n: int) -> str:
        """Note a number after a delay."""
        await asyncio.sleep(random.uniform(0.2, 0.6))
        return f"noted {n}"

    model = {"scripted": ScriptedModel(script=turn)}
    async with Runtime.open(root, tools=[slow], models=model, watch=False, store=store) as runtime:
        await runtime.run("go", agent="looper")

        async def converse(name: str) -> None:
            await asyncio.sleep(random.uniform(0, 0.6))
            result = await runtime.run("go", agent="looper", conversation=name)
            assert result.status == "completed", result

        delays = LoopDelays()
        started = perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(CONVERSATIONS):
                group.create_task(converse(f"c{number}"))
        wall = perf_counter() - started
        delays.stop()
    return quantiles(delays.delays, n=100)[98] * 1000, CONVERSATIONS * (CALLS + 1) / wall


async def waiting(root: Path, number: int) -> Table:
    """Measure the tasks and objects that each paused run leaves in memory."""
    model = {"scripted": ScriptedModel(script=lambda _: calls(("note", {"n": 1})))}
    async with Runtime.open(root, tools=[note], models=model, watch=False, store="sqlite:///waiting.db") as runtime:
        first = await runtime.run("go", agent="asker")
        gc.collect()
        before = len(asyncio.all_tasks()), len(gc.get_objects())
        for _ in range(number):
            await runtime.run("go", agent="asker")
        await asyncio.sleep(1.5)  # the heartbeat checks once a second, and stops
        gc.collect()
        after = len(asyncio.all_tasks()), len(gc.get_objects())
        assert first.status == "paused"
    tasks, objects = after[0] - before[0], (after[1] - before[1]) / number
    rows = [Row("tasks of all", tasks), Row("objects of each", objects)]
    return Table(f"What {number:,} paused runs leave in memory", "more", rows)


async def disk(root: Path, number: int) -> Table:
    """Measure the disk space per run by table, for ten tool calls with results of 200 characters."""

    @tool(name="note", risk="low")
    async def noted(n: int) -> str:
        """Note a number."""
        return "".join(random.Random(n).choices("abcdefghij klmnopqrstuvwxyz", k=200))

    model = {"scripted": ScriptedModel(script=script)}
    async with Runtime.open(root, tools=[noted], models=model, watch=False, store="sqlite:///disk.db") as runtime:
        for _ in range(number):
            await runtime.run("go", agent="looper")
    with closing(sqlite3.connect(root / "disk.db")) as database:
        pages = dict(database.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
    total = sum(pages.values()) / number
    rows = [Row.limited("whole file", total / 1000, LIMIT_BYTES / 1000)]
    for name in ("agentsd_messages", "agentsd_packed", "agentsd_runs"):
        rows.append(Row(name, pages[name] / number / 1000, pages[name] / number / total, "of the file"))
    return Table("A run of ten tool calls on disk", "kB", rows)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure writes, steps, concurrent conversations, paused runs and the file."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/looper.yaml").write_text(LOOPER, "utf-8")
        (root / "agents.d/asker.yaml").write_text(ASKER, "utf-8")
        yield asyncio.run(writes(root, 200 if quick else 600))
        yield asyncio.run(steps(root, 10 if quick else 40))
        yield asyncio.run(concurrent_conversations(root))
        yield asyncio.run(waiting(root, WAITING))
        yield asyncio.run(disk(root, 50 if quick else 100))
