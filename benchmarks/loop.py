"""What the runtime adds to a loop that asks a model and calls tools; and a hundred runs at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.measure import Row, table
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
    """Note a number."""
    return f"noted {n}"


def script(request: ModelRequest) -> Turn:
    """Ten turns with one call each, then the answer; the transcript tells which turn it is."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return (ToolCall(id=f"c{turn}", tool="note", arguments={"n": turn}),) if turn < STEPS else "done"


async def bare() -> int:
    """The loop as one would write it by hand: no policy, no limits, no record."""
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


async def ten_steps(root: Path, rounds: int) -> None:
    """Ours and the bare loop, turn by turn, so that both see the same machine."""
    ours, baseline = list[float](), list[float]()
    async with Runtime.open(root, tools=[note], models={"scripted": ScriptedModel(script=script)}, watch=False) as own:
        for _ in range(rounds + 1):
            started = perf_counter()
            result = await own.run("go", agent="looper")
            between = perf_counter()
            await bare()
            ours.append(between - started)
            baseline.append(perf_counter() - between)
            assert (result.output, result.steps) == ("done", STEPS + 1)
    ours, baseline = ours[1:], baseline[1:]  # the first of each warms up
    ratio = median(own / bare for own, bare in zip(ours, baseline, strict=True))
    per_step = 1e6 / (STEPS + 1)
    rows = [
        Row("bare asyncio loop", median(baseline) * per_step, 1),
        Row("Runtime.run", median(ours) * per_step, ratio, "policy, limits, events, state"),
    ]
    table(f"A loop of {STEPS} tool calls on scripted answers, per model turn", "µs", rows)


async def at_once(root: Path) -> None:
    """A hundred runs, one after the other and side by side."""
    questions = [(f"What is {n} * 7?", str(n * 7)) for n in range(CONCURRENT)]
    async with Runtime.open(root, watch=False) as own:
        await own.run("What is 1 * 1?", agent="calculator")
        started = perf_counter()
        wrong = [answer for asked, answer in questions if (await own.run(asked, agent="calculator")).output != answer]
        serial = perf_counter() - started
        started = perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(own.run(asked, agent="calculator")) for asked, _ in questions]
        wall = perf_counter() - started
    failed = sum(task.result().output != answer for task, (_, answer) in zip(tasks, questions, strict=True))
    rows = [
        Row("one after the other", serial * 1000, 1, f"{len(wrong)} errors"),
        Row("at once", wall * 1000, wall / serial, f"{failed} errors"),
    ]
    table(f"{CONCURRENT} runs of the offline model with one tool call each, wall time", "ms", rows)


def main(*, quick: bool) -> None:
    """Print the tables of this part."""
    with TemporaryDirectory() as folder:
        asyncio.run(ten_steps(_file(folder, "looper", LOOPER), 20 if quick else 200))
        asyncio.run(at_once(_file(folder, "calculator", CALCULATOR)))


def _file(folder: str, name: str, text: str) -> Path:
    path = Path(folder) / f"{name}.yaml"
    path.write_text(text, "utf-8")
    return path
