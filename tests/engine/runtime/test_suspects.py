"""Runs with one attempt left are resumed one at a time, so that one which crashes its process takes no other along."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime, Tool, tool
from framework.engine.runtime.resume import MAX_RESUME_ATTEMPTS, CrashLoopGuard
from framework.llm.client import ModelRequest
from framework.store.schema import processes as process_rows
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Message
from framework.types.report import Status
from framework.types.state import RunState
from tests.support.cases import cases
from tests.support.clocks import skip
from tests.support.deliveries import Deliveries
from tests.support.stores import LONG_ON_POSTGRESQL
from tests.support.submitted_runs import Gate, opened, project, statuses, until_statuses
from tests.support.waiting import until

RUNS = 4


def hold(request: ModelRequest) -> Turn:
    """Call the tool that waits, then answer."""
    return calls(("hold", {})) if request.messages[-1].role == "user" else "done"


class Crowd:
    """A tool that counts how many of its calls are in progress at once."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.present = self.peak = self.calls = 0

    def tools(self) -> list[Tool]:
        @tool(risk="low", idempotent=True)
        async def hold() -> str:
            """Let the other runs go on for a while."""
            assert self.runtime
            self.present, self.calls = self.present + 1, self.calls + 1
            self.peak = max(self.peak, self.present)
            for _ in range(5):
                await self.runtime.store.runs()
            self.present -= 1
            return "held"

        return [hold]


async def left_with_one_attempt(root: Path, url: str) -> list[str]:
    """Begin runs whose processes end again and again; return their ids."""
    gate = Gate()
    async with opened(root, url, ScriptedModel(script=hold), tools=gate.tools(), grace=0) as runtime:
        ids = [(await runtime.submit("m")).run_id for _ in range(RUNS)]
        await until_statuses(runtime, *["running"] * RUNS)
        await gate.began.wait()
    for _ in range(MAX_RESUME_ATTEMPTS - 1):
        store = await Store.open(url, root)
        for run_id in ids:
            await store.acquire(await store.load_run(run_id), {})
        await end_lease(store)
        await store.close()
    return ids


async def until_orphaned(runtime: Runtime, *run_ids: str) -> None:
    async def look() -> bool:
        return {*run_ids} <= {info.run_id for info in await runtime.orphans()}

    await until(look, "the runs are orphaned")


async def end_lease(store: Store) -> None:
    """Let a process look as if it had been killed long ago."""
    is_own = process_rows.c.id == store._leases.name
    over = sa.update(process_rows).where(is_own).values(lease_until=0, lease_boot=0)
    await store._database.write(partial(_execute, over))


