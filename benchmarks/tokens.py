"""Tokens of whole tasks: a hand-written loop, turn by turn with agentsd, and planned, on short and on long results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Row, Table
from benchmarks.plans import CountingModel
from framework import RunResult, Runtime, tool
from framework.llm.client import ModelRequest
from framework.types.messages import Message, ToolCall, ToolDefinition

GOAL = 0.7
BY_HAND, TURNS, PLAN = "by hand", "agentsd, turn by turn", "agentsd, planned"
ASKED = "What went wrong last night? Check everything and report it."
ANSWER = "The report is written: three services failed last night, the first at 02:14, because they ran out of memory."
INSTRUCTIONS = "You work with the files of this project. Say which file a fact comes from."
LINE = "2026-11-22 02:14:07 ERROR payments: out of memory while the nightly batch was running; restarted by hand\n"
PART = 4000
"""Characters after which agentsd cuts a result, unless the agent says otherwise."""
LINES = {"service": 4, "log": 400, "page": 600}
"""Length of what a call returns, by the kind of thing it looks at: about 100, 10,000 and 15,000 tokens."""
AGENT = """\
version: 1
name: {name}
description: Works with files and logs.
model: counted
instructions: {instructions}
executor: {name}
skill_policy: {{allow: [search_files, read_file, list_dir, calculator, look]}}
runtime_policy: {{max_steps: 30}}
plan: {{approval: never}}
"""

Calls = Sequence[Sequence[str]]
"""What is looked at in each turn; `log-1+` is the second part of `log-1`."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a model looks at, turn by turn."""

    name: str
    uncut: Calls
    """With complete results."""
    cut: Calls
    """With results that are cut: what is missing is asked for where the task needs it."""

    @property
    def plannable(self) -> bool:
        """Whether all calls are known before the first result."""
        return bool(self.cut) and self.cut == self.uncut


TASKS = (
    Task("no tool", [], []),
    Task("4 short results", [[f"service-{n}"] for n in range(4)], [[f"service-{n}"] for n in range(4)]),
    Task(
        "2 short results, 1 whole file",
        [["service-0", "service-1"], ["log-0"]],
        [["service-0", "service-1"], ["log-0"], [f"log-0{'+' * part}" for part in range(1, 11)]],
    ),
    Task(
        "3 files, first parts",
        [["log-0"], ["log-1"], ["log-2"]],
        [["log-0"], ["log-1"], ["log-1+"], ["log-2"]],
    ),
    Task(
        "1 web page, 2 short results",
        [["page-0"], ["service-0", "service-1"]],
        [["page-0"], ["service-0", "service-1"]],
    ),
)


@tool(risk="low", idempotent=True)
def look(at: str, part: int = 1) -> str:
    """Inspect a file, a page or a service and return its state.

    Args:
        at: What to inspect.
        part: The part of a long result, from 1.
    """
    return (LINE * LINES[at.partition("-")[0]])[(part - 1) * PART :]


def requested(turn: Sequence[str], number: int) -> Message:
    """Return the message with the calls of a turn."""
    arguments = [{"at": at.rstrip("+"), **({"part": 1 + at.count("+")} if "+" in at else {})} for at in turn]
    calls = tuple(ToolCall(id=f"c{number}_{n}", tool="look", arguments=one) for n, one in enumerate(arguments))
    return Message(role="assistant", tool_calls=calls)


def by_turns(turns: Calls) -> Callable[[ModelRequest], Message]:
    """Return a script that makes the calls turn by turn, then answers."""

    def script(request: ModelRequest) -> Message:
        done = sum(message.role == "assistant" for message in request.messages)
        return requested(turns[done], done) if done < len(turns) else Message(role="assistant", content=ANSWER)

    return script


def planned(turns: Calls) -> Callable[[ModelRequest], Message]:
    """Return a script that plans the calls, each turn after the one before, then answers."""

    def script(request: ModelRequest) -> Message:
        if [definition.name for definition in request.tools] != ["PlanDraft"]:
            return Message(role="assistant", content=ANSWER)
        steps, before = list[dict[str, Any]](), list[str]()
        for number, turn in enumerate(turns):
            calls = requested(turn, number).tool_calls
            steps += [
                {"id": call.id, "description": f"inspect {at}", "tool": "look", "parameters": call.arguments}
                | {"depends_on": before}
                for call, at in zip(calls, turn, strict=True)
            ]
            before = [call.id for call in calls]
        draft = {"goal": "find out what went wrong", "steps": steps}
        return Message(role="assistant", tool_calls=(ToolCall(id="p", tool="PlanDraft", arguments=draft),))

    return script


async def by_hand(task: Task, definitions: tuple[ToolDefinition, ...]) -> int:
    """Count the tokens of a loop that sends the instructions, all tools and complete results."""
    model = CountingModel(by_turns(task.uncut))
    messages = [Message(role="system", content=INSTRUCTIONS), Message(role="user", content=ASKED)]
    total = 0
    while True:
        async for delta in model.stream(ModelRequest(tuple(messages), tools=definitions)):
            assert delta.reply is not None
            total, answer = total + delta.reply.usage.total_tokens, delta.reply.message
        if not answer.tool_calls:
            return total
        results = [(call.id, look.function(**call.arguments)) for call in answer.tool_calls]
        messages += [answer, *(Message(role="tool", tool_call_id=name, content=text) for name, text in results)]


def opened(root: Path, script: Callable[[ModelRequest], Message]) -> AbstractAsyncContextManager[Runtime]:
    """Open the project with a scripted model that counts."""
    return Runtime.open(root, tools=[look], models={"counted": CountingModel(script)}, watch=False)


async def with_agentsd(root: Path, agent: str, script: Callable[[ModelRequest], Message]) -> RunResult:
    """Run a task, and check its answer."""
    async with opened(root, script) as runtime:
        result = await runtime.run(ASKED, agent=agent)
    assert result.output == ANSWER, result.error
    return result


async def compare(root: Path) -> Table:
    """Count the tokens of each task in each way."""
    rows, sums = list[Row](), {BY_HAND: 0, TURNS: 0, PLAN: 0}
    async with opened(root, planned([])) as runtime:
        definitions = tuple(runtime.catalog.current.agents["react"].toolset.definitions)
    for task in TASKS:
        counts = {BY_HAND: await by_hand(task, definitions)}
        counts[TURNS] = (await with_agentsd(root, "react", by_turns(task.cut))).usage.total_tokens
        if task.plannable:
            counts[PLAN] = (await with_agentsd(root, "plan", planned(task.cut))).usage.total_tokens
        rows += [Row(f"{task.name}: {way}", count, count / counts[BY_HAND]) for way, count in counts.items()]
        for way in sums:
            sums[way] += counts.get(way, counts[TURNS])
    rows += [
        Row(f"all: {way}", count, count / sums[BY_HAND], at_most=None if way == BY_HAND else GOAL)
        for way, count in sums.items()
    ]
    return Table("Tokens of a task, input and output of all model calls, by hand with complete results", "tokens", rows)


def tables(*, quick: bool) -> Iterator[Table]:  # noqa: ARG001 - token counts need no rounds
    """Count the tokens of all tasks."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        for name in ("react", "plan"):
            text = AGENT.format(name=name, instructions=json.dumps(INSTRUCTIONS))
            (root / "agents.d" / f"{name}.yaml").write_text(text, "utf-8")
        yield asyncio.run(compare(root))
