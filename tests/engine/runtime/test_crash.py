"""After a crash at any point of a run, only calls in flight are repeated, and only if they are idempotent."""

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
from framework.testing import Crash, JsonStore
from framework.types.events import ToolFinished, ToolRequested, read_event
from framework.types.state import Decision, RunState
from tests.support.cases import cases
from tests.support.worlds import Turns, World, project, turns_of


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("asking"), ask=True)


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("trusting"), ask=False)


@dataclass
class Aftermath:
    """Observations before a crash, and the result of the resumed run."""

    result: RunResult | None = None
    finished: set[str] = field(default_factory=set)
    """Calls whose result event was emitted."""
    in_flight: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


async def crash_and_resume(root: Path, world: World, saves: int, answer: Decision) -> Aftermath:
    """Run until the process dies after `saves` writes, then resume in a new one."""
    store = JsonStore()
    aftermath = Aftermath()
    options: dict[str, Any] = {"tools": world.tools(), "store": store, "watch": False}
    store.crash_after(saves)
    try:
        async with Runtime.open(root, models={"scripted": world.model()}, **options) as runtime:
            async with runtime.stream("0", agent="root") as stream:
                async for event in stream:
                    if isinstance(event, ToolFinished) and not event.tool.startswith("agent."):
                        aftermath.finished.add(
                            ".".join(["0", *(key.replace("-", ".") for key in (*event.path, event.id))])
                        )
            aftermath.result = await stream.result()
            return aftermath
    except Crash:
        store.crash_after(10**9)
    left = await store.runs()
    async with Runtime.open(root, models={"scripted": world.model()}, **options) as runtime:
        if not left:  # the process died before the first record, so no run exists
            assert not world.ran
            aftermath.result = await runtime.run("0", agent="root")
            return aftermath
        aftermath.in_flight = set(_in_flight(await store.load_run(left[0].run_id)))
        result = await runtime.resume(left[0].run_id, {})
        while result.status == "paused":
            assert all("whether it took effect is unknown" in asked.reason for asked in result.pending)
            aftermath.asked |= {asked.arguments["n"] for asked in result.pending}
            result = await runtime.resume(result.run_id, {asked.id: answer for asked in result.pending})
    aftermath.result = result
    return aftermath


def _in_flight(state: RunState) -> Iterator[str]:
    for record in state.calls.values():
        if "n" in record.call.arguments and record.started and record.result is None:
            yield record.call.arguments["n"]
    for child in state.children.values():
        yield from _in_flight(child)


@cases(10)
@given(turns=turns_of(2), saves=st.integers(0, 40))
def test_after_a_crash_only_calls_in_flight_can_repeat(trusting: Path, turns: Turns, saves: int) -> None:
    world = World(turns)
    aftermath = asyncio.run(crash_and_resume(trusting, world, saves, Approve()))
    assert aftermath.result is not None
    assert aftermath.result.output == "end of 0"
    assert set(world.ran) == world.names()
    repeated = {name for name, times in world.ran.items() if times > 1}
    assert repeated <= aftermath.in_flight
    assert not repeated & aftermath.finished, "a result is persisted before its event is emitted"


@cases(12)
@given(turns=turns_of(2), saves=st.integers(0, 40), faults=st.lists(st.booleans(), max_size=4))
def test_a_retried_model_call_repeats_no_tool_call_with_or_without_a_crash(
    trusting: Path, turns: Turns, saves: int, faults: list[bool]
) -> None:
    world = World(turns, faults=[False, *faults])
    aftermath = asyncio.run(crash_and_resume(trusting, world, saves, Approve()))
    assert aftermath.result is not None
    assert aftermath.result.output == "end of 0"
    assert set(world.ran) == world.names()
    assert {name for name, times in world.ran.items() if times > 1} <= aftermath.in_flight


@cases(10)
@given(turns=turns_of(2), saves=st.integers(0, 40))
def test_a_call_that_may_have_taken_effect_is_not_repeated_without_approval(
    trusting: Path, turns: Turns, saves: int
) -> None:
    world = World(turns)
    aftermath = asyncio.run(crash_and_resume(trusting, world, saves, Respond(text="it was done")))
    assert aftermath.result is not None
    assert aftermath.result.status == "completed"
    repeated = {name for name, times in world.ran.items() if times > 1}
    assert not repeated & world.names_of("risky")
    assert aftermath.asked == aftermath.in_flight & world.names_of("risky")


async def statuses_of_calls(root: Path, world: World, saves: int) -> dict[tuple[str, ...], list[str]]:
    """Run to the end, with a crash and every approval in processes of their own; return the stored statuses by call."""
    store, decisions = JsonStore(), dict[str, Decision]()
    options: dict[str, Any] = {"tools": world.tools(), "store": store, "watch": False}
    store.crash_after(saves)
    result: RunResult | None = None
    while result is None or result.status == "paused":
        try:
            async with Runtime.open(root, models={"scripted": world.model()}, **options) as runtime:
                left = await store.runs()
                begin = runtime.resume(left[0].run_id, decisions) if left else runtime.run("0", agent="root")
                result = await begin
                decisions = {asked.id: Approve() for asked in result.pending}
        except Crash:
            store.crash_after(10**9)
            decisions = {
                asked.id: Approve() for asked in (await store.load_run((await store.runs())[0].run_id)).pending
            }
    found: dict[tuple[str, ...], list[str]] = {}
    for event in map(read_event, await store.events(result.run_id)):
        if isinstance(event, (ToolRequested, ToolFinished)):
            status = event.status if isinstance(event, ToolRequested) else "ended"
            found.setdefault((*event.path, event.id), []).append(status)
    return found


@cases(8)
@given(turns=turns_of(2), saves=st.integers(1, 40), asks=st.booleans())
def test_each_call_is_pending_before_it_runs_and_ends_once_across_pauses_and_a_crash(
    asking: Path, trusting: Path, turns: Turns, saves: int, *, asks: bool
) -> None:
    world = World(turns)
    found = asyncio.run(statuses_of_calls(asking if asks else trusting, world, saves))
    assert len(found) >= len(world.names())
    for statuses in found.values():
        assert statuses[0] == "pending"
        assert "running" in statuses
        assert statuses.index("ended") == len(statuses) - 1, "once, and nothing follows"
