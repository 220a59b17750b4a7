"""Scripts with pauses and crashes at any point: no finished call is repeated, and the outcome is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Respond, RunResult, Runtime
from framework.llm.client import ModelRequest
from framework.testing import Crash, JsonStore, Turn
from framework.types.errors import ModelError
from framework.types.messages import ToolCall
from framework.types.state import Decision, RunState
from tests.support.cases import cases
from tests.support.worlds import Call, Turns, World, project, turns_of

SHAPES = (
    "seen.append({call})",
    "for _ in range(1):\n    seen.append({call})",
    "def step():\n    return {call}\nseen.append(step())",
    "seen += [one() for one in [lambda: {call}]]",
    "try:\n    seen.append({call})\nexcept RuntimeError as error:\n    print('failed', error)",
    "key = random.random()\nseen.append({call})\nprint(key, datetime.now())",
)
"""Ways to write a call in a script."""


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("asking"), ask=True, executor="code")


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("trusting"), ask=False, executor="code")


@dataclass
class ScriptWorld(World):
    """A world in which the calls of each turn are one script."""

    shapes: list[str] = field(default_factory=lambda: [SHAPES[0]])

    def _turn(self, request: ModelRequest) -> Turn:
        turn = super()._turn(request)
        if isinstance(turn, (str, ModelError)):
            return turn
        assert isinstance(turn, tuple)
        lines = ["import random", "from datetime import datetime", "seen = []"]
        for index, call in enumerate(turn):
            assert isinstance(call, ToolCall)
            (argument,) = call.arguments.items()
            text = f"{call.tool.replace('.', '__')}({argument[0]}={argument[1]!r})"
            lines.append(self.shapes[index % len(self.shapes)].format(call=text))
        code = "\n".join((*lines, "print(len(seen))", "seen"))
        return (ToolCall(id=turn[0].id, tool="run_script", arguments={"code": code}),)


@dataclass
class Process:
    """One run in a store; each runtime is one process."""

    root: Path
    world: ScriptWorld
    store: JsonStore = field(default_factory=JsonStore)
    in_flight: set[str] = field(default_factory=set)
    asked_twice: set[str] = field(default_factory=set)
    pauses: int = 0

    async def live(self, run_id: str, decisions: dict[str, Decision]) -> RunResult:
        options: dict[str, Any] = {"tools": self.world.tools(), "store": self.store, "watch": False}
        async with Runtime.open(self.root, models={"scripted": self.world.model()}, **options) as runtime:
            return await (runtime.resume(run_id, decisions) if run_id else runtime.run("0", agent="root"))

    async def run(self, crashes: list[int], doubt: Decision) -> RunResult:
        """Run to the end, each pause in a process of its own; after each number of writes in `crashes` it dies."""
        run_id, decisions = "", dict[str, Decision]()
        left = list(crashes)
        while True:
            self.store.crash_after(left.pop(0) if left else 10**9)
            try:
                result = await self.live(run_id, decisions)
            except Crash:
                self.store.crash_after(10**9)
                runs = await self.store.runs()
                run_id = runs[0].run_id if runs else ""
                state = await self.store.load_run(run_id) if run_id else None
                self.in_flight |= set(_in_flight(state)) if state else set()
                decisions = self._decide(state.pending if state and state.status == "paused" else (), doubt)
                continue
            if result.status != "paused":
                return result
            run_id, decisions = result.run_id, self._decide(result.pending, doubt)
            self.pauses += 1

    def _decide(self, pending: Any, doubt: Decision) -> dict[str, Decision]:
        in_doubt = {one.id: "whether it took effect is unknown" in one.reason for one in pending}
        self.asked_twice |= {one.arguments["n"] for one in pending if in_doubt[one.id]}
        return {one.id: doubt if in_doubt[one.id] else Approve() for one in pending}


def _in_flight(state: RunState) -> Iterator[str]:
    for one in state.with_sub_runs():
        started = [record for record in one.calls.values() if record.started and record.result is None]
        yield from (record.call.arguments["n"] for record in started if "n" in record.call.arguments)


SCRIPTS = st.builds(ScriptWorld, turns=turns_of(2), shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))


@cases(4)
@given(world=SCRIPTS, crashes=st.lists(st.integers(0, 30), max_size=3), asks=st.booleans())
def test_scripts_with_pauses_and_crashes_repeat_no_finished_call(
    asking: Path, trusting: Path, world: ScriptWorld, crashes: list[int], *, asks: bool
) -> None:
    process = Process(asking if asks else trusting, world)
    result = asyncio.run(process.run(crashes, Approve()))
    assert (result.status, result.output) == ("completed", "end of 0")
    assert set(world.ran) == world.names()
    repeated = {name for name, times in world.ran.items() if times > 1}
    assert repeated <= process.in_flight


@cases(3)
@given(world=SCRIPTS, crashes=st.lists(st.integers(0, 30), min_size=1, max_size=3), asks=st.booleans())
def test_a_call_of_a_script_that_may_have_taken_effect_is_not_repeated_without_approval(
    asking: Path, trusting: Path, world: ScriptWorld, crashes: list[int], *, asks: bool
) -> None:
    process = Process(asking if asks else trusting, world)
    result = asyncio.run(process.run(crashes, Respond(text="it was done")))
    assert result.status == "completed"
    repeated = {name for name, times in world.ran.items() if times > 1}
    assert not repeated & world.names_of("risky")
    assert process.asked_twice == process.in_flight & world.names_of("risky")


@cases(4)
@given(world=SCRIPTS)
def test_a_script_with_pauses_returns_what_it_returns_without(asking: Path, trusting: Path, world: ScriptWorld) -> None:
    whole = Process(
        trusting,
        ScriptWorld(world.turns, shapes=[shape for shape in world.shapes if "key" not in shape] or [SHAPES[0]]),
    )
    chopped = Process(asking, ScriptWorld(world.turns, shapes=whole.world.shapes))
    results = [asyncio.run(process.run([], Approve())) for process in (whole, chopped)]
    said = [[(message.role, message.content) for message in result.messages] for result in results]
    assert said[0] == said[1]
    assert (whole.pauses, chopped.pauses) == (0, len(world.names_of("risky")))


def test_an_approval_in_a_script_of_a_sub_agent_pauses_the_root(asking: Path) -> None:
    turns: Turns = ((Call("safe"), Call("agent", ((Call("safe"), Call("risky")),)), Call("risky")),)
    process = Process(asking, ScriptWorld(turns))
    result = asyncio.run(process.run([], Approve()))
    assert (result.status, process.pauses) == ("completed", 2)
    assert dict(process.world.ran) == dict.fromkeys(process.world.names(), 1)
