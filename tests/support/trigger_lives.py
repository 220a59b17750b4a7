"""Processes that start the runs of triggers and execute them, and may be killed at any moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ctypes import c_double
from pathlib import Path

from framework import Runtime, Tool, tool
from framework.engine.triggers import Triggers
from framework.llm.client import ModelRequest
from framework.store.database import StoreClock
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import StoreError
from tests.support.projects import agent, write

BEGIN = 1_790_000_000.0 // 60 * 60
LEASE = 0.4


def project(root: Path) -> Path:
    """A cron trigger of every minute, and a webhook, of which several runs may be in progress."""
    return write(
        root,
        {
            "agents.d/one.yaml": agent("one", skill_policy="{allow: [note]}"),
            "triggers.d/each.yaml": "agent: one\nmessage: '{{ time }}'\ncron: '* * * * *'\nmissed: run_once\n",
            "triggers.d/hook.yaml": "agent: one\nmessage: 'delivery {{ body }}'\n"
            f"webhook: {{verify: github, secret: {'s' * 12}}}\n",
        },
    )


def live(url: str, root: Path, now: c_double, log: Path) -> None:
    """Start runs at the shared time, and for a delivery that is repeated until this process is killed."""
    asyncio.run(_live(url, root, now, log))


async def _live(url: str, root: Path, now: c_double, log: Path) -> None:
    class Clock(StoreClock):
        def __call__(self) -> float:
            return now.value

    store = await Store.open(url, root, lease_seconds=LEASE, clock=Clock())
    model = ScriptedModel(script=_script)
    async with Runtime.open(root, store=store, tools=[_note(log)], models={"scripted": model}, watch=False) as runtime:
        await runtime.start_queued()
        triggers = Triggers(runtime)
        hook = triggers.find("hook")
        while True:
            number = int(now.value - BEGIN) // 60
            with suppress(StoreError):  # the other process kept it busy
                await triggers.tick()
                if number:
                    await triggers.deliver(hook, {"body": number, "header": {}, "digest": ""}, f"d{number}")
                await runtime.sweep()
            await asyncio.sleep(0.01)  # the test moves the clock meanwhile


def _note(log: Path) -> Tool:
    @tool(risk="low", idempotent=True)
    async def note(text: str) -> str:
        """Note that a run has come this far."""
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        await asyncio.sleep(0.02)  # long enough for kills within the call
        return "noted"

    return note


def _script(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    return calls(("note", {"text": last.content[-40:]})) if last.role == "user" else "done"
