"""Tokens of a task, planned first or executed turn by turn, also if a call fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Row, Table
from framework import RunResult, Runtime, Tool, tool
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.types.errors import ToolError
from framework.types.messages import Message, ToolCall, Usage
from framework.types.text import estimate_tokens

ANSWER = "The report is written: three services failed last night, the first at 02:14, because they ran out of memory."
RESULT = (
    "2026-11-22 02:14:07 ERROR payments: out of memory while the nightly batch was running; restarted by hand. " * 4
)
"""Result of each tool: about a hundred tokens."""
AGENT = """\
version: 1
name: {name}
description: Works with files and logs.
model: counted
instructions: |
  You work with the files of this project. Say which file a fact comes from.
executor: {name}
skill_policy: {{allow: [search_files, read_file, list_dir, calculator, look, failing]}}
runtime_policy: {{max_steps: 30, max_repeated_calls: null}}
plan: {{approval: never, max_parallel: 8}}
"""

Call = tuple[str, dict[str, Any], tuple[int, ...]]
"""A tool, its arguments, and the indices of the calls whose results it needs."""


@tool(risk="low", idempotent=True)
def look(at: str, because: str = "") -> str:  # noqa: ARG001 - only the size of the arguments counts
    """Inspect a file or a service and return its state.

    Args:
        at: The file or service.
        because: Facts known so far.
    """
    return f"{at}: {RESULT}"


@tool(risk="low")
def failing(at: str) -> str:
    """Inspect a file that does not exist.

    Args:
        at: The file.
    """
    raise ToolError(f"no such file: {at}")


TOOLS: list[Tool] = [look, failing]


@dataclass(frozen=True, slots=True)
class Task:
    """The calls of a task, ordered so that each follows the calls it needs."""

    name: str
    calls: tuple[Call, ...]

    def turns(self) -> list[list[int]]:
        """Return the indices of the calls of each turn, for a model that makes every possible call in each turn."""
        done: set[int] = set()
        turns = []
        while len(done) < len(self.calls):
            ready = [n for n, (_, _, needs) in enumerate(self.calls) if n not in done and done.issuperset(needs)]
            turns.append(ready)
            done.update(ready)
        return turns

    def plan(self) -> dict[str, Any]:
        """Return the task as a plan. A call that needs a result refers to it."""
        return {"goal": self.name, "steps": [self._step(n) for n in range(len(self.calls))]}

    def _step(self, number: int) -> dict[str, Any]:
        name, arguments, needs = self.calls[number]
        known = {"because": f"{{{{ steps.s{needs[0]}.output }}}}"} if needs and name == "look" else {}
        step = {"id": f"s{number}", "description": f"inspect {arguments['at']}", "tool": name}
        return step | {"parameters": arguments | known, "depends_on": [f"s{need}" for need in needs]}


def _chain(length: int) -> tuple[Call, ...]:
    return tuple(("look", {"at": f"data/logs/part-{n}.log"}, (n - 1,) if n else ()) for n in range(length))


TASKS = (
    Task("one call", _chain(1)),
    Task("three calls, each needs the previous one", _chain(3)),
    Task("six calls, each needs the previous one", _chain(6)),
    Task("four independent calls", tuple(("look", {"at": f"service-{n}"}, ()) for n in range(4))),
    Task(
        "four independent calls, then two that use their results",
        (
            *(("look", {"at": f"service-{n}"}, ()) for n in range(4)),
            ("look", {"at": "summary"}, (0, 1, 2, 3)),
            ("look", {"at": "report"}, (4,)),
        ),
    ),
)
BROKEN = Task(
    "four calls, each needs the previous one, one fails",
    (
        ("look", {"at": "data/logs/part-0.log"}, ()),
        ("failing", {"at": "data/logs/part-1.log"}, (0,)),
        ("look", {"at": "data/logs/part-2.log"}, (1,)),
        ("look", {"at": "data/logs/part-3.log"}, (2,)),
    ),
)
AGAIN = Task(BROKEN.name, (*BROKEN.calls[:2], ("look", {"at": "part-1.log"}, (1,)), *_chain(5)[3:]))
"""The same task turn by turn: the failed call is replaced by another, then the rest is executed."""
REST = {
    "goal": "the rest",
    "steps": [
        {
            "id": f"t{number}",
            "description": f"inspect {at}",
            "tool": "look",
            "parameters": {"at": at, "because": f"{{{{ steps.{after}.output }}}}"},
            "depends_on": [after],
        }
        for number, (at, after) in enumerate(
            (("part-1.log", "s0"), ("data/logs/part-2.log", "t0"), ("data/logs/part-3.log", "t1"))
        )
    ],
}
"""The plan that replaces the remaining steps after the failure."""


class CountingModel:
    """Scripted model that counts the tokens of all messages, tools and responses."""

    info = ModelInfo(provider="counted", model="", stand_in=True)

    def __init__(self, script: Callable[[ModelRequest], Message]) -> None:
        self._script = script

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the next message of the script, with usage estimated from its size."""
        message = self._script(request)
        messages = "".join(_text(one) for one in request.messages)
        tools = "".join(json.dumps(definition.model_dump()) for definition in request.tools)
        prompt, completion = estimate_tokens(messages) + estimate_tokens(tools), estimate_tokens(_text(message))
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        yield Delta(reply=ModelReply(message, "tool_calls" if message.tool_calls else "stop", usage))

    async def close(self) -> None:
        """Do nothing; the model holds no resources."""


