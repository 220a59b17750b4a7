"""Overhead of the runtime over a hand-written agent loop, and a hundred concurrent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.harness import Row, Table, paired
from framework import Runtime, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn
from framework.types.messages import Message, ToolCall

STEPS = 10
CONCURRENT = 100
LOOPER = """\
version: 1
name: looper
description: Calls a tool ten times.
model: scripted
instructions: Call the tool ten times, then answer.
skill_policy: {allow: [note]}
runtime_policy: {max_steps: null, max_tool_calls: null, max_total_tokens: null}
"""
CALCULATOR = """\
version: 1
name: calculator
description: Calculates.
model: offline
instructions: Calculate.
skill_policy: {allow: [calculator]}
"""


@tool(risk="low")
async def note(n: int) -> str:
    """Return a note of the number."""
    return f"noted {n}"


def script(request: ModelRequest) -> Turn:
    """Return the next of ten turns with one call each, then the answer. The turn follows from the transcript."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return (ToolCall(id=f"c{turn}", tool="note", arguments={"n": turn}),) if turn < STEPS else "done"


async def bare() -> int:
    """Run a hand-written loop, without policy, limits or records. Return the number of messages."""
    model = ScriptedModel(script=script)
    messages = [Message(role="system", content="Call the tool ten times."), Message(role="user", content="go")]
    while True:
        async for delta in model.stream(ModelRequest(tuple(messages), tools=(note.definition,))):
            reply = delta.reply
        assert reply is not None
        messages.append(reply.message)
        if not reply.message.tool_calls:
            return len(messages)
        for call in reply.message.tool_calls:
            result = await note.function(**call.arguments)
            messages.append(Message(role="tool", tool_call_id=call.id, content=result))


async def ten_steps(root: Path, rounds: int) -> Table:
    """Compare `Runtime.run` with the hand-written loop, interleaved, so that both run under the same load."""
    runtime_times, baseline = list[float](), list[float]()
    async with Runtime.open(
        root, tools=[note], models={"scripted": ScriptedModel(script=script)}, watch=False
    ) as runtime:
        for _ in range(rounds + 1):
            started = perf_counter()
            result = await runtime.run("go", agent="looper")
            between = perf_counter()
            await bare()
            runtime_times.append(between - started)
            baseline.append(perf_counter() - between)
            assert (result.output, result.steps) == ("done", STEPS + 1)
    runtime_times, baseline = runtime_times[1:], baseline[1:]  # the first round is a warm-up
    ratio, per_step = paired(runtime_times, baseline), 1e6 / (STEPS + 1)
    rows = [
        Row("hand-written asyncio loop", median(baseline) * per_step, 1),
        Row("Runtime.run", median(runtime_times) * per_step, ratio, "policy, limits, events, state"),
    ]
    return Table(f"A loop of {STEPS} tool calls on scripted responses, per model turn", "µs", rows)


async def concurrent_runs(root: Path) -> Table:
    """Compare a hundred sequential runs with a hundred concurrent ones."""
    questions = [(f"What is {n} * 7?", str(n * 7)) for n in range(CONCURRENT)]
    async with Runtime.open(root, watch=False) as runtime:
        await runtime.run("What is 1 * 1?", agent="calculator")
        started = perf_counter()
        results = [await runtime.run(question, agent="calculator") for question, _ in questions]
        serial = perf_counter() - started
        started = perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(runtime.run(question, agent="calculator")) for question, _ in questions]
        wall = perf_counter() - started
    answers = [answer for _, answer in questions]
    serial_errors = sum(result.output != answer for result, answer in zip(results, answers, strict=True))
    errors = sum(task.result().output != answer for task, answer in zip(tasks, answers, strict=True))
    rows = [
        Row("sequential", serial * 1000, 1, f"{serial_errors} errors"),
        Row("concurrent", wall * 1000, wall / serial, f"{errors} errors"),
    ]
    return Table(f"{CONCURRENT} runs of the offline model with one tool call each, wall time", "ms", rows)


def tables(*, quick: bool) -> Iterator[Table]:
    """Compare loops, then sequential and concurrent runs."""
    with TemporaryDirectory() as folder:
        yield asyncio.run(ten_steps(_file(folder, "looper", LOOPER), 20 if quick else 60))
        yield asyncio.run(concurrent_runs(_file(folder, "calculator", CALCULATOR)))


def _file(folder: str, name: str, text: str) -> Path:
    path = Path(folder) / f"{name}.yaml"
    path.write_text(text, "utf-8")
    return path
