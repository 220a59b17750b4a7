"""A process that dies anywhere in a run repeats no finished call, and one in flight only if that is harmless."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Respond, RunResult, Runtime
from framework.testing import Crash, JsonStore
from framework.types.state import Decision, RunState
from tests.cases import cases
from tests.worlds import Turns, World, project, turns_of


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("trusting"), ask=False)


async def crash_and_resume(
    root: Path, world: World, saves: int, answer: Decision
) -> tuple[RunResult, set[str], set[str], int]:
    """Run until the process dies after some saves, then resume in a new one.

    Returns:
        The result, the calls finished and those in flight at the crash, and how many questions were asked.
    """
    store = JsonStore()
    store.crash_after(saves)
    try:
        async with Runtime.open(
            root, tools=world.tools(), models={"scripted": world.model()}, store=store, watch=False
        ) as runtime:
            return await runtime.run("0", agent="root"), set(), set(), 0
    except Crash:
        pass
    store.crash_after(10**9)
    left = await store.runs()
    if not left:  # died before the first record: nothing was begun
        assert not world.ran
        async with Runtime.open(
            root, tools=world.tools(), models={"scripted": world.model()}, store=store, watch=False
        ) as runtime:
            return await runtime.run("0", agent="root"), set(), set(), 0
    finished, in_flight = _calls(left[0])
    questions = 0
    async with Runtime.open(
        root, tools=world.tools(), models={"scripted": world.model()}, store=store, watch=False
    ) as runtime:
        result = await runtime.resume(left[0].run_id, {})
        while result.status == "paused":
            questions += len(result.pending)
            assert all("outcome is unknown" in asked.reason for asked in result.pending)
            assert {asked.arguments["n"] for asked in result.pending} <= in_flight
            result = await runtime.resume(result.run_id, {asked.id: answer for asked in result.pending})
    return result, finished, in_flight, questions


def _calls(state: RunState) -> tuple[set[str], set[str]]:
    finished: set[str] = set()
    in_flight: set[str] = set()
    for record in state.calls.values():
        if "n" in record.call.arguments and record.started:
            (finished if record.result else in_flight).add(record.call.arguments["n"])
    for child in state.children.values():
        more_finished, more_in_flight = _calls(child)
        finished |= more_finished
        in_flight |= more_in_flight
    return finished, in_flight


@cases(100)
@given(turns=turns_of(2), saves=st.integers(0, 40))
def test_after_a_crash_only_calls_in_flight_can_repeat(trusting: Path, turns: Turns, saves: int) -> None:
    world = World(turns)
    result, finished, in_flight, _ = asyncio.run(crash_and_resume(trusting, world, saves, Approve()))
    assert result.status == "completed"
    assert result.output == "end of 0"
    assert set(world.ran) == world.names()
    repeated = {name for name, times in world.ran.items() if times > 1}
    assert repeated <= in_flight
    assert not repeated & finished


@cases(100)
@given(turns=turns_of(2), saves=st.integers(0, 40))
def test_a_call_that_may_have_taken_effect_is_never_repeated_unasked(trusting: Path, turns: Turns, saves: int) -> None:
    world = World(turns)
    result, _, in_flight, questions = asyncio.run(crash_and_resume(trusting, world, saves, Respond(text="it was done")))
    assert result.status == "completed"
    repeated = {name for name, times in world.ran.items() if times > 1}
    assert len(repeated) + questions <= len(in_flight)
