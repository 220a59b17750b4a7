"""Whole runs in which a model does what an attacker wants: it is asked once, obeys, and then goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework import RunResult, Runtime, Tool
from framework.llm.client import ModelRequest
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.events import Event, ToolFinished
from framework.types.messages import ToolCall
from framework.types.state import RunState
from tests.support.projects import agent, write

GOES_ON = "I went on."


@dataclass(frozen=True)
class Seen:
    """All that a run left behind."""

    result: RunResult
    events: tuple[Event, ...]
    requests: tuple[ModelRequest, ...]
    state: RunState
    """As it comes back from a store that keeps JSON."""

    @property
    def tool_results(self) -> list[str]:
        """The tools' answers, as the model got them."""
        return [message.content for message in self.requests[-1].messages if message.role == "tool"]

    @property
    def finished(self) -> list[ToolFinished]:
        """The events of the calls' ends."""
        return [event for event in self.events if isinstance(event, ToolFinished)]


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def victim(root: Path, *turns: Turn, tools: Sequence[Tool] = (), **keys: str) -> Seen:
    """Run an agent whose model says these turns; `keys` go into its file."""
    write(root, {"agents.d/victim.yaml": agent("victim", **keys)})
    return run(root, *turns, tools=tools)


def run(root: Path, *turns: Turn, tools: Sequence[Tool] = (), name: str = "victim") -> Seen:
    """Run an agent of a project that is there already."""

    async def main() -> Seen:
        model, store = ScriptedModel(*turns), JsonStore()
        opened = Runtime.open(root, tools=tools, models={"scripted": model}, store=store, watch=False)
        async with opened as runtime, runtime.stream("go", agent=name) as stream:
            events = tuple([event async for event in stream])
            result = await stream.result()
        return Seen(result, events, tuple(model.requests), await store.load_run(result.run_id))

    return asyncio.run(main())


def refused(root: Path, *wanted: tuple[str, dict[str, Any]], tools: Sequence[Tool] = (), **keys: str) -> list[str]:
    """Make the model ask for calls that must all come to nothing, and check that the run goes on and all is on record.

    Returns:
        What the model was tool_results of each.
    """
    limits = {"runtime_policy": "{max_corrections: 5, risk_level: critical, confirm: {from: never}}"}
    seen = victim(root, calls(*wanted), GOES_ON, tools=tools, **(limits | keys))
    assert (seen.result.status, seen.result.output) == ("completed", GOES_ON)
    assert [event.status for event in seen.finished].count("success") == 0
    assert len(seen.finished) == len(seen.result.tool_calls) == len(seen.state.calls) == len(wanted)
    assert [entry.error is not None for entry in seen.result.trace if entry.action.type == "tool"] == [True] * len(
        wanted
    )
    assert sorted(event.result for event in seen.finished) == sorted(seen.tool_results)
    assert not any("Traceback" in text or str(root) in text for text in seen.tool_results)
    return seen.tool_results


def call(tool: str, **arguments: Any) -> tuple[ToolCall, ...]:
    """A turn of one call."""
    return calls((tool, arguments))
