"""Processes that execute queued runs of one store, and may be killed at any moment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from framework import Runtime, Tool, tool
from framework.llm.client import Delta, ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn
from framework.types.messages import ToolCall
from tests.support.projects import agent, write

LEASE = 1.5
"""Seconds, longer than a process that lives is expected to stand still: its runs would be executed twice."""
Place = Literal["submitted", "routing", "answering"]
"""Where a process hangs: right after `submit`, while a model chooses the agent, or in the first call of the agent."""


def project(root: Path, *, routed_by_model: bool = False) -> Path:
    """Return a project of one agent, or of two between which a model chooses."""
    files = {"agents.d/a.yaml": agent("a")}
    if routed_by_model:
        files |= {"agents.d/b.yaml": agent("b"), "agentsd.yaml": "routing: {model: scripted, default_agent: a}\n"}
    return write(root, files)


def tools(log: Path) -> list[Tool]:
    """Return a tool that appends a line to a file, atomically."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @tool(risk="low", idempotent=True)
    async def note(text: str) -> str:
        """Append a line to the log."""
        os.write(file, f"{text}\n".encode())
        return text

    return [note]


def script(request: ModelRequest) -> Turn:
    """Note the beginning and the end of each message, then answer; choose no agent."""
    if request.output:
        return "no choice"
    start = max(i for i, message in enumerate(request.messages) if message.role == "user")
    text = request.messages[start].content
    done = len(request.messages) - start - 1
    if done < 4:
        return (ToolCall(id=f"c{done}", tool="note", arguments={"text": f"{text} {'begin' if done == 0 else 'end'}"}),)
    return f"answer to {text}"


class HangingModel(ScriptedModel):
    """A model that answers never; it reports what it was called for."""

    def __init__(self, events: Connection) -> None:
        super().__init__()
        self._events = events

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Report the call, and wait."""
        self._events.send("routing" if request.output else "answering")
        await asyncio.Event().wait()
        yield Delta()


def submit_and_hang(url: str, root: Path, log: Path, place: Place, events: Connection) -> None:
    """Submit a run, report its id, and hang."""
    asyncio.run(_submit_and_hang(url, root, log, place, events))


async def _submit_and_hang(url: str, root: Path, log: Path, place: Place, events: Connection) -> None:
    store = await Store.open(url, root, lease_seconds=LEASE)
    models = {"scripted": HangingModel(events)}
    async with Runtime.open(root, store=store, models=models, tools=tools(log), watch=False) as runtime:
        submitted = await runtime.submit("m", conversation="c")
        events.send(submitted.run_id)
        if place == "submitted":
            events.recv()  # blocks the event loop: nothing is claimed
        await asyncio.Event().wait()


def work(url: str, root: Path, log: Path, events: Connection) -> None:
    """Execute queued and interrupted runs until the other end of the connection is closed."""
    asyncio.run(_work(url, root, log, events))


async def _work(url: str, root: Path, log: Path, events: Connection) -> None:
    store = await Store.open(url, root, lease_seconds=LEASE)
    models = {"scripted": ScriptedModel(script=script)}
    async with Runtime.open(root, store=store, models=models, tools=tools(log), watch=False) as runtime:
        events.send("ready")
        while not events.poll():
            await runtime.start_queued()
            await runtime.resume_orphans()
            await asyncio.sleep(0.04)  # as a worker, which looks for runs now and then
    await store.close()