def test_interrupted_runs_are_resumed_one_at_a_time_if_each_has_one_attempt_left(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, crowd = project(tmp_path), Crowd()
        await left_with_one_attempt(root, file_url)
        async with opened(root, file_url, ScriptedModel(script=hold), tools=crowd.tools()) as runtime:
            crowd.runtime = runtime
            while await statuses(runtime) != ["completed"] * RUNS:
                await runtime.resume_orphans()
            assert (crowd.peak, crowd.calls) == (1, RUNS)

    asyncio.run(main())


def test_the_next_run_waits_until_a_step_is_saved_however_long_it_takes(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        await left_with_one_attempt(root, file_url)
        async with opened(root, file_url, ScriptedModel(script=hold), tools=gate.tools()) as runtime:
            resumed: list[str] = []
            while not resumed:
                resumed += await runtime.resume_orphans()
            await gate.began.wait()
            skip(9)  # shorter than the timeout of a tool
            assert await runtime.resume_orphans() == []
            gate.opened.set()
            while await statuses(runtime) != ["completed"] * RUNS:
                await runtime.resume_orphans()

    asyncio.run(main())


def test_a_delivery_of_a_run_that_waits_for_its_turn_begins_another_one(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        root, deliveries, gate = project(tmp_path), Deliveries(), Gate()
        first, second, *_ = await left_with_one_attempt(root, store_url)
        model = ScriptedModel(script=hold)
        async with opened(root, store_url, model, tools=gate.tools(), work=deliveries) as runtime:
            await until_orphaned(runtime, first, second)
            driving = [asyncio.create_task(deliveries.worker.drive(first))]
            await gate.began.wait()
            other = await runtime.submit("m")
            while (await runtime.store.load_run(other.run_id)).status == "queued":
                driving.append(asyncio.create_task(deliveries.worker.drive(second)))
            assert not driving[0].done()
            gate.opened.set()
            await asyncio.wait(driving)
            await deliveries.worker.drive(second)
            assert [(await runtime.result(one)).status for one in (first, second, other.run_id)] == ["completed"] * 3

    asyncio.run(main())


# --- whole histories: processes that crash, with the clock of the loop moved


@dataclass(frozen=True)
class Job:
    """A run: how long its steps take, in seconds, and whether each ends its process."""

    steps: tuple[int, ...]
    arrives_at: int
    is_poison: bool


@dataclass
class Process:
    """A process that executes runs. It is killed without any notice."""

    store: Store
    held: dict[str, RunRecord] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    """When the current step of each run ends, on the clock of the loop."""

    def __post_init__(self) -> None:
        self.crash_loop_guard = CrashLoopGuard(self.store, lambda run_id: not self.held.keys() - {run_id})

    def drop(self, run_id: str) -> None:
        del self.held[run_id], self.until[run_id]
        self.crash_loop_guard.drop(run_id)


class History:
    """Executes jobs in several processes until all have ended."""

    def __init__(self, url: str, jobs: Sequence[Job]) -> None:
        self.url, self.jobs, self.crashes = url, {f"run_{n}": job for n, job in enumerate(jobs)}, 0
        self.states: dict[str, RunState] = {}

    async def execute(self, processes: int) -> Mapping[str, str]:
        """Return how each run ended."""
        living = [Process(await Store.open(self.url, Path("/"))) for _ in range(processes)]
        loop, started = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        waiting = dict(self.jobs)
        for _ in range(1000):
            for run_id in [key for key, job in waiting.items() if started + job.arrives_at <= loop.time()]:
                del waiting[run_id]
                await self._begin(living[len(self.states) % len(living)], run_id)
            for process in living:
                await self._resume(process)
            moments = [started + job.arrives_at for job in waiting.values()]
            moments += [moment for process in living for moment in process.until.values()]
            if not moments:
                break
            skip(max(0.0, min(moments) - loop.time()))
            for n, process in enumerate(living):
                if await self._ended_by_a_step(process):
                    await process.store.close()  # its runs stay with it
                    living[n] = Process(await Store.open(self.url, Path("/")))
        ends = {info.run_id: f"{info.status} {info.finish_reason}" for info in await living[0].store.runs()}
        for process in living:
            await process.store.close()
        return ends

    async def _begin(self, process: Process, run_id: str) -> None:
        message = Message(role="user", content="go")
        state = self.states[run_id] = RunState(run_id=run_id, agent="a", messages=[message])
        process.held[run_id] = await process.store.start(state, None, None)
        self._start_step(process, run_id)

    async def _resume(self, process: Process) -> None:
        await process.store.sweep(100)
        for info in await process.crash_loop_guard.candidates(100):
            if await process.crash_loop_guard.has_crashed(info.run_id, info.attempts):
                await self._end(info.run_id, await self._take(process, info.run_id), "failed", "crashed")
            elif await process.crash_loop_guard.admit(info.run_id, info.attempts):
                process.held[info.run_id] = await self._take(process, info.run_id)
                self._start_step(process, info.run_id)

    async def _take(self, process: Process, run_id: str) -> RunRecord:
        state = self.states[run_id] = await process.store.load_run(run_id)
        return await process.store.acquire(state, {})

    def _start_step(self, process: Process, run_id: str) -> None:
        seconds = self.jobs[run_id].steps[self.states[run_id].steps]
        process.until[run_id] = asyncio.get_running_loop().time() + seconds

    async def _ended_by_a_step(self, process: Process) -> bool:
        """Save the steps that have ended; return whether one of them has ended the process."""
        for run_id in [key for key, moment in process.until.items() if moment <= asyncio.get_running_loop().time()]:
            job, state = self.jobs[run_id], self.states[run_id]
            if job.is_poison:
                self.crashes += 1
                await end_lease(process.store)
                return True
            state.steps += 1
            state.messages.append(Message(role="assistant", content="on"))
            if state.steps == len(job.steps):
                await self._end(run_id, process.held[run_id], "completed", "final")
                process.drop(run_id)
            else:
                await process.held[run_id].write(state)
                self._start_step(process, run_id)
        return False

    async def _end(self, run_id: str, record: RunRecord, status: Status, reason: str) -> None:
        state = self.states[run_id]
        state.status, state.finish_reason = status, reason
        await record.write(state, last=True)


def _execute(statement: sa.Executable, connection: sa.Connection) -> None:
    connection.execute(statement)


jobs = st.builds(
    Job,
    st.lists(st.integers(0, 60), min_size=1, max_size=3).map(tuple),
    st.sampled_from([0, 0, *range(0, 200, 15)]),
    st.sampled_from([False, False, True]),
)


def check_history(url: str, given_jobs: list[Job], processes: int) -> None:
    history = History(url, given_jobs)
    ends = asyncio.run(history.execute(processes))
    expected = {True: "failed crashed", False: "completed final"}
    assert ends == {run_id: expected[job.is_poison] for run_id, job in history.jobs.items()}
    assert history.crashes <= 10 * sum(job.is_poison for job in given_jobs)


@cases(3)
@given(given_jobs=st.lists(jobs, min_size=1, max_size=7), processes=st.integers(1, 3))
def test_only_the_runs_that_end_their_processes_fail(
    tmp_path_factory: pytest.TempPathFactory, given_jobs: list[Job], processes: int
) -> None:
    check_history(f"sqlite:///{tmp_path_factory.mktemp('history')}/state.db", given_jobs, processes)


@pytest.mark.parametrize("processes", [1, 2])
def test_six_runs_with_long_steps_survive_one_that_ends_its_processes(file_url: str, processes: int) -> None:
    check_history(
        file_url, [Job((20, 20), 0, False)] * 3 + [Job((3,), 0, True)] + [Job((20,), 5, False)] * 3, processes
    )


@LONG_ON_POSTGRESQL
def test_two_runs_that_end_their_processes_are_both_found(store_url: str) -> None:
    check_history(store_url, [Job((60, 1), 0, False), Job((7,), 0, True), Job((30,), 0, False), Job((0,), 10, True)], 1)


def test_a_long_step_survives_many_runs_that_end_its_process(file_url: str) -> None:
    """Each of them begins beside it, before it is a suspect itself."""
    check_history(file_url, [Job((60,), 0, False), *(Job((3,), at, True) for at in range(1, 100, 20))], 1)
