"""Complete runs in which the model obeys an attacker for one turn and then answers normally."""

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

CONTINUED = "I continued."
"""The model's answer after the attack."""


@dataclass(frozen=True)
class Seen:
    """The result, events, model requests and stored state of a run."""

    result: RunResult
    events: tuple[Event, ...]
    requests: tuple[ModelRequest, ...]
    state: RunState
    """The state as loaded from a store that serializes to JSON."""

    @property
    def tool_results(self) -> list[str]:
        """Tool results as the model received them."""
        return [message.content for message in self.requests[-1].messages if message.role == "tool"]

    @property
    def finished(self) -> list[ToolFinished]:
        """Events of finished calls."""
        return [event for event in self.events if isinstance(event, ToolFinished)]


def nested(depth: int) -> Any:
    """Return a list nested `depth` times."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def victim(root: Path, *turns: Turn, tools: Sequence[Tool] = (), **keys: str) -> Seen:
    """Run an agent whose model replies with `turns`; `keys` are added to its file."""
    write(root, {"agents.d/victim.yaml": agent("victim", **keys)})
    return run(root, *turns, tools=tools)


def run(
    root: Path, *turns: Turn, tools: Sequence[Tool] = (), name: str = "victim", given: JsonStore | None = None
) -> Seen:
    """Run an agent of an existing project, with a store of its own unless one is given."""

    async def main() -> Seen:
        model, store = ScriptedModel(*turns), given or JsonStore()
        opened = Runtime.open(root, tools=tools, models={"scripted": model}, store=store, watch=False)
        async with opened as runtime, runtime.stream("go", agent=name) as stream:
            events = tuple([event async for event in stream])
            result = await stream.result()
        return Seen(result, events, tuple(model.requests), await store.load_run(result.run_id))

    return asyncio.run(main())


def refused(root: Path, *requested: tuple[str, dict[str, Any]], tools: Sequence[Tool] = (), **keys: str) -> list[str]:
    """Have the model request calls that must all be refused; check that the run continues and records each call.

    Returns:
        The result of each call, as the model received it.
    """
    limits = {"runtime_policy": "{max_corrections: 5, risk_level: critical, confirm: {from: never}}"}
    seen = victim(root, calls(*requested), CONTINUED, tools=tools, **(limits | keys))
    assert (seen.result.status, seen.result.output) == ("completed", CONTINUED)
    assert [event.status for event in seen.finished].count("success") == 0
    assert len(seen.finished) == len(seen.result.tool_calls) == len(seen.state.calls) == len(requested)
    assert [entry.error is not None for entry in seen.result.trace if entry.action.type == "tool"] == [True] * len(
        requested
    )
    assert sorted(event.result for event in seen.finished) == sorted(seen.tool_results)
    assert not any("Traceback" in text or str(root) in text for text in seen.tool_results)
    return seen.tool_results


def call(tool: str, **arguments: Any) -> tuple[ToolCall, ...]:
    """Return a turn with one tool call."""
    return calls((tool, arguments))
