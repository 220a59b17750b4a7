"""A process that works through conversations and may be killed at any moment; the next one continues."""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from pathlib import Path

from typing_extensions import TypedDict

from framework import Respond, RunBusy, Runtime, Tool, tool
from framework.engine.context.events import RunStream
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn
from framework.types.events import wire
from framework.types.messages import ToolCall
from framework.types.plan import PlanDraft
from tests.support.projects import agent, write

CONVERSATIONS = {
    "r1": "reactor",
    "r2": "reactor",
    "p1": "planner",
    "p2": "planner",
    "h1": "greeter",
    "f1": "follower",
    "m1": "keeper",
}
"""Conversation ids with their agents."""
TURNS = 3
LEASE = 0.4
BY_HAND = "done by hand"
STEPS = """{approval: never, steps: [
  {id: look, tool: look, parameters: {n: "{{ inputs.name }}.l"}},
  {id: first, tool: pay, parameters: {n: "{{ inputs.name }}.a"}, when: {steps.look.output.amount: "> 2"}},
  {id: never, tool: pay, parameters: {n: "{{ inputs.name }}.never"}, when: {steps.look.output.amount: "> 5"}},
  {id: each, tool: pay, for_each: steps.look.output.items, parameters: {n: "{{ inputs.name }}.{{ item }}"}},
  {id: last, tool: step, parameters: {n: "{{ inputs.name }}.z"}}]}"""
"""The fixed plan of the agent `follower`."""
STEP_STATUSES = {"never": "skipped"} | dict.fromkeys(("look", "first", "each-1", "each-2", "each", "last"), "done")
"""What becomes of its steps."""


class Looked(TypedDict):
    """A result with the data that a plan needs."""

    amount: int
    items: list[str]


def project(root: Path) -> Path:
    """Agents that may call every tool: with ReAct, with plans, with a fixed plan, with a handoff and with a memory."""
    common = {
        "skill_policy": '{allow: ["*"]}',
        "runtime_policy": "{max_steps: null, max_tool_calls: null, max_total_tokens: null, timeout: null}",
    }
    planner = agent("planner", executor="plan", plan="{approval: never, max_parallel: 2}", **common)
    greeter = agent("greeter", handoffs="[reactor]", **common)
    follower = agent("follower", executor="plan", plan=STEPS, inputs="{name: string!}", **common)
    keeper = agent("keeper", memory="{scope: user, write: allow}", **common)
    agents = {"reactor": agent("reactor", **common), "planner": planner, "greeter": greeter}
    agents |= {"follower": follower, "keeper": keeper}
    return write(root, {f"agents.d/{name}.yaml": text for name, text in agents.items()})


def tools(log: Path) -> list[Tool]:
    """Return `step` and `look`, which are idempotent, and `pay`, which is not. All log their calls."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @tool(risk="low", idempotent=True)
    async def step(n: str) -> str:
        """Do something idempotent."""
        os.write(file, f"step {n}\n".encode())
        await asyncio.sleep(0)
        return f"did {n}"

    @tool(risk="low")
    async def pay(n: str) -> str:
        """Do something that must not be done twice."""
        os.write(file, f"pay {n}\n".encode())
        await asyncio.sleep(0)
        return f"paid {n}"

    @tool(risk="low", idempotent=True)
    async def look(n: str) -> Looked:
        """Look something up."""
        os.write(file, f"look {n}\n".encode())
        return {"amount": 3, "items": ["p", "q"]}

    return [step, pay, look]


def note(message: str) -> str:
    """Return the note that the agent `keeper` saves for a message."""
    return f"The user said {message}."


def script(request: ModelRequest) -> Turn:
    """Return the same calls for the same message in every process."""
    start = max(i for i, message in enumerate(request.messages) if message.role == "user")
    message_text = request.messages[start].content
    name = message_text.replace(" ", ".")
    if request.output:
        steps = [
            {"id": "a", "description": f"{message_text} a", "tool": "step", "parameters": {"n": f"{name}.a"}},
            {"id": "b", "description": f"{message_text} b", "tool": "pay", "parameters": {"n": f"{name}.b"}},
            {"id": "c", "description": f"{message_text} c", "depends_on": ["a", "b"]},
        ]
        return PlanDraft.model_validate({"goal": message_text, "steps": steps})
    if any(tool.name == "handoff.reactor" for tool in request.tools):
        return (ToolCall(id="handed", tool="handoff.reactor", arguments={}),)
    if any(tool.name == "memory.save" for tool in request.tools) and request.messages[-1].role == "user":
        return (ToolCall(id="s0", tool="memory.save", arguments={"text": note(message_text)}),)
    turn = sum(message.role == "assistant" and bool(message.tool_calls) for message in request.messages[start:])
    if turn >= 2 or (message_text.startswith("p") and len(message_text.split()) == 2):
        return f"end of {message_text}"
    pairs = [("step", "x"), ("pay", "y"), ("step", "z")] if turn == 0 else [("pay", "w")]
    return tuple(ToolCall(id=f"{turn}{k}", tool=name_, arguments={"n": f"{name}.{k}"}) for name_, k in pairs)


def live(url: str, root: Path, log: Path, events: Connection) -> None:
    """Work until all conversations are complete, or the process is killed."""
    asyncio.run(_live(url, root, log, events))


async def _live(url: str, root: Path, log: Path, events: Connection) -> None:
    store = await Store.open(url, root, lease_seconds=LEASE)
    options = {"tools": tools(log), "models": {"scripted": ScriptedModel(script=script)}, "watch": False}
    async with Runtime.open(root, store=store, **options) as runtime, asyncio.TaskGroup() as group:  # type: ignore[arg-type]
        for name, agent_name in CONVERSATIONS.items():
            group.create_task(_converse(runtime, name, agent_name, events))
    await store.close()


async def _converse(runtime: Runtime, name: str, agent_name: str, events: Connection) -> None:
    while True:
        conversation = await runtime.store.conversation(name)
        if run_id := conversation.open_run:
            decisions = {question.id: Respond(text=BY_HAND) for question in await runtime.pending(run_id)}
            try:
                await _report(runtime.resume_stream(run_id, decisions), events)
            except RunBusy:  # the lease of the killed process has not expired yet
                await asyncio.sleep(LEASE / 10)
        elif conversation.turns < TURNS:
            message = f"{name} {conversation.turns + 1}"
            inputs = {"name": message.replace(" ", ".")} if agent_name == "follower" else None
            await _report(runtime.stream(message, agent=agent_name, conversation=name, inputs=inputs), events)
        else:
            return


async def _report(started: AbstractAsyncContextManager[RunStream], events: Connection) -> None:
    async with started as stream:
        async for event in stream:
            if event.seq:
                events.send((event.run_id, event.seq, wire(event)["event"]))
        await stream.result()