def _text(message: Message) -> str:
    return message.content + "".join(f"{call.tool}{json.dumps(call.arguments)}" for call in message.tool_calls)


def by_turns(task: Task) -> Callable[[ModelRequest], Message]:
    """Return a script that makes every possible call in each turn."""
    turns = task.turns()

    def script(request: ModelRequest) -> Message:
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn >= len(turns):
            return Message(role="assistant", content=ANSWER)
        return _message(*(_call(task, n, f"c{n}") for n in turns[turn]))

    return script


def _call(task: Task, number: int, name: str) -> ToolCall:
    tool_name, arguments, needs = task.calls[number]
    known = {"because": RESULT[:100]} if needs and tool_name == "look" else {}
    return ToolCall(id=name, tool=tool_name, arguments=arguments | known)


def by_plan(*plans: dict[str, Any]) -> Callable[[ModelRequest], Message]:
    """Return a script that answers each request for a plan with the next of `plans`."""
    remaining = list(plans)

    def script(request: ModelRequest) -> Message:
        if [definition.name for definition in request.tools] == ["PlanDraft"]:
            return _message(ToolCall(id="p", tool="PlanDraft", arguments=remaining.pop(0)))
        return Message(role="assistant", content=ANSWER)

    return script


def _message(*calls: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=calls)


async def cost(root: Path, agent: str, script: Callable[[ModelRequest], Message], calls: int) -> RunResult:
    """Run a task, and check its answer and the number of its calls."""
    async with Runtime.open(root, tools=TOOLS, models={"counted": CountingModel(script)}, watch=False) as runtime:
        result = await runtime.run("What went wrong last night? Check everything and report it.", agent=agent)
    assert result.output == ANSWER, result.error
    assert len(result.tool_calls) == calls
    return result


def _rows(name: str, turns: RunResult, planned: RunResult) -> list[Row]:
    one, other = turns.usage.total_tokens, planned.usage.total_tokens
    return [
        Row(f"{name}: react", one, 1, f"{turns.steps} model calls"),
        Row(f"{name}: plan", other, other / one, f"{planned.steps} model calls"),
    ]


async def tokens(root: Path) -> Table:
    """Run each task both ways, with the same model, tools, instructions and results."""
    rows: list[Row] = []
    for task in TASKS:
        turns = await cost(root, "react", by_turns(task), len(task.calls))
        planned = await cost(root, "plan", by_plan(task.plan()), len(task.calls))
        rows += _rows(task.name, turns, planned)
    return Table("Tokens of a task, input and output of all model calls", "tokens", rows)


async def with_a_failure(root: Path) -> Table:
    """Run a task in which a call fails. Turn by turn, another call replaces it; a plan is replaced by a new one."""
    turns = await cost(root, "react", by_turns(AGAIN), 5)
    planned = await cost(root, "plan", by_plan(BROKEN.plan(), REST), 5)
    return Table("The same with a call that fails", "tokens", _rows(BROKEN.name, turns, planned))


def tables(*, quick: bool) -> Iterator[Table]:  # noqa: ARG001 - token counts need no rounds
    """Count tokens without and with a call that fails."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("react", "plan"):
            path = root / "agents.d" / f"{name}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(AGENT.format(name=name), "utf-8")
        yield asyncio.run(tokens(root))
        yield asyncio.run(with_a_failure(root))
